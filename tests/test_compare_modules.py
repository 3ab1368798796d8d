"""Which modules changed: named where the change is, as deep as it is, and never within noise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from programs import ADD, MM, record_of

from proftrack.compare import Comparison, Subject, compare
from proftrack.compare.headline import Findings, headline, where
from proftrack.compare.modules import compare_modules
from proftrack.compare.results import Floor, ModuleChange, Modules, Row, TimeChange
from proftrack.record import Record
from proftrack.record.modules import Module, OwnedWork
from proftrack.report import html, markdown, terminal
from proftrack.report.pages.comparison import page

STEPS = 3
Times = Mapping[str, tuple[float, float]]
"""Path -> forward and backward time of one step, without the modules inside."""
Factor = Callable[[str], tuple[float, float]]
"""Path -> by what its forward and backward times are multiplied."""


@pytest.fixture(scope="module")
def bare() -> Record:
    """A record of three typical steps, without modules."""
    return record_of([MM, ADD], 250)


def llama(layers: int) -> dict[str, tuple[float, float]]:
    """The times of a decoder: 1.5 ms a layer."""
    times: dict[str, tuple[float, float]] = {"": (5, 0), "embed_tokens": (40, 60), "lm_head": (900, 1800)}
    for number in range(layers):
        layer = f"layers.{number}"
        times |= {layer: (20, 20), f"{layer}.norm": (12, 20), f"{layer}.self_attn": (90, 180), f"{layer}.mlp": (8, 12)}
        times |= {f"{layer}.self_attn.{name}_proj": (60, 120) for name in "qkvo"}
        times |= {f"{layer}.mlp.{name}": (150, 300) for name in ("gate_proj", "up_proj", "down_proj")}
    return times


def same(path: str) -> tuple[float, float]:
    return 1, 1


def slower(pattern: str, forward: float, backward: float | None = None) -> Factor:
    """What matches takes longer, with everything inside."""
    factors = forward, forward if backward is None else backward
    return lambda path: factors if re.match(rf"(?:{pattern})(?:\.|$)", path) else (1, 1)


def played(
    bare: Record, times: Times, seed: int, factor: Factor = same, *, noise: float = 0.02, clock: float = 0.03
) -> Record:
    """A recording: each time has its own noise, all have the clock's in common, and short ones vary by 0.3 us."""
    random = np.random.default_rng(seed)
    speed = 1 + random.uniform(-clock, clock)

    def drawn(us: float) -> float:
        return STEPS * max(us * speed * (1 + noise * random.normal()) + 0.3 * (noise > 0) * random.normal(), 0.0)

    rows = []
    for path, (forward, backward) in times.items():
        a, b = factor(path)
        rows.append(
            Module(path=path, class_name="Block", forward_us=drawn(forward * a), backward_us=drawn(backward * b))
        )
    for number in (0, 1):
        path = f"AdamW.group {number}"
        rows.append(Module(path=path, kind="optimizer", class_name="AdamW", optimizer_us=drawn(1000 * factor(path)[0])))
    rows.append(Module(kind="none", other_us=drawn(4)))
    return msgspec.structs.replace(bare, modules=rows)


def changes(before: Record, after: Record, floor: float = 0.105) -> list[ModuleChange]:
    return compare_modules(before, after, floor).changes


def named(before: Record, after: Record) -> list[str]:
    return [change.path for change in changes(before, after)]


# ---- named where it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "factor", "expected"),
    [
        ("a module", slower(r"layers\.3\.mlp", 1.5), ["layers.3.mlp"]),
        ("a little slower", slower(r"layers\.3\.mlp", 1.2), ["layers.3.mlp"]),
        ("faster", slower(r"layers\.3\.mlp", 0.6), ["layers.3.mlp"]),
        ("a leaf", slower(r"layers\.3\.mlp\.down_proj", 1.5), ["layers.3.mlp.down_proj"]),
        ("a whole layer", slower(r"layers\.3", 1.3), ["layers.3"]),
        ("in backward only", slower(r"layers\.3\.self_attn", 1, 1.5), ["layers.3.self_attn"]),
        ("an optimizer's group", slower("AdamW.group 1", 1.5), ["AdamW.group 1"]),
        ("the same in all layers", slower(r"layers\.\d+\.mlp", 1.4), ["layers.*.mlp"]),
        ("all layers", slower(r"layers\.\d+", 1.4), ["layers.*"]),
        ("two", slower(r"layers\.1\.mlp|layers\.3\.self_attn", 1.5), ["layers.1.mlp", "layers.3.self_attn"]),
        ("not in a list", slower("lm_head", 1.3), ["lm_head"]),
        ("what a module does itself", lambda p: (30, 30) if p == "layers.3.mlp" else (1, 1), ["layers.3.mlp"]),
    ],
)
@pytest.mark.parametrize("layers", [6, 24])
def test_the_change_is_named_ten_times_of_ten(
    bare: Record, what: str, factor: Factor, expected: list[str], layers: int
) -> None:
    times = llama(layers)
    for seed in range(10):
        assert named(played(bare, times, seed), played(bare, times, 1000 + seed, factor)) == expected, what


def test_one_layer_stands_out_from_a_change_in_all(bare: Record) -> None:
    def factor(path: str) -> tuple[float, float]:
        return (
            slower(r"layers\.5\.mlp", 4)(path)
            if path.startswith("layers.5")
            else slower(r"layers\.\d+\.mlp", 1.3)(path)
        )

    found = changes(played(bare, llama(16), 1), played(bare, llama(16), 2, factor))
    assert [(change.path, change.members) for change in found] == [("layers.*.mlp", 15), ("layers.5.mlp", 1)]


@pytest.mark.parametrize("noise", [0.005, 0.05])
@pytest.mark.parametrize("layers", [2, 16])
def test_two_recordings_of_the_same_code_name_nothing(bare: Record, noise: float, layers: int) -> None:
    times = llama(layers)
    for seed in range(20):
        pair = (played(bare, times, 2 * seed + side, noise=noise) for side in (0, 1))
        assert named(*pair) == []


def test_an_identical_pair_names_nothing_and_says_so(bare: Record) -> None:
    record = played(bare, llama(4), 0)
    comparison = against(record, record)
    assert comparison.modules == []
    assert "No module changed by more than noise" in terminal.text(page(comparison))


def random_tree(random: np.random.Generator, depth: int = 4) -> dict[str, tuple[float, float]]:
    """Two to six children each, some numbered; most times between 3 us and 1 ms."""
    times: dict[str, tuple[float, float]] = {}

    def grow(path: str, below: int) -> None:
        children = 0 if not below or (below < depth - 1 and random.random() < 0.25) else int(random.integers(2, 7))
        if not children or random.random() < 0.5:
            us = float(np.exp(random.uniform(1, 7)))
            times[path] = (us / 3, us * 2 / 3)
        names = "012345" if random.random() < 0.3 else "abcdef"
        for name in names[:children]:
            grow(f"{path}.{name}" if path else name, below - 1)

    grow("", depth)
    return times


def test_in_random_trees_a_slow_module_is_named_first(bare: Record) -> None:
    """100 trees, a module of 1 to 50 % of all time takes twice as long. `path.*` is as good as `path`."""
    tried = right = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        times = random_tree(random)
        whole = sum(map(sum, times.values()))
        inclusive = {
            path: sum(sum(us) for other, us in times.items() if f"{other}.".startswith(f"{path}.")) for path in times
        }
        possible = [path for path, us in inclusive.items() if path and 0.01 * whole < us < 0.5 * whole]
        if not possible:
            continue
        path = possible[int(random.integers(len(possible)))]
        found = named(played(bare, times, seed), played(bare, times, 1000 + seed, slower(re.escape(path), 2)))
        tried += 1
        right += bool(found) and found[0] in (path, f"{path}.*")
    assert tried > 90
    assert right >= 0.97 * tried


# ---- what it says ----------------------------------------------------------------------------------------------------


def against(before: Record, after: Record) -> Comparison:
    return compare(Subject(record=before, label="a"), Subject(record=after, label="b"))


def owned(operator: str, us: float, calls: int, part: str = "backward") -> OwnedWork:
    return OwnedWork(operator=operator, kernel="gemm", part=part, calls=STEPS * calls, busy_us=STEPS * us)  # type: ignore[arg-type]


def layers_of(bare: Record, slow: Module | None = None) -> Record:
    """Eight layers, each 100 us forward and 200 us backward, all in `mlp`; of layer 7, `slow`."""
    rows = [
        Module(path=f"layers.{i}.mlp", class_name="MLP", calls=STEPS, forward_us=STEPS * 100, backward_us=STEPS * 200)
        for i in range(8)
    ]
    rows[7] = slow or msgspec.structs.replace(rows[7], largest=[owned("aten::addmm", 100, 2)])
    return msgspec.structs.replace(bare, modules=rows)


@pytest.fixture
def slow_layer(bare: Record) -> Comparison:
    """Layer 7: 70 us more forward, 240 us more backward, there by two more calls of aten::addmm."""
    slow = Module(
        path="layers.7.mlp",
        class_name="WideMLP",
        calls=STEPS,
        forward_us=STEPS * 170,
        backward_us=STEPS * 440,
        largest=[owned("aten::addmm", 340, 4)],
    )
    return against(layers_of(bare), layers_of(bare, slow))


def test_figures_are_per_step_and_by_pass(slow_layer: Comparison) -> None:
    (change,) = slow_layer.modules
    assert (change.path, change.status, change.before_us, change.after_us) == ("layers.7.mlp", "slower", 300, 610)
    assert change.parts == {"forward": 70, "backward": 240}
    assert (change.class_name, change.old_class) == ("WideMLP", "MLP")
    (work,) = change.work
    assert (work.operator, work.change_us, work.calls_before, work.calls_after) == ("aten::addmm", 240, 2, 4)


def test_the_first_line_and_the_table_name_it(slow_layer: Comparison) -> None:
    said = "layers.7.mlp takes 310 us longer, of it 240 us in backward and 70 us in forward (aten::addmm)"
    assert said in slow_layer.headline
    text = terminal.text(page(slow_layer))
    assert re.search(r"layers\.7\.mlp +300 us +610 us +\+310 us +backward 240 us, forward 70 us", text)
    assert "class MLP -> WideMLP; aten::addmm (gemm) +240 us, 2 -> 4 calls" in " ".join(text.split())


def test_every_form_has_it(slow_layer: Comparison) -> None:
    document = page(slow_layer)
    for text in (markdown.render(document), html.render(document)):
        assert "layers.7.mlp" in text
        assert "+310 us" in text
    shown: dict[str, Any] = json.loads(msgspec.json.encode(slow_layer))
    assert [(each["path"], each["after_us"] - each["before_us"]) for each in shown["modules"]] == [
        ("layers.7.mlp", 310)
    ]
    inclusive = {row["path"]: (row["before_us"], row["after_us"]) for row in shown["module_rows"]}
    assert inclusive["layers"] == (2400, 2710)
    assert inclusive["layers.7"] == (300, 610)


# ---- what is on one side only ----------------------------------------------------------------------------------------


def with_modules(bare: Record, times: Times, **classes: str) -> Record:
    rows = [
        Module(
            path=path, class_name=classes.get(path.rpartition(".")[2], ""), forward_us=STEPS * a, backward_us=STEPS * b
        )
        for path, (a, b) in times.items()
    ]
    return msgspec.structs.replace(bare, modules=rows)


def plain(layers: int, prefix: str = "", mlp: str = "mlp") -> dict[str, tuple[float, float]]:
    times = {f"{prefix}layers.{i}.{name}": (50.0, 70.0) for i in range(layers) for name in ("attn", mlp)}
    return {f"{prefix}embed": (10, 0), **times, "head": (100, 200)}


def test_a_new_layer_and_one_that_is_gone(bare: Record) -> None:
    short, long = with_modules(bare, plain(4)), with_modules(bare, plain(5))
    (added,) = changes(short, long)
    assert (added.path, added.status, added.change_us) == ("layers.4", "added", 240)
    (gone,) = changes(long, short)
    assert (gone.path, gone.status, gone.change_us) == ("layers.4", "gone", -240)
    assert "layers.4 is new, 240 us a step" in against(short, long).headline


@pytest.mark.parametrize(("before", "after"), [("", "model."), ("model.", ""), ("a.b.", "module.")])
def test_paths_are_joined_without_a_prefix(bare: Record, before: str, after: str) -> None:
    found = compare_modules(with_modules(bare, plain(4, before)), with_modules(bare, plain(4, after)), 0.1)
    assert found.changes == []
    assert {row.path for row in found.rows} >= {"layers.3.mlp", "embed", "head"}
    assert all(row.before_us == row.after_us for row in found.rows)
    assert found.notes[0].startswith("Modules are joined without `")


def test_a_path_of_thousands_of_parts_is_compared(bare: Record) -> None:
    deep = ".".join("a" * 5000)
    before, after = plain(4) | {deep: (10, 10)}, plain(4) | {f"{deep}.b": (10, 10)}
    found = compare_modules(with_modules(bare, before), with_modules(bare, after), 0.1)
    assert found.changes == []
    assert {row.path for row in found.rows} >= {"layers.3.mlp", "embed", "head"}


def test_a_slow_layer_is_found_behind_a_prefix(bare: Record) -> None:
    times = plain(6, "model.")
    times["model.layers.2.mlp"] = (100, 140)
    assert named(with_modules(bare, plain(6)), with_modules(bare, times)) == ["layers.2.mlp"]


def test_a_sibling_of_the_same_class_with_another_name_is_the_same_module(bare: Record) -> None:
    before = with_modules(bare, plain(4), mlp="MLP", attn="Attention")
    after = with_modules(bare, plain(4, mlp="ffn"), ffn="MLP", attn="Attention")
    found = compare_modules(before, after, 0.1)
    assert found.changes == []
    assert found.notes == ["Joined although renamed: layers.0.mlp is now layers.0.ffn and 3 more."]


def test_a_module_made_of_others_is_one_change(bare: Record) -> None:
    """Of the 120 us of layer 1, all is gone; 160 us came."""
    before = {f"blocks.{i}.{name}": (40.0, 20.0) for i in range(5) for name in ("conv", "norm")}
    after = {path: us for path, us in before.items() if not path.startswith("blocks.1")}
    after |= {"blocks.1.attn": (60, 60), "blocks.1.mlp": (20, 20)}
    (change,) = changes(with_modules(bare, before), with_modules(bare, after))
    assert (change.path, change.status, change.change_us) == ("blocks.1", "rebuilt", 40)


def compiled_model(bare: Record) -> Record:
    row = Module(path="compiled 0/0", kind="compiled", forward_us=STEPS * 500, backward_us=STEPS * 600)
    return msgspec.structs.replace(bare, modules=[Module(path="", forward_us=3), row])


def test_compiled_on_one_side_is_not_comparable(bare: Record) -> None:
    found = compare_modules(with_modules(bare, plain(4)), compiled_model(bare), 0.1)
    assert found.notes == [
        "Modules are not comparable: in the candidate, compiled regions own 99.9 % of the time there, of which no "
        "module is known."
    ]
    assert [row.path for row in found.rows] == [""]
    assert [change.path for change in found.changes] == [""]


def test_compiled_on_both_sides_is_compared(bare: Record) -> None:
    assert named(compiled_model(bare), compiled_model(bare)) == []


def compiled_layers(bare: Record, number: str, us: float = 500) -> Record:
    """Four layers, each compiled by itself; the second takes `us`."""
    rows = [
        Module(path=f"layers.{i}.compiled {number}", kind="compiled", forward_us=STEPS * (us if i == 1 else 500))
        for i in range(4)
    ]
    return msgspec.structs.replace(bare, modules=[Module(path="head", forward_us=STEPS * 90), *rows])


@pytest.mark.parametrize("number", ["1/0", "1/1", "2/0"])
def test_a_compiled_region_with_another_number_is_the_same(bare: Record, number: str) -> None:
    """Numbers depend on what else was compiled before."""
    found = compare_modules(compiled_layers(bare, "1/0"), compiled_layers(bare, number), 0.1)
    assert found.changes == []
    assert all(row.before_us == row.after_us for row in found.rows)
    slow = compiled_layers(bare, number, 700)
    assert named(compiled_layers(bare, "1/0"), slow) == [f"layers.1.compiled {number}"]


def test_a_compiled_region_is_called_what_its_path_says(bare: Record) -> None:
    rows = [Module(path="compiled 0/0", kind="compiled", forward_us=STEPS * us) for us in (500, 900)]
    before, after = (msgspec.structs.replace(bare, modules=[row]) for row in rows)
    assert ": compiled 0/0 takes 400 us longer" in against(before, after).headline


def test_another_model_is_said_though_its_time_is_the_same(bare: Record) -> None:
    old = with_modules(bare, {"": (1, 1), **plain(4, "bert.")})
    other = {"": (1, 1), "h.0.mix": (90, 110), "h.1.mix": (90, 110), "wte": (150, 200), "out": (120, 180)}
    slow = Module(path="AdamW", kind="optimizer", optimizer_us=STEPS * 300)
    fast = msgspec.structs.replace(slow, optimizer_us=STEPS * 100)
    new = with_modules(bare, other)
    before, after = (
        msgspec.structs.replace(record, modules=[*record.modules, row]) for record, row in ((old, fast), (new, slow))
    )
    first, second = changes(before, after, floor=0.5)
    assert (first.path, first.status) == ("", "rebuilt")
    assert (second.path, second.status) == ("AdamW", "slower")


def test_three_passes_are_a_list() -> None:
    change = ModuleChange(
        path="layers.0",
        kind="module",
        class_name="",
        status="slower",
        before_us=10,
        after_us=310,
        parts={"forward": 100, "backward": 130, "recompute": 70},
    )
    assert (
        where(change)
        == "layers.0 takes 300 us longer, of it 130 us in backward, 100 us in forward and 70 us in recompute"
    )


@pytest.mark.parametrize(
    ("idle_us", "module_us", "order"),
    [
        (900, 40, ["launch time"]),
        (900, 300, ["launch time", "head"]),
        (500, 400, ["head", "launch time"]),
        (60, 900, ["head", "launch time"]),
    ],
)
def test_a_module_comes_first_only_if_it_is_the_reason(idle_us: float, module_us: float, order: list[str]) -> None:
    """Of a step that takes 1 ms longer, 5 ms in all, launches take `idle_us`, a module `module_us` more."""
    findings = Findings(
        time=TimeChange(
            metric="step_time_us",
            before_us=4000,
            after_us=5000,
            ratio=1.25,
            interval=None,
            within=None,
            floor=Floor(fraction=0.05, source="given"),
            word="regressed",
            reason="",
        ),
        rows=[Row(part="idle", name="dispatch", status="more", before_us=100, after_us=100 + idle_us)],
        counts=[],
        counters=[],
        host=[],
        modules=[
            ModuleChange(
                path="head",
                kind="module",
                class_name="",
                status="slower",
                before_us=500,
                after_us=500 + module_us,
                parts={},
            )
        ],
        tried=[],
        profiled=False,
        same_data=False,
    )
    causes = headline(findings).partition("): ")[2].split("; ")
    assert [cause.split(" grew")[0].split(" takes")[0] for cause in causes] == order


@pytest.mark.parametrize("side", ["baseline", "candidate"])
@pytest.mark.parametrize("optimizer", [False, True])
def test_a_record_without_modules(bare: Record, side: str, optimizer: bool) -> None:
    """Without marks, an optimizer is still an owner, and all that the modules took is nobody's."""
    record = with_modules(bare, plain(4))
    rows = [
        Module(path="AdamW", kind="optimizer", optimizer_us=STEPS * 300),
        Module(kind="none", other_us=STEPS * 900),
    ]
    other = msgspec.structs.replace(bare, modules=rows) if optimizer else bare
    found = compare_modules(*((other, record) if side == "baseline" else (record, other)), 0.1)
    assert found == Modules(
        notes=[f"Modules are not compared: the {side} has none (profiler.modules, or an older version)."]
    )
    assert compare_modules(other, other, 0.1).notes == []
    assert compare_modules(bare, bare, 0.1) == Modules()
    rows = [Module(path="AdamW", kind="optimizer", optimizer_us=60), Module(kind="none", backward_us=900)]
    unmarked = msgspec.structs.replace(bare, modules=rows)
    pair = (unmarked, record) if side == "baseline" else (record, unmarked)
    assert compare_modules(*pair, 0.1) == found  # and not: nobody's work takes 900 us longer
    assert compare_modules(unmarked, unmarked, 0.1).rows


def test_times_of_gpu_and_host_are_not_compared(bare: Record) -> None:
    record = with_modules(bare, plain(4))
    on_host = msgspec.structs.replace(record, times=msgspec.structs.replace(record.times, gpu_busy_per_step_us=None))
    for both in ((record, on_host), (on_host, record)):
        found = compare_modules(*both, 0.1)
        assert found == Modules(notes=["Modules are not compared: one side has GPU times, the other only the host's."])


# ---- noise -----------------------------------------------------------------------------------------------------------


def test_one_long_call_in_one_step_is_no_change(bare: Record) -> None:
    """In one of three steps 600 us more: 200 us on average, but the median step takes what it took."""
    row = Module(path="layers.7.mlp", class_name="MLP", forward_us=STEPS * 300, backward_us=STEPS * 200)
    once = msgspec.structs.replace(row, typical_us=300, deviation_us=0)
    assert named(layers_of(bare), layers_of(bare, row)) == ["layers.7.mlp"]
    assert named(layers_of(bare), layers_of(bare, once)) == []


def test_steps_that_differ_make_a_module_uncertain(bare: Record) -> None:
    """300 us a step, then 500 us; with a deviation of 100 us, 58 us after three steps, that is under five of them."""
    row = Module(path="layers.7.mlp", class_name="MLP", forward_us=STEPS * 300, backward_us=STEPS * 200, typical_us=500)
    steady, shaky = (msgspec.structs.replace(row, deviation_us=us) for us in (5, 100))
    assert named(layers_of(bare), layers_of(bare, steady)) == ["layers.7.mlp"]
    assert named(layers_of(bare), layers_of(bare, shaky)) == []


@pytest.mark.parametrize(("layers", "expected"), [(4, []), (40, ["layers.1"])])
def test_few_modules_tell_less_of_noise(bare: Record, layers: int, expected: list[str]) -> None:
    """100 us, then 106 us, where two recordings agree to 0.72 us: 15 times that with 4 modules, 6 times with 40."""
    before = {f"layers.{i}": (100.0, 0.0) for i in range(layers)}
    after = {**before, "layers.1": (106.0, 0.0)}
    assert named(with_modules(bare, before), with_modules(bare, after)) == expected


def test_what_is_most_of_a_model_has_to_exceed_the_floor(bare: Record) -> None:
    """The mlps are half of all time; 8 % more of all of them may be the clock, 8 % of one may not."""
    before = plain(8)
    all_of_them = {path: (a * 1.08, b * 1.08) if path.endswith("mlp") else (a, b) for path, (a, b) in before.items()}
    one_of_them = {path: (a * 1.08, b * 1.08) if path == "layers.3.mlp" else (a, b) for path, (a, b) in before.items()}
    records = [with_modules(bare, times) for times in (before, all_of_them, one_of_them)]
    assert [change.path for change in changes(records[0], records[1], floor=0.105)] == []
    assert [change.path for change in changes(records[0], records[1], floor=0.03)] == ["layers.*.mlp"]
    assert [change.path for change in changes(records[0], records[2], floor=0.105)] == ["layers.3.mlp"]


def test_one_of_several_large_modules_does_not_have_to_exceed_the_floor(bare: Record) -> None:
    """An mlp of three is 12 % of all time: the other two tell the clock. Nor has more than half to be exceeded."""
    three, eight = plain(3), plain(8)
    one = with_modules(bare, {**three, "layers.1.mlp": (55.0, 77.0)})
    assert [change.path for change in changes(with_modules(bare, three), one, floor=0.105)] == ["layers.1.mlp"]
    slow = {path: (a * 1.6, b * 1.6) if path.endswith("mlp") else (a, b) for path, (a, b) in eight.items()}
    found = changes(with_modules(bare, eight), with_modules(bare, slow), floor=0.8)
    assert [change.path for change in found] == ["layers.*.mlp"]


def test_a_slower_clock_names_nothing(bare: Record) -> None:
    times = plain(8)
    slow = {path: (a * 1.09, b * 1.09) for path, (a, b) in times.items()}
    assert named(with_modules(bare, times), with_modules(bare, slow)) == []
    but_one = {**slow, "layers.3.mlp": times["layers.3.mlp"]}  # it did not change, though it did not follow the clock
    assert named(with_modules(bare, times), with_modules(bare, but_one)) == []


def test_two_modules_tell_nothing_of_noise(bare: Record) -> None:
    before = {"a": (100.0, 0.0), "b": (100.0, 0.0)}
    for us, expected in ((108.0, []), (150.0, ["b"])):
        assert named(with_modules(bare, before), with_modules(bare, {**before, "b": (us, 0.0)})) == expected

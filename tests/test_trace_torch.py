"""What torch itself writes: names that break its JSON come back, and totals are those of its own table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from traces import flags

from proftrack.measures import measure
from proftrack.trace.reader import read

torch = pytest.importorskip("torch")

AS_THEY_ARE = [
    'a "quoted" name',
    '"',
    '"all of it"',
    '{"device": "cpu"}(12): run',
    'f("x", "y": 2)',
    'a, "ph": "X"',
    "}, {",
    "], }",
    "nan, inf: N/A",
    "<script>alert(1)</script>",
    "=cmd()",
    "../../x",
    "x" * 3000,
    "%s {} [bold]",
]
ALTERED = ["caf\u00e9 \u4e2d", "tab\there", "esc\x1b[31m", "new\nline", "back\\slash", "end\\", "nul\x00"]
"""torch replaces some characters of these, or the whole name, depending on its version."""


def profiled(path: Path, names: list[str]) -> Any:
    """Export a trace of two steps with these regions; returns the profiler."""
    x = torch.randn(8, 8)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True
    ) as profiler:
        for _ in range(3):
            for name in names:
                with torch.profiler.record_function(name):
                    torch.mm(x, x)
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return profiler


def test_names_that_break_the_export_come_back(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    profiled(path, [*AS_THEY_ARE, *ALTERED])
    measures = measure(read(path).table)
    regions = {r.name: r.calls for r in measures.regions}
    assert {name: regions.get(name) for name in AS_THEY_ARE} == dict.fromkeys(AS_THEY_ARE, 2)
    assert sum(regions.values()) == 2 * (len(AS_THEY_ARE) + len(ALTERED))
    assert next(o.calls for o in measures.ops if o.name == "aten::mm") == 2 * (len(AS_THEY_ARE) + len(ALTERED))
    assert measures.window.steps == 2
    assert set(flags(measures)) <= {"repaired_json", "uneven_steps"}


def test_self_cpu_is_that_of_torchs_own_table(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    profiler = profiled(path, ["plain"])
    totals = measure(read(path).table).totals
    # torch sums in whole nanoseconds since 2.5, and prints microseconds with three decimals.
    assert totals.self_cpu_time_total_us == pytest.approx(profiler.key_averages().self_cpu_time_total, rel=1e-3)

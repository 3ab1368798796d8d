"""How often `proftrack compare` names a layer that was slowed down first, and what it names if nothing was.

    python benchmarks/slowed_layer.py [--device auto] [--repeats 4] [--model llama ...] [--how twice ...] [--seconds S]
        [--json FILE] [--keep FOLDER]

Models from transformers with random weights, three in training and one in inference. Each repeat records a model twice
as it is, and once for each of these changes to one module of one of its layers, each time built anew:

    twice     the module computes everything twice
    matmul    a product of its own beside what it calls
    backward  a product in its backward pass only

Prints for each model and kind of change how often the first module that compare names is that one, how often it is one
inside it, and how often the two recordings of the same model name nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "profiling"))

import msgspec  # noqa: E402
import torch  # noqa: E402
from torch.profiler import ProfilerActivity, profile, schedule  # noqa: E402

from proftrack.analysis.pipeline import analyze_trace  # noqa: E402
from proftrack.capture.marks import marked  # noqa: E402
from proftrack.compare import Subject, compare  # noqa: E402
from proftrack.record import Record  # noqa: E402

SCHEDULE = {"wait": 0, "warmup": 2, "active": 3, "repeat": 1}


class Model(NamedTuple):
    """A model and what it is fed."""

    build: Callable[[int], torch.nn.Module]
    """From a width."""
    inputs: Callable[[int], dict[str, Any]]
    """From a number of tokens."""
    module: str
    """Path of the module to slow down, with {} for the number of its layer."""
    trains: bool = True


LAYERS = 8
VOCABULARY = 1000


def _tokens(count: int) -> dict[str, Any]:
    ids = torch.randint(0, VOCABULARY, (4, count))
    return {"input_ids": ids, "labels": ids}


def _llama(width: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, vocab_size=VOCABULARY, **sizes))


def _gpt2(width: int) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, n_embd=width, n_head=4, vocab_size=VOCABULARY))


def _bert(width: int) -> torch.nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 4}
    return BertForMaskedLM(BertConfig(num_hidden_layers=LAYERS, vocab_size=VOCABULARY, **sizes))


MODELS = {
    "llama": Model(_llama, _tokens, "model.layers.{}.mlp"),
    "gpt2": Model(_gpt2, _tokens, "transformer.h.{}.attn"),
    "bert": Model(_bert, _tokens, "bert.encoder.layer.{}.attention"),
    "llama inference": Model(_llama, _tokens, "model.layers.{}.self_attn", trains=False),
}


# ---- slower ----------------------------------------------------------------------------------------------------------


def _twice(module: torch.nn.Module, width: int) -> None:
    plain = type(module)

    class Twice(plain):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            super().forward(*args, **kwargs)
            return super().forward(*args, **kwargs)

    module.__class__ = Twice


def _twice_trained(module: torch.nn.Module, width: int) -> None:
    """Both results count, so that backward runs through both."""
    plain = type(module)

    class Twice(plain):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            first, second = super().forward(*args, **kwargs), super().forward(*args, **kwargs)
            if isinstance(first, tuple):
                return ((first[0] + second[0]) / 2, *second[1:])
            return (first + second) / 2

    module.__class__ = Twice


def _matmul(module: torch.nn.Module, width: int) -> None:
    plain = type(module)
    module.register_buffer("slow", torch.randn(width, 4 * width))

    class WithProduct(plain):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            states = args[0] if args else kwargs["hidden_states"]
            (states.detach() @ self.slow) @ self.slow.T
            return super().forward(*args, **kwargs)

    module.__class__ = WithProduct


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Any, weight: Any) -> Any:
        ctx.save_for_backward(weight)
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (weight,) = ctx.saved_tensors
        (grads[0] @ weight) @ weight.T
        return grads[0], None


def _backward(module: torch.nn.Module, width: int) -> None:
    plain = type(module)
    module.register_buffer("slow", torch.randn(width, 4 * width))

    class SlowBackward(plain):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            found = super().forward(*args, **kwargs)
            states = found[0] if isinstance(found, tuple) else found
            slow = _SlowBackward.apply(states, self.slow)
            return (slow, *found[1:]) if isinstance(found, tuple) else slow

    module.__class__ = SlowBackward


HOW = {"twice": _twice_trained, "matmul": _matmul, "backward": _backward}


# ---- recordings ------------------------------------------------------------------------------------------------------


def recorded(name: str, trace: Path, device: str, slow: tuple[str, str] | None = None) -> Record:
    """The record of a few steps. `slow`: the kind of change, and the path of the module."""
    model = MODELS[name]
    on_gpu = device == "cuda"
    width, tokens = (1024, 512) if on_gpu else (128, 64)
    torch.manual_seed(0)
    network = model.build(width)
    inputs = {key: value.to(device) for key, value in model.inputs(tokens).items()}
    if slow is not None:
        how = _twice if slow[0] == "twice" and not model.trains else HOW[slow[0]]
        how(network.get_submodule(slow[1]), width)
    network = network.to(device, torch.bfloat16 if on_gpu else torch.float32).train(model.trains)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)

    def step() -> None:
        loss = network(**inputs).loss
        if model.trains:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    with torch.set_grad_enabled(model.trains):
        for _ in range(5):
            step()
        return analyze_trace(profiled(step, on_gpu, trace)).record


def profiled(step: Callable[[], None], on_gpu: bool, trace: Path) -> Path:
    """Write the trace of a few steps, as `proftrack run` records them: without its timing, which is not needed here."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with marked(step), profile(activities=kinds, record_shapes=True, schedule=schedule(**SCHEDULE)) as profiler:
        for number in range(SCHEDULE["warmup"] + SCHEDULE["active"]):
            if number == SCHEDULE["warmup"] - 1:
                end = time.monotonic() + (0.1 if on_gpu else 0)  # the GPU's clocks have dropped meanwhile
                while time.monotonic() < end:
                    step()
            step()
            if on_gpu:
                torch.cuda.synchronize()
            if number < SCHEDULE["warmup"] + SCHEDULE["active"] - 1:
                profiler.step()
    profiler.export_chrome_trace(str(trace))
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--how", nargs="+", default=list(HOW), choices=HOW)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no repeat after this many")
    parser.add_argument("--json", type=Path, help="write a line for each pair")
    parser.add_argument("--keep", type=Path, help="keep the records in this folder")
    options = parser.parse_args()
    begin, lines = time.monotonic(), []
    if options.device == "cpu":
        torch.set_num_threads(1)
    choose = random.Random(0)
    counts: dict[tuple[str, str], Counter[str]] = {}
    with tempfile.TemporaryDirectory() as below:
        number = 0

        def record(name: str, slow: tuple[str, str] | None = None) -> Record:
            nonlocal number
            number += 1
            found = recorded(name, Path(below) / f"{number}.json.gz", options.device, slow)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                what = "-".join([name, *(slow or ["same"])]).replace(" ", "_")
                (options.keep / f"{number:03}-{what}.json").write_bytes(msgspec.json.encode(found))
            return found

        for name in options.model:  # the first of its kind in a process differs from all others
            recorded(name, Path(below) / "first.json.gz", options.device)
        for _ in range(options.repeats):
            for name in options.model:
                if time.monotonic() - begin > options.seconds:
                    continue
                first, second = record(name), record(name)
                lines.append(judged(name, "same", "", first, second, counts))
                for how in options.how:
                    if how == "backward" and not MODELS[name].trains:
                        continue
                    path = MODELS[name].module.format(choose.randrange(LAYERS))
                    lines.append(judged(name, how, path, second, record(name, (how, path)), counts))
    for (name, how), found in counts.items():
        print(f"{name:16} {how:10} {dict(found)}")
    if options.json:
        options.json.write_text("\n".join(json.dumps(line) for line in lines))


def judged(
    name: str, how: str, path: str, before: Record, after: Record, counts: dict[tuple[str, str], Counter[str]]
) -> dict[str, Any]:
    """One pair, as a line; what was named is counted."""
    found = compare(Subject(record=before, label="base"), Subject(record=after, label=how))
    named = [change.path for change in found.modules]
    first = named[0] if named else None
    if not path:
        word = "names nothing" if first is None else "names something"
    elif first is None:
        word = "names nothing"
    else:
        word = "first" if first == path else "inside first" if f"{first}.".startswith(f"{path}.") else "another first"
    counts.setdefault((name, how), Counter())[word] += 1
    line = {
        "model": name,
        "how": how,
        "path": path,
        "result": word,
        "named": [
            (change.path, change.kind, round(change.before_us, 1), round(change.after_us, 1))
            for change in found.modules[:6]
        ],
        "rows": len(found.module_rows),
        "headline": found.headline,
        "notes": found.module_notes,
    }
    print(f"{name} {how} {path}: {word}; {line['named'][:3]}", flush=True)
    return line


if __name__ == "__main__":
    main()

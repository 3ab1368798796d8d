"""Rows of modules made by hand, and records that have them, for tests of what shows them."""

from __future__ import annotations

from typing import Any

import msgspec
from run_folders import make_record

from proftrack.record import Record
from proftrack.record.modules import Module, OwnedWork, Pass

STEPS = 3
"""Typical steps of the records here: the times in the rows are those of all of them."""


def work(kernel: str, us: float, part: Pass = "forward", operator: str = "aten::mm", calls: int = STEPS) -> OwnedWork:
    return OwnedWork(operator=operator, kernel=kernel, part=part, calls=calls, busy_us=us)


def module(path: str, class_name: str = "", forward: float = 0.0, backward: float = 0.0, **more: Any) -> Module:
    """A row called once a step."""
    rest = {"calls": STEPS, **more}
    return Module(path=path, class_name=class_name, forward_us=forward, backward_us=backward, **rest)


def record(modules: list[Module], **changes: Any) -> Record:
    """A record with these rows, whose B is their sum over the steps."""
    ordered = sorted(modules, key=lambda each: -each.busy_us)
    made = make_record(modules=ordered, **changes)
    busy = sum(each.busy_us for each in ordered) / STEPS
    return msgspec.structs.replace(made, times=msgspec.structs.replace(made.times, gpu_busy_per_step_us=busy))


def llama(layers: int = 32, checkpointed: bool = False) -> list[Module]:
    """
    Three steps of a training. A layer: mlp 3 x (60 + 120), its act 10 + 20, self_attn 30 + 60, 4 x (20 + 40) in its
    projections, two norms 5 + 10: forward 310, backward 620, recompute 310 if checkpointed.
    Above the layers: the root 30 + 60 (its loss), model 6, embed_tokens 12 + 60, norm 6 + 12, lm_head 300 + 600.
    The optimizer: 480 and 12. Nothing or regions: 60 in other passes, 9 without an owner.
    """
    step = work("multi_tensor", 480, "optimizer", "aten::_fused_adamw_")
    loss = work("log_softmax", 60, "backward", "aten::nll_loss_backward")
    rows = [
        module("", "LlamaForCausalLM", 30, 60, largest=[loss]),
        module("model", "LlamaModel", 6),
        module("model.embed_tokens", "Embedding", 12, 60),
        module("model.norm", "LlamaRMSNorm", 6, 12),
        module("lm_head", "Linear", 300, 600, largest=[work("gemm_128x256", 600, "backward"), work("gemm_64", 300)]),
        module("AdamW.group 0", "", kind="optimizer", optimizer_us=480.0, largest=[step]),
        module("AdamW.no decay", "", kind="optimizer", optimizer_us=12.0),
        module("clip", "", kind="region", other_us=60.0),
        Module(kind="none", other_us=6.0, backward_us=3.0),
    ]
    for i in range(layers):
        at = f"model.layers.{i}"
        parts = [
            (at, "LlamaDecoderLayer", 0.0),
            (f"{at}.self_attn", "LlamaAttention", 30.0),
            *((f"{at}.self_attn.{name}_proj", "Linear", 20.0) for name in "qkvo"),
            (f"{at}.mlp", "LlamaMLP", 0.0),
            *((f"{at}.mlp.{name}_proj", "Linear", 60.0) for name in ("gate", "up", "down")),
            (f"{at}.mlp.act_fn", "SiLU", 10.0),
            (f"{at}.input_layernorm", "LlamaRMSNorm", 5.0),
            (f"{at}.post_attention_layernorm", "LlamaRMSNorm", 5.0),
        ]
        for path, name, us in parts:
            again = us if checkpointed else 0.0
            pieces = [work("gemm_128x128", 2 * us, "backward"), work("gemm_128x64", us)] if name == "Linear" else []
            rows.append(module(path, name, us, 2 * us, recompute_us=again, largest=pieces))
    return rows


def mlp() -> list[Module]:
    """A Sequential of three, called in inference: 90 of 100 us are in leaves."""
    return [
        module("", "Sequential", 4),
        module("0", "Linear", 60, largest=[work("gemm", 60, operator="aten::addmm")]),
        module("1", "ReLU", 10),
        module("2", "Linear", 20),
        Module(kind="none", other_us=6.0),
    ]


def cnn() -> list[Module]:
    """A ResNet of two stages with two blocks each, trained: the blocks have 100 + 200 each, the stem 50 + 100."""
    rows = [
        module("", "ResNet", 5),
        module("conv1", "Conv2d", 40, 80),
        module("bn1", "BatchNorm2d", 10, 20),
        module("fc", "Linear", 5, 10),
        module("SGD.group 0", "", kind="optimizer", optimizer_us=70.0),
    ]
    for stage in (1, 2):
        for i in (0, 1):
            at = f"layer{stage}.{i}"
            rows += [module(at, "BasicBlock", 10, 20), module(f"{at}.conv1", "Conv2d", 60, 120)]
            rows += [module(f"{at}.conv2", "Conv2d", 30, 60)]
    return rows


def compiled() -> list[Module]:
    """Two compiled regions below a module, forward and backward, beside an optimizer and a head."""
    return [
        module("body.0", "", 300, 600, kind="compiled"),
        module("body.1", "", 30, 60, kind="compiled"),
        module("head", "Linear", 3, 6),
        module("AdamW", "", kind="optimizer", optimizer_us=90.0),
    ]


def by_torch() -> list[Module]:
    """Paths of torch's own rows: classes and numbers."""
    layers = [module(f"Net_0.Layer_{i}", "Layer", 10) for i in (0, 1)]
    inside = [module(f"Net_0.Layer_{i}.Act_{i}", "Act", 10) for i in (0, 1)]
    return [module("Net_0", "Net", 20), module("Net_0.Embed_0", "Embed", 5), *layers, *inside]


def many(blocks: int = 100, each: int = 20) -> list[Module]:
    """A trained model of `blocks` x `each` leaves, the later ones the slower; with the blocks 2,100 modules."""
    leaves = [
        module(f"blocks.{i}.part{j}", "Linear", 1 + i + j, 2 + i, largest=[work(f"gemm_{j}", 1 + i + j)])
        for i in range(blocks)
        for j in range(each)
    ]
    return [module("", "Big", 5), *(module(f"blocks.{i}", "Block", 1, 1) for i in range(blocks)), *leaves]


def hostile(names: tuple[str, ...]) -> list[Module]:
    """Names that try to be markup, in every place where a row has one."""
    rows = [Module(path=name, kind="region", other_us=30.0 + i) for i, name in enumerate(names)]
    for i, name in enumerate(names):
        piece = OwnedWork(operator=name, kernel=name, part="forward", calls=STEPS, busy_us=20.0)
        rows.append(module(f"{name}.{i}", name, 40 + i, 10, largest=[piece]))
        rows.append(module(f"{name}.group", kind="optimizer", optimizer_us=5.0 + i))
    return rows

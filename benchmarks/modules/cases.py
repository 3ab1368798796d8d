"""The models of the suite, their sizes on a GPU and on a CPU, and what is special about each.

The sizes keep an H200 busy in eager code. Of the vocabularies, the loss takes a share of a step that falls with the
width: it belongs to the model as a whole, and to no layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A model (module:function in this package), its parameters, and the smaller ones for a CPU."""

    name: str
    workload: str
    params: dict[str, Any]
    small: dict[str, Any]
    special: str
    package: str = "transformers"
    ranks: int = 1
    is_compiled: bool = False
    """A hook in one of its layers would be compiled, too: no layer of it is slowed down."""


_TINY = {"batch": 2, "length": 16, "vocabulary": 64, "layers": 2, "width": 32, "heads": 4}
_TINY_DECODER = {**_TINY, "hidden": 64}
_DECODER = {"batch": 6, "length": 1024, "vocabulary": 32000, "layers": 8, "width": 2048, "hidden": 5632, "heads": 16}
_GPT2 = {"batch": 4, "length": 1024, "vocabulary": 50257, "layers": 12, "width": 1280, "heads": 20}

CASES = (
    Case(
        "llama_checkpointed",
        "language:llama_train",
        {**_DECODER, "checkpointed": True},
        {**_TINY_DECODER, "checkpointed": True},
        "activation checkpointing, clipped gradients",
    ),
    Case("gpt2", "language:gpt2_train", _GPT2, _TINY, "tied embedding, clipped gradients"),
    Case(
        "mixtral",
        "language:mixtral_train",
        {**_DECODER, "batch": 8, "layers": 6, "width": 1536, "hidden": 4096, "experts": 8, "per_token": 2},
        {**_TINY_DECODER, "experts": 4, "per_token": 2},
        "mixture of experts",
    ),
    Case(
        "bert",
        "language:bert_train",
        {"batch": 20, "length": 512, "vocabulary": 30522, "layers": 12, "width": 1024, "heads": 16},
        _TINY,
        "AdamW with two parameter groups",
    ),
    Case(
        "t5",
        "language:t5_train",
        {"batch": 8, "length": 512, "vocabulary": 32128, "layers": 8, "width": 1024, "heads": 16},
        _TINY,
        "encoder and decoder",
    ),
    Case(
        "whisper",
        "language:whisper",
        {"batch": 16, "tokens": 224, "layers": 12, "width": 768, "heads": 12},
        {"batch": 1, "tokens": 8, "layers": 2, "width": 32, "heads": 4},
        "inference",
    ),
    Case(
        "vit",
        "images:vit_train",
        {"name": "vit_base_patch16_224", "batch": 128, "size": 224},
        {"name": "vit_tiny_patch16_224", "batch": 2, "size": 32, "depth": 2},
        "autocast",
        "timm",
    ),
    Case(
        "resnet50",
        "images:resnet_train",
        {"name": "resnet50", "batch": 128, "size": 224},
        {"name": "resnet18", "batch": 2, "size": 64},
        "autocast, channels last",
        "torchvision",
    ),
    Case(
        "dcgan",
        "images:gan_train",
        {"batch": 512, "width": 128},
        {"batch": 2, "width": 8},
        "two models, two optimizers",
        "torch",
    ),
    Case(
        "llama_compiled",
        "language:llama_compiled",
        {**_DECODER, "layers": 4},
        _TINY_DECODER,
        "torch.compile of the whole model",
        is_compiled=True,
    ),
    Case(
        "qwen2_layers_compiled",
        "language:qwen2_layers_compiled",
        _DECODER,
        _TINY_DECODER,
        "torch.compile of each layer",
        is_compiled=True,
    ),
    Case(
        "gpt2_ddp",
        "language:gpt2_parallel",
        {**_GPT2, "layers": 6, "vocabulary": 16384},
        _TINY,
        "DistributedDataParallel, two ranks",
        ranks=2,
    ),
)

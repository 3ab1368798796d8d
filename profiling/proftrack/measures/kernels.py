"""The kind of a piece of GPU work, by its name, and what limits work of that kind."""

from __future__ import annotations

import re
from functools import lru_cache

from proftrack.record.figures import KernelKind, Limit
from proftrack.trace.table import TELLING

# Inductor names its generated code by its shape and then by everything fused into it: the operators' names in it do
# not tell its kind (triton_poi_fused_convolution_relu is the bias and the relu). Templates (tem, mm) do what their
# name says.
_INDUCTOR = re.compile(r"^triton_(?:(?P<elementwise>poi)|(?P<reduction>red|per|split_scan|mix)|(?P<foreach>for))_")
_NORMALIZATION = re.compile(r"norm|softmax", re.IGNORECASE)

# Patterns are tried in this order, the more specific word first (a fused attention kernel also names its gemm).
_KINDS: tuple[tuple[KernelKind, str], ...] = (
    (
        "communication",
        r"nccl|rccl|cross_device_reduce|multimem_|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|"
        r"nvshmem|deep_?ep|symm_mem",
    ),
    ("copy", r"reshape_and_cache|copy_blocks|swap_blocks|kv_?cache_?(?:copy|write|update|store)"),
    ("attention", r"flash|fmha|attention|\bmha_|sdpa|paged_attn|mla_|cudnn_generated_fort_native_sdpa"),
    ("convolution", r"conv(?!ert)|dgrad|wgrad|winograd|implicit_gemm|im2col|xdlops.*conv|cudnn.*fprop|_fprop"),
    ("gemv", r"gemv|gemvn|gemvx|gevm"),
    ("split-k reduction", r"splitk.*reduce|splitkreduce"),
    (
        "matmul",
        r"gemm|nvjet|cutlass|matmul|cublas|cijk_|wgmma|\bmm_kernel|triton_(?:tem_)?\w*mm|triton_tem_|_mm\b|bmm|"
        r"s\d+816|tensorop|xmma|wmma|dot_product|ck_tile|aiter",
    ),
    ("normalization", r"norm|batch_norm|bn_fw|bn_bw|softmax|rms"),
    ("multi-tensor", r"multi_tensor_apply|adam|foreach|fused_sgd|lamb_"),
    (
        "reduction",
        r"reduce|triton_red_|triton_per_|cumsum|scan|argm(?:ax|in)|\bdot_kernel|nll_loss|cross_entropy|prefix",
    ),
    ("sort", r"sort|topk|radix|bitonic"),
    ("embedding", r"embedding|index|gather|scatter|take_along|masked_fill|where"),
    ("random", r"distribution|philox|dropout|random|multinomial|exponential_"),
    ("copy", r"copy|cat_array|catarray|transpose|permute|memcpy|contiguous|fill"),
    (
        "elementwise",
        r"elementwise|pointwise|triton_poi_|cudafunctor|activation|gelu|silu|relu|add|mul|rotary|rope|"
        r"unrolled|vectorized|sigmoid|tanh|clamp|arange|cast",
    ),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
_HOST_COPY = re.compile(
    r"HtoD|DtoH|Host\s*->|->\s*Host|Pinned|Pageable|[HM]2D|D2[HM]|HostToDevice|DeviceToHost", re.IGNORECASE
)
_PEER_COPY = re.compile(r"PtoP|Peer|P2P", re.IGNORECASE)

# The limit of a kind is used until shapes and measured ceilings say more.
LIMIT_OF_KIND: dict[KernelKind, Limit] = {
    "matmul": "arithmetic",
    "convolution": "arithmetic",
    "attention": "arithmetic",
    "communication": "communication",
    "peer copy": "communication",
    "host-device copy": "transfer",
    "unknown": "unknown",
}
"""Kinds not listed here move more than they compute: their limit is bandwidth."""

CAN_BE_SMALL: tuple[Limit, ...] = ("arithmetic", "bandwidth", "unknown")
"""Limits that latency replaces if the grid leaves most of the GPU empty."""


@lru_cache(maxsize=65536)
def kind_of_kernel(name: str) -> KernelKind:
    """The kind of a kernel by its name; `unknown` if no pattern matches."""
    if generated := _INDUCTOR.match(name):
        if generated["elementwise"]:
            return "elementwise"
        if generated["foreach"]:
            return "multi-tensor"
        return "normalization" if _NORMALIZATION.search(name, 0, TELLING) else "reduction"
    for kind, pattern in _COMPILED:
        if pattern.search(name, 0, TELLING):
            return kind
    return "unknown"


def kind_of_copy(name: str) -> KernelKind:
    """The kind of a memcpy by its name: between host and device, between devices, or within one."""
    if _HOST_COPY.search(name, 0, TELLING):
        return "host-device copy"
    return "peer copy" if _PEER_COPY.search(name, 0, TELLING) else "copy"


def limit_of_kind(kind: KernelKind) -> Limit:
    """What limits work of this kind."""
    return LIMIT_OF_KIND.get(kind, "bandwidth")


_ARITHMETIC_OPERATOR = re.compile(
    r"(?:^|::)_?(?:scaled_)?(?:mm|addmm|bmm|baddbmm|matmul|linear|einsum)\b|conv|attention|gemm"
)


@lru_cache(maxsize=65536)
def limit_of_operator(name: str) -> Limit:
    """What limits a kernel of unknown kind, by the name of the operator that launched it."""
    if _ARITHMETIC_OPERATOR.search(name):
        return "arithmetic"
    return "bandwidth" if name.startswith("aten::") else "unknown"

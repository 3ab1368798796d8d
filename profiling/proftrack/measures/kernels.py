"""The kind of a piece of GPU work, by its name, and what limits work of that kind."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from proftrack.measures.identifiers import Part, parts_of, types_in, words_of
from proftrack.record.figures import KernelKind, Limit
from proftrack.trace.table import TELLING

# Inductor names its generated code by its shape and then by everything fused into it: the operators' names in it do
# not tell its kind (triton_poi_fused_convolution_relu is the bias and the relu). Templates (tem) do what they are
# named for: a matmul, if not something else.
_INDUCTOR = re.compile(
    r"^triton_(?:(?P<elementwise>poi)|(?P<reduction>red|per|spl|split_scan|mix)|(?P<foreach>for)|(?P<template>tem))_"
)
_NORMALIZATION = re.compile(r"norm|softmax", re.IGNORECASE)
# Tensile names a contraction by the indices of both factors; what it runs before or after one has no factors.
_TENSILE = re.compile(r"(?:^|_)Cijk_(?P<factors>A[a-z]+_B[a-z]+)?")
# CUTLASS's Python language: the function, its module and its class, then the types of its arguments.
_PYTHON_CUTLASS = re.compile(r"^kernel_cutlass_(?P<function>.*?)(?:_object_at_|_tensorptr|$)")

_COMMUNICATION_LIBRARY = re.compile(
    r"^(?:(?:deep_?)?ep|int(?:er|ra)node\w*|(?:n|r|ms)ccl|nvshmem\w*|mscclpp\w*|quickreduce|symm_mem|userbuffers|mori"
    r"|pplx\w*|uccl\w*)$"
)

# A function without other words is a shell: it does what its template arguments say, else what its class says.
_SHELL_WORDS = frozenset(
    "kernel kernels kentry entry device global static cuda hip sycl agent trampoline wrapper launcher launch run invoke"
    " call operator func function impl main detail cutlass cute".split()
)
_SHELLS = 4
"""Shells within shells, and template arguments of each, that are looked into at most."""


class _Rule(NamedTuple):
    kind: KernelKind
    words: re.Pattern[str]
    with_words: re.Pattern[str]
    without: re.Pattern[str]

    def holds(self, words: str) -> bool:
        return bool(self.words.search(words) and self.with_words.search(words) and not self.without.search(words))


def _rule(kind: KernelKind, words: str, *, with_words: str = r"\w+", without: str = r"[^\w\s]") -> _Rule:
    whole = [re.compile(rf"\b(?:{pattern})\b") for pattern in (words, with_words, without)]
    return _Rule(kind, whole[0], whole[1], whole[2])


_GEMM = r"(?:[sdczhbikqg]|gc|tiny)?gemm[ks]?|matmul|(?:b|g|tg|add|flat)?mm|mul mat|nvjet"
_CONVOLUTION = (
    r"d?conv|convolution|convolve|[fb]prop|[dw]grad|winograd|[shi]cudnn|\d+ cudnn|implicit gemm"
    r"|igemm (?:fwd|bwd|wrw)|bwd (?:data|weight)"
)
_ATTENTION = r"flash|fmha|mha|mqa|gqa|mla|attn|attention|sdpa|pa|hstu"
_PASS = r"fwd|bwd|forward|backward|decode|decoding|dec|prefill"
_CERTAIN_ATTENTION = (
    rf"fmha|sdpa|(?:flash|paged|unified|sparse|{_PASS}) (?:attn|attention)|flash decod\w+"
    rf"|(?:{_ATTENTION}|sage) (?:\w+ ){{0,3}}(?:{_PASS})"
    r"|(?:decode|prefill) (?:\w+ ){0,3}kv ?cache"
)
_TO_CACHE = (
    r"(?:append|store|write|set|get|load|gather|fill|update|copy|insert|concat|cat|reshape|quant|swap|save|reindex)"
    r"(?: and)?(?: \w+){0,3} (?:(?:kv ?)?cache|kv ?buffer)"
)

# The first rule that holds decides. Its patterns match whole words of the function itself, with one space between them.
# What prepares, joins or moves the parts of a larger job (offsets for a convolution, the parts of an attention) has the
# job's name in its own, so its rule comes before the job's.
_RULES: tuple[_Rule, ...] = (
    # Wrappers that are named for how they walk their data: what they apply to it does not change what limits them.
    _rule("random", r"distribution elementwise"),
    _rule("embedding", r"(?:index|scatter gather) elementwise"),
    _rule("elementwise", r"ele?m(?:ent)? ?wise|pointwise|parallel for|for each"),
    _rule("multi-tensor", r"multi tensor"),
    _rule("memset", r"memset"),
    _rule(
        "communication",
        r"(?:n|r|ms)ccl|all ?reduce|all ?gather|reduce ?scatter|all ?to ?all[vw]?|a 2 a|cross device (?:reduce|store)"
        r"|multimem|send ?recv|pushsend\w*|symm? mem|nvls|lamport|k?userbuffers|nvshmem\w*|mscclpp",
        without=r"metadata|indices|initialize",
    ),
    # Addresses, schedules and arguments for another kernel.
    _rule(
        "unknown",
        r"metadata|offsets|strides|descriptors|tensor ?maps?|args|plan|schedule\w*|num (?:blocks|segments)"
        rf"|problem sizes|starts|sort map|workspace|^(?:setup|prepare|init\w*|get) .*(?:{_GEMM})",
        without=r"routing",
    ),
    _rule("split-k reduction", r"split ?k (?:\w+ )?reduc\w*|split kreduce|reduce split ?k", without=_ATTENTION),
    _rule("split-k reduction", rf"(?:{_GEMM}) .*reduce", without=_ATTENTION),
    _rule("reduction", r"finali[sz]e", without=r"\w*norm|ln|top ?k"),
    _rule("embedding", r"^(?:scatter|gather)", without=rf"{_GEMM}|top ?k"),
    # Around attention.
    _rule(
        "copy",
        rf"{_TO_CACHE}|append kv|(?:copy|swap) blocks|kv ?cache (?:copy|write|update|store)|cache (?:insert|flush)",
        without=rf"{_GEMM}|\w*norm|rms",
    ),
    _rule("reduction", r"combine|reducev?|reduction|merge|sum|dot do o|o grad dot o|preprocess", with_words=_ATTENTION),
    _rule("reduction", r"dot do o|merge (?:attn )?states?"),
    _rule("elementwise", r"convert\w*|cast|postprocess|(?:attn|attention|causal) mask", with_words=_ATTENTION),
    _rule("attention", _CERTAIN_ATTENTION, without=r"\w*norm|\w*softmax|rope|rotary|delta|linear"),
    # Around convolutions.
    _rule("copy", r"im 2 (?:d 2 )?col|vol 2 col|col 2 (?:im|vol)|image to column|column to image"),
    _rule("elementwise", r"winograd", with_words=r"data|filter|output|input|delta|tiles|xform", without=_GEMM),
    # A channel by itself: a few multiplications a value.
    _rule("elementwise", r"(?:depthwise|causal|short|dw|dg) ?conv|conv depthwise|conv 1 d|conv 2 d c 1 k 1"),
    _rule("reduction", r"reduce", with_words=_CONVOLUTION),
    _rule("convolution", _CONVOLUTION),
    # Around matmuls.
    _rule("copy", r"repack|interleave"),
    _rule("elementwise", r"k?dequant mm"),
    _rule(
        "gemv",
        r"[sdczh]?gemv\w*|gevm|[bs]gmv|csrmv|spmv|mul mat vec|wv split ?k\w*|ll gemm|gemmk 1|gemm sn"
        r"|kgemm 4 bit inference|lora (?:shrink|expand)",
    ),
    _rule("matmul", _GEMM),
    _rule(
        "matmul",
        r"marlin|fmoe|(?:fused moe|moe fused) (?:\w+ ){0,2}kernel|moe stage|fused mlp"
        r"|(?:quantized|grouped) (?:\w+ )*linear",
        without=r"gate|gating|loss|score|top ?k|sort\w*|align",
    ),
    # What moves more than it computes.
    _rule("reduction", r"moe (?:sum|reduc\w+|combine)|\w*entropy|(?:class )?nll|loss"),
    _rule("random", r"sampling|sample|multinomial|dropout|philox|random|rand|bernoulli|exponential"),
    _rule(
        "sort",
        r"(?:arg)?sort\w*|top ?k\w*|radix|bitonic|moe align|routing|gating|fused gate|unique|search ?sorted|onesweep",
    ),
    _rule("copy", r"(?:un)?permute|permutation|reorder"),
    _rule("embedding", r"embeddings?|embs?|bucketize|lookup", without=r"rotary|rope"),
    _rule(
        "normalization",
        r"\w*norm|rms|\w*softmax|soft max|bn (?:fw|bw|fwd|bwd)|ln (?:fwd|bwd)|gamma beta|moments",
    ),
    _rule(
        "reduction",
        r"recurrent|selective (?:scan|state)|scan|cumsum|cumprod|prefix sum|\w*pool(?:ing)?|seg(?:ment )?sum|welford"
        r"|adaptive (?:max|average)|select (?:sweep|if)",
    ),
    _rule("multi-tensor", r"adam\w?|adagrad|sgd|lamb|lion|k?optimizer"),
    _rule("copy", r"copy", with_words=r"ind(?:ex|ices)"),
    _rule("embedding", r"index(?:ing)?|indices|gather|scatter|linearize"),
    _rule(
        "elementwise",
        r"\w*quant\w*|(?:auto)?cast\w*|convert\w*|cvt|(?:to|2) (?:[mn][xv])?(?:fp|bf|float|half|int)|float to|m?rope"
        r"|rotary|act|activation\w*|\w*(?:gelu|silu|relu|glu|sigmoid)|(?:si|re|ge) lu|(?:swi|ge) glu|tanh|swish"
        r"|softplus|upsample\w*|interpolate|grid sampler|hadamard",
    ),
    _rule(
        "attention",
        r"mha|mqa|gqa|mla|attn|attention|hstu|pa a \d+ w \d+",
        without=r"a(?:bs)?max|scales?|gate|sink|delta|linear",
    ),
    _rule(
        "copy",
        r"copy|cpy|memcpy|cat|concat|transpose\w*|contiguous|(?:un)?pad(?:ding)?|(?:un)?pack|(?:un)?swizzle|shuffle"
        r"|layout|roll|flip|expand|repeat|n[cd]*hwc? (?:to|2) \w+|\w+ 2 n?cn?hw",
    ),
    _rule(
        "reduction",
        r"reduc\w*|sum|mean|arg ?max|arg ?min|a(?:bs)?max|dot|histogram|count|compact|partition|accumulate",
    ),
    _rule("memset", r"fill\w*|zero", without=r"mask(?:ed)?|point"),
    _rule(
        "elementwise",
        r"add|mul|div|addcmul|axpy|scale?|scaled|clamp|clip|arange|where|mask(?:ed)?|bias|threshold|exp|pow|r?sqrt"
        r"|neg|abs|lerp|tri[ul] tri[ul]|transform|unary|binary|epilogue|tensor op|op (?:\d d )?tensor",
    ),
    _rule("matmul", r"[sdcz]?(?:syrk|herk|trsm|trmm)"),
)

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
    """The kind of a kernel by the words of its own function; `unknown` if they say nothing.

    Libraries of communication count by their namespace. A shell (`Kernel2`, `device_kernel`, `kentry`) counts by its
    first template arguments.
    """
    name = name[:TELLING]
    if generated := _INDUCTOR.match(name):
        return _kind_of_generated(name, generated)
    parts = parts_of(name)
    if any(_COMMUNICATION_LIBRARY.match(part.name) for part in parts[:-1]):
        return "communication"
    return _kind_of_parts(parts, _SHELLS)


def _kind_of_generated(name: str, generated: re.Match[str]) -> KernelKind:
    if generated["elementwise"]:
        return "elementwise"
    if generated["foreach"]:
        return "multi-tensor"
    if generated["reduction"]:
        return "normalization" if _NORMALIZATION.search(name) else "reduction"
    words = words_of(name[generated.end() :])
    named: tuple[KernelKind, ...] = ("attention", "convolution")
    return next((kind for kind in named if re.search(rf"\b{kind}\b", words)), "matmul")


def _kind_of_parts(parts: list[Part], shells: int) -> KernelKind:
    """The kind by the last part, or, if that is a shell, by its template arguments, else by the class around it."""
    if not parts:
        return "unknown"
    function = parts[-1]
    if not _is_shell(function.name):
        return _kind_of_function(function.name)
    if shells:
        for argument, _ in zip(types_in(function.arguments), range(_SHELLS), strict=False):
            if (kind := _kind_of_parts(parts_of(argument), shells - 1)) != "unknown":
                return kind
    around = next((part for part in reversed(parts[:-1]) if not _is_shell(part.name)), None)
    return _kind_of_function(around.name) if around else "unknown"


def _is_shell(name: str) -> bool:
    """Whether a function's name has no word of its own (`Kernel2`), or only says where it runs (`enable_sm90`)."""
    words = words_of(name).split()
    return all(word in _SHELL_WORDS or word.isdigit() for word in words) or words[0] == "enable"


def _kind_of_function(name: str) -> KernelKind:
    if tensile := _TENSILE.search(name):
        return "matmul" if tensile["factors"] else "split-k reduction" if "PostGSU" in name else "unknown"
    if described := _PYTHON_CUTLASS.match(name):
        name = described["function"]
    words = words_of(name)
    return next((rule.kind for rule in _RULES if rule.holds(words)), "unknown")


def kind_of_copy(name: str) -> KernelKind:
    """The kind of a memcpy by its name: between host and device, between devices, or within one."""
    if _HOST_COPY.search(name, 0, TELLING):
        return "host-device copy"
    return "peer copy" if _PEER_COPY.search(name, 0, TELLING) else "copy"


def limit_of_kind(kind: KernelKind) -> Limit:
    """What limits work of this kind."""
    return LIMIT_OF_KIND.get(kind, "bandwidth")


_ARITHMETIC_OPERATOR = re.compile(r"^(?:linear|einsum|scaled dot product|conv 1 d)\b|\b(?:fused experts|moe forward)\b")
_MIXED_OPERATOR = re.compile(r"\b(?:linalg|lstm|gru|rnn)\b")


@lru_cache(maxsize=65536)
def limit_of_operator(name: str) -> Limit:
    """What limits a kernel of unknown kind, by the name of the operator that launched it.

    Like a kernel's, an operator's name counts without its namespace: `fbgemm::lookup` is no gemm.
    """
    own = name[:TELLING].rpartition("::")[2]
    words = words_of(own)
    if _MIXED_OPERATOR.search(words):
        return "unknown"
    if _ARITHMETIC_OPERATOR.search(words):
        return "arithmetic"
    limit = limit_of_kind(_kind_of_function(own))
    return "bandwidth" if limit == "unknown" and name.startswith("aten::") else limit

"""FLOPs and bytes of one operator from its recorded input shapes (`record_shapes=True`).

FLOPs count a multiply-add as two. The formulas are those that count a step's work (capture/op_flops.py), as far as
shapes tell: of causal attention the half below the diagonal. Bytes are the least that the operator must move: each
input once and the output once. The cost of an unknown operator is None, never 0; so is that of one whose work depends
on values, such as the lengths of packed sequences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from proftrack import untrusted

SIZE_OF_TYPE = {
    "double": 8,
    "long int": 8,
    "long": 8,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "float": 4,
    "int": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "short": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
"""Bytes per element, by the C++ type name that torch records."""
DTYPE_OF_TYPE = {
    "double": "float64",
    "float": "float32",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e4m3fn",
}
"""The type for which an arithmetic rate is measured, by C++ type; both types of float8 have one rate."""
_TELL_TF32 = ("cudnn_convolution", "cudnn_convolution_transpose")
"""Their last argument tells whether float32 may be computed in TF32."""
_REAL_PARTS = {"c10::complex<float>": "float32", "c10::complex<double>": "float64"}


class Cost(NamedTuple):
    """The least work that one call of an operator must do."""

    flops: int
    bytes: int
    dtype: str
    """Type of the arithmetic; `other` if no rate is measured for it."""


class _Call(NamedTuple):
    dims: list[Any]
    types: list[str]
    concrete: list[str]

    def shape(self, index: int) -> list[int]:
        """Shape of an input. Raises ValueError if it is not a tensor."""
        shape = self.dims[index]
        if not isinstance(shape, list) or not all(isinstance(extent, int) for extent in shape):
            raise ValueError("not a tensor")
        return shape

    def size(self, index: int) -> int:
        """Bytes per element of an input."""
        return SIZE_OF_TYPE[self.types[index]]

    def tensors(self) -> list[int]:
        """Indices of the inputs that are tensors (scalars have a type but no element size)."""
        return [i for i, kind in enumerate(self.types) if kind in SIZE_OF_TYPE and i < len(self.dims)]

    def input_bytes(self) -> int:
        """Bytes of all tensor inputs."""
        return sum(math.prod(self.shape(i)) * self.size(i) for i in self.tensors())


LARGEST = 2**62
"""Limit for the FLOPs or bytes of one call: no device does more within hours, so the shapes must be wrong."""


def cost_of(name: str, dims: bytes, types: bytes, concrete: bytes) -> Cost | None:
    """Cost of one call, or None if unknown. The shapes, types and concrete values are the trace's raw JSON."""
    rule = _rule(name)
    if rule is None:
        return None
    try:
        call = _Call(_decode(dims), _decode(types), _decode(concrete))
        flops, size = rule(call)
        kind = next((call.types[i] for i in call.tensors()), "")
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, msgspec.MsgspecError):
        return None
    if not (0 <= flops < LARGEST and 0 <= size < LARGEST):
        return None
    return Cost(flops, size, _arithmetic(_bare(name), kind, call.concrete))


def _arithmetic(bare: str, kind: str, concrete: list[str]) -> str:
    """The type of an operator's arithmetic, from that of its first tensor."""
    if bare == "_int_mm":
        return "int8"
    if bare in _TELL_TF32 and kind == "float" and concrete[-1:] == ["True"]:
        return "tfloat32"
    return _REAL_PARTS.get(kind, "other") if bare.startswith("_fft") else DTYPE_OF_TYPE.get(kind, "other")


def _decode(raw: bytes) -> list[Any]:
    value = untrusted.decode(raw) if raw else []
    return value if isinstance(value, list) else []


_Rule = Callable[[_Call], tuple[int, int]]


def _matmul(first: int) -> _Rule:
    """[.., M, K] x [.., K, N] at inputs `first` and `first + 1`; a bias before them is also read."""

    def rule(call: _Call) -> tuple[int, int]:
        a, b = call.shape(first), call.shape(first + 1)
        if a[-1] != b[-2]:
            raise ValueError("shapes do not multiply")
        batch, m, k, n = math.prod(a[:-2]), a[-2], a[-1], b[-1]
        return 2 * batch * m * k * n, call.input_bytes() + batch * m * n * call.size(first)

    return rule


def _matrix_vector(first: int) -> _Rule:
    """[M, K] x [K] at inputs `first` and `first + 1`; a vector added to the product is also read."""

    def rule(call: _Call) -> tuple[int, int]:
        (m, k), (length,) = call.shape(first), call.shape(first + 1)
        if k != length:
            raise ValueError("shapes do not multiply")
        return 2 * m * k, call.input_bytes() + m * call.size(first)

    return rule


def _linear(call: _Call) -> tuple[int, int]:
    x, weight = call.shape(0), call.shape(1)
    rows = math.prod(x[:-1])
    if x[-1] != weight[-1]:
        raise ValueError("shapes do not multiply")
    return 2 * rows * x[-1] * weight[0], call.input_bytes() + rows * weight[0] * call.size(0)


_SIZE_OF_SCALAR_TYPE = {"5": 2, "6": 4, "15": 2}
"""Bytes of float16, float32 and bfloat16 by torch's number for them."""


def _narrow(out_dtype: int | None, out_size: int = 1) -> _Rule:
    """A product of float8 or int8: its result is wider. `out_dtype`: the index of the argument that tells the type."""

    def rule(call: _Call) -> tuple[int, int]:
        (m, k), (rows, n) = call.shape(0), call.shape(1)
        if k != rows:
            raise ValueError("shapes do not multiply")
        chosen = call.concrete[out_dtype] if out_dtype is not None and out_dtype < len(call.concrete) else ""
        return 2 * m * k * n, call.input_bytes() + m * n * _SIZE_OF_SCALAR_TYPE.get(chosen, out_size)

    return rule


def _grouped(call: _Call) -> tuple[int, int]:
    """[T, K] x [G, K, N], [G, M, K] x [K, T], [M, T] x [T, N], [G, M, K] x [G, K, N]; T holds all groups."""
    a, b = call.shape(0), call.shape(1)
    batch = a[0] if len(a) == len(b) == 3 else 1
    results = call.shape(2)[0] if len(a) == len(b) == 2 else batch  # as many as `offs` has groups
    m, k, n = a[-2], a[-1], b[-1]
    return 2 * batch * m * k * n, call.input_bytes() + results * m * n * max(call.size(0), 2)


def _packed_weight(columns: Callable[[_Call], int]) -> _Rule:
    """[M, K] and a weight in a form of its own, of so many columns."""

    def rule(call: _Call) -> tuple[int, int]:
        m, k = call.shape(0)
        n = columns(call)
        return 2 * m * k * n, call.input_bytes() + m * n * call.size(0)

    return rule


def _dot(call: _Call) -> tuple[int, int]:
    return 2 * math.prod(call.shape(0)), call.input_bytes()


def _convolution(order: str) -> _Rule:
    """x [N, C, spatial..], weight [O, C / groups, spatial..]. `order`: which lists the operator takes, by initials.

    p(adding), s(tride), d(ilation), k(ernel size). `aten::convolution` also tells whether it is transposed.
    """

    def rule(call: _Call) -> tuple[int, int]:
        x, weight = call.shape(0), call.shape(1)
        lists = dict(zip(order, (_ints(text) for text in call.concrete if text.startswith("[")), strict=False))
        if order == "spd" and call.concrete[6] == "True":
            return _transposed_convolution(call)
        dilation = lists.get("d", [1])
        out = [
            (extent + 2 * _at(lists["p"], i) - _at(dilation, i) * (kernel - 1) - 1) // _at(lists["s"], i) + 1
            for i, (extent, kernel) in enumerate(zip(x[2:], weight[2:], strict=True))
        ]
        outputs = x[0] * weight[0] * math.prod(out)
        return 2 * outputs * math.prod(weight[1:]), call.input_bytes() + outputs * call.size(0)

    return rule


def _transposed_convolution(call: _Call, order: str = "spde", groups: int = 8) -> tuple[int, int]:
    """x [N, C, spatial..], weight [C, O / groups, spatial..]: each element of x is multiplied by the whole kernel.

    `order`: as for `_convolution`, e(xtra) is the padding of the output. `groups`: the index of their number.
    """
    x, weight = call.shape(0), call.shape(1)
    lists = dict(zip(order, (_ints(text) for text in call.concrete if text.startswith("[")), strict=False))
    stride, padding, dilation, extra = (lists[name] for name in "spde")
    out = [
        (extent - 1) * _at(stride, i) - 2 * _at(padding, i) + _at(dilation, i) * (kernel - 1) + _at(extra, i) + 1
        for i, (extent, kernel) in enumerate(zip(x[2:], weight[2:], strict=True))
    ]
    outputs = x[0] * weight[1] * int(call.concrete[groups]) * math.prod(out)
    return 2 * math.prod(x) * math.prod(weight[1:]), call.input_bytes() + outputs * call.size(0)


def _convolution_backward(call: _Call) -> tuple[int, int]:
    """A product of the forward's size for each gradient that is wanted: the input's and the weight's."""
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    wanted = [flag.strip() == "True" for flag in call.concrete[-1].strip("[]").split(",")[:2]]
    through_kernel = x if call.concrete[7] == "True" else grad  # transposed: see above
    written = sum(math.prod(shape) for shape, is_wanted in zip((x, weight), wanted, strict=True) if is_wanted)
    flops = sum(wanted) * 2 * math.prod(through_kernel) * math.prod(weight[1:])
    return flops, call.input_bytes() + written * call.size(1)


def _attention(causal: int, *, backward: bool = False, heads_first: bool = True, packed: int | None = None) -> _Rule:
    """q, k, v: two products for each pair of query and key, five in the backward, which takes the gradient first.

    The layout is [B, H, S, D] if `heads_first`, else [B, S, H, D]. `causal`: the index of the argument that tells
    whether only the pairs below the diagonal count. `packed`: that of the ends of packed sequences, which shapes do not
    tell.
    """

    def rule(call: _Call) -> tuple[int, int]:
        first = 1 if backward else 0
        q, k, v = call.shape(first), call.shape(first + 1), call.shape(first + 2)
        if not len(q) == len(k) == len(v) == 4:
            raise ValueError("not batched heads")
        if packed is not None and packed < len(call.dims) and call.dims[packed]:
            raise ValueError("the sequences are packed")
        queries, keys = (q[2], k[2]) if heads_first else (q[1], k[1])
        kind = call.concrete[causal] if causal < len(call.concrete) else ""
        # The efficient kernels have a number: 1 is aligned at the top left, 2 at the bottom right.
        bottom = kind == "2" or (kind == "True" and not heads_first)
        pairs = _pairs_below(queries, keys, bottom) if kind in ("True", "1", "2") else queries * keys
        heads = q[0] * (q[1] if heads_first else q[2])
        width = 3 * q[3] + 2 * v[3] if backward else q[3] + v[3]
        moved = sum(math.prod(s) for s in (q, k, v)) + math.prod(q[:3]) * v[3]
        return 2 * heads * pairs * width, moved * call.size(first) * (2 if backward else 1)

    return rule


def _pairs_below(queries: int, keys: int, bottom: bool) -> int:
    """Pairs of a query and a key that is not later. `bottom`: the last ones are at the same time, else the first."""
    both = min(queries, keys)
    rest = queries * (keys - queries) * bottom if keys >= queries else (queries - keys) * keys * (not bottom)
    return both * (both + 1) // 2 + rest


def _recurrent(times: int) -> _Rule:
    """input [T, B, C] and a list of weights, of which each matrix meets each element of each sequence once."""

    def rule(call: _Call) -> tuple[int, int]:
        x, weights = call.shape(0), call.dims[1]
        elements, size = math.prod(x[:-1]), call.size(0)
        products = sum(math.prod(shape) for shape in weights if len(shape) == 2)
        hidden = next(shape for shape in weights if len(shape) == 2)[0]
        moved = math.prod(x) + sum(math.prod(shape) for shape in weights) + elements * hidden // _MOST_GATES
        return times * 2 * elements * products, times * moved * size

    return rule


_MOST_GATES = 4
"""A weight has the rows of all gates, at most an LSTM's four; a result has those of one."""


def _fourier(factor: float, last: int | None = None) -> _Rule:
    """`factor` N log2 N for each transform of N points (http://www.fftw.org/speed/). `last`: where a size is told."""

    def rule(call: _Call) -> tuple[int, int]:
        shape, dims = list(call.shape(0)), _ints(call.concrete[1])
        if last is not None:
            shape[dims[-1]] = int(call.concrete[last])
        points = math.prod(shape[d] for d in dims)
        flops = factor * math.prod(shape) * math.log2(points) if points > 1 else 0.0
        return round(flops), 2 * call.input_bytes()  # as many bytes come out as go in, give or take a column

    return rule


def _bag(call: _Call) -> tuple[int, int]:
    """_embedding_bag(weight [V, D], indices, offsets): each row that is looked up is added to its bag."""
    width, lookups, bags = call.shape(0)[1], math.prod(call.shape(1)), math.prod(call.shape(2))
    indices = lookups * call.size(1) + bags * call.size(2)
    return lookups * width, indices + (lookups + bags) * width * call.size(0)


def _pointwise(call: _Call) -> tuple[int, int]:
    """Reads the inputs once and writes an output of their broadcast shape once."""
    shapes = [call.shape(i) for i in call.tensors()]
    out = _broadcast(shapes)
    return math.prod(out), call.input_bytes() + math.prod(out) * call.size(call.tensors()[0])


def _in_place(call: _Call) -> tuple[int, int]:
    """Reads the inputs once and writes the first one."""
    return math.prod(call.shape(0)), call.input_bytes() + math.prod(call.shape(0)) * call.size(0)


def _copy(call: _Call) -> tuple[int, int]:
    """Writes dst and reads src; no arithmetic."""
    source, target = call.shape(1), call.shape(0)
    return 0, math.prod(source) * call.size(1) + math.prod(target) * call.size(0)


def _fill(call: _Call) -> tuple[int, int]:
    return 0, math.prod(call.shape(0)) * call.size(0)


def _reduction(call: _Call) -> tuple[int, int]:
    """Reads the input once; the output is left out because its shape is not recorded."""
    return math.prod(call.shape(0)), math.prod(call.shape(0)) * call.size(0)


def _row_wise(call: _Call) -> tuple[int, int]:
    """Softmax and normalization: the output is as large as the first input."""
    size = math.prod(call.shape(0))
    return 5 * size, call.input_bytes() + size * call.size(0)


def _lookup(call: _Call) -> tuple[int, int]:
    """embedding(weight [V, D], index): reads and writes the rows that the index selects."""
    values = math.prod(call.shape(1)) * math.prod(call.shape(0)[1:])
    return 0, math.prod(call.shape(1)) * call.size(1) + 2 * values * call.size(0)


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.strip("[]").split(",") if part.strip()]


def _at(values: Sequence[int], index: int) -> int:
    return values[index] if len(values) > 1 else values[0]


def _broadcast(shapes: list[list[int]]) -> list[int]:
    rank = max(len(s) for s in shapes)
    out = [1] * rank
    for shape in shapes:
        for i, extent in enumerate(shape, start=rank - len(shape)):
            if extent != 1:
                if out[i] not in (1, extent):
                    raise ValueError("shapes do not broadcast")
                out[i] = extent
    return out


_POINTWISE = (
    "add sub mul div rsub neg abs exp exp2 log log2 log1p sqrt rsqrt reciprocal pow sin cos tan tanh sigmoid erf relu "
    "gelu silu mish hardtanh hardswish leaky_relu elu softplus clamp clamp_min clamp_max maximum minimum where "
    "addcmul addcdiv lerp eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not "
    "isnan isfinite floor ceil round sign masked_fill gelu_backward silu_backward sigmoid_backward tanh_backward "
    "threshold_backward native_dropout_backward square"
).split()
_RULES: dict[str, _Rule] = {
    "mm": _matmul(0),
    "bmm": _matmul(0),
    "addmm": _matmul(1),
    "baddbmm": _matmul(1),
    "_addmm_activation": _matmul(1),
    "mv": _matrix_vector(0),
    "addmv": _matrix_vector(1),
    "addmv_": _matrix_vector(1),
    "linear": _linear,
    "mkldnn_linear": _linear,
    "dot": _dot,
    "vdot": _dot,
    "_scaled_mm": _narrow(6),
    "_int_mm": _narrow(None, 4),
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "_weight_int8pack_mm": _packed_weight(lambda call: call.shape(1)[0]),
    "_weight_int4pack_mm": _packed_weight(lambda call: call.shape(3)[1]),
    "convolution": _convolution("spd"),
    "_convolution": _convolution("spd"),
    "cudnn_convolution": _convolution("psd"),
    "cudnn_convolution_transpose": lambda call: _transposed_convolution(call, "pesd", groups=6),
    "mkldnn_convolution": _convolution("psd"),
    "miopen_convolution": _convolution("psd"),
    "cudnn_convolution_relu": _convolution("spd_"),
    "_conv_depthwise2d": _convolution("kspd"),
    "conv_depthwise3d": _convolution("kspd"),
    "_slow_conv2d_forward": _convolution("ksp"),
    "slow_conv3d_forward": _convolution("ksp"),
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_flash_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_efficient_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_cudnn_attention_backward": _attention(14, backward=True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(7, backward=True),
    "_flash_attention_forward": _attention(8, heads_first=False, packed=3),
    "_efficient_attention_forward": _attention(9, heads_first=False, packed=4),
    "_cudnn_attention_forward": _attention(10, packed=4),
    "_flash_attention_backward": _attention(11, backward=True, heads_first=False, packed=6),
    "_efficient_attention_backward": _attention(14, backward=True, heads_first=False, packed=6),
    "_cudnn_attention_backward": _attention(14, backward=True, packed=9),
    "_cudnn_rnn": _recurrent(1),
    "_cudnn_rnn_backward": _recurrent(2),
    "_fft_c2c": _fourier(5.0),
    "_fft_r2c": _fourier(2.5),
    "_fft_c2r": _fourier(2.5, 3),
    "_embedding_bag": _bag,
    "_embedding_bag_forward_only": _bag,
    "copy_": _copy,
    "fill_": _fill,
    "zero_": _fill,
    "embedding": _lookup,
    **dict.fromkeys(_POINTWISE, _pointwise),
    **dict.fromkeys([f"{name}_" for name in _POINTWISE], _in_place),
    **dict.fromkeys("sum mean amax amin max min argmax argmin prod norm any all cumsum var std".split(), _reduction),
    **dict.fromkeys(
        "_softmax _log_softmax native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm _fused_rms_norm "
        "_softmax_backward_data _log_softmax_backward_data native_layer_norm_backward _batch_norm_impl_index".split(),
        _row_wise,
    ),
}
_OVERLOAD = re.compile(r"\.[a-zA-Z]\w*$")


def _rule(name: str) -> _Rule | None:
    """The rule for `aten::add` or `aten::add.Tensor`; None if there is none."""
    namespace = name.rpartition("::")[0]
    return _RULES.get(_bare(name)) if namespace in ("aten", "mkldnn", "") else None


def _bare(name: str) -> str:
    """`add` for `aten::add.Tensor`."""
    return _OVERLOAD.sub("", name.rpartition("::")[2])

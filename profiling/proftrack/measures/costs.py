"""FLOPs and bytes of one operator from its recorded input shapes (`record_shapes=True`).

FLOPs count a multiply-add as two, as torch.utils.flop_counter does; the formulas for convolution and attention are
those in its documentation. Bytes are the least that the operator must move: each input once and the output once.
The cost of an unknown operator is None, never 0.
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
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
}
"""torch's name of each C++ type for which arithmetic rates are measured."""


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
    return Cost(flops, size, DTYPE_OF_TYPE.get(kind, "other"))


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


def _convolution(*, padding_first: bool) -> _Rule:
    """x [N, C, spatial..], weight [O, C / groups, spatial..]; the backends' operators list padding before stride."""

    def rule(call: _Call) -> tuple[int, int]:
        x, weight = call.shape(0), call.shape(1)
        lists = [_ints(text) for text in call.concrete if text.startswith("[")]
        stride, padding, dilation = lists[:3]
        if padding_first:
            stride, padding = padding, stride
        elif call.concrete[6] == "True":
            return _transposed_convolution(call)
        out = [
            (extent + 2 * _at(padding, i) - _at(dilation, i) * (kernel - 1) - 1) // _at(stride, i) + 1
            for i, (extent, kernel) in enumerate(zip(x[2:], weight[2:], strict=True))
        ]
        outputs = x[0] * weight[0] * math.prod(out)
        return 2 * outputs * math.prod(weight[1:]), call.input_bytes() + outputs * call.size(0)

    return rule


def _transposed_convolution(call: _Call) -> tuple[int, int]:
    """x [N, C, spatial..], weight [C, O / groups, spatial..]: each element of x is multiplied by the whole kernel."""
    x, weight = call.shape(0), call.shape(1)
    stride, padding, dilation, extra = [_ints(text) for text in call.concrete if text.startswith("[")][:4]
    out = [
        (extent - 1) * _at(stride, i) - 2 * _at(padding, i) + _at(dilation, i) * (kernel - 1) + _at(extra, i) + 1
        for i, (extent, kernel) in enumerate(zip(x[2:], weight[2:], strict=True))
    ]
    outputs = x[0] * weight[1] * int(call.concrete[8]) * math.prod(out)
    return 2 * math.prod(x) * math.prod(weight[1:]), call.input_bytes() + outputs * call.size(0)


def _convolution_backward(call: _Call) -> tuple[int, int]:
    """Two products of the forward's size: one each for the input's and the weight's gradient."""
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    through_kernel = x if call.concrete[7] == "True" else grad  # transposed: see above
    moved = call.input_bytes() + (math.prod(x) + math.prod(weight)) * call.size(1)
    return 2 * 2 * math.prod(through_kernel) * math.prod(weight[1:]), moved


def _attention(factor: float) -> _Rule:
    """q [B, H, Sq, D], k [B, Hk, Sk, D], v: two products of B x H x Sq x Sk x D each (five in the backward)."""

    def rule(call: _Call) -> tuple[int, int]:
        first = 0 if factor == 1 else 1  # the backward takes the output's gradient first
        q, k, v = call.shape(first), call.shape(first + 1), call.shape(first + 2)
        if not len(q) == len(k) == len(v) == 4:
            raise ValueError("not batched heads")
        products = 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])
        outputs = math.prod(q[:3]) * v[3]
        moved = sum(math.prod(s) for s in (q, k, v)) + outputs
        return round(products * factor), round(moved * call.size(first) * (1 if factor == 1 else 2))

    return rule


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
    "convolution": _convolution(padding_first=False),
    "_convolution": _convolution(padding_first=False),
    "cudnn_convolution": _convolution(padding_first=True),
    "mkldnn_convolution": _convolution(padding_first=True),
    "miopen_convolution": _convolution(padding_first=True),
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention(1),
    "_scaled_dot_product_efficient_attention": _attention(1),
    "_scaled_dot_product_cudnn_attention": _attention(1),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(1),
    "_scaled_dot_product_flash_attention_backward": _attention(2.5),
    "_scaled_dot_product_efficient_attention_backward": _attention(2.5),
    "_scaled_dot_product_cudnn_attention_backward": _attention(2.5),
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
    namespace, _, bare = name.rpartition("::")
    if namespace not in ("aten", "mkldnn", ""):
        return None
    return _RULES.get(_OVERLOAD.sub("", bare))

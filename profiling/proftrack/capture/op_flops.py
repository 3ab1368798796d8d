"""FLOPs of one call of an operator: those of torch.utils.flop_counter, and formulas of our own where it has none.

A multiply-add is two FLOPs. The formulas are of the least that the operator computes: of causal attention the half
below the diagonal, of a sparse product the elements that are stored. docs/measures.md has the table.

Own formulas take a call's arguments by name (`compat.bound`) and its result. They raise `Unknown` if the work depends
on values that cannot be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from proftrack.capture import compat

Bound = Mapping[str, Any]
Formula = Callable[[Bound, Any], Any]


class Unknown(Exception):
    """The work of a call depends on values that cannot be read."""


def flops_of(overload: Any, args: Any, kwargs: Any, out: Any) -> float | None:
    """FLOPs of one call; None if the operator has no formula.

    Raises Unknown, or whatever a formula raises about arguments that it does not expect.
    """
    own = _FORMULAS.get(str(compat.operator_of(overload)))
    if own is not None:
        return float(own(compat.bound(overload, args, kwargs), out))
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(compat.operator_of(overload))
    return None if formula is None else float(formula(*args, **kwargs, out_val=out))


# ---- products --------------------------------------------------------------------------------------------------------


def _product(a: str, b: str) -> Formula:
    """[.., M, K] x [K, N], of which one may be sparse."""

    def formula(call: Bound, _: Any) -> Any:
        x, y = call[a], call[b]
        if _is_sparse(x) and _is_sparse(y):
            raise Unknown("how many products two sparse matrices have depends on where their elements are")
        if _is_sparse(x):
            return 2.0 * _stored(x) * y.shape[-1]
        if _is_sparse(y):
            return 2.0 * math.prod(x.shape[:-1]) * _stored(y)
        return 2.0 * math.prod(x.shape) * y.shape[-1]

    return formula


def _is_sparse(tensor: Any) -> bool:
    return str(tensor.layout) != "torch.strided"


def _stored(sparse: Any) -> int:
    """Number of elements that a sparse tensor stores."""
    *_, values = compat.tensors_in(sparse)
    return int(values.numel())


def _sampled(call: Bound, _: Any) -> Any:
    """A product of dense matrices at the elements of a sparse one."""
    return 2.0 * _stored(call["self"]) * call["mat1"].shape[-1]


def _vector(matrix: str) -> Formula:
    """A matrix and a vector, or two vectors: each element is used once."""

    def formula(call: Bound, _: Any) -> Any:
        value = call[matrix]
        return 2.0 * (_stored(value) if _is_sparse(value) else value.numel())

    return formula


def _outer(call: Bound, _: Any) -> Any:
    return 2.0 * call["vec1"].numel() * call["vec2"].numel()


def _linear(call: Bound, _: Any) -> Any:
    """x [.., K] and weight [N, K]."""
    return 2.0 * math.prod(call["input"].shape[:-1]) * math.prod(call["weight"].shape)


def _by_rows(weight: str) -> Formula:
    """[M, K] and a weight stored as [N, K]."""

    def formula(call: Bound, _: Any) -> Any:
        return 2.0 * call["self"].shape[0] * math.prod(call[weight].shape)

    return formula


def _by_result(first: str) -> Formula:
    """A packed weight: what the result's columns need of the first operand's rows."""

    def formula(call: Bound, out: Any) -> Any:
        return 2.0 * math.prod(call[first].shape) * out.shape[-1]

    return formula


def _packed(elements: int, a: str = "self", b: str = "mat2") -> Formula:
    def formula(call: Bound, _: Any) -> Any:
        return 2.0 * math.prod(call[a].shape) * elements * call[b].shape[-1]

    return formula


def _scaled(call: Bound, out: Any) -> Any:
    """A product of narrow types. float4 stores two elements in a byte."""
    per = 2 if "float4" in str(call["self"].dtype) else 1
    return _packed(per)(call, out)


def _grouped(call: Bound, _: Any) -> Any:
    """Products of the groups that `offs` marks; the rows or columns of all groups together fill the operand.

    [T, K] x [G, K, N], [G, M, K] x [K, T], [M, T] x [T, N], [G, M, K] x [G, K, N].
    """
    a, b = call["self"].shape, call["mat2"].shape
    return 2.0 * (math.prod(a) if len(a) <= len(b) else math.prod(a[1:])) * b[-1]


def _distances(call: Bound, _: Any) -> Any:
    """Distances of P and R points of M coordinates: a difference, and what is done with it, for each."""
    x, y = call["x1"].shape, call["x2"].shape
    return 2.0 * math.prod(x) * y[-2]


# ---- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(transposed: bool | None = None, *, x: str = "self") -> Formula:
    """Each output element (transposed: input element) needs the whole kernel of its group.

    `transposed`: None if the call tells.
    """

    def formula(call: Bound, out: Any) -> Any:
        turned = call["transposed"] if transposed is None else transposed
        return 2.0 * math.prod((call[x] if turned else out).shape) * math.prod(call["weight"].shape[1:])

    return formula


def _convolution_backward(call: Bound, _: Any) -> Any:
    """The gradients of the input and of the weight need as much as the forward, each."""
    wanted = sum(bool(each) for each in call["output_mask"][:2])
    through = call["input"] if call["transposed"] else call["grad_output"]
    return wanted * 2.0 * math.prod(through.shape) * math.prod(call["weight"].shape[1:])


# ---- attention -------------------------------------------------------------------------------------------------------


def pairs(
    queries: int, keys: int, *, causal: bool = False, bottom: bool = False, left: int = -1, right: int = -1
) -> int:
    """How many pairs of query and key take part.

    `causal`: a query sees no later keys. The last query is at the last key if `bottom`, else the first at the first.
    `left` and `right`: how many keys before and after its own a query sees; -1 for all.
    """
    right = 0 if causal else right
    if left < 0 and right < 0:
        return queries * keys
    own = np.arange(queries, dtype=np.int64) + (keys - queries if bottom else 0)
    last = np.minimum(own + right, keys - 1) if right >= 0 else np.full(queries, keys - 1)
    first = np.maximum(own - left, 0) if left >= 0 else np.zeros(queries, dtype=np.int64)
    return int(np.maximum(last - first + 1, 0).sum())


def _attention(*, backward: bool = False, heads_first: bool = True) -> Formula:
    """Forward: q k' and p v. Backward: q k' again, and dv = p' do, dp = do v', dq = ds k, dk = ds' q.

    `heads_first`: the layout is [B, H, S, D], else [B, S, H, D], or [T, H, D] with the sequences one after the other.
    """

    def formula(call: Bound, _: Any) -> Any:
        q, v = call["query"], call["value"]
        heads, width, value_width = q.shape[1 if heads_first else -2], q.shape[-1], v.shape[-1]
        rule = _mask(call, heads_first)
        count = sum(pairs(m, n, **rule) for m, n in _sequences(call, heads_first))
        per_pair = 3 * width + 2 * value_width if backward else width + value_width
        return 2.0 * heads * count * per_pair

    return formula


def _mask(call: Bound, heads_first: bool) -> dict[str, Any]:
    """What a query sees, by the arguments of any of the operators."""
    kind = call.get("custom_mask_type")  # 1: causal from the top left corner, 2: from the bottom right one
    if kind is not None:
        window = call.get("window_size")
        return {"causal": kind in (1, 2), "bottom": kind == 2, "left": -1 if not window else window - 1}
    left, right = (_or_all(call.get(f"window_size_{side}")) for side in ("left", "right"))
    if call.get("window_size") is not None:  # torch.nn.attention.varlen: both
        left, right = (_or_all(each) for each in call["window_size"])
    # FlashAttention aligns the last query with the last key, torch's documentation the first with the first.
    return {"causal": bool(call.get("is_causal", False)), "bottom": not heads_first, "left": left, "right": right}


def _or_all(size: int | None) -> int:
    return -1 if size is None else int(size)


def _sequences(call: Bound, heads_first: bool) -> list[tuple[int, int]]:
    """Queries and keys of each sequence."""
    q, k = call["query"].shape, call["key"].shape
    if call.get("block_table") is not None:
        raise Unknown("the keys are in pages")
    ends = [_first(call, f"cum_seq_{side}", f"cu_seqlens_{side}", f"cu_seq_{side}") for side in "qk"]
    if not heads_first and ends[0] is not None and ends[1] is not None:
        queries, keys = ([b - a for a, b in pairwise(v)] for v in map(_values, ends))
    else:
        at = -2 if heads_first else -3
        queries, keys = [q[at]] * math.prod(q[:1]), [k[at]] * math.prod(q[:1])
    used = _first(call, "seqused_k", "seqlen_k")
    if used is not None:
        keys = _values(used)
    return list(zip(queries, keys, strict=True))


def _first(call: Bound, *names: str) -> Any:
    return next((call[name] for name in names if call.get(name) is not None), None)


def _values(tensor: Any) -> list[int]:
    """A tensor's values. Raises Unknown while a CUDA graph is captured, when waiting for the GPU is not allowed."""
    if compat.capturing():
        raise Unknown("values cannot be read while a graph is captured")
    return [int(value) for value in tensor.tolist()]


def _encoder_attention(call: Bound, _: Any) -> Any:
    """Self-attention with its projections, of [B, S, E]."""
    x = call.get("query", call.get("src"))
    batch, length, width = x.shape
    weights = sum(math.prod(call[name].shape) for name in _PROJECTIONS if name in call)
    return 2.0 * batch * length * weights + 4.0 * batch * length * length * width


_PROJECTIONS = ("qkv_weight", "proj_weight", "ffn_weight_1", "ffn_weight_2")

# ---- recurrent layers, Fourier transforms, bags ----------------------------------------------------------------------


def _recurrent(weights: Iterable[str], times: int = 1) -> Formula:
    """Each weight matrix meets each element of each sequence once; twice as much in the backward."""

    def formula(call: Bound, _: Any) -> Any:
        tensors = compat.tensors_in([call[name] for name in weights if name in call])
        elements = math.prod(call["input"].shape[:-1])
        return times * 2.0 * elements * sum(t.numel() for t in tensors if t.dim() == 2)

    return formula


def _fourier(size_of: Callable[[Bound, Any], Any], factor: float) -> Formula:
    """`factor` N log2 N for each transform of N points: 5 for complex values, 2.5 for real ones.

    The convention of FFTW's authors (http://www.fftw.org/speed/), the count of the radix-2 algorithm.
    """

    def formula(call: Bound, out: Any) -> Any:
        shape = size_of(call, out).shape
        points = math.prod(shape[d] for d in call["dim"])
        return factor * math.prod(shape) * math.log2(points) if points > 1 else 0.0

    return formula


def _bag(call: Bound, _: Any) -> Any:
    """An addition for each value that is looked up; a multiplication as well if the lookups have weights."""
    weighted = 2.0 if call.get("per_sample_weights") is not None else 1.0
    return weighted * call["indices"].numel() * call["weight"].shape[-1]


_MKLDNN_WEIGHTS = ("weight0", "weight1", "weight2")
_FORMULAS: dict[str, Formula] = {
    "aten.mm": _product("self", "mat2"),
    "aten.addmm": _product("mat1", "mat2"),
    "aten.bmm": _product("self", "mat2"),
    "aten._sparse_addmm": _product("mat1", "mat2"),
    "aten._sparse_mm_reduce_impl": _product("self", "other"),
    "aten.sparse_sampled_addmm": _sampled,
    "aten._addmm_activation": _product("mat1", "mat2"),
    "aten.addbmm": _product("batch1", "batch2"),
    "aten.mv": _vector("self"),
    "aten.addmv": _vector("mat"),
    "aten.addmv_": _vector("mat"),
    "aten.dot": _vector("self"),
    "aten.vdot": _vector("self"),
    "aten.addr": _outer,
    "aten.addr_": _outer,
    "aten.linear": _linear,
    "aten.mkldnn_linear": lambda call, _: _linear({"input": call["self"], "weight": call["weight"]}, _),
    "aten._scaled_mm": _scaled,
    "aten._scaled_mm_v2": _scaled,
    "aten._int_mm": _product("self", "mat2"),
    "aten._grouped_mm": _grouped,
    "aten._scaled_grouped_mm": _grouped,
    "aten._scaled_grouped_mm_v2": _grouped,
    "aten._weight_int8pack_mm": _by_rows("mat2"),
    "aten._weight_int4pack_mm": _by_result("self"),
    "aten._weight_int4pack_mm_for_cpu": _by_result("self"),
    "aten._dyn_quant_matmul_4bit": _by_result("inp"),
    "aten._mixed_dtypes_linear": _by_result("input"),
    # Half of the elements are stored and multiplied.
    "aten._sparse_semi_structured_mm": _packed(1, "mat1", "mat2"),
    "aten._sparse_semi_structured_addmm": _packed(1, "mat1", "mat2"),
    "aten._cdist_forward": _distances,
    "aten._euclidean_dist": _distances,
    "aten.convolution": _convolution(x="input"),
    "aten._convolution": _convolution(x="input"),
    "aten.convolution_overrideable": _convolution(x="input"),
    "aten.convolution_backward": _convolution_backward,
    "aten.cudnn_convolution": _convolution(False),
    "aten.cudnn_convolution_relu": _convolution(False),
    "aten.cudnn_convolution_add_relu": _convolution(False),
    "aten.cudnn_convolution_transpose": _convolution(True),
    "aten.miopen_convolution": _convolution(False),
    "aten.miopen_convolution_transpose": _convolution(True),
    "aten.mkldnn_convolution": _convolution(False),
    "aten._scaled_dot_product_flash_attention": _attention(),
    "aten._scaled_dot_product_efficient_attention": _attention(),
    "aten._scaled_dot_product_cudnn_attention": _attention(),
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention(),
    "aten._scaled_dot_product_fused_attention_overrideable": _attention(),
    "aten._scaled_dot_product_flash_attention_backward": _attention(backward=True),
    "aten._scaled_dot_product_efficient_attention_backward": _attention(backward=True),
    "aten._scaled_dot_product_cudnn_attention_backward": _attention(backward=True),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention(backward=True),
    "aten._scaled_dot_product_fused_attention_overrideable_backward": _attention(backward=True),
    "aten._cudnn_attention_forward": _attention(),
    "aten._flash_attention_forward": _attention(heads_first=False),
    "aten._flash_attention_backward": _attention(backward=True, heads_first=False),
    "aten._efficient_attention_forward": _attention(heads_first=False),
    "aten._efficient_attention_backward": _attention(backward=True, heads_first=False),
    "torch_attn._varlen_attn": _attention(heads_first=False),
    "torch_attn._varlen_attn_backward": _attention(backward=True, heads_first=False),
    "aten._native_multi_head_attention": _encoder_attention,
    "aten._transformer_encoder_layer_fwd": _encoder_attention,
    "aten._cudnn_rnn": _recurrent(["weight"]),
    "aten._cudnn_rnn_backward": _recurrent(["weight"], 2),
    "aten.miopen_rnn": _recurrent(["weight"]),
    "aten.miopen_rnn_backward": _recurrent(["weight"], 2),
    "aten.mkldnn_rnn_layer": _recurrent(_MKLDNN_WEIGHTS),
    "aten.mkldnn_rnn_layer_backward": _recurrent(_MKLDNN_WEIGHTS, 2),
    "aten._fft_c2c": _fourier(lambda call, _: call["self"], 5.0),
    "aten._fft_r2c": _fourier(lambda call, _: call["self"], 2.5),
    "aten._fft_c2r": _fourier(lambda _, out: out, 2.5),
    "aten._embedding_bag": _bag,
    "aten._embedding_bag_forward_only": _bag,
}

UNCOUNTED = frozenset(
    (
        # Several passes, or work that depends on the values.
        "sort argsort msort topk kthvalue mode median nanmedian unique_dim _unique _unique2 unique_consecutive "
        "searchsorted bucketize histc histogram bincount multinomial nonzero masked_select _sparse_sparse_matmul "
        # Factorizations and solvers.
        "cholesky cholesky_inverse cholesky_solve linalg_cholesky_ex linalg_eig _linalg_eigh _linalg_svd _linalg_det "
        "_linalg_slogdet _linalg_solve_ex linalg_inv_ex linalg_ldl_factor_ex linalg_lstsq linalg_lu "
        "linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr linalg_householder_product "
        "linalg_solve_triangular geqrf ormqr triangular_solve lu_unpack "
        # Arithmetic without a formula here.
        "_ctc_loss _cudnn_ctc_loss _trilinear _pdist_forward _cdist_backward _sparse_semi_structured_linear "
        "_cslt_sparse_mm _triton_scaled_dot_attention _triton_multi_head_attention"
    ).split()
)
"""torch's operators whose work is neither in a formula nor in the bytes that they must move: they are named instead."""

"""Kinds of real kernels by their names, and what of a name is the function's own."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from proftrack.measures.identifiers import parts_of, types_in, words_of
from proftrack.measures.kernels import kind_of_kernel, limit_of_kind, limit_of_operator
from proftrack.record.figures import KernelKind

TABLE = Path(__file__).with_name("kernel_names.tsv")
"""name (cut at 300 characters), kind, why, source. Why is given if it is not obvious; "trap": the name has a word of
another kind; "missed": its words mislead the code, or say what it does not know.

A kind is argued from what the kernel does, not from what the code says. The names are from public traces, reports and
sources of libraries, where a kernel without template arguments has the name that a trace shows. In names from reports
the arguments may be abridged.
"""


def named() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_real_kernels() -> None:
    wrong = {
        row["name"]: (kind, row["kind"]) for row in named() if (kind := kind_of_kernel(row["name"])) != row["kind"]
    }
    missed = {row["name"] for row in named() if row["why"].startswith("missed")}
    assert not (wrong.keys() ^ missed), f"{len(wrong)} of {len(named())}, as (found, right): {wrong}"
    assert len(missed) <= len(named()) / 100


def test_the_table_is_large_and_balanced() -> None:
    rows = named()
    kinds = Counter(row["kind"] for row in rows)
    assert len(rows) == len({row["name"] for row in rows}) >= 300
    assert set(kinds) <= set(get_args(KernelKind)) and all(len(row["name"]) <= 300 for row in rows)
    frequent = ("matmul", "attention", "convolution", "normalization", "elementwise", "reduction", "copy", "unknown")
    assert all(kinds[kind] >= 20 for kind in (*frequent, "communication", "embedding", "sort"))
    assert sum(row["why"].startswith("trap") for row in rows) >= 30


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("void at::native::(anonymous namespace)::f<4, at::G<float>>(int, at::G<float>)", "at::native::f"),
        ("void (anonymous namespace)::f<x>(y)", "f"),
        ("void <unnamed>::f<(bool)1>(<unnamed>::Params)", "f"),
        ("std::enable_if<(((8)>(0)))&&vllm::Has<int>::value, void>::type vllm::f<int, 8>(int*)", "vllm::f"),
        ("unsigned int n::f(int) const [clone .kd]", "n::f"),
        ("void n::f(int)::{lambda(int)#1}::operator()(int) const", "n::f::operator"),
        ("n::operator<(n::A const&)", "n::operator"),
        ("C<n::D>::run(int)", "C::run"),
        ("typeinfo name for n::F<int>", "n::F"),
        ("nvjet_tst_128x64_64x12_1x2_h_bz_TNT", "nvjet_tst_128x64_64x12_1x2_h_bz_TNT"),
        ("two words", "two words"),
        ("volta_h16gemm_<BF16,BF16,float>_nt_v1", "volta_h16gemm_"),
        ("void f<cut, off<here", "f"),
        ("_Z1fIiEvT_", "f"),
        ("_ZN1n1fE", "n::f"),
        ("_ZN12_GLOBAL__N_11fEv", "f"),
        ("_ZN1n1fILi1EN1m1gIfEEEEvv", "n::f"),
        ("_ZTSN1n1FIiEE", "n::F"),
        ("", ""),
        ("()", ""),
        ("_Z", "_Z"),
    ],
)
def test_the_parts_of_a_name(name: str, parts: str) -> None:
    assert "::".join(part.name for part in parts_of(name)) == parts


def test_template_arguments() -> None:
    assert list(types_in("1, (bool)1, true, n::F<a, b>, G(x, y)::{lambda(int, int)#1}")) == [
        "n::F<a, b>",
        "G(x, y)::{lambda(int, int)#1}",
    ]
    (part,) = parts_of("_Z1fILi1EN1m1gIfEEEvv")
    assert [parts_of(argument)[-1].name for argument in types_in(part.arguments)] == ["g"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("splitKReduce_kernel2", "split k reduce kernel 2"),
        ("RMSNormKernel", "rms norm kernel"),
        ("s16816gemm", "s 16816 gemm"),
        ("FP8rowwise", "fp 8 rowwise"),
        ("fbgemm", "fbgemm"),
        ("___", ""),
    ],
)
def test_words(name: str, words: str) -> None:
    assert words_of(name) == words


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # A shell: its template arguments, whichever says something first; else the class around it.
        ("void lib::Kernel2<lib::some_sgemm_64x64>(P)", "matmul"),
        ("void lib::device_kernel<128, lib::enable_sm90_or_later<lib::FmhaForward<X>>>(P)", "attention"),
        ("void lib::kernel<int, lib::SoftmaxForward>(P)", "normalization"),
        ("void gemv::kernel<int, float>(P)", "gemv"),
        ("void lib::kernel<int, float>(P)", "unknown"),
        ("void lib::f(int)::{lambda(int)#1}::operator()(int) const", "unknown"),
        # Whose function it is does not tell what it does.
        ("void gemm_lib::f<int>(P)", "unknown"),
        ("void flash_attention::rms_norm<int>(P)", "normalization"),
        ("void lib::f<lib::GemmTraits>(lib::AttentionParams)", "unknown"),
        # Except where the library only communicates.
        ("void nvshmemi::f<int>(P)", "communication"),
        ("void mscclpp::kernel<int>(P)", "communication"),
        # A word within a word.
        ("small_reduce", "reduction"),
        ("cudnn_bn_fw_tr_1C11_singleread", "normalization"),
        ("preconversion_step", "unknown"),
        ("gatherer_unscattered", "unknown"),
        # The part of a job is not the job.
        ("flash_fwd_combine_kernel", "reduction"),
        ("get_attention_metadata", "unknown"),
        ("gemm_splitk_reduce_kernel", "split-k reduction"),
        ("prepare_grouped_gemm_data", "unknown"),
        ("Custom_Cijk_Alik_Bljk_BBS_MT256x256x64", "matmul"),
        ("Cijk_BBS", "unknown"),
        ("fused_softcapped_entropy_bwd_kernel", "reduction"),
        ("triton__moe_fused_kernel_0d1d2d", "matmul"),
        ("moe_fused_gate_kernel", "sort"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_tem_fused_convolution_2", "convolution"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind


def test_a_short_convolution_of_each_channel_is_limited_by_bandwidth() -> None:
    assert limit_of_kind(kind_of_kernel("causal_conv1d_update")) == "bandwidth"
    assert limit_of_kind(kind_of_kernel("conv2d_nhwc")) == "arithmetic"


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("aten::addmm", "arithmetic"),
        ("aten::cudnn_convolution", "arithmetic"),
        ("aten::conv1d", "arithmetic"),
        ("aten::_scaled_dot_product_efficient_attention", "arithmetic"),
        ("aten::linear", "arithmetic"),
        ("aten::upsample_linear1d", "bandwidth"),
        ("aten::_conv_depthwise2d", "bandwidth"),
        ("aten::converted", "bandwidth"),
        ("aten::_cudnn_rnn", "unknown"),
        ("fbgemm::lookup", "bandwidth"),
        ("fbgemm::f", "unknown"),
        ("flash_attn::f", "unknown"),
        ("flash_attn::_flash_attn_forward", "arithmetic"),
        ("_C::cutlass_scaled_mm", "arithmetic"),
        ("_C::rms_norm", "bandwidth"),
        ("my::op", "unknown"),
        ("FlashAttnFuncBackward", "arithmetic"),
    ],
)
def test_operators_count_by_their_own_name(name: str, limit: str) -> None:
    assert limit_of_operator(name) == limit


@pytest.mark.parametrize(
    "name",
    [
        "(" * 3000,
        "f<" * 1500,
        "_ZN" + "La" * 1400,
        "_Z" + "N" * 3000,
        "_ZN9999999999a",
        "gemm_" * 600,
        "::" * 1500,
        "\0<é>",
    ],
)
def test_a_hostile_name_has_a_kind(name: str) -> None:
    assert kind_of_kernel(name) in get_args(KernelKind)

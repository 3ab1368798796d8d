"""The workloads of the suite: which regime is right, and why.

The reasons were written before the first run. They follow from what a workload has to do and from what an H200 reaches:
some 700 TFLOP/s with bfloat16 (twice that with eight bits, half with TF32), 50 with float32, 60 with float64, 4.2 TB/s
in a copy, 50 MB of L2 cache; 132 multiprocessors, each with 128 lanes for float32 and 64 for integers (15 T/s) and for
float64; 3 to 10 us of the host's time per operator. Two regimes are right only where the reason says that two limits
are near each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

OVERHEAD, COMPUTE, MEMORY, LATENCY = "overhead-bound", "compute-bound", "memory-bound", "latency-bound"
INPUT, HOST, SYNC, TRANSFER = "input-bound", "host-bound", "sync-bound", "transfer-bound"


class Case(NamedTuple):
    """A workload (module:function in this package), its parameters, the regimes that are right, and why."""

    name: str
    workload: str
    params: dict[str, Any]
    right: str | tuple[str, ...]
    because: str
    graph: bool = False
    """The same step can be captured as a graph: then T must come to B."""
    schedule: dict[str, int] = {}
    """Other than the default."""

    @property
    def regimes(self) -> tuple[str, ...]:
        """The regimes that are right."""
        return (self.right,) if isinstance(self.right, str) else self.right


# Seen before: rules were made while looking at these.
_FIRST = (
    Case("matmul_add_64", "operators:matmul_add", {"n": 64}, OVERHEAD, "0.5 MFLOP against two launches"),
    Case("matmul_add_256", "operators:matmul_add", {"n": 256}, OVERHEAD, "34 MFLOP: under a microsecond of arithmetic"),
    Case(
        "matmul_add_1024", "operators:matmul_add", {"n": 1024}, OVERHEAD, "2 GFLOP, some 5 us: two launches take longer"
    ),
    Case("matmul_add_4096", "operators:matmul_add", {"n": 4096}, COMPUTE, "137 GFLOP: 0.2 ms in one kernel"),
    Case("matmul_add_8192", "operators:matmul_add", {"n": 8192}, COMPUTE, "1.1 TFLOP: 1.5 ms in one kernel"),
    Case("compiled_64", "operators:matmul_add", {"n": 64, "compile": True}, OVERHEAD, "guards and launches remain"),
    Case("compiled_4096", "operators:matmul_add", {"n": 4096, "compile": True}, COMPUTE, "the product remains"),
    Case("graph_4096", "operators:matmul_add", {"n": 4096, "graph": True}, COMPUTE, "the product remains"),
    Case("matmul_8192", "operators:matmul", {"n": 8192}, COMPUTE, "1.1 TFLOP: 1.5 ms in one kernel"),
    Case(
        "normalize_chain",
        "operators:normalize_chain",
        {"rows": 16384, "width": 8192},
        MEMORY,
        "four passes over 0.5 GB, a few FLOPs a value",
    ),
    Case("gemv", "operators:gemv", {"n": 16384}, MEMORY, "one FLOP a byte of the matrix"),
    Case("elementwise_1g", "operators:elementwise", {"mebibytes": 1024}, MEMORY, "a quarter FLOP a byte"),
    Case(
        "mlp_train_large",
        "models:mlp_train",
        {"batch": 8192, "width": 4096, "hidden": 16384},
        COMPUTE,
        "6.6 TFLOP a step against some GB of optimizer traffic",
    ),
    Case(
        "attention",
        "operators:attention",
        {"batch": 8, "heads": 32, "length": 4096, "width": 128},
        COMPUTE,
        "2.2 TFLOP on 1 GB of q, k, v",
    ),
    Case("copy_pageable", "host:host_copy", {"mebibytes": 256, "pinned": False}, TRANSFER, "nothing but a copy"),
    Case("copy_pinned", "host:host_copy", {"mebibytes": 256, "pinned": True}, TRANSFER, "nothing but a copy"),
    Case(
        "hidden_copies",
        "host:hidden_copies",
        {"n": 8192, "mebibytes": 32},
        COMPUTE,
        "0.6 ms of copies behind 1.5 ms of arithmetic",
        # The window begins with an empty queue: what runs side by side in the long run needs some steps to get there.
        schedule={"active": 10},
    ),
    Case("slow_loader", "host:slow_loader", {"batch": 16, "width": 512}, INPUT, "16 ms of decoding a batch"),
    Case("host_work", "host:host_work", {"n": 2048, "milliseconds": 10.0}, HOST, "10 ms of numpy a step"),
    Case(
        "item_loop",
        "host:item_loop",
        {"n": 4096, "small_operators": 12},
        SYNC,
        "each read drains the queue; 12 launches would hide behind the next 0.2 ms product",
    ),
    Case(
        "few_blocks_graph",
        "operators:few_blocks_graph",
        {"rows": 8, "width": 65536, "count": 20},
        LATENCY,
        "eight blocks on 132 multiprocessors",
    ),
    Case(
        "optimizer_for_loop",
        "models:optimizer_only",
        {"tensors": 200, "size": 1024, "kind": "for-loop"},
        OVERHEAD,
        "some 2,000 launches on 4 KB each",
    ),
    Case(
        "optimizer_foreach_small",
        "models:optimizer_only",
        {"tensors": 200, "size": 1024, "kind": "foreach"},
        OVERHEAD,
        "a dozen launches on less than a megabyte, and Python over 200 tensors",
    ),
    Case(
        "optimizer_fused_large",
        "models:optimizer_only",
        {"tensors": 16, "size": 16 << 20, "kind": "fused"},
        MEMORY,
        "7 GB of parameters, moments and gradients",
    ),
    Case("resnet50_fp32", "models:resnet", {"batch": 64}, COMPUTE, "1.6 TFLOP in float32, images on the GPU"),
    Case(
        "mlp_train_small",
        "models:mlp_train",
        {"batch": 64, "width": 256, "hidden": 1024},
        OVERHEAD,
        "0.2 GFLOP against some 30 launches and autograd",
        graph=True,
    ),
    Case(
        "mlp_train_mid",
        "models:mlp_train",
        {"batch": 256, "width": 1024, "hidden": 4096},
        OVERHEAD,
        "13 GFLOP: some 20 us of arithmetic and 0.1 ms of optimizer traffic against some 30 launches and autograd",
        graph=True,
    ),
    Case(
        "decode",
        "models:decode",
        {"layers": 8, "width": 512, "tokens": 16},
        OVERHEAD,
        "thousands of launches of microsecond kernels",
    ),
)

# Eight kinds whose counters were known beforehand.
_COUNTED = (
    Case("copy_1g", "operators:copy", {"mebibytes": 1024}, MEMORY, "2 GiB moved, nothing computed"),
    Case(
        "attention_64k_keys",
        "operators:attention",
        {"batch": 1, "heads": 32, "length": 65536, "width": 128, "queries": 1},
        MEMORY,
        "each of 1 GB of keys and values is read once, for one FLOP a byte",
    ),
    Case(
        "decode_graph",
        "models:decode_graph",
        {"layers": 8, "width": 4096, "hidden": 11008, "context": 1024},
        MEMORY,
        "3.6 GB of weights and keys a token, one FLOP a byte; a graph leaves no launches",
    ),
    Case(
        "triton_polynomial",
        "kernels:polynomial",
        {"count": 16 << 20, "degree": 1024},
        COMPUTE,
        "2048 FLOPs for each value of 8 bytes: 0.6 ms of float32 against 0.03 ms of traffic",
    ),
    Case(
        "embedding_bag",
        "operators:embedding_bag",
        {"rows": 1 << 20, "width": 64, "bags": 1 << 17, "per_bag": 32},
        COMPUTE,
        "4 M lookups of 256 bytes: 0.25 ms of traffic, but 64-bit addresses and checks for every 4 bytes, some 20 "
        "integer instructions: 0.36 ms",
    ),
    Case(
        "bmm_32",
        "operators:batched_matmul",
        {"count": 200_000, "n": 32},
        MEMORY,
        "1.2 GB for 13 GFLOP: 11 FLOPs a byte, a twentieth of what would keep the tensor cores busy",
    ),
    Case(
        "vit_train",
        "models:vit_train",
        {"batch": 128},
        (COMPUTE, MEMORY),
        "6.7 TFLOP, 10 ms, in products; norms, GELU, additions and the optimizer pass some 40 GB, 10 ms: both in turns",
    ),
)

# Not seen before.
_NEW = (
    # Products
    Case("fp8_8192", "operators:scaled_matmul", {"m": 8192, "n": 8192}, COMPUTE, "1.1 TFLOP on 0.26 GB"),
    Case(
        "fp8_decode",
        "operators:scaled_matmul",
        {"m": 16, "n": 16384},
        MEMORY,
        "16 rows: 32 FLOPs for each byte of the weights, a tenth of the ridge",
    ),
    Case("int8_8192", "operators:int8_matmul", {"m": 8192, "n": 8192}, COMPUTE, "1.1 T operations on 0.4 GB"),
    Case(
        "skinny_16",
        "operators:matmul",
        {"n": 16384, "m": 16},
        MEMORY,
        "16 rows: 16 FLOPs for each byte of the weights, a tenth of the ridge",
    ),
    Case(
        "fp32_4096", "operators:matmul", {"n": 4096, "dtype": "float32"}, COMPUTE, "137 GFLOP of float32 without TF32"
    ),
    Case(
        "tf32_8192",
        "operators:matmul",
        {"n": 8192, "dtype": "float32", "tf32": True},
        COMPUTE,
        "1.1 TFLOP of TF32 on 0.8 GB: 3 ms against 0.2",
    ),
    Case(
        "fp64_4096",
        "operators:matmul",
        {"n": 4096, "dtype": "float64"},
        COMPUTE,
        "137 GFLOP of float64: 2.3 ms against 0.1 of traffic",
    ),
    Case(
        "spmm",
        "operators:sparse_matmul",
        {"rows": 500_000, "per_row": 16, "width": 128},
        MEMORY,
        "8 M rows of 512 bytes at random places of 256 MB, five times the L2 cache; half a FLOP a byte",
    ),
    # Triton
    Case("triton_copy", "kernels:copy", {"mebibytes": 512}, MEMORY, "1 GiB moved, nothing computed"),
    Case(
        "triton_softmax",
        "kernels:softmax",
        {"rows": 65536, "width": 4096},
        MEMORY,
        "1 GB read and written once, some ten FLOPs a value: 0.25 ms against 0.1",
    ),
    Case(
        "triton_hash",
        "kernels:mixing",
        {"count": 16 << 20, "rounds": 256},
        COMPUTE,
        "over 1,500 integer instructions for 8 bytes",
    ),
    Case(
        "triton_int8_gemv",
        "kernels:int8_gemv",
        {"rows": 32768, "width": 16384},
        MEMORY,
        "537 MB of weights read once: 0.13 ms; a conversion and a product for each byte: 0.05",
    ),
    # Attention
    Case(
        "attention_causal",
        "operators:attention",
        {"batch": 4, "heads": 32, "length": 8192, "width": 128, "causal": True},
        COMPUTE,
        "2.2 TFLOP on 1 GB",
    ),
    Case(
        "attention_decode",
        "operators:attention",
        {"batch": 64, "heads": 32, "length": 4096, "width": 128, "queries": 1},
        MEMORY,
        "4.3 GB of keys and values, one FLOP a byte, 2,048 heads to spread over the device",
    ),
    Case(
        "prefill_inference_mode",
        "models:prefill",
        {"layers": 4, "width": 4096, "hidden": 11008, "batch": 4, "length": 2048},
        COMPUTE,
        "14 TFLOP: 20 ms, against 2 ms of norms, rotations and gates",
    ),
    # Experts
    Case(
        "moe_large",
        "models:experts",
        {"tokens": 32768, "width": 4096, "hidden": 8192, "count": 8},
        COMPUTE,
        "8.8 TFLOP: 12 ms; gathers and sums of 268 MB each take two, eight waits for a mask one and a half",
    ),
    Case(
        "moe_small",
        "models:experts",
        {"tokens": 64, "width": 512, "hidden": 1024, "count": 16},
        OVERHEAD,
        "some 200 launches of microsecond kernels; there is nothing that the waits could wait for",
    ),
    Case(
        "moe_grouped_decode",
        "models:grouped_experts",
        {"tokens": 128, "width": 4096, "hidden": 4096, "count": 32},
        MEMORY,
        "four tokens for each expert: 1.1 GB of weights, 8 FLOPs for each value",
    ),
    # Lookups, sums at computed places
    Case(
        "embedding",
        "operators:embedding",
        {"rows": 1 << 20, "width": 512, "count": 1 << 19},
        MEMORY,
        "1 GB of rows of 2 KB copied to 1 GB",
    ),
    Case(
        "gather",
        "operators:gather",
        {"size": 1 << 28, "count": 1 << 26},
        MEMORY,
        "67 M values, each a sector of 32 bytes, and their indices: 2.9 GB, 0.7 ms; some 50 integer instructions each: "
        "0.2",
    ),
    Case(
        "scatter_few",
        "operators:scatter_add",
        {"size": 64, "count": 16 << 20},
        LATENCY,
        "17 M atomic additions to 256 bytes, one after the other in the L2 cache: milliseconds; 0.2 GB of traffic and "
        "0.5 G instructions need 0.05",
    ),
    Case(
        "gnn_aggregate",
        "models:aggregate",
        {"nodes": 1 << 20, "edges": 1 << 22, "width": 64},
        LATENCY,
        "4.5 GB: 1.1 ms; but torch gathers a row of 256 bytes with half a warp, so that 1 MB is under way at a time: 1 "
        "TB/s at a latency of 1 us; then come 270 M atomic additions",
    ),
    Case(
        "gnn_small",
        "models:graph_network_train",
        {"nodes": 2000, "edges": 10_000, "width": 64},
        OVERHEAD,
        "some 60 launches on half a megabyte",
    ),
    # Along a dimension
    Case("fft", "operators:fourier", {"rows": 16384, "width": 8192}, MEMORY, "2 GB a pass for 9 GFLOP: 0.5 ms to 0.2"),
    Case(
        "sort",
        "operators:sort",
        {"count": 32 << 20},
        MEMORY,
        "four passes of radix sort over keys and 64-bit places, 3.4 GB: 0.8 ms; some 40 integer instructions each: 0.4",
    ),
    Case("cumsum", "operators:running_sum", {"count": 1 << 28}, MEMORY, "2 GB for 0.3 G additions"),
    Case("sum", "operators:total", {"mebibytes": 1024}, MEMORY, "a quarter FLOP a byte"),
    Case(
        "topk",
        "operators:largest",
        {"rows": 16, "width": 8 << 20, "k": 64},
        (MEMORY, COMPUTE),
        "five passes over 0.5 GB, 0.13 ms each; to count digits takes some 20 integer instructions a value, 0.18 ms",
    ),
    Case("rms_norm", "operators:rms_norm", {"rows": 65536, "width": 4096}, MEMORY, "1 GB, some four FLOPs a value"),
    Case(
        "cross_entropy",
        "operators:cross_entropy",
        {"rows": 8192, "vocabulary": 128_256},
        MEMORY,
        "2.1 GB of logits passed at least four times: 2 ms; two exponentials a value: 0.6",
    ),
    # One value at a time
    Case(
        "dropout",
        "operators:dropout",
        {"mebibytes": 1024},
        (MEMORY, COMPUTE),
        "2.4 GB: 0.6 ms; Philox takes some 25 integer instructions for each value: 0.5 ms",
    ),
    Case(
        "transpose",
        "operators:transpose",
        {"n": 16384},
        (MEMORY, LATENCY),
        "2 GB moved: 0.5 ms; but a warp's 32 values lie in 32 rows, and the L1 cache, which is not counted, serves one "
        "a cycle: 1.2 ms",
    ),
    Case("small_chain", "operators:small_chain", {"count": 100, "size": 16384}, OVERHEAD, "100 launches on 64 KB"),
    Case(
        "log_gamma_fp64",
        "operators:log_gamma",
        {"count": 64 << 20},
        COMPUTE,
        "over 100 float64 instructions for 16 bytes: 0.5 ms and more, against 0.25",
    ),
    # Convolutions
    Case(
        "conv1d",
        "operators:convolution",
        {"batch": 64, "channels": 512, "size": [4096], "kernel": 9, "dtype": "bfloat16"},
        COMPUTE,
        "1.2 TFLOP on 0.5 GB",
    ),
    Case(
        "conv2d_channels_last",
        "operators:convolution",
        {"batch": 128, "channels": 256, "size": [56, 56], "kernel": 3, "channels_last": True},
        COMPUTE,
        "0.5 TFLOP on 0.4 GB",
    ),
    Case(
        "conv3d",
        "operators:convolution",
        {"batch": 8, "channels": 128, "size": [32, 64, 64], "kernel": 3, "channels_last": True},
        COMPUTE,
        "0.9 TFLOP on 0.5 GB",
    ),
    Case(
        "conv_depthwise",
        "operators:convolution",
        {"batch": 256, "channels": 512, "size": [56, 56], "kernel": 3, "groups": 512},
        (MEMORY, COMPUTE),
        "1.6 GB for 7 GFLOP: 0.4 ms; a direct kernel takes some 40 integer instructions for each output: 1 ms",
    ),
    # Recurrent
    Case(
        "lstm",
        "models:lstm",
        {"length": 64, "batch": 1024, "width": 2048},
        COMPUTE,
        "4.4 TFLOP: half in one product, half in 64 of 34 GFLOP, 50 us each",
    ),
    Case(
        "lstm_cells",
        "models:lstm_cells",
        {"length": 64, "batch": 32, "width": 512},
        OVERHEAD,
        "some 200 launches of microsecond kernels",
    ),
    Case(
        "lstm_cells_graph",
        "models:lstm_cells",
        {"length": 64, "batch": 32, "width": 512, "graph": True},
        LATENCY,
        "the same kernels of a few blocks, each waiting for the one before",
    ),
    # Linear algebra
    Case(
        "cholesky",
        "operators:cholesky",
        {"n": 2048},
        LATENCY,
        "3 GFLOP, 0.06 ms of arithmetic, in columns that depend on each other: a chain of over 100 small kernels",
    ),
    Case(
        "inverse_batched",
        "operators:inverse",
        {"count": 8192, "n": 32},
        LATENCY,
        "0.5 GFLOP on 67 MB, 0.03 ms of either; 32 pivots, one after the other, twice",
    ),
    # Optimizers
    Case(
        "optimizer_foreach_large",
        "models:optimizer_only",
        {"tensors": 16, "size": 16 << 20, "kind": "foreach"},
        MEMORY,
        "a dozen passes over 1 GB and more each",
    ),
    Case(
        "optimizer_for_loop_large",
        "models:optimizer_only",
        {"tensors": 16, "size": 16 << 20, "kind": "for-loop"},
        MEMORY,
        "200 launches, but each passes 130 to 200 MB: 40 us against 8 us of the host's",
    ),
    # Data, host, copies
    Case(
        "loader_8_workers",
        "host:slow_loader",
        {"batch": 32, "width": 512, "workers": 8},
        INPUT,
        "32 ms of decoding a batch: 4 ms with eight workers, the step itself takes one",
    ),
    Case(
        "loader_deep_queue",
        "host:slow_loader",
        {"batch": 16, "width": 512, "workers": 4, "ahead": 8},
        INPUT,
        "4 ms of decoding a batch with four workers, the step takes one; 32 batches that are ready after every pause "
        "do not change that",
    ),
    Case(
        "loader_hidden",
        "host:fed_training",
        {"batch": 256, "crops": 32, "width": 1024, "hidden": 8192, "layers": 8, "workers": 8},
        COMPUTE,
        "6.6 TFLOP a step, 10 ms; eight workers need less for a batch",
    ),
    Case("text_work", "host:text_work", {"words": 40_000, "width": 64}, HOST, "8 ms of cutting words in plain Python"),
    Case(
        "copy_back_pageable",
        "host:host_copy",
        {"mebibytes": 256, "pinned": False, "back": True},
        TRANSFER,
        "nothing but a copy",
    ),
    Case(
        "copy_back_pinned",
        "host:host_copy",
        {"mebibytes": 256, "pinned": True, "back": True},
        TRANSFER,
        "nothing but a copy",
    ),
    # Graphs, training
    Case(
        "graph_train_small",
        "models:mlp_train",
        {"batch": 64, "width": 256, "hidden": 1024, "graph": True},
        LATENCY,
        "0.2 GFLOP and 4 MB in some 30 kernels of a few blocks, without launches",
    ),
    Case(
        "graph_train_large",
        "models:mlp_train",
        {"batch": 8192, "width": 4096, "hidden": 16384, "graph": True},
        COMPUTE,
        "6.6 TFLOP a step against some GB of optimizer traffic",
    ),
    Case(
        "block_train",
        "models:block_train",
        {"batch": 4, "length": 2048, "width": 4096, "hidden": 11008},
        COMPUTE,
        "10 TFLOP: 14 ms, against 2 ms of norms, rotations, gates and the optimizer",
    ),
    Case(
        "resnet50_bf16",
        "models:resnet",
        {"batch": 256, "dtype": "bfloat16"},
        MEMORY,
        "6.3 TFLOP, 10 to 15 ms of convolutions; norms, ReLU and additions pass some 70 GB, 16 ms at best; 1,600 "
        "launches take 36 ms, the kernels more",
    ),
)

CASES = _FIRST + _COUNTED + _NEW

HELD_OUT = (
    Case("held_matmul_6144", "operators:matmul", {"n": 6144, "dtype": "float16"}, COMPUTE, "0.5 TFLOP on 0.2 GB"),
    Case(
        "held_int8_decode",
        "operators:int8_matmul",
        {"m": 32, "n": 16384},
        MEMORY,
        "64 operations for each byte of the weights, a fifth of the ridge",
    ),
    Case(
        "held_attention_16k",
        "operators:attention",
        {"batch": 16, "heads": 8, "length": 16384, "width": 128, "queries": 1},
        MEMORY,
        "1 GB of keys and values, one FLOP a byte",
    ),
    Case(
        "held_polynomial",
        "kernels:polynomial",
        {"count": 64 << 20, "degree": 300},
        COMPUTE,
        "600 FLOPs for 8 bytes: 0.8 ms against 0.13",
    ),
    Case(
        "held_triton_softmax",
        "kernels:softmax",
        {"rows": 200_000, "width": 1024},
        MEMORY,
        "0.8 GB, some ten FLOPs a value",
    ),
    Case(
        "held_conv_1x1",
        "operators:convolution",
        {"batch": 128, "channels": 64, "size": [112, 112], "kernel": 1, "channels_last": True},
        MEMORY,
        "0.4 GB for 13 GFLOP: 32 FLOPs a byte, a fifth of the ridge",
    ),
    Case(
        "held_fft2",
        "operators:fourier",
        {"rows": 8192, "width": 8192, "both": True},
        MEMORY,
        "two passes over 1 GB for 9 GFLOP",
    ),
    Case(
        "held_layer_norm_train",
        "operators:layer_norm_train",
        {"rows": 32768, "width": 8192},
        MEMORY,
        "0.5 GB passed six times, some ten FLOPs a value",
    ),
    Case(
        "held_decode_batch_8",
        "models:decode_graph",
        {"layers": 4, "width": 5120, "hidden": 13824, "context": 2048, "batch": 8},
        MEMORY,
        "2.8 GB of weights, 1.3 GB of keys and values, eight FLOPs a byte at most",
    ),
    Case(
        "held_optimizer_sgd",
        "models:optimizer_only",
        {"tensors": 40, "size": 4 << 20, "kind": "foreach", "name": "SGD"},
        MEMORY,
        "two passes over 2 GB; 40 tensors are a few launches",
    ),
    Case(
        "held_loader_4_workers",
        "host:slow_loader",
        {"batch": 48, "width": 256, "workers": 4, "ahead": 4},
        INPUT,
        "12 ms of decoding a batch with four workers, the step takes one",
    ),
    Case(
        "held_moe_grouped",
        "models:grouped_experts",
        {"tokens": 32768, "width": 4096, "hidden": 4096, "count": 8},
        COMPUTE,
        "1.1 TFLOP on 0.8 GB: 4,096 tokens for each expert",
    ),
    Case(
        "held_scatter_large",
        "operators:scatter_add",
        {"size": 1 << 28, "count": 1 << 25},
        MEMORY,
        "34 M sectors of 32 bytes read and written at random, and 0.4 GB of indices and values: 2.6 GB, 0.6 ms; some "
        "30 integer instructions each: 0.07",
    ),
    Case(
        "held_lstm_cells",
        "models:lstm_cells",
        {"length": 48, "batch": 16, "width": 512},
        OVERHEAD,
        "some 150 launches of microsecond kernels",
    ),
)

SMALL: dict[str, dict[str, Any]] = {
    "operators:matmul_add": {"n": 8, "compile": False, "graph": False},
    "operators:matmul": {"n": 8},
    "operators:scaled_matmul": {"m": 16, "n": 32},
    "operators:int8_matmul": {"m": 32, "n": 32},
    "operators:gemv": {"n": 8},
    "operators:batched_matmul": {"count": 2, "n": 4},
    "operators:sparse_matmul": {"rows": 20, "per_row": 2, "width": 4},
    "operators:attention": {"batch": 1, "heads": 2, "length": 16, "width": 8},
    "operators:convolution": {"batch": 2, "channels": 4},
    "operators:elementwise": {"mebibytes": 1},
    "operators:copy": {"mebibytes": 1},
    "operators:transpose": {"n": 8},
    "operators:small_chain": {"count": 4, "size": 8},
    "operators:log_gamma": {"count": 8},
    "operators:dropout": {"mebibytes": 1},
    "operators:normalize_chain": {"rows": 4, "width": 8},
    "operators:rms_norm": {"rows": 4, "width": 8},
    "operators:layer_norm_train": {"rows": 4, "width": 8},
    "operators:cross_entropy": {"rows": 4, "vocabulary": 16},
    "operators:total": {"mebibytes": 1},
    "operators:running_sum": {"count": 8},
    "operators:sort": {"count": 8},
    "operators:largest": {"rows": 2, "width": 100},
    "operators:fourier": {"rows": 4, "width": 8},
    "operators:embedding": {"rows": 8, "width": 4, "count": 4},
    "operators:embedding_bag": {"rows": 8, "width": 4, "bags": 4, "per_bag": 2},
    "operators:gather": {"size": 8, "count": 4},
    "operators:scatter_add": {"size": 8, "count": 16},
    "operators:cholesky": {"n": 8},
    "operators:inverse": {"count": 2, "n": 4},
    "models:optimizer_only": {"tensors": 2, "size": 8},
    "models:decode": {"layers": 1, "width": 128, "tokens": 2},
    "models:decode_graph": {"layers": 1, "width": 128, "hidden": 32, "context": 4, "graph": False},
    "models:prefill": {"layers": 1, "width": 128, "hidden": 32, "batch": 1, "length": 4, "longest": 16},
    "models:block_train": {"batch": 1, "length": 4, "width": 128, "hidden": 32},
    "models:vit_train": {"batch": 1, "layers": 1, "width": 64, "size": 32},
    "models:experts": {"tokens": 8, "width": 8, "hidden": 8, "count": 2},
    "models:lstm": {"length": 2, "batch": 2, "width": 8},
    "models:lstm_cells": {"length": 2, "batch": 2, "width": 8, "graph": False},
    "models:resnet": {"batch": 2, "size": 32},
    "models:aggregate": {"nodes": 8, "edges": 16, "width": 4},
    "models:graph_network_train": {"nodes": 8, "edges": 16, "width": 4},
    "host:host_copy": {"mebibytes": 1},
    "host:slow_loader": {"batch": 2, "width": 4, "workers": 0, "ahead": None},
    "host:fed_training": {"batch": 2, "crops": 2, "width": 4, "hidden": 8, "layers": 1, "workers": 0},
    "host:host_work": {"n": 8, "milliseconds": 0.1},
    "host:text_work": {"words": 10, "width": 4},
    "host:item_loop": {"n": 8, "small_operators": 1},
}
"""Parameters with which a workload runs in no time; one that is missing needs a GPU. See `small`."""


def small(case: Case) -> dict[str, Any] | None:
    """The case's parameters, with sizes that run in no time on a CPU; None if it needs a GPU."""
    if case.workload not in SMALL or case.params.get("pinned"):
        return None
    params = {**case.params, **SMALL[case.workload]}
    if "size" in params and isinstance(params["size"], list):
        params |= {"size": [4] * len(params["size"]), "groups": 4 if params.get("groups", 1) > 1 else 1}
    return params

"""What names say: kernels that a compiler named after all it fused, copies, waits, data loading."""

from __future__ import annotations

import pytest

from proftrack.measures.idle import is_input
from proftrack.measures.kernels import kind_of_copy, kind_of_kernel
from proftrack.trace.categories import is_allocator_call, is_launch, is_wait


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # Inductor's own kernels: poi is pointwise, red and per reduce, whatever their names go on to list.
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_poi_fused_addmm_relu_0", "elementwise"),
        ("triton_poi_fused_convert_element_type_0", "elementwise"),
        ("triton_per_fused_convolution_native_group_norm_5", "normalization"),
        ("triton_red_fused__scaled_dot_product_flash_attention_sum_2", "reduction"),
        ("triton_for_fused_add_0", "multi-tensor"),
        # Templates are what they are named for.
        ("triton_tem_fused_addmm_relu_1", "matmul"),
        ("triton_mm", "matmul"),
        ("vllm::reshape_and_cache_flash_kernel", "copy"),
        ("void convert_kernel<float>", "elementwise"),
        ("implicit_convolve_sgemm", "convolution"),
    ],
)
def test_kernels(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind


@pytest.mark.parametrize("name", ["Memcpy HtoD (Pageable -> Device)", "CopyHostToDevice", "zeCopy(M2D)", "zeCopy(D2M)"])
def test_copies_between_host_and_device(name: str) -> None:
    assert kind_of_copy(name) == "host-device copy"


@pytest.mark.parametrize("name", ["load_batch", "trainer/next_batch", "fetch_data", "loader.get_batch", "load_batches"])
def test_fetching_data(name: str) -> None:
    assert is_input(name)


@pytest.mark.parametrize(
    "name",
    ["offload_data", "upload_batch_to_s3", "reload_batchnorm_stats", "download_data", "next_batch_size_search"],
)
def test_names_that_only_sound_like_it(name: str) -> None:
    assert not is_input(name)


def test_calls_of_other_runtimes() -> None:
    assert is_launch("hipExtLaunchMultiKernelMultiDevice") and is_launch("hipDrvLaunchKernelEx")
    assert is_wait("zeEventHostSynchronize") and is_wait("zeCommandQueueSynchronize") and is_wait("piEventsWait")
    assert is_allocator_call("hipHostMalloc") and is_allocator_call("cudaHostAlloc")

"""What a program prints of its own memory, its weights and its variables decides what an error beside it leaves open."""

import pytest

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, evidence_from_message

COUNTERS = {
    "with names of calls": "torch.cuda.memory_allocated()=2.50 GiB torch.cuda.memory_reserved()=20.75 GiB\n",
    "with a colon": "allocated: 2.5 GB, reserved: 20.7 GB\n",
    "without a sign": "[mem] alloc 2.50 GiB | reserved 20.75 GiB\n",
    "with the unit in the name": "allocated_gb=2.5 reserved_gb=20.75\n",
    "as a log's record": "{'step': 4, 'gpu/allocated_gb': 2.5, 'gpu/reserved_gb': 20.75}\n",
    "in bytes": "memory_allocated() 2684354560\nmemory_reserved() 22280142848\n",
    "of memory_stats": "{'allocated_bytes.all.current': 2684354560, 'reserved_bytes.all.current': 22280142848}\n",
}
OTHERS = {
    "CuPy": "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 6,442,450,944 bytes (allocated so far: 0 bytes).",
    "RMM": "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation "
    "out of memory",
    "TensorRT": "[TRT] [E] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)",
    "ONNX Runtime": "RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 3221225472",
    "OpenCV": "cv2.error: OpenCV(4.9.0) gpu_mat.cu:121: error: (-217:Gpu API call) out of memory in function 'allocate'",
    "NVENC": "[hevc_nvenc @ 0x5600] OpenEncodeSessionEx failed: out of memory (10): (no details)",
    "JAX": "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    "a child process": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "23.64 GiB of which 900.00 MiB is free. Process 611 has 21.20 GiB memory in use. Including non-PyTorch memory, this process "
    "has 1.50 GiB memory in use. Of the allocated memory 1.00 GiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch "
    "but unallocated.",
}


def judged(text):
    return diagnose(evidence_from_message(text))


def refusal(device, free="100.00 MiB", own="1.20 GiB", others=""):
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU {device} has a total capacity of "
        f"47.40 GiB of which {free} is free.{others} Including non-PyTorch memory, this process has {own} memory in use. Of the "
        f"allocated memory {own} is allocated by PyTorch, and 8.00 MiB is reserved by PyTorch but unallocated.\n"
    )


@pytest.mark.parametrize("counters", COUNTERS)
@pytest.mark.parametrize("other", OTHERS)
def test_a_cache_that_would_have_met_the_request_of_another_library_is_given_back(counters, other):
    verdict = judged(COUNTERS[counters] + OTHERS[other])
    assert (verdict.cause, verdict.confidence) == ("allocator-cache-not-returned", "likely")
    assert "empty_cache" in verdict.next_step.command


@pytest.mark.parametrize("other", ["CuPy", "TensorRT"])
def test_a_cache_in_use_or_too_small_for_the_request_is_not_what_is_missing(other):
    for counters in (
        "allocated: 20.1 GB, reserved: 20.7 GB\n",
        "allocated: 0.1 GB, reserved: 0.9 GB\n",
    ):
        assert judged(counters + OTHERS[other]).cause != "allocator-cache-not-returned"


@pytest.mark.parametrize(
    "setting",
    [
        "export CUDA_VISIBLE_DEVICE=2",
        "$ CUDA_VISBLE_DEVICES=2 python fit.py",
        "export HIP_VISIBLE_DEVICE=1,2",
    ],
)
def test_a_misspelt_visibility_variable_is_the_cause_where_the_card_is_not_the_one_that_was_meant(
    setting,
):
    others = " Process 5150 has 45.80 GiB memory in use."
    verdict = judged(f"{setting}\n{refusal(0, others=others)}")
    assert (verdict.cause, verdict.confidence) == ("config-ineffective", "likely")
    assert "_VISIBLE_DEVICES=" in verdict.next_step.what
    assert judged(f"{setting}\n{refusal(2, others=others)}").cause == "external-holder"


BARS = {
    "transformers": "Loading checkpoint shards:  {share}%|███       | {part}/12 [00:21<01:46,  4.27s/it]\n",
    "vLLM": "Loading safetensors checkpoint shards:  {share}% Completed | {part}/12 [00:03<00:05,  1.01it/s]\n",
}


@pytest.mark.parametrize("program", BARS)
def test_weights_that_fill_the_card_before_all_their_parts_are_loaded_are_larger_than_it(program):
    full = refusal(0, own="46.90 GiB")
    verdict = judged(BARS[program].format(share=25, part=3) + full)
    assert (verdict.cause, verdict.confidence) == ("true-capacity", "likely")
    assert "quantis" in verdict.next_step.what and "128.97 GiB" in verdict.next_step.what
    assert judged(BARS[program].format(share=100, part=12) + full).confidence == "weak"


def test_a_count_of_parameters_with_their_type_says_what_they_need():
    text = "model: {} parameters, dtype=torch.{}\n" + refusal(0, own="46.90 GiB")
    assert judged(text.format("34,388,917,248", "bfloat16")).confidence == "likely"
    assert judged(text.format("34.4B", "float16")).confidence == "likely"
    after = "Total parameters: 34,388,917,248 (bfloat16)\n" + refusal(0, own="46.90 GiB")
    assert judged(after).confidence == "likely"
    assert judged(text.format("7,241,732,096", "bfloat16")).confidence == "weak"
    assert judged("load_in_4bit=True " + text.format("34.4B", "float16")).confidence == "weak"


def test_where_expandable_segments_do_not_exist_what_the_platform_reads_is_offered():
    warning = "UserWarning: expandable_segments not supported on this platform\n"
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 900.00 MiB. GPU 0 has a total capacity of 11.99 GiB of "
        "which 0 bytes is free. Of the allocated memory 6.50 GiB is allocated by PyTorch, and 4.20 GiB is reserved by PyTorch but "
        "unallocated."
    )
    step = judged(warning + message).next_step
    assert "max_split_size_mb" in step.command and "garbage_collection_threshold" in step.command
    assert "expandable_segments:True" not in step.command


CACHED = (
    "{} out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 23.98 GiB of "
    "which 80.00 MiB is free. Of the allocated memory 15.90 GiB is allocated by PyTorch, and 7.21 GiB "
    "is reserved by PyTorch but unallocated."
)
BEFORE_2_1 = (
    "{} out of memory. Tried to allocate 200.00 MiB (GPU 0; 23.98 GiB total capacity; 15.90 GiB already "
    "allocated; 80.00 MiB free; 23.11 GiB reserved in total by PyTorch)"
)
ADVICE = " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation"
CUDA = "export PYTORCH_CUDA_ALLOC_CONF="
HIP = "export PYTORCH_HIP_ALLOC_CONF="
EXPANDABLE = "expandable_segments:True"
WHOLE = "max_split_size_mb:128"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (CACHED.format("CUDA"), [CUDA + EXPANDABLE]),
        (CACHED.format("CUDA") + ADVICE, [CUDA + EXPANDABLE]),
        (BEFORE_2_1.format("CUDA") + ADVICE, [CUDA + WHOLE]),
        (BEFORE_2_1.format("HIP") + ADVICE, [HIP + WHOLE]),
        (BEFORE_2_1.format("CUDA"), []),
        (CACHED.format("HIP"), [HIP + EXPANDABLE, HIP + WHOLE]),
    ],
)
def test_the_cache_is_made_usable_by_a_setting_that_the_release_of_the_message_has(text, settings):
    command = judged("torch.OutOfMemoryError: " + text).next_step.command
    assert [line for line in command.splitlines() if line.startswith("export")] == settings
    assert ("With PyTorch 2.12 or later for ROCm 7.0 to 7.13" in command) == (len(settings) == 2)


@pytest.mark.parametrize(
    ("torch", "setting"),
    [
        ("2.9.1+rocm6.4", WHOLE),
        ("2.12.1+rocm7.2", EXPANDABLE),
        ("2.12.1+rocm7.14", WHOLE),
        ("2.13.0+rocm6.4", WHOLE),
    ],
)
def test_a_rocm_build_that_is_known_gets_the_one_setting_that_it_has(torch, setting):
    case = {"error_text": CACHED.format("HIP"), "environment": {"torch": torch}}
    command = diagnose(case_evidence(case)).next_step.command
    exports = [line for line in command.splitlines() if line.startswith("export")]
    assert exports == [HIP + setting]

"""Faults that reviewers met in the answers a user gets, each in the words of its behaviour. All texts and boxes are made up."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import box_builder as build
import pytest
import yaml
from changed_boxes import changed, gb10

from helpers.judge.ceilings import ceilings
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, evidence_from_bundle, evidence_from_message
from helpers.look.boxes import open_box
from helpers.settings.audit import audit, audit_box
from helpers.shapes import Verdict
from helpers.tell.verdict import as_text

ROOT = Path(__file__).resolve().parents[1]
GIB = 1 << 30
BARE = "RuntimeError: CUDA error: out of memory"
APU = {"gpu": "Radeon 890M", "gfx": "gfx1150", "ram_gib": 96}


def judged(
    error: str = "", tools: dict | None = None, environment: dict | None = None, narrative: str = ""
) -> Verdict:
    return diagnose(
        case_evidence(
            {
                "error_text": error,
                "tool_outputs": tools or {},
                "environment": environment or {},
                "narrative": narrative,
            }
        )
    )


def named(verdict: Verdict) -> set[str]:
    """The cause and, where it is open, what else it may be."""
    return {verdict.cause} | {other.cause for other in verdict.alternatives}


def oom(
    request: str,
    total: str,
    free: str,
    allocated: str,
    rest: str,
    process: str = "",
    backend: str = "CUDA",
) -> str:
    own = (
        f" Including non-PyTorch memory, this process has {process} memory in use."
        if process
        else ""
    )
    return (
        f"torch.OutOfMemoryError: {backend} out of memory. Tried to allocate {request}. GPU 0 has a total capacity of "
        f"{total} of which {free} is free.{own} Of the allocated memory {allocated} is allocated by PyTorch, and {rest} is "
        "reserved by PyTorch but unallocated."
    )


# -- who sent SIGKILL -----------------------------------------------------------------------------
KILLED_BY_SOMEBODY = {
    "docker inspect says it was not the OOM killer": '"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 137}',
    "an exit code": "error: command terminated with exit code 137",
    "a container's exit code": "worker-3 exited with code 137",
    "torchrun": "  rank : 1\n  exitcode  : -9 (pid: 90210)\n  traceback : Signal 9 (SIGKILL) received by PID 90210",
    "a DataLoader": "RuntimeError: DataLoader worker (pid 90211) is killed by signal: Killed.",
    "DeepSpeed": "[ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python3', 'train.py'] exits with return code = -9",
    "a shell": "Killed",
    "a person": "Run ended by the user: sent SIGKILL ( kill -9 ) to stop the job",
    "a liveness probe": "Warning  Unhealthy  Liveness probe failed: HTTP probe failed\nState:  Terminated\n  Reason:  Error\n"
    "  Exit Code:  137",
    "a story of last week": "Epoch 9 done, exit code 0. Last week a run ended with exit code 137, the disk was full.",
    "a no": "oomkilled: no",
    "documentation": "I have read of OOMKilled pods in the manual; this run is fine",
    "all counters at zero": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
}


@pytest.mark.parametrize("text", KILLED_BY_SOMEBODY.values(), ids=KILLED_BY_SOMEBODY)
def test_sigkill_by_somebody_is_no_proof_of_the_kernels_killer(text):
    verdict = judged(text)
    assert verdict.confidence != "confirmed"
    assert verdict.cause in ("cannot-tell", "host-oom") and (verdict.cause, verdict.confidence) != (
        "host-oom",
        "likely",
    )


@pytest.mark.parametrize("key", ["a no", "documentation", "all counters at zero"])
def test_what_says_no_kill_is_not_even_a_hint(key):
    assert "host-oom" not in named(judged(KILLED_BY_SOMEBODY[key]))


def test_docker_saying_that_it_was_not_the_oom_killer_speaks_against_host_memory():
    text = '"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 137}'
    assert "host-oom" not in named(judged(text)) or judged(text).against


def test_a_docker_stop_after_a_gpu_failure_does_not_turn_it_into_host_memory():
    verdict = judged(
        BARE + "\nStopping container: exit code 137 (SIGKILL) after docker stop timeout"
    )
    assert verdict.confidence == "weak" and verdict.cause in ("cannot-tell", "external-holder")


def test_counters_at_zero_leave_the_verdict_of_a_message_as_it_is():
    message = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.50 GiB", "100.00 MiB")
    with_zeros = judged(message + "\n" + KILLED_BY_SOMEBODY["all counters at zero"])
    assert (with_zeros.cause, with_zeros.confidence) == ("true-capacity", "likely")
    assert (
        judged(message, {"cat /sys/fs/cgroup/memory.events": "oom 0\noom_kill 0\n"}).cause
        == "true-capacity"
    )


def test_counters_at_zero_beside_a_healthy_box_are_no_finding():
    box = open_box("cuda-healthy")
    said = case_evidence({"error_text": "oom 0\noom_kill 0\noom_group_kill 0"})
    assert diagnose(replace(said, bundle=box)).cause == "cannot-tell"


@pytest.mark.parametrize(
    "text",
    [
        "[  812.1] Memory cgroup out of memory: Killed process 771 (python3) total-vm:91234567kB, anon-rss:51234567kB",
        "Out of memory: Killed process 771 (python3) total-vm:91234567kB, anon-rss:51234567kB, file-rss:0kB, shmem-rss:0kB",
        "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0",
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=5150.0. Some of the step tasks have been OOM Killed.",
    ],
)
def test_the_kernels_own_line_a_counter_and_a_schedulers_event_are_proof(text):
    assert (judged(text).cause, judged(text).confidence) == ("host-oom", "confirmed")


def test_a_bare_sigkill_says_who_else_sends_it():
    words = as_text(judged("command terminated with exit code 137")).lower()
    assert "sigkill" in words and (
        "docker stop" in words or "time limit" in words or "scheduler" in words or "probe" in words
    )


# -- a full card, with a warning beside it --------------------------------------------------------
FULL = "HIP out of memory. Tried to allocate 72.00 MiB. GPU has 15.98 GiB total of which 0 bytes is free."
WARNING = "UserWarning: expandable_segments not supported on this platform (Triggered internally at HIPAllocatorConfig.h:40.)"
BESIDE = [
    "",
    WARNING,
    "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
    WARNING + "\n" + WARNING,
]


@pytest.mark.parametrize("beside", BESIDE)
def test_a_card_without_a_free_byte_asks_for_the_holder_whatever_stands_beside_it(beside):
    for text in (FULL + "\n" + beside, beside + "\n" + FULL):
        verdict = judged(text)
        assert verdict.cause in ("cannot-tell", "external-holder") and "external-holder" in named(
            verdict
        )
        assert "fuser" in verdict.next_step.command or "nvidia-smi" in verdict.next_step.command


def test_all_four_messages_of_one_failing_start_ask_for_the_holder_first():
    verdict = judged("\n".join([FULL, *BESIDE[1:4]]))
    assert (
        "external-holder" in named(verdict) and verdict.cause != "expandable-segments-unsupported"
    )
    assert "unset" not in verdict.next_step.command


def test_a_full_card_is_said_to_be_full_before_this_request():
    shown = as_text(judged(FULL))
    assert "15.98 GiB" in shown and "does not say" in shown.replace("\n", " ").replace("  ", " ")


# -- whose bytes ----------------------------------------------------------------------------------
def test_a_process_with_half_of_the_card_is_not_called_what_fills_it():
    verdict = judged(
        oom("1.75 GiB", "23.56 GiB", "532.48 MiB", "11.80 GiB", "81.00 MiB", process="12.31 GiB")
    )
    assert verdict.cause == "external-holder" or "external-holder" in named(verdict)
    assert verdict.cause != "true-capacity"


@pytest.mark.parametrize(
    "more",
    ["", " Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use."],
)
def test_the_process_that_the_driver_numbers_otherwise_is_this_one_on_the_whole_page(more):
    text = oom("512.00 MiB", "31.73 GiB", "118.00 MiB", "30.20 GiB", "880.00 MiB").replace(
        "is free.", f"is free. Process 52811 has 31.61 GiB memory in use.{more}"
    )
    verdict = judged(text)
    shown = as_text(verdict)
    assert verdict.cause == "true-capacity" and "external-holder" not in named(verdict)
    assert "Process 52811" in shown and "is this process" in shown.replace("\n", " ").replace(
        "  ", " "
    )
    assert "kill" not in verdict.next_step.command


def test_another_framework_in_the_same_process_is_not_somebody_else():
    text = oom("2.00 GiB", "79.10 GiB", "310.00 MiB", "12.40 GiB", "200.00 MiB").replace(
        "is free.", "is free. Process 733 has 78.70 GiB memory in use."
    )
    verdict = judged(
        text, narrative="jax and torch run in one process; jax reserves its share when it starts."
    )
    assert verdict.cause != "external-holder" or "733" not in verdict.next_step.command.replace(
        "PID", ""
    )


def test_stranded_memory_that_would_hold_the_request_far_from_the_end_is_fragmentation():
    verdict = judged(oom("2.00 GiB", "23.98 GiB", "1.20 GiB", "17.10 GiB", "5.12 GiB"))
    assert (verdict.cause, verdict.confidence) == ("allocator-fragmentation", "likely")


def test_memory_outside_of_the_pool_comes_before_capacity():
    text = (
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 15.20 GiB\nRequested               : 2.00 GiB\nDevice limit            : 23.60 GiB\n"
        "Free (according to CUDA): 1.10 GiB\n"
    )
    assert judged(text).cause == "external-holder"


# -- what is no text ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x80\x04\x95", "pickle"),
        (b"PK\x03\x04", "archive"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"GGUF", "GGUF"),
        (b"\x7fELF", "program"),
    ],
)
def test_a_binary_file_as_message_gets_no_cause_and_is_named(start, kind):
    verdict = diagnose(
        evidence_from_message(start + b"per_process_memory_fraction out of memory \x00\x01" * 20)
    )
    assert verdict.cause == "cannot-tell" and not verdict.alternatives and kind in verdict.summary


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_a_text_in_any_encoding_is_still_a_text(encoding):
    raw = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.50 GiB", "100.00 MiB").encode(encoding)
    assert diagnose(evidence_from_message(raw)).cause == "true-capacity"


# -- inference servers and other frameworks -------------------------------------------------------
def test_a_context_that_does_not_fit_is_told_with_the_two_numbers_and_no_word_of_training():
    verdict = judged(
        "ValueError: To serve at least one request with the models's max seq len (65536), (12.00 GiB KV cache is needed, which "
        "is larger than the available KV cache memory (5.81 GiB). Based on the available memory, the estimated maximum model "
        "length is 31728. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
    )
    step = f"{verdict.next_step.what} {verdict.next_step.command}"
    assert (
        verdict.cause == "true-capacity" and "weights alone" not in verdict.title + verdict.summary
    )
    assert "65536" in step and "31728" in step and "checkpointing" not in step


def test_no_room_for_the_cache_does_not_blame_the_weights_for_certain():
    verdict = judged(
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine."
    )
    assert "weights alone" not in verdict.title + verdict.summary
    assert "checkpointing" not in verdict.next_step.command


@pytest.mark.parametrize(
    "text",
    [
        "Error: model requires more system memory (28.4 GiB) than is available (13.1 GiB)",
        'level=WARN msg="model request too large for system" requested="70.1 GiB" available=33285996544 total="31.2 GiB" '
        'free="29.9 GiB" swap="2.0 GiB"',
    ],
)
def test_a_server_short_of_system_memory_is_the_host_and_speaks_of_no_torch(text):
    verdict = judged(text)
    assert (
        verdict.cause == "host-oom"
        and "torch" not in f"{verdict.summary} {verdict.next_step.command}"
    )


SIZING = (
    'level=INFO source=memory.go:356 msg="offload to rocm" layers.requested=-1 layers.model=49 layers.offload=49 '
    'memory.available="[11.4 GiB]" memory.required.full="10.8 GiB" memory.required.kv="1.5 GiB" '
    'memory.weights.total="8.3 GiB" memory.graph.full="676.0 MiB"\n'
)
BUFFER = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 18111.25 MiB on device 0: cudaMalloc failed: out of memory"


def test_a_servers_own_sizing_line_gives_no_total_from_its_weights():
    verdict = judged(SIZING + BUFFER.replace("18111.25", "1800.00"))
    assert verdict.cause != "metric-misreport" and "Free is above the total" not in as_text(verdict)


@pytest.mark.parametrize(
    "text",
    [
        BUFFER,
        "llama_kv_cache: failed to allocate buffer\n" + BUFFER,
        BUFFER.replace("cudaMalloc", "hipMalloc"),
    ],
)
def test_the_one_size_that_a_server_prints_is_shown(text):
    shown = as_text(judged(text)).replace("\n", " ")
    assert "18111.25 MiB" in shown or "17.69 GiB" in shown
    assert "gives no numbers" not in shown


def test_a_projection_above_the_free_device_memory_is_read_with_both_numbers():
    text = (
        "llama_params_fit_impl: projected to use 38212 MiB of device memory vs. 6411 MiB of free device memory\n"
        "llama_params_fit_impl: cannot meet free memory target of 1024 MiB, need to reduce device memory by 32825 MiB\nKilled"
    )
    shown = as_text(judged(text, environment=APU)).replace("\n", " ")
    assert "fewer DataLoader workers" not in shown
    assert ("38212" in shown or "37.32" in shown) and ("6411" in shown or "6.26" in shown)


def test_a_word_whose_number_is_zero_is_no_hint_of_fragmentation():
    text = (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7301444608 bytes.\n"
        "  Largest program allocations in hbm:\n  total fragmentation: 0B (0.00%)"
    )
    verdict = judged(text)
    assert (
        "allocator-fragmentation" not in named(verdict)
        and "helpers record" not in verdict.next_step.command
    )


@pytest.mark.parametrize(
    "text",
    [
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /pkg/include/rmm/mr/device/cuda_memory_resource.hpp:62: "
        "cudaErrorMemoryAllocation out of memory",
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/pkg/include/rmm/mr/device/pool_memory_resource.hpp:183: "
        "Maximum pool size exceeded",
    ],
)
def test_a_bad_alloc_of_the_device_is_not_host_memory(text):
    assert "host-oom" not in named(judged(text))


@pytest.mark.parametrize("library", ["libGL.so.1", "libsndfile.so.1", "libdrm_amdgpu.so"])
def test_a_library_that_has_nothing_to_do_with_the_gpu_stack_is_no_wheel_mismatch(library):
    verdict = judged(
        f"ImportError: {library}: cannot open shared object file: No such file or directory"
    )
    assert verdict.cause != "version-mismatch" and "wheel" not in verdict.next_step.what


def test_on_chip_memory_is_no_device_memory():
    for text in (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. "
        "Reducing block sizes or `num_stages` may help.",
        "XlaRuntimeError: INTERNAL: Shared memory size limit exceeded: requested 81920, available: 65536",
    ):
        verdict = judged(text)
        assert verdict.cause == "other" and not {"true-capacity", "host-oom"} & named(verdict)
        assert "num_stages" in verdict.next_step.command


FRAMEWORKS = {
    "TensorRT": "[E] Error Code 2: OutOfMemory (Requested amount of GPU memory (9663676416 bytes) could not be allocated. "
    "There "
    "may not be enough free memory for allocation to succeed.)",
    "ONNX Runtime": "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer "
    "of "
    "size 1073741824",
    "TensorFlow": "W tensorflow/core/common_runtime/bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of memory trying to "
    "allocate 2.50GiB (rounded to 2684354560)requested by op Conv2D",
    "CuPy": "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 2,147,483,648 bytes (allocated so far: 5,368,709,120 "
    "bytes).",
    "JAX": "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.",
}


@pytest.mark.parametrize("text", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_a_message_of_another_framework_is_read_and_its_advice_is_not_torchs(text):
    got = evidence_from_message(text)
    assert got.messages and any(message.requested for message in got.messages)
    verdict = diagnose(got)
    assert "nothing in it names" not in verdict.summary and "torch" not in verdict.next_step.command
    assert not any("keep the whole text" in missing.how for missing in verdict.missing)


def test_ray_and_slurm_name_the_limit_that_killed():
    ray = (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: "
        "10.1.1.1, ID: f00) where the task was running was 117.30GB / 123.50GB (0.9498), which exceeds the memory usage "
        "threshold of 0.95."
    )
    assert judged(ray).cause == "host-oom" and "117.30" in as_text(judged(ray))


def test_a_verdict_made_from_a_text_does_not_call_that_text_unused():
    for text in (
        BUFFER,
        "ValueError: No available memory for the cache blocks.",
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-q (size 9637888)",
    ):
        verdict = judged(text)
        assert "nothing in it names" not in as_text(verdict).lower()


def test_the_sums_are_shown_without_their_source_in_every_line():
    shown = as_text(judged(oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.50 GiB", "100.00 MiB")))
    assert shown.count("the numbers of the error text") <= 2 and shown.count("from error text") <= 2


def test_a_hip_total_that_no_card_has_asks_whether_it_is_an_apu():
    verdict = judged(
        oom("3.50 GiB", "47.11 GiB", "402.00 MiB", "44.90 GiB", "900.00 MiB", backend="HIP")
    )
    shown = as_text(verdict).replace("\n", " ")
    assert "ttm" in shown.lower() and "APU" in shown


# -- unified memory -------------------------------------------------------------------------------
MEMORY = "               total        used        free      shared  buff/cache   available\n"
STARTUP = (
    "ValueError: Free memory on device cuda:0 (28.40/119.60 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 107.64 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (
            STARTUP,
            "Mem:           119Gi        24Gi        28Gi       1.0Gi        67Gi        94Gi\n",
        ),
        (
            oom(
                "4.00 GiB", "119.64 GiB", "1.02 GiB", "59.00 GiB", "200.00 MiB", process="60.31 GiB"
            ),
            "Mem:           119Gi        61Gi       1.0Gi       1.0Gi        58Gi        59Gi\n",
        ),
    ],
)
def test_page_cache_on_unified_memory_is_no_holder_and_no_capacity(error, row):
    verdict = judged(error, {"free -h": MEMORY + row}, {"gpu": "NVIDIA GB10"})
    assert verdict.cause == "metric-misreport" and verdict.cause != "external-holder"
    assert (
        "MemAvailable" in f"{verdict.next_step.what} {verdict.next_step.command}"
        and "drop_caches" in verdict.next_step.command
    )


def test_a_startup_check_on_unified_memory_alone_does_not_say_stop_the_holder():
    verdict = judged(STARTUP, environment={"gpu": "NVIDIA GB10"})
    assert (verdict.cause, verdict.confidence) != (
        "external-holder",
        "likely",
    ) and "kill" not in verdict.next_step.command


def test_the_box_of_a_unified_memory_machine_names_the_page_cache_too():
    error = oom(
        "4.00 GiB", "119.64 GiB", "1.02 GiB", "59.00 GiB", "200.00 MiB", process="60.31 GiB"
    )
    assert (
        diagnose(evidence_from_bundle(gb10(60 << 20, 1_070_000, error))).cause == "metric-misreport"
    )


def test_a_cuda_total_that_no_card_has_is_shared_memory_whose_page_cache_counts_as_used():
    error = oom("1.50 GiB", "119.70 GiB", "0.90 GiB", "40.00 GiB", "64.00 MiB", process="40.60 GiB")
    verdict = judged(error)
    assert verdict.cause == "metric-misreport" and "MemAvailable" in verdict.next_step.what
    on_a_card = oom(
        "1.50 GiB", "139.80 GiB", "0.90 GiB", "40.00 GiB", "64.00 MiB", process="40.60 GiB"
    )
    assert judged(on_a_card).cause == "external-holder"


def test_a_hip_total_too_small_for_any_rocm_card_is_a_carve_out_before_it_is_the_end_of_a_card():
    error = oom("200.00 MiB", "512.00 MiB", "0 bytes", "400.00 MiB", "20.00 MiB", backend="HIP")
    verdict = judged(error)
    assert verdict.cause == "carveout-only" and "ttm live" in verdict.next_step.command


def test_a_buffer_above_the_total_that_a_tool_prints_beside_it_is_the_end_of_that_card():
    refused = "allocating 30000.00 MiB on device 0: cudaMalloc failed: out of memory"
    verdict = judged(refused, {"nvidia-smi": "9MiB / 24564MiB"})
    assert (verdict.cause, verdict.confidence) == ("true-capacity", "likely")
    shared = {"gpu": "Radeon 890M", "gfx": "gfx1150"}
    assert judged(refused, {"nvidia-smi": "9MiB / 24564MiB"}, shared).cause != "true-capacity"


def test_the_kernel_log_is_not_asked_for_where_a_line_of_it_was_just_given():
    verdict = judged(
        "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!"
    )
    assert verdict.cause == "cannot-tell" and "dmesg" not in verdict.next_step.command


def test_many_kills_in_the_log_of_a_box_are_one_row_of_evidence_that_counts_them():
    kills = [
        f"[{n}.0] Memory cgroup out of memory: Killed process {n} (python) total-vm:9000kB, "
        f"anon-rss:8000kB, file-rss:1kB, shmem-rss:0kB, UID:0 pgtables:10kB oom_score_adj:0"
        for n in (301, 422, 587)
    ]
    verdict = diagnose(evidence_from_bundle(changed("cuda-healthy", dmesg="\n".join(kills))))
    rows = [row for row in verdict.evidence if "Killed process" in row.reading.show()]
    assert len(rows) == 1 and "3 times" in rows[0].says and "587" in rows[0].reading.show()
    assert not any("dmesg" in wanted.how for wanted in verdict.missing)


def test_a_model_that_is_not_placed_blames_no_other_process_by_that_alone():
    verdict = judged(
        "ValueError: Some modules are dispatched on the CPU or the disk. "
        "Make sure you have enough GPU RAM to fit the quantized model."
    )
    assert verdict.cause == "cannot-tell" and verdict.alternatives[0].cause == "true-capacity"


# -- WSL ------------------------------------------------------------------------------------------
def test_pinned_memory_on_wsl_is_the_hosts_and_pin_memory_the_remedy():
    verdict = judged(
        '  File "utils/data/_utils/pin_memory.py", line 37, in _pin_memory_loop\n    return data.pin_memory()\n'
        + BARE,
        environment={"os": "Ubuntu 22.04 (WSL2)"},
    )
    assert verdict.cause == "host-oom" and "pin_memory=False" in verdict.next_step.command


def test_a_failed_residency_call_of_wsl_is_read():
    assert evidence_from_message(
        "[  44.1] misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12"
    ).messages


def test_a_size_below_zero_is_called_that_and_stays_out_of_the_sums():
    text = oom(
        "64.00 MiB", "8.00 GiB", "0 bytes", "7.40 GiB", "120.00 MiB", process="17179869184.00 GiB"
    )
    shown = as_text(judged(text)).replace("\n", " ")
    assert "ambiguous" not in shown and "external-holder" not in named(judged(text))


# -- frameworks' own footers ----------------------------------------------------------------------
FOOTERS = {
    "CUDA": "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n",
    "HIP": "HIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing AMD_SERIALIZE_KERNEL=3\nCompile with `TORCH_USE_HIP_DSA` to enable "
    "device-side assertions.\n",
}


@pytest.mark.parametrize("backend", FOOTERS)
@pytest.mark.parametrize(
    "error",
    [
        "out of memory",
        "invalid device ordinal",
        "unknown error",
        "uncorrectable ECC error encountered",
        "invalid device function",
        "no kernel image is available for execution on the device",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "all CUDA-capable devices are busy or unavailable",
    ],
)
def test_a_footer_about_device_side_assertions_changes_no_verdict(backend, error):
    text = f"RuntimeError: {backend} error: {error}"
    bare, footed = judged(text), judged(f"{text}\n{FOOTERS[backend]}")
    assert (footed.cause, footed.confidence, named(footed)) == (
        bare.cause,
        bare.confidence,
        named(bare),
    )
    if "ECC" not in error:
        assert "context-corruption" not in named(footed)


# -- settings -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "environment",
    [
        {"torch": "2.6.0", "gpu": "RTX 4090", "env_vars": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}},
        {
            "torch": "2.8.0+cu128",
            "gpu": "RTX 4090",
            "env_vars": {"PYTORCH_CUDA_ALOC_CONF": "expandable_segments:True"},
        },
        {
            "torch": "2.8.0+cu128",
            "gpu": "RTX 4090",
            "env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segmnts:True"},
        },
    ],
)
def test_what_the_audit_finds_carries_a_verdict_alone(environment):
    assert judged("", environment=environment).cause == "config-ineffective"


def test_the_release_in_which_a_zero_disables_caching_is_one_number_everywhere():
    claim = next(
        row
        for rows in yaml.safe_load((ROOT / "env" / "claims.yaml").read_text()).values()
        if isinstance(rows, list)
        for row in rows
        if row.get("id") == "001-09"
    )
    assert "2.7" in claim["reason"] and "before torch 2.5" not in claim["reason"]
    found = {
        torch: {
            row.verdict for row in audit({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, torch, "cuda")
        }
        for torch in ("2.6.0", "2.7.0")
    }
    assert found["2.6.0"] != found["2.7.0"] and "contradictory" in found["2.6.0"]


@pytest.mark.parametrize(
    "option",
    [
        "expandable_segments_reserve:1.5",
        "expandable_segments_reserve_by_class:1.5",
        "pinned_free_catch_all:True",
    ],
)
def test_an_option_of_the_newest_torch_is_not_called_misspelt(option):
    assert not {
        row.verdict for row in audit({"PYTORCH_CUDA_ALLOC_CONF": option}, "2.15.0", "cuda")
    } & {"misspelt", "unknown"}


def test_the_fraction_that_binds_is_the_one_of_the_variable_that_wins():
    b = build.copied("strix-halo-1-found")
    b.rows(
        "environment",
        [
            {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "per_process_memory_fraction:0.9"},
            {"name": "PYTORCH_ALLOC_CONF", "value": "per_process_memory_fraction:0.25"},
        ],
    )
    bundle = b.writer.bundle()
    rows = [
        row.value.value
        for answer in ceilings(bundle)
        for row in answer.rows
        if row.layer == "fraction" and row.value.ok
    ]
    lost = {row.name for row in audit_box(bundle) if row.verdict == "shadowed"}
    assert "PYTORCH_ALLOC_CONF" in lost and all(size > 30 * GIB for size in rows)


# -- which GPU ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "cpu",
    [
        "AMD Ryzen 7 5800X",
        "AMD Ryzen 9 7950X 16-Core Processor",
        "AMD Ryzen 5 5600G",
        "Intel Core i7-13700K",
    ],
)
def test_a_card_beside_any_cpu_is_a_card(cpu):
    error = oom("64.00 MiB", "8.00 GiB", "20.00 MiB", "7.40 GiB", "120.00 MiB", backend="HIP")
    verdict = judged(error, environment={"gpu": "Radeon RX 6600 8 GB", "cpu": cpu, "ram_gib": 64})
    assert (verdict.cause, verdict.confidence) == ("true-capacity", "likely")


def test_advice_about_visible_devices_names_the_card_and_not_the_integrated_gpu():
    listed = (
        "  Device 0: AMD Radeon Graphics, gfx1036 (0x1036), VMM: no, Wave Size: 32\n"
        "  Device 1: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32"
    )
    for error in (
        "",
        BARE.replace("CUDA", "HIP"),
        "RuntimeError: HIP error: invalid device function",
    ):
        step = judged(error, {"list of devices": listed}).next_step
        assert "VISIBLE_DEVICES=0" not in step.command and "0 is the card" not in step.precondition


HELD = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.00 GiB", "300.00 MiB").replace(
    "is free.", "is free. Process 31415 has 23.00 GiB memory in use."
)
NODES = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"]


def workstation(nodes: list[str], container: str, *more: tuple[str, str, str, str, str]):
    """An NVIDIA card beside a Ryzen, in or out of a container, with other GPUs on the bus."""
    b = build.Box("x", "recorded", "2026-01-01T00:00:00Z")
    build.host(
        b,
        release="6.8.0",
        ram_kib=64 << 20,
        available_kib=40 << 20,
        swap_kib=0,
        distribution="Ubuntu|24.04|ubuntu",
        cpu="AMD Ryzen 9 7950X",
    )
    gpu = {"name": "RTX 4090", "total": 24564, "reserved": 439, "used": 23800, "free": 325}
    b.filled("nvidia-smi -q -x", build.nvidia_xml("570.1", "12.8", gpu, []), kind="command")
    b.rows("processes", [build.process(1, "bash", 1 << 20), build.process(50, "python3", 9 << 30)])
    opened = {
        "pid": 50,
        "fd": 20,
        "target": nodes[-1],
        "status": "ok",
        "why": "",
        "fdinfo": "pos:\t0\n",
    }
    b.rows("device_files", [opened])
    b.rows(
        "pci_devices", build.pci_rows(("0000:01:00.0", "0x10de", "0x2684", "nvidia", "16"), *more)
    )
    build.identity(b, container=container, groups=[(0, "root")], uid=0)
    build.access(b, nodes)
    b.rows(
        "torch",
        [
            {
                "status": "ok",
                "torch": "2.9.0+cu128",
                "cuda": "12.8",
                "hip": None,
                "python_version": "3.11.9",
                "device_count": 1,
            }
        ],
    )
    b.rows("environment", [])
    b.stated("message", HELD)
    return diagnose(evidence_from_bundle(b.writer.bundle()))


def igpu(driver: str) -> tuple[str, str, str, str, str]:
    return ("0000:13:00.0", "0x1002", "0x164e", driver, "16")


@pytest.mark.parametrize(
    ("nodes", "container", "more"),
    [
        (NODES, "none", [igpu("")]),
        (NODES, "none", [igpu("vfio-pci")]),
        (NODES, "docker", [igpu("amdgpu")]),
        (["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm"], "docker", []),
    ],
    ids=[
        "an integrated GPU without a driver",
        "one given to a virtual machine",
        "one in a container without its nodes",
        "a container with the second card alone",
    ],
)
def test_another_vendors_gpu_or_node_is_no_obstacle_to_a_program_that_runs(nodes, container, more):
    plain, verdict = workstation(NODES, container), workstation(nodes, container, *more)
    assert (verdict.cause, verdict.confidence) == (plain.cause, plain.confidence)
    assert (
        not {"permission", "other"} & named(verdict) and "modprobe" not in verdict.next_step.command
    )
    assert "--device" not in verdict.next_step.command


# -- one decision about ceilings ------------------------------------------------------------------
@pytest.mark.parametrize(
    "box", ["strix-halo-1-found", "strix-halo-2-vm-size", "strix-halo-3-gttsize"]
)
def test_diagnose_and_ttm_give_one_answer_for_one_box(box):
    bundle = open_box(box)
    decision, verdict = ceilings(bundle)[0].decision, diagnose(evidence_from_bundle(bundle))
    assert verdict.cause == decision.cause == "ttm-gtt-cap"
    proved = decision.confidence == "confirmed" and not any(
        item.constructed for item in bundle.items
    )
    assert (
        verdict.confidence == ("confirmed" if proved else "likely")
        or verdict.confidence == decision.confidence
    )


def test_a_limit_that_somebody_lowered_is_the_cause_and_not_the_size_of_the_work():
    lowered = {
        "/sys/module/ttm/parameters/pages_limit": f"{(16 << 30) // 4096}\n",
        "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {16 << 30}\n",
    }
    bundle = build.copied("strix-halo-1-found", lowered).writer.bundle()
    decision, verdict = ceilings(bundle)[0].decision, diagnose(evidence_from_bundle(bundle))
    assert verdict.cause == decision.cause == "ttm-gtt-cap"
    proved = decision.confidence == "confirmed" and not any(
        item.constructed for item in bundle.items
    )
    assert (
        verdict.confidence == ("confirmed" if proved else "likely")
        or verdict.confidence == decision.confidence
    )


# -- words ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "rocm-smi shows VRAM use ever increasing despite unloaded models",
        "VRAM use ever increasing despite unloaded models",
    ],
)
def test_a_description_in_the_place_of_a_tools_output_is_hearsay(text):
    verdict = judged(BARE, {"rocm-smi": text})
    assert verdict.confidence == "weak"
    assert judged("", {"rocm-smi": text}).confidence == "weak"


ADVICE = {
    "CuPy's own limit": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: "
        "6,442,450,944 bytes, limit set to: 7,000,000,000 bytes).",
        "set_limit",
        "set_per_process",
    ),
    "a full /dev/shm": (
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-q7 (size 9637888)\nNCCL WARN Call to "
        "posix_fallocate failed : No space left on device",
        "shm",
        "reserve beside torch",
    ),
    "a limit on locked memory": (
        "NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
        "memlock",
        "memory_fraction",
    ),
    "open files": ("OSError: [Errno 24] Too many open files", "ulimit", "memory_fraction"),
}


@pytest.mark.parametrize(("text", "speaks_of", "not_of"), ADVICE.values(), ids=ADVICE)
def test_the_next_step_speaks_of_the_limit_that_refused(text, speaks_of, not_of):
    step = judged(text).next_step
    assert speaks_of in f"{step.what} {step.command} {step.precondition}"
    assert not_of not in f"{step.what} {step.command}" or speaks_of == "set_limit"


TENSILE = "rocBLAS error: Could not initialize Tensile host: No devices found"


def test_no_device_for_tensile_is_access_and_no_reason_for_other_wheels():
    nodes = {
        "ls -ln /dev/kfd /dev/dri": "crw-rw---- 1 0 992 510,   0 Jan  1 00:00 /dev/kfd\n"
        "crw-rw---- 1 0 992 226, 128 Jan  1 00:00 /dev/dri/renderD128",
        "id": "uid=1000 gid=1000 groups=1000",
    }
    assert "unsupported-gfx" not in named(judged(TENSILE))
    verdict = judged(TENSILE, nodes)
    assert "permission" in named(verdict) and "unsupported-gfx" not in named(verdict)
    unread = judged(
        "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: for GPU arch : gfx1103"
    )
    assert unread.cause == "unsupported-gfx"


def test_a_list_of_nodes_is_no_list_of_processes():
    verdict = judged("", {"ls -l /dev/kfd": "crw-rw---- 1 root render 510, 0 Jan 1 00:00 /dev/kfd"})
    assert "stale-holder" not in named(verdict) and not [
        row for row in verdict.evidence if "open" in row.says
    ]


# -- by command line ------------------------------------------------------------------------------
def test_the_command_line_gives_what_the_library_gives(tmp_path):
    (tmp_path / "m.txt").write_text("command terminated with exit code 137\n")
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "helpers/__main__.py"),
            "diagnose",
            "--message",
            str(tmp_path / "m.txt"),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    answer = json.loads(done.stdout)
    verdict = judged("command terminated with exit code 137\n")
    assert (answer["cause"], answer["confidence"]) == (verdict.cause, verdict.confidence)
    assert verdict.confidence == "weak"

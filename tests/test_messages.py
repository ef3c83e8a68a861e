"""What is read off a failure message, in every wording, wrapping and number format, and what its sums say."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fuzz_messages import MESSAGES, fuzz, mutated
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import grammar
from helpers.judge.account import account
from helpers.look.messages import (
    MESSAGES_LIMIT,
    Message,
    Quantity,
    quantity,
    read_message,
    without_footers,
)

MIB, GIB = 1 << 20, 1 << 30
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 36.00 MiB. GPU 3 has a total capacity of 15.77 GiB of "
    "which 22.38 MiB is free. Process 7101 has 1.25 GiB memory in use. Process 7102 has 640.00 MiB memory in use. Including "
    "non-PyTorch memory, "
    "this process has 13.85 GiB memory in use. Of the allocated memory 12.20 GiB is allocated by PyTorch, with 48.00 MiB "
    "allocated in "
    "private pools (e.g., CUDA Graphs), and 1.31 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def one(text: str | bytes) -> Message:
    reading = read_message(text)
    assert len(reading.messages) == 1, reading
    return reading.messages[0]


def texts(message: Message) -> dict[str, str]:
    return {
        name: value.text for name, value in vars(message).items() if isinstance(value, Quantity)
    }


def test_the_form_of_torch_2_gives_every_number_with_its_precision() -> None:
    message = one(NEW)
    assert texts(message) == {
        "requested": "36.00 MiB",
        "capacity": "15.77 GiB",
        "free": "22.38 MiB",
        "process": "13.85 GiB",
        "allocated": "12.20 GiB",
        "private_pools": "48.00 MiB",
        "reserved_unallocated": "1.31 GiB",
    }
    assert (message.event, message.program, message.backend, message.device) == (
        "refused",
        "torch",
        "cuda",
        3,
    )
    assert [size.text for size in message.others] == [
        "1.25 GiB",
        "640.00 MiB",
    ] and message.pids == (7101, 7102)
    assert message.hints == ("expandable_segments",)
    assert (
        message.reserved_unallocated == Quantity(1406601789, 5368709, "1.31 GiB")
        and message.requested.bytes == 36 * MIB
    )


@pytest.mark.parametrize(
    ("text", "expected", "device", "backend"),
    [
        (
            "CUDA out of memory. Tried to allocate 74.00 MiB (GPU 1; 7.77 GiB total capacity; 6.31 GiB already allocated; 40.19 MiB "
            "free; "
            "312.45 MiB cached)",
            {
                "requested": "74.00 MiB",
                "capacity": "7.77 GiB",
                "allocated": "6.31 GiB",
                "free": "40.19 MiB",
                "reserved_unallocated": "312.45 MiB",
            },
            1,
            "cuda",
        ),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.77 GiB total capacity; 6.31 GiB already allocated; 0 bytes "
            "free; 6.90 GiB allowed; 6.80 GiB reserved in total by PyTorch)",
            {
                "requested": "20.00 MiB",
                "capacity": "7.77 GiB",
                "allocated": "6.31 GiB",
                "free": "0 bytes",
                "allowed": "6.90 GiB",
                "reserved_total": "6.80 GiB",
            },
            0,
            "cuda",
        ),
        (
            "HIP out of memory. Tried to allocate 58.00 MiB. GPU 1 has a total capacty of 11.98 GiB of which 1.06 GiB is free. 8.00 "
            "GiB allowed; "
            "Of the allocated memory 7.90 GiB is allocated by PyTorch, and 12.00 KiB is reserved by PyTorch but unallocated.",
            {
                "requested": "58.00 MiB",
                "capacity": "11.98 GiB",
                "free": "1.06 GiB",
                "allowed": "8.00 GiB",
                "allocated": "7.90 GiB",
                "reserved_unallocated": "12.00 KiB",
            },
            1,
            "hip",
        ),
        (
            "HIP out of memory. Tried to allocate 44.00 MiB. GPU has 15.92 GiB total of which 0 bytes is free.",
            {"requested": "44.00 MiB", "capacity": "15.92 GiB", "free": "0 bytes"},
            None,
            "hip",
        ),
        (
            "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU \x01 has a total capacity of 23.00 GiB of which 5.00 MiB is free. "
            "Including 310.00 MiB non-PyTorch memory",
            {
                "requested": "1024.00 MiB",
                "capacity": "23.00 GiB",
                "free": "5.00 MiB",
                "non_torch": "310.00 MiB",
            },
            1,
            "cuda",
        ),
        (
            "torch.OutOfMemoryError: Allocation on device 2 would exceed allowed memory. (out of memory)\nCurrently allocated     : "
            "9.13 GiB\n"
            "Requested               : 27.00 MiB\nDevice limit            : 11.76 GiB\nFree (according to CUDA): 17.25 MiB\nPyTorch "
            "limit (set by user-supplied memory fraction)\n                        : 10.00 GiB",
            {
                "allocated": "9.13 GiB",
                "requested": "27.00 MiB",
                "capacity": "11.76 GiB",
                "free": "17.25 MiB",
                "allowed": "10.00 GiB",
            },
            2,
            "cuda",
        ),
        (
            "... Process has 8.20 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 900.00 MiB is "
            "reserved by "
            "PyTorch but unallocated",
            {"process": "8.20 GiB", "allocated": "7.00 GiB", "reserved_unallocated": "900.00 MiB"},
            None,
            "",
        ),
    ],
)
def test_older_abridged_and_partial_forms(
    text: str, expected: dict[str, str], device: int | None, backend: str
) -> None:
    message = one(text)
    assert texts(message) == expected
    assert (message.event, message.device, message.backend) == ("refused", device, backend)


@pytest.mark.parametrize(
    ("text", "row", "program", "side", "event", "backend", "size", "device"),
    [
        (
            "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
            "blas-alloc-at-create",
            "cuBLAS or hipBLAS",
            "device",
            "workspace",
            "hip",
            None,
            None,
        ),
        (
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "blas-alloc-at-create",
            "cuBLAS or hipBLAS",
            "device",
            "workspace",
            "cuda",
            None,
            None,
        ),
        (
            "rocBLAS error: rocblas_status_memory_error",
            "rocblas-memory",
            "rocBLAS",
            "device",
            "workspace",
            "hip",
            None,
            None,
        ),
        (
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "dnn-alloc",
            "cuDNN",
            "device",
            "workspace",
            "cuda",
            None,
            None,
        ),
        (
            "MIOpen(HIP): Warning [IsEnoughWorkspace] [EvaluateInvokers] Solver <GemmFwdRest>, workspace required: 94371840, provided ptr: 0",  # noqa: E501
            "miopen-workspace",
            "MIOpen",
            "device",
            "workspace",
            "hip",
            94371840,
            None,
        ),
        (
            "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
            "torch-device-index-assert",
            "torch",
            "none",
            "wrong-index",
            "",
            None,
            None,
        ),
        (
            "RuntimeError: HIP error: invalid device ordinal",
            "runtime-101",
            "CUDA or HIP",
            "none",
            "wrong-index",
            "hip",
            None,
            None,
        ),
        (
            "[W CUDAAllocatorConfig.h:30] Warning: expandable_segments not supported on this platform",
            "torch-expandable-unsupported",
            "torch",
            "none",
            "option-refused",
            "",
            None,
            None,
        ),
        (
            "torch.AcceleratorError: HIP error: out of memory",
            "runtime-2",
            "CUDA or HIP",
            "device",
            "refused",
            "hip",
            None,
            None,
        ),
        ("hipErrorOutOfMemory", "runtime-2", "CUDA or HIP", "device", "refused", "hip", None, None),
        (
            "cudaErrorMemoryAllocation",
            "runtime-2",
            "CUDA or HIP",
            "device",
            "refused",
            "cuda",
            None,
            None,
        ),
        (
            "cuda runtime error (2) : out of memory at /tmp/THCStorage.cu:58",
            "torch-th-cuda",
            "torch",
            "device",
            "refused",
            "cuda",
            None,
            None,
        ),
        (
            "kfd kfd: Failed to create BO on domain VRAM. ret -12",
            "kernel-kfd-bo",
            "kernel",
            "device",
            "driver-refused",
            "hip",
            None,
            None,
        ),
        (
            "CUDA error: device-side assert triggered",
            "runtime-710",
            "CUDA or HIP",
            "none",
            "assert",
            "cuda",
            None,
            None,
        ),
        (
            "HIP error: an illegal memory access was encountered",
            "runtime-700",
            "CUDA or HIP",
            "none",
            "fault",
            "hip",
            None,
            None,
        ),
        (
            "Memory access fault by GPU node-2 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",
            "rocr-access-fault",
            "ROCm runtime",
            "device",
            "fault",
            "",
            None,
            None,
        ),
        (
            "NCCL WARN Failed to CUDA calloc async 6291456 bytes",
            "nccl-calloc",
            "NCCL",
            "device",
            "collective",
            "cuda",
            6291456,
            None,
        ),
        (
            "node1:10:20 [1] NCCL WARN Cuda failure 'out of memory'",
            "nccl-cuda-oom",
            "NCCL",
            "device",
            "collective",
            "cuda",
            None,
            None,
        ),
        (
            "Error while creating shared memory segment /dev/shm/nccl-a1B2c3 (size 33030144)",
            "nccl-shm",
            "NCCL",
            "shm",
            "collective",
            "cuda",
            33030144,
            None,
        ),
        (
            "OOM when allocating tensor with shape[48,96,112,112] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc",  # noqa: E501
            "tf-oom-tensor",
            "TensorFlow",
            "device",
            "refused",
            "",
            231211008,
            1,
        ),
        (
            "failed to allocate 3.25G (3489660928 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "xla-from-device",
            "XLA (JAX, TensorFlow)",
            "device",
            "refused",
            "cuda",
            3489660928,
            None,
        ),
        (
            "allocating 5376.50 MiB on device 1: cudaMalloc failed: out of memory",
            "ggml-cuda-malloc",
            "llama.cpp",
            "device",
            "refused",
            "cuda",
            5637668864,
            1,
        ),
        (
            "ggml_gallocr_reserve_n: failed to allocate ROCm0 buffer of size 730857472",
            "ggml-alloc-named-buffer",
            "llama.cpp",
            "device",
            "refused",
            "hip",
            730857472,
            0,
        ),
        (
            "CUDA error: out of memory\n  current device: 0, in function alloc at /b/ggml/src/ggml-cuda/ggml-cuda.cu:401",
            "ggml-cuda-error-oom",
            "llama.cpp",
            "device",
            "refused",
            "cuda",
            None,
            0,
        ),
        (
            "Error: model requires more system memory (9.4 GiB) than is available (6.1 GiB)",
            "ollama-system-memory",
            "Ollama",
            "host",
            "no-room-at-start",
            "",
            10093173145,
            None,
        ),
        (
            "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!",
            "kernel-cs-enomem",
            "kernel",
            "device",
            "driver-refused",
            "hip",
            None,
            None,
        ),
        (
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes.",
            "torch-cpu-oom",
            "torch",
            "host",
            "refused",
            "",
            68719476736,
            None,
        ),
        (
            "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,)",
            "numpy-alloc",
            "NumPy",
            "host",
            "refused",
            "",
            7999376588,
            None,
        ),
        (
            "train.sh: line 9: 31207 Killed                  python3 train.py",
            "shell-killed",
            "shell",
            "none",
            "sigkill",
            "",
            None,
            None,
        ),
        ("Killed", "shell-killed", "shell", "none", "sigkill", "", None, None),
        (
            "RuntimeError: DataLoader worker (pid 4122) is killed by signal: Killed.",
            "torch-loader-killed",
            "torch",
            "none",
            "sigkill",
            "",
            None,
            None,
        ),
        (
            "CUDA error: no kernel image is available for execution on the device",
            "runtime-209",
            "CUDA or HIP",
            "none",
            "no-kernel",
            "cuda",
            None,
            None,
        ),
        (
            "hipErrorNoBinaryForGpu: Unable to find code object for all current devices!",
            "runtime-no-binary",
            "HIP",
            "none",
            "no-kernel",
            "hip",
            None,
            None,
        ),
        (
            "The NVIDIA driver on your system is too old (found version 11040).",
            "torch-old-driver",
            "torch",
            "none",
            "mismatch",
            "cuda",
            None,
            None,
        ),
        (
            "RuntimeError: No HIP GPUs are available",
            "torch-no-gpus",
            "torch",
            "none",
            "no-device",
            "hip",
            None,
            None,
        ),
        (
            "Call returned HSA_STATUS_ERROR_INVALID_QUEUE: bad",
            "hsa-other",
            "ROCr",
            "none",
            "note",
            "hip",
            None,
            None,
        ),
    ],
)
def test_each_failure_says_whose_memory_and_what_happened(
    text, row, program, side, event, backend, size, device
) -> None:
    message = one(text)
    assert (message.row, message.program, message.side, message.event) == (
        row,
        program,
        side,
        event,
    )
    assert (message.backend, message.device) == (backend, device)
    assert (message.requested.bytes if message.requested else None) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss 2.31, memory 20.1 GiB, all good\n" * 50,
        "Killed two birds with one stone",
        "no allocation failed here",
        "except torch.cuda.OutOfMemoryError:\n    torch.cuda.empty_cache()",
    ],
)
def test_text_that_names_no_failure_gives_none_and_says_so(text: str) -> None:
    reading = read_message(text)
    assert not reading.messages and reading.unused and not reading.truncated


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: re.sub(r"(.{37})", r"\1\n", text),
        lambda text: "\n".join("[rank5]: " + line for line in re.findall(".{1,61}(?: |$)", text)),
        lambda text: "\n".join("> > " + line for line in re.findall(".{1,50}(?: |$)", text)),
        lambda text: "\n".join(
            "│ " + line.ljust(60) + " │" for line in re.findall(".{1,58}(?: |$)", text)
        ),
        lambda text: "\n".join(
            f"2026-02-03T04:05:{n:02d}.123456Z stderr F " + line
            for n, line in enumerate(re.findall(".{1,70}", text))
        ),
        lambda text: "\n".join(
            "trainer-1  | " + line for line in re.findall(".{1,80}(?: |$)", text)
        ),
        lambda text: "\x1b[36m(Worker pid=31)\x1b[0m " + text.replace("GiB", "\x1b[1mGiB\x1b[22m"),
        lambda text: text.replace(". ", ".\\n"),
        lambda text: text.upper(),
        lambda text: text.replace(" GiB", "\u00a0GiB"),
        lambda text: "x" * 5000 + " " + text + " " + "y" * 5000,
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: b"\xff\xfa\x80" * 9 + text.encode(),
    ],
)
def test_wrapping_prefixes_colours_and_encodings_change_no_number(wrap) -> None:
    assert texts(one(wrap(NEW))) == texts(one(NEW)) and one(wrap(NEW)).pids == (7101, 7102)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.41 GiB", (1513975971, 5368709)),
        ("1,41 GiB", (1513975971, 5368709)),
        ("0 bytes", (0, 0)),
        ("512 bytes", (512, 0)),
        ("1,073,741,824 bytes", (1073741824, 0)),
        ("1.073.741.824 bytes", (1073741824, 0)),
        ("1.234,50 MiB", (1294467072, 5242)),
        ("1,234.50 MiB", (1294467072, 5242)),
        ("1 234,50 MiB", (1294467072, 5242)),
        ("896.00 KiB", (917504, 5)),
        ("2.5 TiB", (2748779069440, 54975581388)),
        ("730857472", (730857472, 0)),
        ("3 Gio", (3 * GIB, GIB // 2)),
        ("20.00 МиБ", (20 * MIB, 5242)),
    ],
)
def test_sizes_in_bytes_with_half_of_the_last_printed_digit(
    text: str, expected: tuple[int, int]
) -> None:
    size = quantity(text)
    assert size and (size.bytes, size.precision_bytes) == expected


@pytest.mark.parametrize(
    "text",
    [
        "1,234 GiB",
        "1,23,456 bytes",
        "1.5 bytes",
        "17179869184.00 GiB",
        "GiB",
        "12 parsec",
        "1,2.3,4 MiB",
    ],
)
def test_a_size_that_can_mean_two_things_or_says_not_measured_is_none(text: str) -> None:
    assert quantity(text) is None


def test_an_ambiguous_size_is_said_and_the_rest_is_still_read() -> None:
    reading = read_message(
        "CUDA out of memory. Tried to allocate 36.00 MiB. GPU 0 has a total capacity of 1,577 GiB of which "
        "22.38 MiB is "
        "free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use."
    )
    assert texts(reading.messages[0]) == {"requested": "36.00 MiB", "free": "22.38 MiB"}
    assert reading.unused.startswith("2 sizes are ambiguous")


def test_a_retyped_gb_covers_its_decimal_meaning_in_the_precision() -> None:
    size = one("CUDA out of memory. Tried to allocate 2.00 GB").requested
    assert size and size.bytes == 2 * GIB and size.bytes - size.precision_bytes <= 2 * 10**9


def test_two_messages_at_once_stay_apart_and_repeats_count_once() -> None:
    second = NEW.replace("GPU 3", "GPU 4").replace("36.00 MiB", "38.00 MiB")
    reading = read_message(
        f"{NEW}\nDuring handling:\n{second}\n{NEW}\nRuntimeError: CUDA out of memory.\n"
    )
    assert [(m.device, m.requested.text) for m in reading.messages] == [
        (3, "36.00 MiB"),
        (4, "38.00 MiB"),
    ]
    assert (
        "1 repeats of the same message" in reading.unused and "without a number" in reading.unused
    )
    assert [m.start for m in reading.messages] == [0, len(NEW) + len("\nDuring handling:\n")]
    assert all(
        m.words.startswith("torch.OutOfMemoryError: CUDA out of memory.") for m in reading.messages
    )


def test_a_text_that_ends_inside_a_message_says_so() -> None:
    reading = read_message(NEW[: NEW.index("12.20") + 2])
    assert (
        reading.truncated
        and "ends inside a message" in reading.unused
        and reading.messages[0].process
    )


def test_a_source_that_breaks_keeps_what_it_gave() -> None:
    def lines() -> Iterator[str]:
        yield NEW
        raise OSError("the pipe closed")

    reading = read_message(lines())
    assert (
        len(reading.messages) == 1
        and reading.truncated
        and "OSError: the pipe closed" in reading.unused
    )


@pytest.mark.parametrize(
    "source",
    [
        None,
        7,
        object(),
        [None, 3, b"\xff\xfe", {}],
        b"",
        bytes(range(256)) * 9,
        "\ud800\udfff",
        [""] * 9,
    ],
)
def test_anything_else_is_an_answer_and_never_a_traceback(source) -> None:
    reading = read_message(source)
    assert not reading.messages and reading.unused


@pytest.mark.parametrize("at", [0, 400, 8192, 8600, (1 << 20) - 300, (1 << 20) + 5])
def test_a_message_is_found_wherever_the_stream_is_cut(at: int) -> None:
    line = "step 12 loss 2.310 tokens/s 4821\n"
    text = (line * (at // len(line) + 1))[:at] + "\n" + NEW + "\n" + line * ((2 << 20) // len(line))
    reading = read_message(text)
    assert [m.start for m in reading.messages] == [at + 1] and texts(reading.messages[0]) == texts(
        one(NEW)
    )
    assert read_message(iter(text.splitlines(keepends=True))) == reading


def test_very_many_different_messages_are_bounded() -> None:
    reading = read_message(
        f"CUDA out of memory. Tried to allocate {n}.00 MiB\n" for n in range(1000)
    )
    assert (
        len(reading.messages) == MESSAGES_LIMIT
        and reading.truncated
        and "800 more messages" in reading.unused
    )


# -- sums


def test_the_sums_say_who_has_what() -> None:
    sums = account(one(NEW))
    assert (
        sums.held
        and sums.held.text == "13.51 GiB"
        and sums.context
        and sums.context.text == "348.16 MiB"
    )
    assert (
        sums.unaccounted
        and abs(sums.unaccounted.bytes - int((15.77 - 13.85 - 1.25) * GIB - (22.38 + 640) * MIB))
        < 9
    )
    assert sums.stranded and sums.stranded.text == "1.31 GiB" and sums.beyond_limit is False
    assert (
        "asked for 36.00 MiB, a segment, not the tensor: 10 MiB and more are rounded up to 2 MiB"
        in sums.lines[0]
    )
    assert "over 34.00 MiB and at most 36.00 MiB" in sums.lines[0]
    assert any(
        line.startswith("in use 15.75 GiB - this process 13.85 GiB - 1.25 GiB - 640.00 MiB = ")
        for line in sums.lines
    )


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("20.00 MiB", "over 1 MiB and under 10 MiB ask for 20 MiB"),
        ("2.00 MiB", "up to 1 MiB ask for 2 MiB"),
        ("12.50 MiB", "not a segment size"),
        ("1.37 GiB", "up to 2 MiB smaller"),
        ("5.10 MiB", "not a segment size"),
        ("1024.00 MiB", "over 1022.00 MiB and at most 1024.00 MiB"),
    ],
)
def test_a_request_is_a_segment(size: str, says: str) -> None:
    assert says in account(one(f"CUDA out of memory. Tried to allocate {size}")).lines[0]


def numbers(
    requested: str,
    allocated: str,
    unallocated: str,
    free: str = "0 bytes",
    capacity: str = "16.00 GiB",
    more: str = "",
) -> Message:
    return one(
        f"HIP out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of {capacity} of which {free} "
        f"is free. {more}Of "
        f"the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch but "
        f"unallocated."
    )


@pytest.mark.parametrize(
    ("message", "fragmentation", "beyond"),
    [
        (numbers("512.00 MiB", "9.00 GiB", "5.00 GiB"), "likely", False),
        (numbers("512.00 MiB", "9.00 GiB", "511.00 MiB"), "excluded", False),
        (
            numbers("5.01 GiB", "9.00 GiB", "5.00 GiB"),
            "possible",
            False,
        ),  # within the printed digits
        (numbers("2.00 GiB", "15.00 GiB", "2.50 GiB"), "excluded", True),
        (numbers("1.00 GiB", "15.00 GiB", "0 bytes"), "excluded", None),
        (
            numbers("30.00 MiB", "14.60 GiB", "300.00 MiB"),
            "possible",
            False,
        ),  # near capacity and stranded at once
        (numbers("512.00 MiB", "2.00 GiB", "5.00 GiB", free="8.00 GiB"), "possible", False),
        (
            numbers(
                "512.00 MiB", "2.00 GiB", "5.00 GiB", free="8.00 GiB", more="7.10 GiB allowed; "
            ),
            "likely",
            False,
        ),
        (
            numbers("2.00 GiB", "6.00 GiB", "3.00 GiB", free="4.00 GiB", more="7.00 GiB allowed; "),
            "excluded",
            True,
        ),
        (
            one(
                "HIP out of memory. Tried to allocate 44.00 MiB. GPU has 15.92 GiB total of which 0 bytes is free."
            ),
            "unknown",
            None,
        ),
        (
            one(
                "CUDA out of memory. Tried to allocate 44.00 GiB. GPU has 15.92 GiB total of which 0 bytes is free."
            ),
            "unknown",
            True,
        ),
        (one("CUDA out of memory"), "unknown", None),
        (one("RuntimeError: HIP error: out of memory"), "unknown", None),
    ],
)
def test_fragmentation_is_likely_only_where_nothing_else_can_be(
    message: Message, fragmentation: str, beyond: bool | None
) -> None:
    sums = account(message)
    assert (sums.fragmentation, sums.beyond_limit) == (fragmentation, beyond)


def test_idle_private_pools_are_not_counted_as_needed() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 0 bytes is "
        "free. Of the allocated "
        "memory 15.00 GiB is allocated by PyTorch, with {} allocated in private pools (e.g., CUDA Graphs), and 2.50 GiB "
        "is reserved by PyTorch but unallocated."
    )
    assert account(one(text.format("4.00 GiB"))).fragmentation == "possible"
    assert account(one(text.format("64.00 MiB"))).fragmentation == "excluded"


def test_in_a_container_the_named_process_can_be_this_one() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 31.70 GiB of which 4.20 GiB is "
        "free. Process 60011 "
        "has {} memory in use. Of the allocated memory 16.00 GiB is allocated by PyTorch, and 10.60 GiB is reserved by "
        "PyTorch but unallocated."
    )
    own = account(one(text.format("27.30 GiB")))
    assert (
        own.own_pid == 60011
        and own.context
        and own.context.text == "716.80 MiB"
        and not own.contradictions
    )
    other = account(one(text.format("256.00 MiB")))
    assert other.own_pid is None and other.unaccounted and other.unaccounted.text == "665.60 MiB"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            numbers("1.00 GiB", "1.00 GiB", "2.00 GiB", free="31.00 GiB"),
            "free 31.00 GiB is above capacity 16.00 GiB",
        ),
        (numbers("1.00 GiB", "12.00 GiB", "9.00 GiB"), "PyTorch holds 21.00 GiB, above capacity"),
        (
            numbers(
                "1.00 GiB",
                "9.00 GiB",
                "1.00 GiB",
                more="Including non-PyTorch memory, this process has 8.00 GiB memory in use. ",
            ),
            "above the 8.00 GiB that the driver gives",
        ),
        (
            numbers(
                "1.00 GiB", "9.00 GiB", "1.00 GiB", more="Process 5 has 7.00 GiB memory in use. "
            ),
            "1.00 GiB more than is in use",
        ),
    ],
)
def test_what_does_not_add_up_is_named(message: Message, says: str) -> None:
    sums = account(message)
    assert any(says in line for line in sums.contradictions) and set(sums.contradictions) <= set(
        sums.lines
    )


# -- hostile


@settings(max_examples=50, deadline=None)
@given(
    st.one_of(
        st.text(max_size=400),
        st.binary(max_size=400),
        st.lists(st.text(max_size=80), max_size=8),
        st.integers(0, 2**32).map(lambda seed: mutated(random.Random(seed))),
    )
)
def test_no_text_makes_it_raise(source: object) -> None:
    reading = read_message(source)  # type: ignore[arg-type]
    assert reading.messages or reading.unused
    for message in reading.messages:
        assert account(message).fragmentation in ("excluded", "possible", "likely", "unknown")


def test_mutated_messages_are_read_without_a_fault() -> None:
    result = fuzz(1500, seed=7)
    assert result["faults"] == 0, result["first_faults"]


def test_every_message_of_the_fuzz_is_read_whole() -> None:
    for text in MESSAGES:
        assert read_message(text).messages and "ambiguous" not in read_message(text).unused, text


def test_reading_a_message_loads_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import helpers.look.messages; "
        "print(*{n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["helpers"]


# -- the table


def _named(message: Message, name: str) -> object:
    value = getattr(message, name)
    sizes = [
        one.bytes if isinstance(one, Quantity) else one
        for one in (value if isinstance(value, tuple) else (value,))
    ]
    return sizes if isinstance(value, tuple) else sizes[0]


ROWS = [
    row
    for row in grammar.table()
    if row["event"] != "footer" and not (row.get("log") and row["event"] == "note")
]
WORDED = [row for row in ROWS if "form" in row]
# A line that begins with FATAL: has a level of its log there, a number may go on with the line before it, and a ">" that a
# wrap brings to the front of a line is a quoting mark there.
WRAPPED = [
    row
    for row in WORDED
    if row["id"] not in ("hsa-fatal", "deepspeed-estimate") and " > " not in row["example"]
]


def check(row: dict, text: str, *, numbers: bool = True) -> None:
    found = [message for message in read_message(text).messages if message.row == row["id"]]
    assert found, (row["id"], text, [message.row for message in read_message(text).messages])
    for name, expected in row.get("reads", {}).items() if numbers else ():
        assert (
            _named(found[0], name) == pytest.approx(expected, rel=1e-6, abs=1)
            if not isinstance(expected, str)
            else (_named(found[0], name) == expected)
        ), (row["id"], name, text)


def test_every_row_has_what_a_reader_of_the_table_needs() -> None:
    ids = [row["id"] for row in grammar.table()]
    assert len(ids) == len(set(ids))
    for row in grammar.table():
        assert row["source"] and row["says"] and row["example"] and row["program"], row["id"]
        assert row["side"] in grammar.SIDES and row["event"] in grammar.EVENTS, row["id"]
        assert ("form" in row) != ("pattern" in row), row["id"]
        if "pattern" in row:
            assert (
                row["literal"] == row["literal"].lower()
                and row["literal"] in row["example"].lower()
            ), row["id"]


def test_every_template_compiles_and_has_words_to_look_for() -> None:
    for row in grammar.rows():
        for template in (*row.forms, *row.clauses):
            assert template.pattern and all(len(anchor) > 2 for anchor in template.anchors), (
                row.id,
                template.text,
            )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_example_of_a_row_is_read_as_that_row(row: dict) -> None:
    check(row, row["example"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_an_example_is_read_under_a_log_prefix(row: dict) -> None:
    lines = row["example"].splitlines()
    check(row, "\n".join("2026-02-03 04:05:06,789 " + line for line in lines))
    check(row, "\n".join("[rank3]: " + line for line in lines))
    check(row, "step 12 done\n" + row["example"] + "\nstep 13 done\n")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(WRAPPED), st.integers(8, 120), st.booleans())
def test_an_example_is_read_wrapped_at_any_column(row: dict, width: int, prefixed: bool) -> None:
    text = row["example"].replace("\n", " ")
    lines = [text[at : at + width] for at in range(0, len(text), width)]
    check(row, "\n".join("[rank3]: " + line for line in lines) if prefixed else "\n".join(lines))


@pytest.mark.parametrize(
    "row", [row for row in grammar.table() if row["event"] == "footer"], ids=lambda row: row["id"]
)
def test_a_footer_is_no_message_and_leaves_blanks(row: dict) -> None:
    assert not read_message(row["example"]).messages
    text = f"first line\n{row['example']}\nlast line"
    left = without_footers(text)
    assert (
        len(left) == len(text) and left.startswith("first line\n") and left.endswith("\nlast line")
    )
    assert len("".join(left.split())) < len("firstlinelastline") + 22


def test_a_failure_with_all_of_its_footers_says_what_it_says_without_them() -> None:
    for backend in ("CUDA", "HIP"):
        text = (
            f"RuntimeError: {backend} error: out of memory\n{backend} kernel errors might be asynchronously reported at some "
            f"other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
            f"{backend}_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_{backend}_DSA` to enable device-side assertions.\n"
        )
        assert (one(text).row, one(text).event, one(text).backend) == (
            "runtime-2",
            "refused",
            backend.lower(),
        )
        left = [word for word in without_footers(text).split() if word != "."]
        assert left == f"RuntimeError: {backend} error: out of memory".split()


@pytest.mark.parametrize(
    "text",
    [
        '"OOMKilled": false',
        "OOMKilled: false",
        "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
        "oom_kill 0",
        "container exited with code 137",
        "Terminated by user: sent SIGKILL ( kill -9 ) to stop the run",
        "exitcode: -9",
        "RuntimeError: DataLoader worker (pid 4122) is killed by signal: Killed.",
        "Killed",
    ],
)
def test_a_denial_or_a_bare_signal_is_no_proof_of_a_kill_for_memory(text: str) -> None:
    assert all(
        message.event in ("sigkill", "note", "not-killed")
        for message in read_message(text).messages
    )


def test_a_pasted_kernel_log_is_read_by_the_kernels_own_reader() -> None:
    text = (
        "[  10.100000] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "[  10.200000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/pod/7,task=python3,pid=31,uid=0\n"
        "[  10.300000] Memory cgroup out of memory: Killed process 31 (python3) total-vm:2048kB, anon-rss:1024kB\n"
    )
    message = one(text)
    assert (message.program, message.side, message.event, message.pids) == (
        "kernel",
        "cgroup",
        "killed",
        (31,),
    )
    assert message.process == Quantity(1 << 20, 0, "1048576 bytes") and message.words.startswith(
        "[ 10.300000]"
    )
    wrapped = "[  10.300000] Memory cgroup out of memory: Kil\nled process 31 (python3) total-vm:2048kB, anon-rss:1024kB\n"
    assert one(wrapped).event == "killed"


def test_the_same_thing_in_other_words_is_one_message() -> None:
    text = "failed (exitcode: -9) local_rank: 0 (pid: 438) of binary: python3\n traceback : Signal 9 (SIGKILL) received by PID 438"
    assert one(text).pids == (438,)


# -- the compiler of templates


LITERALS = st.text("abcdefgh XYZ:.,()[]+*^$-", min_size=1, max_size=12).filter(
    lambda text: grammar.squeeze(text)
)
FIELDS = st.sampled_from(["requested", "free", "device", "tokens", "share"])


@st.composite
def templates(draw: st.DrawFn) -> tuple[str, str]:
    """A template and a text that fits it."""
    template, text = "needle", "needle"
    for _ in range(draw(st.integers(0, 5))):
        what = draw(st.integers(0, 4))
        words, other = draw(LITERALS), draw(LITERALS)
        if what == 0:
            template, text = template + words, text + words
        elif what == 1:
            value = {"device": "3", "tokens": "4096", "share": "0.9"}
            name = draw(FIELDS)
            template, text = template + f"; {{{name}}};", text + f"; {value.get(name, '1.50 GiB')};"
        elif what == 2:
            template, text = (
                template + f"<{words}|{other}>;",
                text + draw(st.sampled_from([words, other])) + ";",
            )
        elif what == 3:
            template, text = (
                template + f"<?{words}>;",
                text + draw(st.sampled_from([words, ""])) + ";",
            )
        else:
            template, text = (
                template + "{..40}!stop!",
                text + draw(st.text("xyz ", max_size=40)) + "!stop!",
            )
    return template, text


@settings(max_examples=300, deadline=None)
@given(templates())
def test_a_template_finds_what_was_made_from_it(made: tuple[str, str]) -> None:
    template, text = made
    compiled = grammar.Template(template)
    flat = grammar.squeeze(text)
    assert compiled.among(flat) and compiled.pattern.search(flat), (
        template,
        text,
        compiled.pattern.pattern,
    )


@settings(max_examples=300, deadline=None)
@given(st.text("ab<>{}|?\\. :requested0", max_size=40))
def test_any_text_is_a_template_or_refused_in_one_line(text: str) -> None:
    try:
        assert grammar.Template(text).pattern
    except ValueError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "piece",
    [
        "out of memory ",
        "torch.OutOfMemoryError: ",
        "9",
        "Tried to allocate 9.99 GiB ",
        "< ",
        "process 1 has ",
        "failed to allocate ",
        "CUDA error: ",
        'memory.available="',
        "[0] ",
        "killed\n",
        "a\n",
    ],
)
def test_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    assert read_message(piece * (400_000 // len(piece))) is not None


def test_a_plain_python_3_8_reads_a_message() -> None:
    """Where one is installed: `diagnose` needs no more than it."""
    old = shutil.which("python3.8") or ""
    code = "from helpers.look.messages import read_message; print(read_message('No HIP GPUs are available').messages[0].row)"
    if not old or subprocess.run([old, "-c", ""], check=False).returncode:
        pytest.skip("no python3.8 here")
    done = subprocess.run([old, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "torch-no-gpus\n", done.stderr

"""Mutates failure messages of the project's own making and reads them: `python tests/fuzz_messages.py 100000 [seed]`.

Prints counts as JSON. A traceback, a number out of range, or a slow reading is a failure: exit 1.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.judge.account import account
from helpers.look.messages import read_message

MESSAGES = (
    "RuntimeError: CUDA out of memory. Tried to allocate 74.00 MiB (GPU 1; 7.77 GiB total capacity; 6.31 GiB already "
    "allocated; 40.19 MiB free; 312.45 MiB cached)",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.61 GiB total capacity; 13.02 GiB already "
    "allocated; 9.31 MiB free; 13.55 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.37 GiB. GPU 2 has a total capacty of 39.42 GiB of "
    "which 811.12 MiB is free. Process 40711 has 2.08 GiB memory in use. Process 40980 has 512.00 MiB memory in use. Including "
    "non-PyTorch "
    "memory, this process has 36.03 GiB memory in use. Of the allocated memory 34.61 GiB is allocated by PyTorch, and 903.77 "
    "MiB is reserved by PyTorch but unallocated.",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 138.00 MiB. GPU 0 has a total capacity of 31.86 GiB of "
    "which 0 bytes "
    "is free. 12.75 GiB allowed; Of the allocated memory 12.40 GiB is allocated by PyTorch, with 96.00 MiB allocated in "
    "private pools "
    "(e.g., HIP Graphs), and 211.36 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    "HIP out of memory. Tried to allocate 44.00 MiB. GPU has 15.92 GiB total of which 0 bytes is free.",
    "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : "
    "9.13 GiB\n"
    "Requested               : 27.00 MiB\nDevice limit            : 11.76 GiB\nFree (according to CUDA): 17.25 MiB\n",
    "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    'RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "../aten/src/ATen/hip/HIPContext.cpp":49',
    "node7:311:402 [3] NCCL WARN Failed to CUDA calloc async 6291456 bytes\nncclUnhandledCudaError: Call to CUDA function "
    "failed.\n"
    "Last error:\nCuda failure 2 'out of memory'",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8858370048 bytes.",
    "ResourceExhaustedError: OOM when allocating tensor with shape[48,96,112,112] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc [Op:Conv2D]",
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5376.50 MiB on device 0: cudaMalloc failed: out of memory\n"
    "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 5637673984",
    "Error: model requires more system memory (9.4 GiB) than is available (6.1 GiB)",
    "[ 8123.552190] amdgpu 0000:0b:00.0: [drm] *ERROR* Not enough memory for command submission!",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
    "Out of memory: Killed process 31207 (python3) total-vm:98765432kB, anon-rss:61865984kB, file-rss:2048kB",
    "RuntimeError: CUDA error: device-side assert triggered",
    "Memory access fault by GPU node-1 (Agent handle: 0x5581) on address (nil)",
    "RuntimeError: HIP error: no kernel image is available for execution on the device",
    "RuntimeError: No HIP GPUs are available",
)
PIECES = (
    "\n",
    "\r\n",
    "\x1b[31m",
    "\x1b[0m",
    "\n[rank3]: ",
    "\n> ",
    " | ",
    "\n2026-02-03 04:05:06,789 ",
    "\x00",
    "\ufffd",
    "\u200b",
    ",",
    ".",
    "1,234",
    "17179869184.00 GiB",
    "GiB",
    "out of memory",
    "Tried to allocate ",
    "9" * 40,
    "٣",
    "İ",
    "K",
    "(",
    "[",
    "'",
    "\\n",
)


def mutated(random_: random.Random) -> str:
    """One message, or two, with up to 12 cuts, swaps, repeats, line breaks, case changes and foreign pieces."""
    text = random_.choice(MESSAGES)
    if random_.random() < 0.2:
        text += random_.choice(("\n", " ", "")) + random_.choice(MESSAGES)
    for _ in range(random_.randrange(13)):
        at = random_.randrange(len(text) + 1)
        to = min(len(text), at + random_.randrange(24))
        what = random_.choice((0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 6, 6, 6, random_.randrange(8)))
        if what == 0:
            text = text[:at] + text[to:]
        elif what == 1:
            text = text[:at] + random_.choice(PIECES) + text[at:]
        elif what == 2:
            text = text[:at] + text[at:to] * 2 + text[to:]
        elif what == 3:
            text = text[:at] + chr(random_.randrange(1, 0x2500)) + text[at + 1 :]
        elif what == 4:
            text = text[:at] + text[at:to].swapcase() + text[to:]
        elif what == 5:
            text = text[:at]
        elif what == 6:
            text = text.replace(
                random_.choice((". ", " ", "GiB", "0")),
                random_.choice((",", "\n", "GB", "", "  ")),
                3,
            )
        else:
            text = text[at:]
    return text


def shape_of(random_: random.Random, text: str) -> object:
    """The text as a string, as bytes, or as lines."""
    what = random_.randrange(4)
    if what == 0:
        return text.encode("utf-8", "replace")[random_.randrange(3) :]
    return iter(text.splitlines(keepends=random_.random() < 0.5)) if what == 1 else text


def fuzz(count: int, seed: int = 0) -> dict[str, object]:
    random_ = random.Random(seed)
    kinds: Counter[str] = Counter()
    faults: list[str] = []
    slowest, begun = 0.0, time.perf_counter()
    for _ in range(count):
        text = mutated(random_)
        source = shape_of(random_, text)
        start = time.perf_counter()
        try:
            reading = read_message(source)  # type: ignore[arg-type]
            for message in reading.messages:
                sums = account(message)
                kinds[message.event] += 1
                kinds["numbers"] += len(message.numbers)
                assert all(
                    size.bytes >= 0 and 0 <= size.precision_bytes <= size.bytes + (1 << 40)
                    for size in message.numbers
                )
                assert sums.fragmentation in (
                    "excluded",
                    "possible",
                    "likely",
                    "unknown",
                ) and 0 <= message.start <= len(text)
                assert (
                    all("\n" not in line for line in (*sums.lines, reading.unused))
                    and len(message.words) <= 400
                )
            kinds["none"] += not reading.messages
            assert reading.messages or reading.unused
        except Exception as error:  # noqa: BLE001 - the point of the run is to count every kind
            faults.append(f"{type(error).__name__}: {error}: {text!r}")
        slowest = max(slowest, time.perf_counter() - start)
    return {
        "mutated": count,
        "faults": len(faults),
        "first_faults": faults[:3],
        "slowest_s": round(slowest, 4),
        "seconds": round(time.perf_counter() - begun, 1),
        "read": dict(kinds.most_common()),
    }


if __name__ == "__main__":
    result = fuzz(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
    )
    print(json.dumps(result, indent=1, ensure_ascii=False))
    sys.exit(1 if result["faults"] else 0)

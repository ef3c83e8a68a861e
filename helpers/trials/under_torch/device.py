"""The device under test: whether this torch can use it, which card it is, and how much a
program may still take.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.frame import Row, one_line

SEED = 20240229


class Failed(Exception):
    """A check has its answer, and the answer is bad: one sentence, and what was measured."""

    def __init__(self, says: str, **measured: Any):
        super().__init__(says)
        self.measured = measured


class Device:
    """One GPU, two of them (``spec["peer"]``) or the CPU, as torch names it, and the parent's
    ``spec``.

    ``trouble`` says why torch cannot use it at all (``reason``: torch's own words), ``wrong``
    why what torch sees is not what was asked for; all are empty when all is well, and neither
    question takes device memory.
    """

    def __init__(self, torch: Any, spec: dict[str, Any]):
        self.torch = torch
        self.spec = spec
        self.name: str = spec["device"]
        self.gpu = self.name != "cpu"
        self.indices = range(2 if spec.get("peer") else 1) if self.gpu else range(0)
        self.trouble, self.reason = gpu_trouble(torch) if self.gpu else ("", "")
        self.wrong = wrong_card(torch, spec) if self.gpu and not self.trouble else ""

    def generator(self) -> Any:
        return self.torch.Generator().manual_seed(SEED)

    def wait(self) -> None:
        """Until everything queued has run: an error of a kernel shows only then."""
        for index in self.indices:
            self.torch.cuda.synchronize(index)

    def limit_memory(self, most_bytes: int) -> None:
        """Let torch's allocator take at most ``most_bytes`` of each GPU; the context and
        library handles come on top.
        """
        for index in self.indices:
            limit_gpu(self.torch, most_bytes, index)

    def reset_peaks(self) -> None:
        for index in self.indices:
            self.torch.cuda.reset_peak_memory_stats(index)

    def peaks(self) -> dict[str, int]:
        """The allocator's peaks since the last reset, on the GPU that had the higher one;
        nothing is counted on a CPU.
        """
        if not self.gpu:
            return {}
        cuda = self.torch.cuda
        return {
            "allocated_bytes": max(map(cuda.max_memory_allocated, self.indices)),
            "reserved_bytes": max(map(cuda.max_memory_reserved, self.indices)),
        }

    def free_bytes(self) -> int:
        """Free memory of the first GPU, or of the host; on an integrated GPU, whose memory is
        the host's, the smaller.

        HIP's free may exceed its total there (ROCm issue 6004).
        """
        if not self.gpu:
            return host_available_bytes()
        free = min(self.torch.cuda.mem_get_info(0))
        integrated = getattr(self.torch.cuda.get_device_properties(0), "is_integrated", 0)
        return min(free, host_available_bytes()) if integrated else free


class Peak:
    """Memory from its making on: resident memory of this process (VmHWM, proc(5)), or what
    torch took of the GPU.
    """

    def __init__(self, torch: Any, device: str):
        self.cuda = None if device == "cpu" else torch.cuda
        if self.cuda:
            self.cuda.reset_peak_memory_stats()
        self.start_bytes = self.cuda.memory_allocated() if self.cuda else frame.restart_peak()

    def figures(self) -> dict[str, int]:
        """Bytes at the start, and at most until now."""
        most = self.cuda.max_memory_allocated() if self.cuda else frame.own_bytes("VmHWM")
        return {"start_bytes": self.start_bytes, "peak_bytes": most}


def limit_gpu(torch: Any, most_bytes: int, index: int = 0) -> None:
    """Let torch's allocator take at most ``most_bytes`` of a GPU."""
    share = most_bytes / torch.cuda.get_device_properties(index).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), index)


def limit_memory(torch: Any, device: str, more_bytes: int) -> None:
    """From now on at most ``more_bytes`` more: of private writable memory, or of the GPU by
    torch's own limit.
    """
    if device == "cpu":
        frame.limit_host(more_bytes)
    else:
        torch.cuda.empty_cache()
        limit_gpu(torch, torch.cuda.memory_reserved() + more_bytes)


def lift_limit(torch: Any, device: str) -> None:
    """As much memory as there is."""
    if device == "cpu":
        frame.lift_host_limit()
    else:
        torch.cuda.set_per_process_memory_fraction(1.0)


def gpu_trouble(torch: Any) -> tuple[str, str]:
    """Why this torch cannot use any GPU, and its own words; both empty when it can."""
    hip = getattr(torch.version, "hip", None)
    if torch.version.cuda is None and hip is None:
        return "this torch is a CPU build and cannot use a GPU", ""
    says = f"torch, built for {'ROCm' if hip else 'CUDA'}, sees no GPU"
    try:
        torch.cuda.init()
        return "" if torch.cuda.device_count() else says, ""
    except (RuntimeError, AssertionError, ImportError, OSError) as error:
        return says, one_line(error)


def wrong_card(torch: Any, spec: dict[str, Any]) -> str:
    """Why the visible GPUs are not those that were asked for, or empty."""
    wanted = [pci for pci in (spec["pci"], spec.get("peer")) if pci]
    count = torch.cuda.device_count()
    if count != len(wanted):
        return f"torch sees {count} GPUs here and should see {len(wanted)}"
    here = [pci_address(torch, index) for index in range(count)]
    if "" in here:
        return "which GPU torch sees cannot be told" if spec.get("several") else ""
    says = f"torch sees {' and '.join(here)} here and should see {' and '.join(wanted)}"
    return "" if here == wanted else says


def pci_address(torch: Any, index: int) -> str:
    """The PCI address of a torch device, or empty: from its properties where this torch has it
    there, else from its runtime.
    """
    card = torch.cuda.get_device_properties(index)
    if hasattr(card, "pci_bus_id"):
        return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    mapped = {line.split(None, 5)[-1] for line in _lines("/proc/self/maps") if "/" in line}
    for path in sorted(mapped):
        library = re.search(r"/lib(amdhip64|cudart)[^/]*\.so[^/]*$", path)
        if library:
            prefix = "hip" if library[1] == "amdhip64" else "cuda"
            ask = getattr(ctypes.CDLL(path), prefix + "DeviceGetPCIBusId")
            answer = ctypes.create_string_buffer(32)
            if ask(answer, 32, index) == 0:
                return answer.value.decode("ascii", "replace").lower()
    return ""


def host_available_bytes(root: str = "") -> int:
    """What this process may still take of the host: the smallest of MemAvailable, its cgroups'
    rest and RLIMIT_AS's rest.
    """
    fields = {}
    for line in _lines(root + "/proc/meminfo") + _lines("/proc/self/status"):
        name, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            fields[name] = int(value.split()[0]) * 1024
    left = [fields["MemAvailable"]]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        left.append(limit - fields["VmSize"])
    groups = Path(root + "/sys/fs/cgroup")
    for line in _lines(root + "/proc/self/cgroup"):
        controllers, path = (line.split(":", 2) + ["", ""])[1:3]
        if not controllers:
            left += _left_in(groups, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            left += _left_in(groups / "memory", path, *names)
    return max(0, min(left))


def _left_in(top: Path, path: str, most: str, used: str) -> list[int]:
    """The rest of a cgroup's limit and of each group above it; a group with no limit, or none
    to be seen, has none.
    """
    here = top / path.lstrip("/")
    pairs = [(_lines(group / most), _lines(group / used)) for group in (here, *here.parents)]
    numbers = [(" ".join(limit), " ".join(usage)) for limit, usage in pairs]
    return [int(limit) - int(use) for limit, use in numbers if limit.isdigit() and use.isdigit()]


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


# Two processes that work together: this one starts the second, which dies with it; they meet in
# a file, over the loopback.
#
# No port is opened to others, and no other host is asked.

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


@contextlib.contextmanager
def second_process(module: str, job: Row) -> Iterator[Any]:
    """``other_rank`` of a module in a process of its own, its job as the argument; it is ended
    with this block.
    """
    text = f"from {module} import other_rank; other_rank()"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen(
        [sys.executable, "-c", text, json.dumps(job)], env={**os.environ, **LOOPBACK}, **pipes
    )
    try:
        yield other
    finally:
        other.kill()
        other.communicate()


def second_job() -> tuple[Row, IO[str]]:
    """In the second process: its job, and what it writes to the first on, who reads nothing
    else of it.

    It ends with the process that started it (PR_SET_PDEATHSIG, prctl(2)): it must not wait for
    one that was killed.
    """
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    return json.loads(sys.argv[1]), frame.own_stdout()


def meet(torch: Any, job: Row, rank: int) -> None:
    """Join the group of two: ``backend``, ``devices`` of both, ``meet`` (a file), and seconds
    that a call may take.
    """
    os.environ.update(LOOPBACK)
    torch.distributed.init_process_group(
        job["backend"],
        init_method="file://" + job["meet"],
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=job["meet_s"]),
    )
    if job["devices"][rank] != "cpu":
        torch.cuda.set_device(rank)

"""What torch build does this interpreter own? One JSON object on stdout, whatever torch does.

Run by its text or as a file under the interpreter that owns torch (Python 3.9 or later, torch 1.13 or later). By default it
takes no GPU context: device properties and ``mem_get_info`` are read only with ``--devices``. Everything that torch and the
libraries under it print goes to stderr: amdsmi prints on stdout when it is imported, and torch imports it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

# Read by the caching allocator or by the runtime when torch first touches a device.
VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_NO_HIP_MEMORY_CACHING",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "CUDA_DEVICE_ORDER",
    "HSA_OVERRIDE_GFX_VERSION",
)
# Looked for in the binaries: a name that stands there is known to this build; one that does not may still be.
OPTIONS = (
    "expandable_segments",
    "max_split_size_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "backend",
    "max_non_split_rounding_mb",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "large_segment_size_mb",
    "throw_on_cudamalloc_oom",
)
ALLOCATOR_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libc10_hip.so")
NO_GPU_BUILD = "torch was built without it"
PROPERTIES = (
    ("name", "name"),
    ("total_bytes", "total_memory"),
    ("multiprocessors", "multi_processor_count"),
    ("integrated", "is_integrated"),
    ("gfx", "gcnArchName"),
    ("uuid", "uuid"),
)


def facts(devices: bool) -> dict[str, Any]:
    """The build, and with ``devices`` each device; a field that could not be read is null, and ``unread`` says why."""
    row: dict[str, Any] = {
        "status": "ok",
        "why": "",
        "python": sys.executable,
        "python_version": sys.version.split()[0],
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "unread": {},
        "devices_taken": False,
        "devices": [],
    }
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            torch = importlib.import_module("torch")
            row.update(_build(torch, row["unread"]))
        except ModuleNotFoundError as error:
            missing = (
                f"no torch in {sys.executable}"
                if error.name == "torch"
                else f"import torch: {error}"
            )
            row.update(status="not_available", why=missing)
        except BaseException as error:  # noqa: BLE001 - a broken torch raises anything: amdsmi's KeyError, OSError, SystemExit
            row.update(status="not_available", why=f"import torch: {_last_line(error)}")
        row["import_s"] = round(time.monotonic() - began, 3)
        if row["status"] == "ok":
            _fill(torch, row, devices)
        row["warnings"] = list(
            dict.fromkeys(" ".join(str(one.message).split())[:300] for one in warned)
        )[:5]
    return row


def _build(torch: Any, unread: dict[str, str]) -> dict[str, Any]:
    version = getattr(torch, "version", None)
    if not hasattr(torch, "__version__"):
        raise ImportError(
            f"{getattr(torch, '__path__', 'torch')} is no torch: it has no __version__"
        )
    return {
        "torch": str(torch.__version__),
        "path": str(getattr(torch, "__file__", "")),
        **{
            key: getattr(version, attribute, None)
            for key, attribute in (
                ("cuda", "cuda"),
                ("hip", "hip"),
                ("rocm", "rocm"),
                ("git", "git_version"),
                ("debug", "debug"),
            )
        },
    }


def _fill(torch: Any, row: dict[str, Any], devices: bool) -> None:
    native: Any = getattr(torch, "_C", None)
    row["compiled_with_gpu"] = gpu = hasattr(native, "_cuda_getDeviceCount")

    def read(name: str, ask: Callable[[], Any], possible: bool = True) -> None:
        row[name] = None
        try:
            if possible:
                row[name] = ask()
            else:
                row["unread"][name] = NO_GPU_BUILD
        except Exception as error:  # noqa: BLE001 - by release and build AttributeError, AssertionError, RuntimeError or OSError
            row["unread"][name] = _last_line(error)

    # The public get_arch_list() of older releases counts devices first, and answers [] where it sees none.
    read("archs", lambda: (native._cuda_getArchFlags() or "").split(), gpu)
    read("allocator_backend", lambda: native._cuda_getAllocatorBackend(), gpu)
    read("allocator_settings", lambda: native._accelerator_getAllocatorSettings())
    read("allocator_names", lambda: _named(torch))
    # Not backends.cudnn.version(): it asks every device for its capability (torch 2.13), which takes a context.
    read("cudnn", lambda: ".".join(map(str, native._cudnn.getRuntimeVersion())), gpu)
    read("nccl", lambda: ".".join(map(str, torch.cuda.nccl.version())), gpu)
    read("driver_cuda", lambda: native._cuda_getDriverVersion(), gpu and bool(row["cuda"]))
    _count(torch, row)
    if devices:
        _take_devices(torch, row)


def _named(torch: Any) -> list[str]:
    """Variables and allocator options whose names stand in the libraries that hold the caching allocator (about 2 MB)."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    content = b""
    for name in ALLOCATOR_LIBRARIES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, "rb") as library:
                content += library.read(64 << 20)
    return [name for name in VARIABLES + OPTIONS if name.encode() in content]


def _count(torch: Any, row: dict[str, Any]) -> None:
    """Devices by NVML or amdsmi, as torch counts them before it starts the runtime (torch/cuda/__init__.py).

    Where neither answers, only the runtime could count: cudaGetDeviceCount or hipGetDeviceCount opens the driver, so that is
    left to ``--devices``.
    """
    by = "amdsmi" if row.get("hip") else "nvml"
    row["device_count"], row["device_count_by"] = None, by
    if not row["compiled_with_gpu"]:
        row["unread"]["device_count"] = NO_GPU_BUILD
        return
    try:
        count = getattr(torch.cuda, f"_device_count_{by}")()
    except Exception as error:  # noqa: BLE001 - private: it comes with some releases only, and can be broken
        row["unread"]["device_count"] = (
            f"{_last_line(error)}; the runtime was not asked, that would open the driver"
        )
        return
    if isinstance(count, int) and count >= 0:
        row["device_count"] = count
    else:
        row["unread"]["device_count"] = (
            f"{by} gave torch no answer; the runtime was not asked, that would open the driver"
        )


def _take_devices(torch: Any, row: dict[str, Any]) -> None:
    row["devices_taken"] = True
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
    except Exception as error:  # noqa: BLE001 - its words are the finding: no driver, driver too old, no visible GPU, no GPU build
        row["unread"]["devices"] = _last_line(error)
        return
    row.update(device_count=count, device_count_by="runtime")
    row["unread"].pop("device_count", None)
    for index in range(count):
        device: dict[str, Any] = {"index": index, "unread": {}}
        row["devices"].append(device)
        for ask in (_properties, _memory):
            try:
                device.update(ask(torch, index))
            except Exception as error:  # noqa: BLE001 - one sick device must not hide the others
                device["unread"][ask.__name__.strip("_")] = _last_line(error)


def _properties(torch: Any, index: int) -> dict[str, Any]:
    seen = torch.cuda.get_device_properties(index)
    found = {key: getattr(seen, attribute, None) for key, attribute in PROPERTIES}
    found["uuid"] = None if found["uuid"] is None else str(found["uuid"])
    found["capability"] = f"{seen.major}.{seen.minor}"
    # torch gives no function of the address; a GPU is function 0 outside of partitions.
    place: Any = [
        getattr(seen, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")
    ]
    found["pci"] = None if None in place else "{:04x}:{:02x}:{:02x}.0".format(*place)
    return found


def _memory(torch: Any, index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    return {"free_bytes": free, "driver_total_bytes": total}


def _last_line(error: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(type(error), error)).split("\n")
    return " ".join(
        next((line for line in reversed(lines) if line.strip()), type(error).__name__).split()
    )[:400]


def main() -> None:
    """Print the facts on the stdout that this program was started with."""
    # A folder that holds this text, or the current one, may hold a torch.py of its own.
    own = os.path.dirname(os.path.abspath(__file__)) if "__file__" in globals() else ""
    sys.path[:] = [path for path in sys.path if path not in ("", own)]
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer.write(json.dumps(facts("--devices" in sys.argv[1:]), default=str) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()

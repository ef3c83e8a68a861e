"""Prints which build of torch this Python has: one JSON object on stdout, whatever torch does.

Its text or its file is run under the Python that has torch (Python 3.9 or later, torch 1.13 or
later). It takes a GPU context only with ``--devices``, for the devices' properties and
``mem_get_info``. Everything that torch and its libraries print goes to stderr: amdsmi prints on
stdout when it is imported, and torch imports it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

NO_GPU_BUILD = "torch was built without it"
LONGEST_WHY = 400


def facts(devices: bool) -> dict[str, Any]:
    """The row of the table ``torch``: the build, and with ``devices`` each device. A field that
    could not be read is null, and ``unread`` says why.
    """
    row: dict[str, Any] = {
        "status": "ok",
        "why": "",
        "python": sys.executable,
        "python_version": sys.version.split()[0],
        "unread": {},
        "devices_taken": False,
        "devices": [],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch = importlib.import_module("torch")
            row.update(_build(torch))
        except BaseException as error:  # noqa: BLE001 - a broken torch raises anything: amdsmi's KeyError, OSError, SystemExit
            row.update(status="not_available", why=_why_not_imported(error))
            return row
        _fill(torch, row)
        if devices:
            _take_devices(torch, row)
    return row


def _why_not_imported(error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError):
        return f"import torch: {_last_line(error)}"
    if error.name == "torch":
        return f"no torch in {sys.executable}"
    return f"import torch: {error}"  # a library that torch needs


def _build(torch: ModuleType) -> dict[str, Any]:
    """The releases of torch, and of CUDA or HIP that it was built with. Raises ImportError for
    another module of that name.
    """
    version = getattr(torch, "version", None)
    if not hasattr(torch, "__version__"):
        path = getattr(torch, "__path__", "torch")
        raise ImportError(f"{path} is no torch: it has no __version__")
    return {
        "torch": str(torch.__version__),
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
    }


def _fill(torch: ModuleType, row: dict[str, Any]) -> None:
    """Add what the build says about itself without a device."""
    native: Any = getattr(torch, "_C", None)

    def read(name: str, ask: Callable[[], Any]) -> None:
        row[name] = None
        try:
            row[name] = ask()
        except Exception as error:  # noqa: BLE001 - by release and build AttributeError, AssertionError, RuntimeError or OSError
            row["unread"][name] = _last_line(error)

    if hasattr(native, "_cuda_getDeviceCount"):
        read("archs", lambda: _architectures(native))
    else:
        row["archs"] = None
        row["unread"]["archs"] = NO_GPU_BUILD
    read("allocator_settings", lambda: native._accelerator_getAllocatorSettings())


def _architectures(native: Any) -> list[str]:
    """The GPU architectures of the build. The public get_arch_list() of older releases counts
    devices first, and returns [] if it sees none.
    """
    flags: str | None = native._cuda_getArchFlags()
    if flags is None:
        return []
    return flags.split()


def _take_devices(torch: ModuleType, row: dict[str, Any]) -> None:
    """Add every device; takes a context on each."""
    row["devices_taken"] = True
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
    except Exception as error:  # noqa: BLE001 - its words are the finding: no driver, driver too old, no visible GPU, no GPU build
        row["unread"]["devices"] = _last_line(error)
        return
    for index in range(count):
        device: dict[str, Any] = {"index": index, "unread": {}}
        row["devices"].append(device)
        for ask in (_properties, _memory):
            try:
                device.update(ask(torch, index))
            except Exception as error:  # noqa: BLE001 - one broken device must not hide the others
                device["unread"][ask.__name__.strip("_")] = _last_line(error)


def _properties(torch: ModuleType, index: int) -> dict[str, Any]:
    """The properties of a device; which of them there are depends on the release of torch."""
    card = torch.cuda.get_device_properties(index)
    properties = {
        "name": getattr(card, "name", None),
        "total_bytes": getattr(card, "total_memory", None),
        "integrated": getattr(card, "is_integrated", None),
        "pci": None,
    }
    if hasattr(card, "pci_bus_id"):  # not in older releases
        # torch does not give the function, which is 0 for a GPU that is not a partition.
        bus_and_device = f"{card.pci_bus_id:02x}:{card.pci_device_id:02x}"
        properties["pci"] = f"{card.pci_domain_id:04x}:{bus_and_device}.0"
    return properties


def _memory(torch: ModuleType, index: int) -> dict[str, Any]:
    """What the driver says about a device's memory."""
    free, total = torch.cuda.mem_get_info(index)
    return {"free_bytes": free, "driver_total_bytes": total}


def _last_line(error: BaseException) -> str:
    """The last line of an error's text that is not empty, with the name of its type."""
    text = "".join(traceback.format_exception_only(type(error), error))
    lines = [line for line in text.split("\n") if line.strip()]
    last = type(error).__name__
    if lines:
        last = lines[-1]
    return " ".join(last.split())[:LONGEST_WHY]


def main() -> None:
    """Print the facts on the stdout with which this program was started."""
    # The current folder, or the one with this file, may have another torch.py.
    not_for_imports = [""]
    if "__file__" in globals():
        not_for_imports.append(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [path for path in sys.path if path not in not_for_imports]
    # From now on everything that is printed on stdout goes to stderr.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer.write(json.dumps(facts("--devices" in sys.argv[1:]), default=str) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()

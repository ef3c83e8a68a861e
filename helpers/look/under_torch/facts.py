"""What torch build does this interpreter own? One JSON object on stdout, whatever torch does.

Run by its text or as a file under the interpreter that owns torch (Python 3.9 or later, torch
1.13 or later). By default it takes no GPU context: device properties and ``mem_get_info`` are
read only with ``--devices``. Everything that torch and the libraries under it print goes to
stderr: amdsmi prints on stdout when it is imported, and torch imports it.
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


def facts(devices: bool) -> dict[str, Any]:
    """The build, and with ``devices`` each device; a field that could not be read is null, and
    ``unread`` says why.
    """
    row: dict[str, Any] = {"status": "ok", "why": "", "python": sys.executable}
    row.update(
        python_version=sys.version.split()[0],
        unread={},
        devices_taken=False,
        devices=[],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        why = ""
        torch = None
        try:
            torch = importlib.import_module("torch")
            row.update(_build(torch))
        except ModuleNotFoundError as error:
            none = error.name == "torch"
            why = f"no torch in {sys.executable}" if none else f"import torch: {error}"
        except BaseException as error:  # noqa: BLE001 - a broken torch raises anything: amdsmi's KeyError, OSError, SystemExit
            why = f"import torch: {_last_line(error)}"
        if why or torch is None:
            row.update(status="not_available", why=why)
            return row
        _fill(torch, row)
        if devices:
            _take_devices(torch, row)
    return row


def _build(torch: ModuleType) -> dict[str, Any]:
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
    """What the build says of itself without a device."""
    native: Any = getattr(torch, "_C", None)
    gpu = hasattr(native, "_cuda_getDeviceCount")

    def read(name: str, ask: Callable[[], Any], possible: bool = True) -> None:
        row[name] = None
        try:
            if possible:
                row[name] = ask()
            else:
                row["unread"][name] = NO_GPU_BUILD
        except Exception as error:  # noqa: BLE001 - by release and build AttributeError, AssertionError, RuntimeError or OSError
            row["unread"][name] = _last_line(error)

    # The public get_arch_list() of older releases counts devices first, and answers [] where it
    # sees none.
    read("archs", lambda: (native._cuda_getArchFlags() or "").split(), gpu)
    read("allocator_settings", lambda: native._accelerator_getAllocatorSettings())


def _take_devices(torch: ModuleType, row: dict[str, Any]) -> None:
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
            except Exception as error:  # noqa: BLE001 - one sick device must not hide the others
                device["unread"][ask.__name__.strip("_")] = _last_line(error)


def _properties(torch: ModuleType, index: int) -> dict[str, Any]:
    card = torch.cuda.get_device_properties(index)
    # torch gives no function of the address; a GPU is function 0 outside of partitions.
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    place: Any = [getattr(card, name, None) for name in names]
    return {
        "name": getattr(card, "name", None),
        "total_bytes": getattr(card, "total_memory", None),
        "integrated": getattr(card, "is_integrated", None),
        "pci": None if None in place else "{:04x}:{:02x}:{:02x}.0".format(*place),
    }


def _memory(torch: ModuleType, index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    return {"free_bytes": free, "driver_total_bytes": total}


def _last_line(error: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(type(error), error)).split("\n")
    last = next(
        (line for line in reversed(lines) if line.strip()), type(error).__name__
    )
    return " ".join(last.split())[:400]


def main() -> None:
    """Print the facts on the stdout that this program was started with."""
    # A folder that holds this text, or the current one, may hold a torch.py of its own.
    own_folder = (
        os.path.dirname(os.path.abspath(__file__)) if "__file__" in globals() else ""
    )
    sys.path[:] = [path for path in sys.path if path not in ("", own_folder)]
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer.write(json.dumps(facts("--devices" in sys.argv[1:]), default=str) + "\n")
    answer.flush()


if __name__ == "__main__":
    main()

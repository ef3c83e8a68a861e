"""The GPUs on the PCI bus, and the bridges between them and the processor.

Source: Documentation/ABI/testing/sysfs-bus-pci of the kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, JsonRow, Row

from .files import find, text

DEVICES = "/sys/bus/pci/devices"
GPU_CLASSES = ("0x03", "0x12")
"""The beginnings of the classes of displays and of processing accelerators; a GPU without outputs
is 0x0380, 0x0302 or 0x1200 (pci.ids).
"""
BRIDGE = "0x06"
CLASSES = (*GPU_CLASSES, "0x0604")
"""And of bridges between PCI buses."""
SECURITY_PROCESSOR = "0x1080"
"""Of encryption controllers, as AMD's security processors are."""
AMD = "0x1002"
"""The vendor id of AMD's graphics; its processors have another one."""
LINK = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
AWAKE = ("active", "unsupported", "")
"""The power states in which a device's link is read: since Linux 6.18, and stable kernels of
October 2025, that would wake a device in another state (pci_config_pm_runtime_get in
drivers/pci/pci-sysfs.c).
"""


@dataclass(frozen=True)
class PciDevice:
    """One device. ``integrated``: it is a GPU inside the processor; None if PCI does not tell."""

    pci: str
    class_code: str
    vendor_id: str
    device_id: str
    driver: str
    integrated: bool | None

    @property
    def is_gpu(self) -> bool:
        return self.class_code.startswith(GPU_CLASSES)


def collect_pci(root: Path) -> list[JsonRow]:
    """The table ``pci_devices``: a row for each device of CLASSES in the file tree ``root``, sorted
    by address, without serial numbers.
    """
    top = str(root)
    rows = []
    functions = _functions(top)
    # A device is an address without the digit of the function.
    with_security_processor = {
        name.rpartition(".")[0]
        for name, code in functions.items()
        if code.startswith(SECURITY_PROCESSOR)
    }
    for name, code in functions.items():
        if not code.startswith(CLASSES) or not pci_address(name):
            continue
        folder = f"{DEVICES}/{name}"
        row: JsonRow = {}
        for file in ("vendor", "device", "class"):
            row[file] = text(top, f"{folder}/{file}")
        row["pci"] = pci_address(name)
        row["driver"] = _target(top, f"{folder}/driver").rpartition("/")[2]
        row["path"] = _target(top, folder)
        if not row["path"]:
            row["path"] = folder
        # An AMD security processor shares its PCI device only with a GPU inside the CPU package.
        device = name.rpartition(".")[0]
        row["with_security_processor"] = device in with_security_processor
        # Of bridges only the switch of an AMD card has a link that somebody asks for (pcie.py).
        if row["vendor"] == AMD or not code.startswith(BRIDGE):
            row.update(_link(top, folder))
        rows.append(row)
    return sorted(rows, key=lambda row: row["pci"])


def _link(top: str, folder: str) -> dict[str, str]:
    """The power state of a device, and, if it is awake, the texts of the files of its PCIe link."""
    status = text(top, f"{folder}/power/runtime_status")
    link = {"runtime_status": status}
    if status in AWAKE:
        for name in LINK:
            link[name] = text(top, f"{folder}/{name}")
    return link


def _functions(top: str) -> dict[str, str]:
    """The class of each function on the bus, by the function's name in sysfs."""
    classes = {}
    for match in find(top, f"{DEVICES}/*/class"):
        if match.status == "ok":
            *_, name, _ = match.source.split("/")
            classes[name] = text(top, match.source)
    return classes


def _target(top: str, source: str) -> str:
    """Where a link leads, as a path inside the file tree ``top``; empty if it is no link or leads
    out of the tree.
    """
    path = top.rstrip("/") + source
    base = os.path.realpath(top).rstrip("/")
    real = os.path.realpath(path)
    if not os.path.islink(path) or not real.startswith(base + "/"):
        return ""
    return real[len(base) :]


def pci_devices(bundle: Bundle) -> tuple[PciDevice, ...]:
    """The devices of the table ``pci_devices``, sorted by address. Rows without one are left out."""
    rows = {pci_address(row.text("pci")): row for row in bundle.table("pci_devices")}
    rows.pop("", None)
    return tuple(
        PciDevice(
            pci=pci,
            class_code=row.text("class"),
            vendor_id=row.text("vendor"),
            device_id=row.text("device"),
            driver=row.text("driver"),
            integrated=_is_integrated(pci, row, rows),
        )
        for pci, row in sorted(rows.items())
    )


def _is_integrated(pci: str, row: Row, rows: dict[str, Row]) -> bool | None:
    """Whether an AMD GPU is inside the processor; None if PCI does not tell. ``rows`` are those of
    all devices by address.
    """
    is_display = row.text("class").startswith("0x03")
    if not is_display or row.text("vendor") != AMD:
        return None
    if row.get("with_security_processor") is True:
        return True
    # AMD cards since RDNA have a PCIe switch of their own above the GPU, with the vendor id of
    # AMD's graphics (1002:1478 and 1002:1479 in pci.ids).
    for address in map(pci_address, row.text("path").split("/")):
        if address != pci and rows.get(address, Row()).text("vendor") == AMD:
            return False
    return None

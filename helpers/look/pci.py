"""The PCI devices that matter to a GPU: the GPUs themselves and the bridges above them.

Everything is keyed by the PCI address in one form: lower case, a domain of at least four digits
("0000:03:00.0"). Source: Documentation/ABI/testing/sysfs-bus-pci of the kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, JsonRow, Row

from .files import find, text

DEVICES = "/sys/bus/pci/devices"
CLASSES = ("0x03", "0x0604", "0x12")
"""Displays, PCI bridges and processing accelerators.

A GPU without outputs is 0x0380 or 0x0302 or 0x1200.
"""

AMD = "0x1002"  # of AMD's graphics; its processors have another
LINK = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
AWAKE = ("active", "unsupported", "")
"""A device in another state sleeps: since Linux 6.18 a read of its link would wake it
(pci_config_pm_runtime_get in drivers/pci/pci-sysfs.c).
"""


@dataclass(frozen=True)
class PciDevice:
    """One device; ``integrated`` is None where PCI does not tell."""

    pci: str
    class_code: str
    vendor_id: str
    device_id: str
    driver: str
    integrated: bool | None

    @property
    def is_gpu(self) -> bool:
        return self.class_code.startswith(("0x03", "0x12"))


def collect_pci(root: Path) -> list[JsonRow]:
    """Rows of the table pci_devices from /sys/bus/pci/devices under ``root``, without serial
    numbers.
    """
    top = str(root)
    rows = []
    functions = _functions(top)
    for name, code in functions.items():
        if not code.startswith(CLASSES) or not pci_address(name):
            continue
        folder = f"{DEVICES}/{name}"
        row: JsonRow = {
            word: text(top, f"{folder}/{word}")
            for word in ("vendor", "device", "class")
        }
        row["pci"] = pci_address(name)
        row["driver"] = _target(top, f"{folder}/driver").rsplit("/", 1)[-1]
        row["path"] = _target(top, folder) or folder
        # An AMD security processor shares its PCI device only with a GPU inside the CPU package.
        row["with_security_processor"] = any(
            other.rsplit(".", 1)[0] == name.rsplit(".", 1)[0]
            and kind.startswith("0x1080")
            for other, kind in functions.items()
        )
        if row["vendor"] == AMD or not code.startswith("0x06"):
            row.update(_link(top, folder))
        rows.append(row)
    return sorted(rows, key=lambda row: row["pci"])


def _link(top: str, folder: str) -> dict[str, str]:
    """The files about a device's PCIe link as they are; of one that sleeps only that it does."""
    status = text(top, f"{folder}/power/runtime_status")
    names = LINK if status in AWAKE else ()
    link = {name: text(top, f"{folder}/{name}") for name in names}
    return {"runtime_status": status, **link}


def _functions(top: str) -> dict[str, str]:
    """The class of each function on the bus, by its name there."""
    classes = [
        match.source
        for match in find(top, f"{DEVICES}/*/class")
        if match.status == "ok"
    ]
    return {source.split("/")[-2]: text(top, source) for source in classes}


def _target(top: str, source: str) -> str:
    """Where a link leads, as a path inside the tree; empty where it is no link or leads out of it."""
    path = top.rstrip("/") + source
    base = os.path.realpath(top).rstrip("/")
    real = os.path.realpath(path)
    if not os.path.islink(path) or not real.startswith(base + "/"):
        return ""
    return real[len(base) :]


def pci_devices(bundle: Bundle) -> tuple[PciDevice, ...]:
    """The devices of the table pci_devices, by address. A row without an address is left out."""
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
    if not row.text("class").startswith("0x03") or row.text("vendor") != AMD:
        return None
    if row.get("with_security_processor") is True:
        return True
    # AMD cards since RDNA carry a PCIe switch of their own, with ATI's vendor id (1002:1478 and
    # 1479 in pci.ids).
    above = [
        address
        for address in map(pci_address, row.text("path").split("/"))
        if address != pci
    ]
    parents = [rows[address] for address in above if address in rows]
    if any(parent.text("vendor") == AMD for parent in parents):
        return False
    return None

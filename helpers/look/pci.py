"""The PCI devices that matter to a GPU: the GPUs themselves and the bridges above them, with
link, BARs and IOMMU group.

Everything is keyed by the PCI address in one form: lower case, a domain of at least four digits
("0000:03:00.0"). Sources: Documentation/ABI/testing/sysfs-bus-pci (link, resource, driver) and
sysfs-kernel-iommu_groups (type) of the kernel.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ground.shapes import Reading
from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, Row, Text

from .files import find, text

DEVICES = "/sys/bus/pci/devices"
CLASSES = ("0x03", "0x0604", "0x12")
"""Displays, PCI bridges and processing accelerators.

A GPU without outputs is 0x0380 or 0x0302 or 0x1200.
"""

_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?GT/s")
_BARS = 6
_LINK = "current_link_speed", "current_link_width", "max_link_speed", "max_link_width"
_WORDS = ("vendor", "device", "class", "numa_node", *_LINK)


@dataclass(frozen=True)
class Link:
    """A PCIe link: lanes and transfers per second of a lane (GT/s), now and at most.

    A card at rest lowers its speed by itself, which is no fault; fewer lanes at rest are one,
    or a shorter slot.
    """

    speed_gts: float
    width: int
    max_speed_gts: float
    max_width: int


@dataclass(frozen=True)
class PciDevice:
    """One device.

    ``bars_bytes`` are the sizes of its six BARs, 0 where unused; ``iommu`` is "off", "identity"
    (passed through) or "DMA" / "DMA-FQ" (translated).

    ``link`` is the narrowest step between the device and the root: cards carry a bridge of
    their own, so the device's own link is the one inside the card. ``integrated`` is None where
    PCI does not tell.
    """

    pci: str
    class_code: str
    vendor_id: str
    device_id: str
    driver: str
    link: Link | None
    bars_bytes: tuple[int, ...]
    iommu: Reading
    numa_node: Reading
    integrated: bool | None

    @property
    def is_gpu(self) -> bool:
        return self.class_code.startswith(("0x03", "0x12"))

    @property
    def largest_bar_bytes(self) -> int:
        return max(self.bars_bytes, default=0)

    def large_bar(self, vram_bytes: int) -> bool:
        """Whether the CPU can address the whole of ``vram_bytes`` ("resizable BAR", "large BAR")."""
        return 0 < vram_bytes <= self.largest_bar_bytes


def collect_pci(root: Path) -> list[dict[str, Any]]:
    """Rows of the table pci_devices from /sys/bus/pci/devices under ``root``; bytes for BAR
    sizes, and no serial numbers.
    """
    top = str(root)
    rows = []
    functions = _functions(top)
    for name, code in functions.items():
        if not code.startswith(CLASSES) or not pci_address(name):
            continue
        folder = f"{DEVICES}/{name}"
        row: dict[str, Any] = {word: text(top, f"{folder}/{word}") for word in _WORDS}
        row["pci"] = pci_address(name)
        row["driver"] = _target(top, f"{folder}/driver").rsplit("/", 1)[-1]
        row["path"] = _target(top, folder) or folder
        group = _target(top, f"{folder}/iommu_group").rsplit("/", 1)[-1]
        row["iommu_group"] = group
        kind = f"/sys/kernel/iommu_groups/{group}/type"
        row["iommu_type"] = text(top, kind) if group.isdigit() else ""
        row["resource"] = _bars(text(top, f"{folder}/resource"))
        # An AMD security processor shares its PCI device only with a GPU inside the CPU package.
        row["with_security_processor"] = any(
            other.rsplit(".", 1)[0] == name.rsplit(".", 1)[0] and kind.startswith("0x1080")
            for other, kind in functions.items()
        )
        rows.append(row)
    return sorted(rows, key=lambda row: row["pci"])


def _functions(top: str) -> dict[str, str]:
    found = [f.source for f in find(top, f"{DEVICES}/*/class") if f.status == "ok"]
    return {source.split("/")[-2]: text(top, source) for source in found}


def _target(top: str, source: str) -> str:
    """Where a link leads, as a path inside the tree; empty where it is no link or leads out of it."""
    path = top.rstrip("/") + source
    base = os.path.realpath(top).rstrip("/")
    real = os.path.realpath(path)
    return real[len(base) :] if os.path.islink(path) and real.startswith(base + "/") else ""


def _bars(words: str) -> list[int]:
    sizes = []
    for line in words.splitlines()[:_BARS]:
        try:
            start, end = (int(word, 16) for word in line.split()[:2])
        except ValueError:
            start = end = 0
        sizes.append(end - start + 1 if end > start else 0)
    return sizes


def pci_devices(bundle: Bundle) -> tuple[PciDevice, ...]:
    """The devices of the table pci_devices, by address. A row without an address is left out."""
    table = bundle.read("pci_devices")
    rows = {pci_address(row.text("pci")): row for row in bundle.table("pci_devices")}
    rows.pop("", None)
    return tuple(_device(pci, row, rows, table) for pci, row in sorted(rows.items()))


def _device(pci: str, row: Row, rows: dict[str, Row], table: Text) -> PciDevice:
    above = [a for a in map(pci_address, row.text("path").split("/")) if a and a != pci]
    links = [link for link in (_link(rows[a]) for a in (*above, pci) if a in rows) if link]
    # Both ends of one link report it; the end that could do more tells that it is held back.
    links.sort(key=lambda k: (k.speed_gts * k.width, -k.max_speed_gts * k.max_width))
    bars = tuple(bar for bar in row.many("resource") if isinstance(bar, int) and bar >= 0)
    folder = table.of(f"{DEVICES}/{pci}")
    kind_of, vendor, device, driver = map(row.text, ("class", "vendor", "device", "driver"))
    integrated = _integrated(pci, row, [rows.get(address, Row()) for address in above])
    group = folder.of(folder.source + "/iommu_group")
    kind = row.text("iommu_type")
    kind = kind if row.text("iommu_group") else "off"
    iommu = group.seen(kind) if kind else group.missing("its IOMMU group has no type file")
    at = folder.of(folder.source + "/numa_node")
    node = row.text("numa_node")
    why = "the firmware names no node" if node == "-1" else "no such file"
    known = re.fullmatch(r"[0-9]{1,5}", node)
    numa = at.seen(int(node), "count") if known else at.missing(why, "count")
    link = next(iter(links), None)
    return PciDevice(pci, kind_of, vendor, device, driver, link, bars, iommu, numa, integrated)


def _link(row: Row) -> Link | None:
    speed, width, most, widest = (row.text(key) for key in _LINK)
    speeds = [_SPEED.match(words) for words in (speed, most)]
    # A port with nothing behind it, and a GPU inside the CPU, report a link of 0 or 255 lanes.
    lanes = [int(words) for words in (width, widest) if re.fullmatch(r"[0-9]{1,2}", words)]
    if not all(speeds) or len(lanes) < 2 or not all(0 < lane <= 32 for lane in lanes):
        return None
    now, best = (float(match.group(1)) for match in speeds if match)
    return Link(now, lanes[0], best, lanes[1])


def _integrated(pci: str, row: Row, parents: list[Row]) -> bool | None:
    vendor = row.text("vendor")
    if not row.text("class").startswith("0x03") or vendor not in ("0x8086", "0x1002"):
        return None
    if vendor == "0x8086":
        return pci == "0000:00:02.0"
    if row.get("with_security_processor") is True:
        return True
    # AMD cards since RDNA carry a PCIe switch of their own, with ATI's vendor id (1002:1478 and
    # 1479 in pci.ids).
    return False if any(parent.text("vendor") == "0x1002" for parent in parents) else None

"""The PCIe link of each GPU: its speed and width now, and the most that the card can have.

sysfs first (drivers/pci/pci-sysfs.c of the kernel), NVML where sysfs has none. An AMD card brings a
switch of its own: what leads to the slot is the link of that switch, not the GPU's inside the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.ground.shapes import Reading, seen
from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, Row

from .gpus import gpus
from .nvml import LINK as NVML
from .pci import AMD, AWAKE, DEVICES, LINK

GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""The speed of a lane in each generation of PCIe, which NVML counts."""
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?")
_WIDTH = re.compile(r"[1-9]|1[0-9]|2[0-9]|3[0-2]")  # 0, 63 and 255 stand for no link


@dataclass(frozen=True)
class PcieLink:
    """The link of one GPU: GT/s of each lane, and lanes."""

    pci: str
    speed: Reading
    max_speed: Reading
    width: Reading
    max_width: Reading

    @property
    def is_below_its_maximum(self) -> bool:
        now = (self.speed.value, self.width.value)
        return now != (self.max_speed.value, self.max_width.value)


def pcie_links(bundle: Bundle) -> tuple[PcieLink, ...]:
    """The links of the GPUs that have one, by address; a GPU inside the processor has none."""
    devices = _by_address(bundle, "pci_devices")
    nvml = _by_address(bundle, "nvml")
    links = []
    for gpu in gpus(bundle):
        if gpu.integrated:
            continue
        port = _port(gpu.pci, devices)
        numbers = _of_sysfs(devices.get(port, Row()))
        sources = [f"{DEVICES}/{port}/{name}" for name in LINK]
        if not numbers:
            numbers = _of_nvml(nvml.get(gpu.pci, Row()))
            sources = ["nvml"] * len(LINK)
        if numbers:
            both = zip(numbers, sources)  # noqa: B905 - Python 3.8
            readings = [seen(number, "count", source) for number, source in both]
            links.append(PcieLink(gpu.pci, *readings))
    return tuple(links)


def asleep(bundle: Bundle) -> Iterator[str]:
    """The GPUs whose link was not read, because that would have woken them."""
    devices = _by_address(bundle, "pci_devices")
    for gpu in gpus(bundle):
        status = devices.get(_port(gpu.pci, devices), Row()).text("runtime_status")
        if status not in AWAKE:
            yield gpu.pci


def _by_address(bundle: Bundle, table: str) -> dict[str, Row]:
    """The rows of a table that a machine printed."""
    if bundle.read(table).constructed:
        return {}
    return {pci_address(row.text("pci")): row for row in bundle.table(table)}


def _port(pci: str, devices: dict[str, Row]) -> str:
    """The device whose link leads to the slot: of an AMD card the outermost of its own."""
    way = map(pci_address, devices.get(pci, Row()).text("path").split("/"))
    ours = (place for place in way if devices.get(place, Row()).text("vendor") == AMD)
    return next(ours, pci)


def _of_sysfs(row: Row) -> list[float]:
    """The numbers of LINK as sysfs prints them; none where one of them is none."""
    speeds = [_SPEED.fullmatch(row.text(name)) for name in LINK[:2]]
    widths = [_WIDTH.fullmatch(row.text(name)) for name in LINK[2:]]
    if not all(speeds) or not all(widths):
        return []
    return [float(m[1]) for m in speeds if m] + [int(m[0]) for m in widths if m]


def _of_nvml(row: Row) -> list[float]:
    """The same numbers, as NVML gives them."""
    generations = [row.number(name) for name in NVML[:2]]
    widths = [row.number(name) for name in NVML[2:]]
    speeds = [GT_PER_S[n] for n in generations if n in GT_PER_S]
    lanes = [n for n in widths if n is not None and 1 <= n <= 32]
    return [*speeds, *lanes] if len(speeds) == len(lanes) == 2 else []

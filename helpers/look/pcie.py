"""The PCIe link of each GPU: its speed and width now, and the most that the card can have.

They come from sysfs (drivers/pci/pci-sysfs.c of the kernel), or from NVML if sysfs has none. An AMD
card has a PCIe switch of its own, whose link leads to the slot; the GPU's link is inside the card.
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
"""The speed of a lane in each generation of PCIe, by its number, which NVML gives."""
MOST_LANES = 32
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?")


@dataclass(frozen=True)
class PcieLink:
    """The link of one GPU: speeds in GT/s for each lane, widths in lanes."""

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
    """The links of all GPUs that are not integrated and whose link is known, by sysfs where that
    has all its numbers, else by NVML.
    """
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
            readings = [
                seen(number, "count", source)
                for number, source in zip(numbers, sources)  # noqa: B905 - Python 3.8
            ]
            links.append(PcieLink(gpu.pci, *readings))
    return tuple(links)


def asleep(bundle: Bundle) -> Iterator[str]:
    """The PCI addresses of the GPUs whose link was not read, because that would have woken them."""
    devices = _by_address(bundle, "pci_devices")
    for gpu in gpus(bundle):
        status = devices.get(_port(gpu.pci, devices), Row()).text("runtime_status")
        if status not in AWAKE:
            yield gpu.pci


def _by_address(bundle: Bundle, table: str) -> dict[str, Row]:
    """The rows of a table by PCI address; none if a person wrote the table, who did not see links."""
    if bundle.read(table).constructed:
        return {}
    return {pci_address(row.text("pci")): row for row in bundle.table(table)}


def _port(pci: str, devices: dict[str, Row]) -> str:
    """The device whose link leads to the slot: on the path from the processor to an AMD GPU the
    first of AMD's graphics, which is the card's switch; else the GPU itself.
    """
    for address in map(pci_address, devices.get(pci, Row()).text("path").split("/")):
        if devices.get(address, Row()).text("vendor") == AMD:
            return address
    return pci


def _of_sysfs(row: Row) -> list[float]:
    """The numbers of LINK as sysfs prints them; empty if one of them is missing."""
    numbers: list[float] = []
    for name in LINK[:2]:  # the speeds
        speed = _SPEED.fullmatch(row.text(name))
        if speed:
            numbers.append(float(speed[1]))
    for name in LINK[2:]:  # the widths
        width = row.text(name)
        if re.fullmatch("[0-9]{1,3}", width) and _is_width(int(width)):
            numbers.append(int(width))
    return _complete(numbers)


def _of_nvml(row: Row) -> list[float]:
    """The same numbers as NVML gives them."""
    numbers: list[float] = []
    for name in NVML[:2]:  # the speeds
        generation = row.number(name)
        if generation in GT_PER_S:
            numbers.append(GT_PER_S[generation])
    for name in NVML[2:]:  # the widths
        width = row.number(name)
        if width is not None and _is_width(width):
            numbers.append(width)
    return _complete(numbers)


def _is_width(number: int) -> bool:
    """Whether it is a number of lanes: 0, 63 and 255 stand for no link."""
    return 1 <= number <= MOST_LANES


def _complete(numbers: list[float]) -> list[float]:
    """The numbers of LINK, or none of them if one is missing."""
    if len(numbers) < len(LINK):
        return []
    return numbers

"""What the kernel's DRM layer says of each card, and of each client that holds memory on one.

Pools are files of one number in bytes
(drivers/gpu/drm/amd/amdgpu/amdgpu_{vram,gtt,preempt}_mgr.c); they are world-readable and count
every client, leaked memory included. Clients come from /proc/PID/fdinfo/FD
(Documentation/gpu/drm-usage-stats.rst).
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from helpers.ground.shapes import Reading
from helpers.ground.units import pci_address, printed_size
from helpers.look.bundle import Bundle, Text

from .files import natural, sources

FILES = sources("files", "drm")
_CARDS = [path for path in FILES if path.endswith("]/device/uevent") and "card" in path]
_RENDER = "/sys/class/drm/renderD[0-9][0-9][0-9]/device/uevent"
_KINDS = ("resident", "memory", "total")
# drm-total-cycles-ENGINE counts time, not memory.
_LINE = re.compile(
    r"^[ \t]*drm-(?:(driver|client-id|pdev)|(resident|memory|total)-(?!cycles-)([^\s:]+))"
    r"[ \t]*:[ \t]*(.*?)[ \t\r]*$",
    re.MULTILINE,
)
_NO_MEMORY = "the driver prints no memory for this client"


@dataclass(frozen=True)
class DrmCard:
    """One DRM card.

    ``pci`` is empty for a device not on PCI. Pools are in bytes; ids are as sysfs writes them
    ("0x1002").
    """

    pci: str
    card: str
    render: str
    driver: str
    vendor_id: str
    device_id: str
    product: Reading
    vram_total: Reading
    vram_used: Reading
    gtt_total: Reading
    gtt_used: Reading


@dataclass(frozen=True)
class Fdinfo:
    """One fdinfo text.

    ``regions`` maps regions (vram, gtt, cpu) to bytes: resident, else memory (its deprecated
    name), else total.
    """

    driver: str
    pci: str
    client_id: str
    regions: dict[str, int]


@dataclass(frozen=True)
class Client:
    """One open DRM client: who holds what on which card.

    ``pids`` are all processes that have it open (forks inherit it).

    ``regions`` is as of Fdinfo; memory that clients share is counted in each.
    """

    pci: str
    pids: tuple[int, ...]
    regions: dict[str, int]
    text: Text

    def region(self, name: str) -> Reading:
        """Bytes in a region."""
        if name in self.regions:
            return self.text.seen(self.regions[name], "bytes")
        if self.regions:
            return self.text.missing(f"no region {name}", "bytes")
        return self.text.missing(_NO_MEMORY, "bytes")


class _OpenFile(NamedTuple):
    """An open file of a process, and what its fdinfo says."""

    pid: int
    fd: int
    info: Fdinfo


def cards(bundle: Bundle) -> tuple[DrmCard, ...]:
    """Every DRM card, in the order of their names.

    A pool that the driver does not have reads as not available.
    """
    renders = {}
    for source in bundle.sources(_RENDER):
        pci = pci_address(_uevent(bundle, source).get("PCI_SLOT_NAME", ""))
        if pci:
            renders[pci] = source.split("/")[4]
    drm_cards = []
    for pattern in _CARDS:
        for source in bundle.sources(pattern):
            drm_cards.append(_card(bundle, source[: -len("/uevent")], renders))
    return tuple(drm_cards)


def _card(bundle: Bundle, folder: str, renders: dict[str, str]) -> DrmCard:
    uevent = _uevent(bundle, folder + "/uevent")
    pci = pci_address(uevent.get("PCI_SLOT_NAME", ""))
    return DrmCard(
        pci=pci,
        card=folder.split("/")[4],
        render=renders.get(pci, ""),
        driver=uevent.get("DRIVER", ""),
        vendor_id=bundle.read(f"{folder}/vendor").text.strip(),
        device_id=bundle.read(f"{folder}/device").text.strip(),
        product=bundle.word(f"{folder}/product_name"),
        vram_total=bundle.number(f"{folder}/mem_info_vram_total"),
        vram_used=bundle.number(f"{folder}/mem_info_vram_used"),
        gtt_total=bundle.number(f"{folder}/mem_info_gtt_total"),
        gtt_used=bundle.number(f"{folder}/mem_info_gtt_used"),
    )


def _uevent(bundle: Bundle, source: str) -> dict[str, str]:
    return dict(
        line.split("=", 1)
        for line in bundle.read(source).text.splitlines()
        if "=" in line
    )


def parse_fdinfo(text: str) -> Fdinfo:
    """Read one /proc/PID/fdinfo/FD of a DRM file, as kernels write it since 5.19.

    Never raises; a text of another kind of file gives empty fields.

    Two generations of keys: drm-memory-REGION, and drm-{total,shared,active,resident,
    purgeable}-REGION. Keys may carry a trailing blank; a size without a unit is in bytes.
    """
    words: dict[str, str] = {}
    sizes_by_region: dict[str, dict[str, int]] = {}
    for name, kind, region, value in _LINE.findall(text):
        if name:
            words[name] = value[:64]
            continue
        with suppress(ValueError):  # a size that nobody can read is no zero
            sizes_by_region.setdefault(region, {})[kind] = printed_size(value)
    regions = {}
    for region, sizes in sorted(sizes_by_region.items()):
        kind = next(kind for kind in _KINDS if kind in sizes)
        regions[region] = sizes[kind]
    return Fdinfo(
        driver=words.get("driver", ""),
        pci=pci_address(words.get("pdev", "")),
        client_id=words.get("client-id", ""),
        regions=regions,
    )


def clients(bundle: Bundle) -> tuple[Client, ...]:
    """Every DRM client that could be read, once, however many descriptors and processes share it.

    A client is told by (PCI address, drm-client-id). Of several texts of one client, read moments
    apart, the one with the most memory stands for it.
    """
    text = bundle.read("device_files")
    files_by_client: dict[tuple[str, str], list[_OpenFile]] = {}
    for row in bundle.table("device_files"):
        pid = row.number("pid")
        fd = row.number("fd")
        info = parse_fdinfo(row.text("fdinfo"))
        if pid is None or fd is None or not (info.driver or info.regions):
            continue
        client = f"client {info.client_id}"
        if not info.client_id:
            client = f"fd {pid} {fd}"
        file = _OpenFile(pid, fd, info)
        files_by_client.setdefault((info.pci, client), []).append(file)
    order = sorted(files_by_client, key=lambda key: (key[0], natural(key[1])))
    return tuple(_client(files_by_client[key], text) for key in order)


def _client(files: list[_OpenFile], text: Text) -> Client:
    in_order = sorted(files, key=lambda file: (file.pid, file.fd))
    best = max(in_order, key=lambda file: sum(file.info.regions.values()))
    return Client(
        pci=best.info.pci,
        pids=tuple(sorted({file.pid for file in files})),
        regions=best.info.regions,
        text=text.of(f"/proc/{best.pid}/fdinfo/{best.fd}"),
    )


def refused_pids(bundle: Bundle) -> tuple[int, ...]:
    """Processes whose open files could not be read, so that what they hold is not attributable
    from here.
    """
    refused = set()
    for row in bundle.table("device_files"):
        pid = row.number("pid")
        if row.get("status") == "not_allowed" and pid is not None:
            refused.add(pid)
    return tuple(sorted(refused))

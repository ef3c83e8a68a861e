"""What the kernel's DRM layer says about each card, and about each client that holds memory on one.

Each pool of memory has files of one number in bytes
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
"""The patterns of the cards' folders: card0, and on a large node card10; not of connectors such as
card0-DP-1.
"""
_RENDER = "/sys/class/drm/renderD[0-9][0-9][0-9]/device/uevent"
_KINDS = ("resident", "memory", "total")
"""The kinds of a region's size, the best first: what is in the region now; the same under its
deprecated name; what was allocated for it, which may have been evicted.
"""
# Groups: a key of one word; or the kind and the region of a size; the value.
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

    ``pci`` is empty for a device that is not on PCI. ``card`` and ``render`` are the names of its
    nodes, such as card0 and renderD128. Pools are in bytes; ids are as in sysfs ("0x1002").
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
    """What one file /proc/PID/fdinfo/FD says. ``regions`` has the bytes in each region of memory
    (vram, gtt, cpu).
    """

    driver: str
    pci: str
    client_id: str
    regions: dict[str, int]


@dataclass(frozen=True)
class Client:
    """One open DRM client: which processes hold how much memory on which card.

    ``pids`` are all processes that have it open, since forks inherit it. ``regions`` are those of
    Fdinfo; memory that clients share is counted for each of them. ``text`` is the evidence.
    """

    pci: str
    pids: tuple[int, ...]
    regions: dict[str, int]
    text: Text

    def region(self, name: str) -> Reading:
        """The bytes in a region of memory, or why they are not known."""
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
    render_nodes = {}
    for source in bundle.sources(_RENDER):
        pci = pci_address(_uevent(bundle, source).get("PCI_SLOT_NAME", ""))
        if pci:
            render_nodes[pci] = _node_name(source)
    drm_cards = []
    for pattern in _CARDS:
        for source in bundle.sources(pattern):
            drm_cards.append(_card(bundle, source[: -len("/uevent")], render_nodes))
    return tuple(drm_cards)


def _node_name(source: str) -> str:
    """The folder below /sys/class/drm that a path leads through: card0, renderD128."""
    return source.split("/")[4]


def _card(bundle: Bundle, folder: str, render_nodes: dict[str, str]) -> DrmCard:
    """The card of a folder /sys/class/drm/card0/device; ``render_nodes`` by PCI address."""
    uevent = _uevent(bundle, folder + "/uevent")
    pci = pci_address(uevent.get("PCI_SLOT_NAME", ""))
    return DrmCard(
        pci=pci,
        card=_node_name(folder),
        render=render_nodes.get(pci, ""),
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
    """The values of a file uevent, whose lines are NAME=value."""
    values = {}
    for line in bundle.read(source).text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            values[name] = value
    return values


def parse_fdinfo(text: str) -> Fdinfo:
    """Read one /proc/PID/fdinfo/FD of a DRM file, as kernels write it since 5.19. Never raises; the
    text of another kind of file gives empty fields.

    There are two generations of keys: drm-memory-REGION, and drm-{total,shared,active,resident,
    purgeable}-REGION. A key may have a blank behind it; a size without a unit is in bytes.
    """
    values: dict[str, str] = {}
    sizes_by_region: dict[str, dict[str, int]] = {}
    for key, kind, region, value in _LINE.findall(text):
        if key:
            values[key] = value[:64]  # longer than any driver's name or address
            continue
        with suppress(ValueError):  # a size that cannot be read is unknown, not zero
            sizes_by_region.setdefault(region, {})[kind] = printed_size(value)
    regions = {}
    for region, sizes in sorted(sizes_by_region.items()):
        best_kind = next(kind for kind in _KINDS if kind in sizes)
        regions[region] = sizes[best_kind]
    return Fdinfo(
        driver=values.get("driver", ""),
        pci=pci_address(values.get("pdev", "")),
        client_id=values.get("client-id", ""),
        regions=regions,
    )


def clients(bundle: Bundle) -> tuple[Client, ...]:
    """Every DRM client that could be read. File descriptors and processes that share a client have
    the same PCI address and drm-client-id, and count once.
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
        if not info.client_id:  # then each descriptor counts as a client
            client = f"fd {pid} {fd}"
        file = _OpenFile(pid, fd, info)
        files_by_client.setdefault((info.pci, client), []).append(file)
    order = sorted(files_by_client, key=lambda key: (key[0], natural(key[1])))
    return tuple(_client(files_by_client[key], text) for key in order)


def _client(files: list[_OpenFile], text: Text) -> Client:
    """One client of its open files. Their texts were read moments apart; the one with the most
    memory counts, of equal ones the first.
    """
    in_order = sorted(files, key=lambda file: (file.pid, file.fd))
    largest = max(in_order, key=lambda file: sum(file.info.regions.values()))
    return Client(
        pci=largest.info.pci,
        pids=tuple(sorted({file.pid for file in files})),
        regions=largest.info.regions,
        text=text.of(f"/proc/{largest.pid}/fdinfo/{largest.fd}"),
    )


def refused_pids(bundle: Bundle) -> tuple[int, ...]:
    """The processes whose open files the capture was not allowed to read: how much they hold cannot
    be told.
    """
    refused = set()
    for row in bundle.table("device_files"):
        pid = row.number("pid")
        if row.get("status") == "not_allowed" and pid is not None:
            refused.add(pid)
    return tuple(sorted(refused))

"""What the kernel's DRM layer says of each card, and of each client that holds memory on one.

Pools are files of one number in bytes (drivers/gpu/drm/amd/amdgpu/amdgpu_{vram,gtt,preempt}_mgr.c); they are world-readable and
count every client, leaked memory included. Clients come from /proc/PID/fdinfo/FD (Documentation/gpu/drm-usage-stats.rst).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from helpers.units import pci_address, printed_size

from .bundle import Bundle, natural
from .reading import Reading, not_available, seen

POOLS = ("vram_total", "vram_used", "vis_vram_total", "vis_vram_used", "gtt_total", "gtt_used", "preempt_used")
# card0-DP-1 is a connector and has a device folder too: one or two digits and nothing after them is a card.
_CARDS = ("/sys/class/drm/card[0-9]", "/sys/class/drm/card[0-9][0-9]")
_RENDER = "/sys/class/drm/renderD[0-9][0-9][0-9]/device/uevent"
_NAMES = ("uevent", "vendor", "device", "subsystem_vendor", "subsystem_device", "revision", "product_name",
          "mem_info_vram_vendor", *("mem_info_" + pool for pool in POOLS))
FILES: tuple[str, ...] = (*(f"{card}/device/{name}" for name in _NAMES for card in _CARDS), _RENDER)
COMMANDS: tuple[tuple[str, ...], ...] = ()

_KINDS = ("total", "shared", "active", "resident", "purgeable", "memory")
_FIRST = {"vram mem": "vram", "gtt mem": "gtt", "cpu mem": "cpu"}
_DEVICE_MEMORY = re.compile(r"(?:vram|local)[0-9]+")
_NO_MEMORY = "the driver prints no memory for this client"


@dataclass(frozen=True)
class Card:
    """One DRM card. ``pci`` is empty for a device not on PCI. Pools are in bytes; ids are as sysfs writes them ("0x1002")."""

    pci: str
    card: str
    render: str
    driver: str
    vendor_id: str
    device_id: str
    subsystem: str
    product: Reading
    vram_vendor: Reading
    vram_total: Reading
    vram_used: Reading
    vis_vram_total: Reading
    vis_vram_used: Reading
    gtt_total: Reading
    gtt_used: Reading
    preempt_used: Reading


@dataclass(frozen=True)
class Fdinfo:
    """One fdinfo text. ``regions`` maps region -> kind -> bytes, for what was printed only; ``ignored`` counts lines of a
    memory key, or of no key, whose value could not be read. ``extra`` holds the driver's own sizes (amd-requested-vram)."""

    driver: str
    pci: str
    client_id: str
    pasid: str
    regions: dict[str, dict[str, int]]
    extra: dict[str, int]
    ignored: int

    def held(self, region: str) -> tuple[int, str] | None:
        """Bytes in a region and the kind they were taken from: resident, else memory (its deprecated name), else total."""
        sizes = self.regions.get(region, {})
        return next(((sizes[kind], kind) for kind in ("resident", "memory", "total") if kind in sizes), None)


@dataclass(frozen=True)
class Region:
    """One client's bytes in one region (vram, gtt, cpu; xe: vram0; i915: local0). ``by`` names the kind that was used.

    Memory that clients share is counted in each; ``shared`` is not available where the driver prints no such key.
    """

    name: str
    held: Reading
    by: str
    shared: Reading


@dataclass(frozen=True)
class Client:
    """One open DRM client: who holds what on which card. ``pids`` are all processes that have it open (forks inherit it)."""

    pci: str
    client_id: str
    driver: str
    pids: tuple[int, ...]
    regions: tuple[Region, ...]
    source: str
    item: str

    def region(self, name: str) -> Reading:
        """Bytes in a region. "vram" is device memory in any driver's words: vram, vram0.., local0... """
        found = [r for r in self.regions if r.name == name or (name == "vram" and _DEVICE_MEMORY.fullmatch(r.name))]
        if not found:
            return not_available(_NO_MEMORY if not self.regions else f"no region {name}", "bytes", self.source, self.item)
        return seen(sum(int(r.held.value or 0) for r in found), "bytes", self.source, self.item)


def cards(bundle: Bundle) -> tuple[Card, ...]:
    """Every DRM card, in the order of their names. A pool that the driver does not have reads as not available."""
    renders = {}
    for source in bundle.sources(_RENDER):
        pci = pci_address(_uevent(bundle, source).get("PCI_SLOT_NAME", ""))
        if pci:
            renders[pci] = source.split("/")[4]
    folders = [s[:-len("/uevent")] for pattern in _CARDS for s in bundle.sources(pattern + "/device/uevent")]
    return tuple(_card(bundle, folder, renders) for folder in folders)


def _card(bundle: Bundle, folder: str, renders: dict[str, str]) -> Card:
    uevent = _uevent(bundle, folder + "/uevent")
    pci = pci_address(uevent.get("PCI_SLOT_NAME", ""))
    vendor, device, *subsystem = (bundle.read(f"{folder}/{name}").text.strip() for name in _NAMES[1:5])
    pools = {pool: bundle.number(f"{folder}/mem_info_{pool}") for pool in POOLS}
    return Card(pci, folder.split("/")[4], renders.get(pci, ""), uevent.get("DRIVER", ""), vendor, device,
                ":".join(subsystem) if all(subsystem) else "", bundle.word(folder + "/product_name"),
                bundle.word(folder + "/mem_info_vram_vendor"), **pools)


def _uevent(bundle: Bundle, source: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in bundle.read(source).text.splitlines() if "=" in line)


def parse_fdinfo(text: str) -> Fdinfo:
    """Read one /proc/PID/fdinfo/FD of a DRM file. Never raises; a text of another kind of file gives empty fields.

    Three generations of keys: "vram mem" with kB (amdgpu, Linux 5.14 to 5.18), drm-memory-REGION, and drm-{total,shared,active,
    resident,purgeable}-REGION. Keys may carry a trailing blank; a size without a unit is in bytes.
    """
    words: dict[str, str] = {}
    regions: dict[str, dict[str, int]] = {}
    extra: dict[str, int] = {}
    ignored = 0
    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            ignored += bool(line.strip())
            continue
        place = _place(key)
        if key in ("drm-driver", "drm-pdev", "drm-client-id", "pdev", "pasid"):
            words[key] = value[:64]
        elif place or key.startswith("amd-"):
            size = _size(value)
            if size is None:
                ignored += 1
            elif place:
                regions.setdefault(place[0], {})[place[1]] = size
            else:
                extra[key] = size
    driver = words.get("drm-driver", "amdgpu" if "pdev" in words and regions else "")
    return Fdinfo(driver, pci_address(words.get("drm-pdev", words.get("pdev", ""))), words.get("drm-client-id", ""),
                  words.get("pasid", ""), regions, extra, ignored)


def _place(key: str) -> tuple[str, str] | None:
    """Region and kind of a memory key. drm-total-cycles-ENGINE counts time, not memory."""
    if key in _FIRST:
        return _FIRST[key], "memory"
    name, kind, region = (key.split("-", 2) + ["", ""])[:3]
    if name == "drm" and kind in _KINDS and region and " " not in region and not region.startswith("cycles-"):
        return region, kind
    return None


def _size(value: str) -> int | None:
    try:
        return printed_size(value)
    except ValueError:
        return None


def clients(bundle: Bundle) -> tuple[Client, ...]:
    """Every DRM client that could be read, once, however many descriptors and processes share it.

    A client is told by (PCI address, drm-client-id); where the kernel prints no id (before 5.19), by its PASID. Of several
    texts of one client, read moments apart, the one with the most memory stands for it.
    """
    item = bundle.read("device_files").item
    found: dict[tuple[str, str, str, str], list[tuple[int, int, Fdinfo]]] = {}
    for row in bundle.table("device_files"):
        pid, fd, text = _whole(row.get("pid")), _whole(row.get("fd")), row.get("fdinfo")
        if pid is None or not isinstance(text, str):
            continue
        info = parse_fdinfo(text)
        if not info.driver and not info.regions:
            continue
        key = (info.pci, "fd", str(pid), str(fd))
        if info.client_id or info.pasid:
            key = (info.pci, "client", info.client_id, "") if info.client_id else (info.pci, "pasid", info.pasid, "")
        found.setdefault(key, []).append((pid, -1 if fd is None else fd, info))
    order = sorted(found, key=lambda key: (key[0], natural(" ".join(key[1:]))))
    return tuple(_client(found[key], item) for key in order)


def _client(sightings: list[tuple[int, int, Fdinfo]], item: str) -> Client:
    pid, fd, info = max(sightings, key=lambda s: (sum(_held(s[2], name)[0] for name in s[2].regions), -s[0], -s[1]))
    source = f"/proc/{pid}/fdinfo/{fd}"
    regions = []
    for name in sorted(info.regions):
        if not info.held(name):
            continue
        size, by = _held(info, name)
        shared = info.regions[name].get("shared")
        regions.append(Region(name, seen(size, "bytes", source, item), by,
                              not_available("the driver prints no drm-shared key", "bytes", source, item) if shared is None
                              else seen(shared, "bytes", source, item)))
    return Client(info.pci, info.client_id, info.driver, tuple(sorted({s[0] for s in sightings})), tuple(regions), source, item)


def _held(info: Fdinfo, name: str) -> tuple[int, str]:
    return info.held(name) or (0, "")


def refused_pids(bundle: Bundle) -> tuple[int, ...]:
    """Processes whose open files could not be read, so that what they hold is not attributable from here."""
    refused = {_whole(row.get("pid")) for row in bundle.table("device_files") if row.get("status") == "not_allowed"}
    return tuple(sorted(pid for pid in refused if pid is not None))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

"""What the kernel's DRM layer says of each card, and of each client that holds memory on one.

Pools are files of one number in bytes (drivers/gpu/drm/amd/amdgpu/amdgpu_{vram,gtt,preempt}_mgr.c); they are world-readable and
count every client, leaked memory included. Clients come from /proc/PID/fdinfo/FD (Documentation/gpu/drm-usage-stats.rst).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.units import pci_address, printed_size

from .bundle import Bundle, Text, natural
from .reading import Reading

POOLS = ("vram_total", "vram_used", "gtt_total", "gtt_used")
# card0-DP-1 is a connector and has a device folder too: one or two digits and nothing after them is a card.
_CARDS = ("/sys/class/drm/card[0-9]", "/sys/class/drm/card[0-9][0-9]")
_RENDER = "/sys/class/drm/renderD[0-9][0-9][0-9]/device/uevent"
_NAMES = (
    "uevent vendor device subsystem_vendor subsystem_device revision product_name mem_info_vram_vendor "
    "mem_info_vis_vram_total mem_info_vis_vram_used mem_info_preempt_used"
).split() + ["mem_info_" + pool for pool in POOLS]
FILES: tuple[str, ...] = (*(f"{card}/device/{name}" for name in _NAMES for card in _CARDS), _RENDER)

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
    product: Reading
    vram_total: Reading
    vram_used: Reading
    gtt_total: Reading
    gtt_used: Reading


@dataclass(frozen=True)
class Fdinfo:
    """One fdinfo text. ``regions`` maps region -> kind -> bytes, for what was printed only."""

    driver: str
    pci: str
    client_id: str
    pasid: str
    regions: dict[str, dict[str, int]]

    def held(self, region: str) -> int | None:
        """Bytes in a region: resident, else memory (its deprecated name), else total; None where none is printed."""
        sizes = self.regions.get(region, {})
        kinds = ("resident", "memory", "total")
        return next((sizes[kind] for kind in kinds if kind in sizes), None)


@dataclass(frozen=True)
class Client:
    """One open DRM client: who holds what on which card. ``pids`` are all processes that have it open (forks inherit it).

    ``held`` maps regions (vram, gtt, cpu; xe: vram0; i915: local0) to bytes; memory that clients share is counted in each.
    """

    pci: str
    pids: tuple[int, ...]
    held: dict[str, int]
    text: Text

    def region(self, name: str) -> Reading:
        """Bytes in a region. "vram" is device memory in any driver's words: vram, vram0.., local0..."""
        device = [region for region in self.held if _DEVICE_MEMORY.fullmatch(region)]
        regions = [name, *(device if name == "vram" else ())]
        found = [self.held[region] for region in regions if region in self.held]
        if not found:
            return self.text.missing(f"no region {name}" if self.held else _NO_MEMORY, "bytes")
        return self.text.seen(sum(found), "bytes")


def cards(bundle: Bundle) -> tuple[Card, ...]:
    """Every DRM card, in the order of their names. A pool that the driver does not have reads as not available."""
    renders = {}
    for source in bundle.sources(_RENDER):
        pci = pci_address(_uevent(bundle, source).get("PCI_SLOT_NAME", ""))
        if pci:
            renders[pci] = source.split("/")[4]
    sources = (s for pattern in _CARDS for s in bundle.sources(pattern + "/device/uevent"))
    return tuple(_card(bundle, s[: -len("/uevent")], renders) for s in sources)


def _card(bundle: Bundle, folder: str, renders: dict[str, str]) -> Card:
    uevent = _uevent(bundle, folder + "/uevent")
    pci = pci_address(uevent.get("PCI_SLOT_NAME", ""))
    vendor, device = (bundle.read(f"{folder}/{name}").text.strip() for name in ("vendor", "device"))
    pools = (bundle.number(f"{folder}/mem_info_{pool}") for pool in POOLS)
    return Card(
        pci,
        folder.split("/")[4],
        renders.get(pci, ""),
        uevent.get("DRIVER", ""),
        vendor,
        device,
        bundle.word(folder + "/product_name"),
        *pools,
    )


def _uevent(bundle: Bundle, source: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in bundle.read(source).text.splitlines() if "=" in line)


def parse_fdinfo(text: str) -> Fdinfo:
    """Read one /proc/PID/fdinfo/FD of a DRM file. Never raises; a text of another kind of file gives empty fields.

    Three generations of keys: "vram mem" with kB (amdgpu, Linux 5.14 to 5.18), drm-memory-REGION, and drm-{total,shared,active,
    resident,purgeable}-REGION. Keys may carry a trailing blank; a size without a unit is in bytes.
    """
    words: dict[str, str] = {}
    regions: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        place = _place(key)
        if key in ("drm-driver", "drm-pdev", "drm-client-id", "pdev", "pasid"):
            words[key] = value[:64]
        elif place:
            try:
                regions.setdefault(place[0], {})[place[1]] = printed_size(value)
            except ValueError:
                continue  # a size that nobody can read is no zero: the region stays without that kind
    driver = words.get("drm-driver", "amdgpu" if "pdev" in words and regions else "")
    address = pci_address(words.get("drm-pdev", words.get("pdev", "")))
    return Fdinfo(driver, address, words.get("drm-client-id", ""), words.get("pasid", ""), regions)


def _place(key: str) -> tuple[str, str] | None:
    """Region and kind of a memory key. drm-total-cycles-ENGINE counts time, not memory."""
    if key in _FIRST:
        return _FIRST[key], "memory"
    name, kind, region = (key.split("-", 2) + ["", ""])[:3]
    if name != "drm" or kind not in _KINDS or " " in region or region.startswith("cycles-"):
        return None
    return (region, kind) if region else None


def clients(bundle: Bundle) -> tuple[Client, ...]:
    """Every DRM client that could be read, once, however many descriptors and processes share it.

    A client is told by (PCI address, drm-client-id); where the kernel prints no id (before 5.19), by its PASID. Of several
    texts of one client, read moments apart, the one with the most memory stands for it.
    """
    text = bundle.read("device_files")
    found: dict[tuple[str, ...], list[tuple[int, int, Fdinfo]]] = {}
    for row in bundle.table("device_files"):
        pid, fd = row.number("pid"), row.number("fd")
        info = parse_fdinfo(row.text("fdinfo"))
        if pid is None or not (info.driver or info.regions):
            continue
        own = ("client", info.client_id) if info.client_id else ("pasid", info.pasid)
        key = (info.pci, *(own if own[1] else ("fd", f"{pid} {fd}")))
        found.setdefault(key, []).append((pid, -1 if fd is None else fd, info))
    order = sorted(found, key=lambda key: (key[0], natural(" ".join(key[1:]))))
    return tuple(_client(found[key], text) for key in order)


def _client(sightings: list[tuple[int, int, Fdinfo]], text: Text) -> Client:
    def weight(sighting: tuple[int, int, Fdinfo]) -> tuple[int, int, int]:
        return sum(_held(sighting[2]).values()), -sighting[0], -sighting[1]

    pid, fd, info = max(sightings, key=weight)
    pids = tuple(sorted({sighting[0] for sighting in sightings}))
    return Client(info.pci, pids, _held(info), text.of(f"/proc/{pid}/fdinfo/{fd}"))


def _held(info: Fdinfo) -> dict[str, int]:
    sizes = {name: info.held(name) for name in sorted(info.regions)}
    return {name: size for name, size in sizes.items() if size is not None}


def refused_pids(bundle: Bundle) -> tuple[int, ...]:
    """Processes whose open files could not be read, so that what they hold is not attributable from here."""
    rows = (row for row in bundle.table("device_files") if row.get("status") == "not_allowed")
    return tuple(sorted({pid for pid in (row.number("pid") for row in rows) if pid is not None}))

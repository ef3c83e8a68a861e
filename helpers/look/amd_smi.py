"""What amd-smi says: GPUs with their index spaces, memory pools, processes, versions and the GTT limit.

Its JSON has two roots: a bare array (ROCm 6.x, distribution builds) and ``{"gpu_data": [...]}`` (7.x); a value is
``{"value": n, "unit": "MB"}``, where MB is MiB, or the text "N/A". On an APU ``vram`` is the firmware carve-out only. One
process may show ``vram_mem`` and another of the same job 0 B of ``mem_usage`` (ROCm#5706): neither is trusted alone. Its
process list comes from /proc/PID/fdinfo (ROCm/amdsmi src/amd_smi/fdinfo.cc): processes of other users (without root) and of
other PID namespaces are not in it. Its Python package is never imported here: where its library is missing, the import
raises KeyError and prints on stdout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from helpers.units import pci_address

from .bundle import Bundle, Text
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading, not_available, seen
from .vendor_text import Failure, count, find_json, listed, mapping, plain, size, stdout_of, why_nothing, word

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("amd-smi", "version", "--json"),
    ("amd-smi", "list", "--json"),
    ("amd-smi", "list", "-e", "--json"),  # with the HIP index; since amd-smi 25 (ROCm 6.4)
    ("amd-smi", "static", "--json"),
    ("amd-smi", "metric", "--mem-usage", "--json"),
    ("amd-smi", "process", "--json"),
    ("amd-smi",),  # a table since ROCm 7.0, help before
    ("amd-smi", "node", "--gtt", "--json"),  # only reads (amdsmi_cli/subcommands/node.py); since amd-smi 26.5
)
FILES: tuple[str, ...] = ()
VERSION, LIST, LIST_ALL, STATIC, MEMORY, PROCESS, TABLE, NODE = (" ".join(argv) for argv in COMMANDS)

POOLS = tuple(f"{pool} {part}" for pool in ("vram", "visible_vram", "gtt") for part in ("total", "used", "free"))
GROUPS_WARNING = "missing the following required groups"
_FAILURES = (
    (GROUPS_WARNING, NOT_ALLOWED), ("Permission denied", NOT_ALLOWED), ("NO_PERM", NOT_ALLOWED),
    ("not loaded", NOT_AVAILABLE), ("Failed to import the amdsmi", NOT_AVAILABLE), ("Unhandled import error", NOT_AVAILABLE),
    ("timed out", NOT_AVAILABLE), ("AMDSMI_STATUS", NOT_AVAILABLE), ("libamd_smi.so", NOT_AVAILABLE),
    ("unrecognized arguments", NOT_AVAILABLE), ("invalid choice", NOT_AVAILABLE), ("is not valid", NOT_AVAILABLE),
    ("usage:", NOT_AVAILABLE), ("Traceback", NOT_AVAILABLE),
)
_BYTES = r"([0-9.]+ [KMGT]?B|N/A)"
_TABLE_GPU = re.compile(r"\|\s*([0-9a-f:.]{12,16})\s+(.*?)\s*\|.*\|", re.IGNORECASE)
_TABLE_MEMORY = re.compile(r"\|\s*([0-9]{1,4})\s+(\S+)\s+\S+\s+\S+\s*\|.*?\s(?:([0-9]+)/([0-9]+) MB|N/A)\s*\|")
_TABLE_PROCESS = re.compile(rf"\|\s*([0-9]{{1,4}})\s+([0-9]{{1,10}})\s+(.*?)\s+{_BYTES}\s+{_BYTES}\s+{_BYTES}\s+\S.*\|")


@dataclass(frozen=True)
class SmiGpu:
    """One GPU as amd-smi numbers it. ``indices`` maps index spaces ("hip", "hsa", "card", "render", "kfd node") to names.

    ``pools`` maps "vram total", "gtt used", ... to bytes. ``used`` and ``total`` of the bare table stand under "table used"
    and "table total": on an APU the table shows GTT or VRAM and does not say which.
    """

    index: int
    pci: Reading
    name: Reading
    gfx: Reading
    uuid: Reading
    kfd_id: Reading
    driver: Reading
    vram_type: Reading
    indices: dict[str, str]
    pools: dict[str, Reading]


@dataclass(frozen=True)
class SmiProcess:
    """A process on one GPU, in bytes. The name of another user's process may be "N/A" (amdsmi#130) and is then empty."""

    gpu: int
    pci: str
    pid: int
    name: str
    vram: Reading
    gtt: Reading
    cpu: Reading
    total: Reading


@dataclass(frozen=True)
class Versions:
    """Releases of the tool, its library, ROCm and the amdgpu driver."""

    tool: Reading
    library: Reading
    rocm: Reading
    driver: Reading


@dataclass(frozen=True)
class GttLimit:
    """The TTM limit in pages that holds now, and the one that ``amd-smi set --gtt`` has written for the next boot."""

    pages: Reading
    pending_pages: Reading


def gpus(bundle: Bundle) -> tuple[SmiGpu, ...]:
    """GPUs in amd-smi's order; empty when it told nothing (then ``gpu_count`` says why)."""
    texts = {source: bundle.read(source) for source in (LIST, LIST_ALL, STATIC, MEMORY, TABLE)}
    rows: dict[str, dict[int, dict[str, Any]]] = {
        source: {gpu["gpu"]: gpu for gpu in table_gpus(text)} if source == TABLE else by_gpu(text)
        for source, text in texts.items()}
    return tuple(_gpu(index, {source: found.get(index, {}) for source, found in rows.items()}, texts)
                 for index in sorted(set().union(*rows.values())))


def gpu_count(bundle: Bundle) -> Reading:
    """How many GPUs amd-smi listed, or why it listed none."""
    found = gpus(bundle)
    if found:
        return seen(len(found), "count", found[0].pci.source, found[0].pci.item)
    text = bundle.read(LIST)
    return why_nothing(text, _FAILURES, "list of GPUs").reading("count", LIST, text.item)


def processes(bundle: Bundle) -> tuple[SmiProcess, ...]:
    """Processes on every GPU; empty when there are none, or when it told nothing (``process_count`` tells which)."""
    return _processes(bundle)[0]


def process_count(bundle: Bundle) -> Reading:
    """How many processes amd-smi sees on the GPUs: 0 is its own "No running processes detected".

    None seen by a user who, it says, lacks a group is no zero but not allowed.
    """
    return _processes(bundle)[1]


def versions(bundle: Bundle) -> Versions:
    """What ``amd-smi version`` says of itself; the driver key was renamed in 2026 (amdsmi_cli/subcommands/version.py)."""
    text = bundle.read(VERSION)
    told = _first(text)
    failure = why_nothing(text, _FAILURES, "versions")

    def version(*keys: str) -> Reading:
        key = next((key for key in keys if told.get(key) not in (None, "N/A")), keys[0])
        return word(told.get(key), VERSION, text.item) if told else failure.reading("text", VERSION, text.item)

    return Versions(version("version"), version("amdsmi_library_version"), version("rocm_version"),
                    version("amdgpu_version", "driver_version"))


def gtt_limit(bundle: Bundle) -> GttLimit:
    """The TTM limit as ``amd-smi node --gtt`` reports it, for whichever of ttm and amdttm it found."""
    text = bundle.read(NODE)
    told = mapping(mapping(_first(text).get("node")).get("gtt"))
    if not told:
        nothing = why_nothing(text, _FAILURES, "GTT limit").reading("pages", NODE, text.item)
        return GttLimit(nothing, nothing)
    pages, pending = (count(told.get(key), NODE, text.item) for key in ("size_pages", "pending_size_pages"))
    return GttLimit(_as_pages(pages), _as_pages(pending) if "pending_size_pages" in told
                    else not_available("nothing is pending", "pages", NODE, text.item))


def missing_groups(bundle: Bundle) -> Reading:
    """The groups that amd-smi says this user lacks ("render, video"), or not available when it did not complain."""
    for source in (LIST, STATIC, MEMORY, PROCESS, TABLE, VERSION):
        text = bundle.read(source)
        match = re.search(GROUPS_WARNING + r": ([A-Za-z0-9_, -]{1,100})\.", plain(text.text))
        if match:
            return seen(match.group(1), "text", source, text.item)
    return not_available("amd-smi names no missing group", "text", LIST)


def _first(text: Text) -> dict[str, Any]:
    """The one object of a text; amd-smi puts even that into an array (amdsmi_logger.py, _print_json_output)."""
    data = find_json(stdout_of(text))
    return mapping(data[0] if isinstance(data, list) and data else data)


def by_gpu(text: Text) -> dict[int, dict[str, Any]]:
    """GPU index -> its object, from either JSON root; objects of CPUs and NICs are left out."""
    data = find_json(stdout_of(text))
    rows = listed(data.get("gpu_data") if isinstance(data, dict) else data)
    return {row["gpu"]: row for row in rows if isinstance(row, dict) and type(row.get("gpu")) is int and row["gpu"] >= 0}


def parse_processes(text: Text, addresses: dict[int, str]) -> tuple[tuple[SmiProcess, ...], Reading]:
    """Processes and their number from ``amd-smi process --json`` or the bare table; ``addresses`` maps indices to PCI."""
    found: list[SmiProcess] = []
    answered = False
    for index, row in by_gpu(text).items():
        for entry in listed(row.get("process_list")):
            info = mapping(entry).get("process_info")
            answered = answered or isinstance(info, (dict, str))
            pid = mapping(info).get("pid")
            if isinstance(info, dict) and type(pid) is int and pid > 0:
                found.append(_process(index, addresses, info, text))
    if not answered:
        words = plain(text.text)
        rows = [_TABLE_PROCESS.fullmatch(line.strip()) for line in words.splitlines() if len(line) < 200]
        found = [_table_process(match, addresses, text) for match in rows if match]
        answered = bool(found) or "No running processes" in words
    blind = not found and GROUPS_WARNING in text.text
    if answered and not blind:
        return tuple(found), seen(len({process.pid for process in found}), "count", text.source, text.item)
    return (), why_nothing(text, _FAILURES, "list of processes").reading("count", text.source, text.item)


def table_gpus(text: Text) -> list[dict[str, Any]]:
    """GPUs of the bare table: two lines each, the address above the indices."""
    found: list[dict[str, Any]] = []
    above: tuple[str, str] | None = None
    for line in plain(text.text).splitlines():
        if len(line) > 200:
            continue
        address, memory = _TABLE_GPU.fullmatch(line.strip()), _TABLE_MEMORY.fullmatch(line.strip())
        if address and pci_address(address.group(1)):
            above = pci_address(address.group(1)), address.group(2)
        elif memory and above:
            used, total = (f"{part} MB" if part else "N/A" for part in memory.group(3, 4))
            found.append({"gpu": int(memory.group(1)), "bdf": above[0], "market_name": above[1], "hip_id": memory.group(2),
                          "used": used, "total": total})
            above = None
    return found


def _processes(bundle: Bundle) -> tuple[tuple[SmiProcess, ...], Reading]:
    addresses = {gpu.index: str(gpu.pci.value) for gpu in gpus(bundle) if gpu.pci.ok}
    found, counted = parse_processes(bundle.read(PROCESS), addresses)
    if counted.ok:
        return found, counted
    others, other = parse_processes(bundle.read(TABLE), addresses)
    return (others, other) if other.ok else (found, counted)


def _gpu(index: int, rows: dict[str, dict[str, Any]], texts: dict[str, Text]) -> SmiGpu:
    named = {**rows[LIST], **rows[LIST_ALL]}
    asic, vram = mapping(rows[STATIC].get("asic")), mapping(rows[STATIC].get("vram"))
    memory, table = mapping(rows[MEMORY].get("mem_usage")), rows[TABLE]
    places = ((LIST, named), (STATIC, mapping(rows[STATIC].get("bus"))), (TABLE, table))
    source, address = next(((source, pci_address(place.get("bdf"))) for source, place in places
                            if pci_address(place.get("bdf"))), (LIST, ""))
    failure = why_nothing(texts[MEMORY], _FAILURES, "memory usage")
    missing = Failure(NOT_AVAILABLE, "no such field") if memory else failure
    pools = {pool: missing.reading("bytes", MEMORY, texts[MEMORY].item) for pool in POOLS}
    pools.update({pool: size(memory[key], MEMORY, texts[MEMORY].item) for pool in POOLS
                  for key in ["_".join(reversed(pool.split()))] if key in memory})
    if table:
        pools.update({f"table {part}": size(table[part], TABLE, texts[TABLE].item) for part in ("used", "total")})
    spaces = {"hip": named.get("hip_id", table.get("hip_id")), "hsa": named.get("hsa_id"), "card": named.get("card"),
              "render": named.get("render"), "kfd node": named.get("node_id")}
    static = texts[STATIC].item
    return SmiGpu(
        index, seen(address, "text", source, texts[source].item) if address
        else not_available("no PCI address reported", "text", LIST, texts[LIST].item),
        word(asic.get("market_name") or table.get("market_name"), STATIC if asic else TABLE, static),
        word(asic.get("target_graphics_version"), STATIC, static),
        word(named.get("uuid"), LIST, texts[LIST].item), count(named.get("kfd_id"), LIST, texts[LIST].item),
        word(mapping(rows[STATIC].get("driver")).get("version"), STATIC, static),
        word(vram.get("type"), STATIC, static),
        {space: str(name) for space, name in spaces.items() if name not in (None, "N/A")}, pools)


def _process(index: int, addresses: dict[int, str], info: dict[str, Any], text: Text) -> SmiProcess:
    used = mapping(info.get("memory_usage"))
    name = info.get("name")
    return SmiProcess(index, addresses.get(index, ""), info["pid"], name if isinstance(name, str) and name != "N/A" else "",
                      *(size(value, text.source, text.item, "B") for value in (
                          used.get("vram_mem"), used.get("gtt_mem"), used.get("cpu_mem"), info.get("mem_usage"))))


def _table_process(match: re.Match[str], addresses: dict[int, str], text: Text) -> SmiProcess:
    index, pid, name, gtt, vram, used = match.groups()
    return SmiProcess(int(index), addresses.get(int(index), ""), int(pid), "" if name == "N/A" else name,
                      size(vram, text.source, text.item), size(gtt, text.source, text.item),
                      not_available("not in the table", "bytes", text.source, text.item), size(used, text.source, text.item))


def _as_pages(reading: Reading) -> Reading:
    return Reading(reading.value, "pages", reading.status, reading.why, reading.source, reading.item)

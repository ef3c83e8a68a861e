"""What AMD's tools say: rocm-smi, amd-smi and the version files of ROCm, each card by the tool's own index and PCI address.

An index of a tool is neither the DRM card number nor the HIP index. rocm-smi's JSON prints every value as a
string, lower-cases process names and joins a process's fields by ``", "`` (rocm_smi.py, print2DArray).
amd-smi's JSON has two roots: a bare array (ROCm 6.x, distribution builds) and ``{"gpu_data": [...]}`` (7.x);
a value is ``{"value": n, "unit": "MB"}``, where MB is MiB, or the text "N/A". On an APU its ``vram`` is the
firmware carve-out only. Its process list comes from /proc/PID/fdinfo (ROCm/amdsmi src/amd_smi/fdinfo.cc):
processes of other users (without root) and of other PID namespaces are not in it. Its Python package is never
imported here: where its library is missing, the import raises KeyError and prints on stdout. Both may open
/dev/kfd, so they run after sysfs was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from helpers.units import pci_address

from .bundle import Bundle, Row, Text, rows
from .reading import NOT_AVAILABLE, Reading, not_available
from .vendor_text import Failure, find_json, mapping, plain, size, stdout_of, why_nothing, word

BUS = "rocm-smi --showbus --showproductname --showuniqueid --json"
MEMORY_JSON = "rocm-smi --showmeminfo all --json"
MEMORY = "rocm-smi --showmeminfo all"
LIST = "amd-smi list --json"
LIST_ALL = "amd-smi list -e --json"
STATIC = "amd-smi static --json"
USAGE = "amd-smi metric --mem-usage --json"
PROCESS = "amd-smi process --json"
VERSION = "amd-smi version --json"
TABLE = "amd-smi"
COMMANDS: tuple[tuple[str, ...], ...] = tuple(
    tuple(line.split())
    for line in (
        BUS,
        MEMORY_JSON,
        MEMORY,
        "rocm-smi --showpids",
        "rocm-smi --showpids --json",
        "rocm-smi --showdriverversion --json",
        "amd-ttm",  # without arguments it only prints (amd-debug-tools, amd_debug/ttm.py, get())
        VERSION,
        LIST,
        LIST_ALL,  # with the HIP index; since amd-smi 25 (ROCm 6.4)
        STATIC,
        USAGE,
        PROCESS,
        TABLE,  # a table since ROCm 7.0, help before
        "amd-smi node --gtt --json",  # only reads (subcommands/node.py); since amd-smi 26.5
    )
)
FILES: tuple[str, ...] = ("/opt/rocm/.info/version*", "/opt/rocm*/.info/version*")
POSTED = "rocm-smi --showmeminfo vram"
POOLS = ("vram total", "vram used", "gtt total", "gtt used")
_GROUPS_WARNING = "missing the following required groups"
_CARD_LINE = re.compile(r"GPU\[([0-9]{1,4})\](?:\s+XCP\[[0-9]+\])?\s*:?")
_CARD_KEY = re.compile(r"card[0-9]{1,4}")
_POOL = re.compile(r"(vram|gtt)\s+total\s+(used\s+)?memory \(b\)")
_PID_LABELS = re.compile(r"PID|PROCESS NAME|GPU\(s\)|GPU|VRAM USED|SDMA USED|CU OCCUPANCY")
_BYTES = r"([0-9.]+ [KMGT]?B|N/A)"
_TABLE_GPU = re.compile(r"\|\s*([0-9a-f:.]{12,16})\s+(.*?)\s*\|.*\|", re.IGNORECASE)
_TABLE_INDEX = re.compile(r"\|\s*([0-9]{1,4})\s+(\S+)\s+\S+\s+\S+\s*\|.*\|")
_TABLE_PROCESS = re.compile(
    rf"\|\s*([0-9]{{1,4}})\s+([0-9]{{1,10}})\s+(.*?)\s+{_BYTES}\s+{_BYTES}\s+{_BYTES}\s+\S.*\|"
)


@dataclass(frozen=True)
class SmiCard:
    """One card as a tool numbers it. ``pools`` maps POOLS to readings in bytes; ``hip`` is its HIP index, or empty."""

    index: int
    pci: Reading
    name: Reading
    pools: dict[str, Reading]
    hip: str = ""


@dataclass(frozen=True)
class SmiProcess:
    """A process on one card. Its name may be kept from other users ("N/A", "UNKNOWN") and is then empty.

    rocm-smi's PID is the host's, also inside a container (rocm-systems#3752), and it names no card; a monitor that only opened
    the device is listed with a true zero of ``vram`` (ROCm#4411).
    """

    pci: str
    pid: int
    name: str
    vram: Reading


def rocm_versions(bundle: Bundle) -> tuple[Reading, ...]:
    """Releases of the system's ROCm trees, one per version file. A pip or conda ROCm has no such file."""
    sources = sorted({source for pattern in FILES for source in bundle.sources(pattern)})
    texts = [text for text in map(bundle.read, sources) if text.ok and text.text.strip()]
    none = not_available("no ROCm tree with a version file", "text", FILES[1])
    return tuple(word(text.text, text) for text in texts) or (none,)


def amd_smi_rocm(bundle: Bundle) -> Reading:
    """The ROCm release that ``amd-smi version`` names."""
    text = bundle.read(VERSION)
    data = find_json(stdout_of(text))
    # amd-smi puts even one object into an array (amdsmi_logger.py, _print_json_output).
    told = mapping(data[0] if isinstance(data, list) and data else data)
    if not told:
        return why_nothing(text, "amd-smi", "versions").reading()
    return word(told.get("rocm_version"), text)


def cards(bundle: Bundle) -> tuple[SmiCard, ...]:
    """Cards with memory pools, in rocm-smi's order; empty when it told nothing."""
    text, lines, bus = bundle.read(MEMORY_JSON), bundle.read(MEMORY), bundle.read(BUS)
    memory: dict[int, dict[str, Reading]] = {}
    # What people post is often the short form, which has the VRAM alone.
    for source in (bundle.read(POSTED), lines, text):
        for index, pools in parse_memory(source).items():
            memory[index] = {**memory.get(index, {}), **pools}
    told = lines if lines.text and not text.text else text
    failure = why_nothing(told, "rocm-smi", "memory pools")
    known = mapping(find_json(stdout_of(bus)))
    found = []
    for index in sorted({*memory, *(int(key[4:]) for key in known if _CARD_KEY.fullmatch(key))}):
        fields = {key.lower(): value for key, value in known.inner(f"card{index}").items()}
        no_pool = Failure(NOT_AVAILABLE, "rocm-smi printed no such pool", told)
        missing = (no_pool if index in memory else failure).reading("bytes")
        name = word(fields.get("card series") or fields.get("card model"), bus)
        pools = {pool: memory.get(index, {}).get(pool, missing) for pool in POOLS}
        found.append(SmiCard(index, _address([(bus, fields.get("pci bus"))]), name, pools))
    return tuple(found)


def _address(places: Iterable[tuple[Text, object]]) -> Reading:
    """The first PCI address among what texts say."""
    tried = [(text, pci_address(said)) for text, said in places]
    text, address = next((one for one in tried if one[1]), tried[0])
    return text.seen(address) if address else text.refused("", "no PCI address reported")


def parse_memory(text: Text) -> dict[int, dict[str, Reading]]:
    """Card index -> pool readings from ``--showmeminfo``, text or JSON. A pool that rocm-smi could not read is named so."""
    words = stdout_of(text)
    found: dict[int, dict[str, Reading]] = {}
    for index, label, value in _json_values(words) or _text_values(words):
        match = _POOL.fullmatch(label.lower())
        if match:
            pool = f"{match.group(1)} {'used' if match.group(2) else 'total'}"
            found.setdefault(index, {})[pool] = size(value, text)
    return found


def _json_values(words: str) -> list[tuple[int, str, Any]]:
    data = mapping(find_json(words))
    return [
        (int(card[4:]), label, value)
        for card in data
        if _CARD_KEY.fullmatch(card)
        for label, value in data.inner(card).items()
    ]


def _text_values(words: str) -> list[tuple[int, str, Any]]:
    found = []
    for line in map(str.strip, words.splitlines()):
        card = _CARD_LINE.match(line)
        if card:
            label, colon, value = line[card.end() :].rpartition(":")
            # rocm_smi.py, printLog: a pool that could not be read is printed without colon and value.
            found.append((int(card.group(1)), (label or value).strip(), value if colon else "N/A"))
    return found


def parse_pids(text: Text) -> tuple[tuple[SmiProcess, ...], Reading]:
    """KFD processes and their number from ``--showpids``, text or JSON; the number is no zero where it told nothing."""
    words = stdout_of(text)
    system = mapping(find_json(words)).get("system")
    listed = _json_pids(system) if isinstance(system, Row) else _text_pids(words)
    found = tuple(
        SmiProcess("", int(pid), "" if name.upper() == "UNKNOWN" else name, size(vram, text))
        for pid, name, vram in listed
    )
    # In JSON mode a run without processes prints no JSON at all (rocm_smi.py, main: "No JSON data to report").
    none = "No KFD PIDs" in words or "No JSON data to report" in text.text
    if found or (text.ok and none):
        return found, text.seen(len(found), "count")
    return (), why_nothing(text, "rocm-smi", "list of KFD processes").reading("count")


def _text_pids(words: str) -> list[tuple[str, str, str]]:
    found = []
    values = 0
    for line in words.splitlines():
        tokens = line.split()
        if "PROCESS NAME" in line and tokens[0] == "PID":
            values = len(_PID_LABELS.findall(line)) - 2
        elif line.startswith("="):
            values = 0
        elif values > 0 and len(tokens) > values and re.fullmatch("[0-9]{1,10}", tokens[0]):
            # The name may hold spaces; every other column is one word, the GPUs first, then the VRAM.
            name, rest = tokens[1:-values], [*tokens[-values:], ""]
            found.append((tokens[0], " ".join(name), rest[1]))
    return found


def _json_pids(system: Row) -> list[tuple[str, str, str]]:
    found = []
    for key in system:
        pid, parts = re.fullmatch(r"PID([0-9]{1,10})", key), system.text(key).split(", ")
        if pid and len(parts) >= 3:
            # Three fields after the name before CU occupancy was added (rocm_smi_lib 20ae72b, 2020-10).
            tail = 4 if len(parts) > 4 else len(parts) - 1
            found.append((pid.group(1), " ".join(parts[:-tail]), parts[1 - tail]))
    return found


def gpus(bundle: Bundle) -> tuple[SmiCard, ...]:
    """GPUs in amd-smi's order; empty when it told nothing."""
    texts = {source: bundle.read(source) for source in (LIST, LIST_ALL, STATIC, USAGE, TABLE)}
    told = {source: _by_gpu(text) for source, text in texts.items() if source != TABLE}
    told[TABLE] = _table_gpus(texts[TABLE])
    indices = sorted(set().union(*told.values()))
    none = Row()
    return tuple(
        _gpu(index, {source: by_gpu.get(index, none) for source, by_gpu in told.items()}, texts)
        for index in indices
    )


def _by_gpu(text: Text) -> dict[int, Row]:
    """GPU index -> its object, from either JSON root; objects of CPUs and NICs are left out."""
    data = find_json(stdout_of(text))
    listed = rows(data.get("gpu_data") if isinstance(data, Row) else data)
    numbers = ((row.number("gpu"), row) for row in listed)
    return {number: row for number, row in numbers if number is not None and number >= 0}


def _table_gpus(text: Text) -> dict[int, Row]:
    """GPUs of the bare table: two lines each, the address above the indices."""
    found: dict[int, Row] = {}
    above: tuple[str, str] | None = None
    for line in plain(text.text).splitlines():
        if len(line) > 200:
            continue
        address, index = (form.fullmatch(line.strip()) for form in (_TABLE_GPU, _TABLE_INDEX))
        if address and pci_address(address.group(1)):
            above = pci_address(address.group(1)), address.group(2)
        elif index and above:
            row = Row(bdf=above[0], market_name=above[1], hip_id=index.group(2))
            found[int(index.group(1))], above = row, None
    return found


def _gpu(index: int, told: dict[str, Row], texts: dict[str, Text]) -> SmiCard:
    named = Row({**told[LIST], **told[LIST_ALL]})
    asic, usage, table = told[STATIC].inner("asic"), told[USAGE].inner("mem_usage"), told[TABLE]
    places = {LIST: named, STATIC: told[STATIC].inner("bus"), TABLE: table}
    address = _address((texts[source], row.get("bdf")) for source, row in places.items())
    market_name = asic.get("market_name") or table.get("market_name")
    name = word(market_name, texts[STATIC if asic else TABLE])
    failure = why_nothing(texts[USAGE], "amd-smi", "memory usage")
    missing = Failure(NOT_AVAILABLE, "no such field", texts[USAGE]) if usage else failure
    pools = {}
    for pool in POOLS:
        key = "_".join(reversed(pool.split()))
        pools[pool] = size(usage[key], texts[USAGE]) if key in usage else missing.reading("bytes")
    hip = named.get("hip_id", table.get("hip_id"))
    return SmiCard(index, address, name, pools, "" if hip in (None, "N/A") else str(hip))


def processes(bundle: Bundle) -> tuple[SmiProcess, ...]:
    """Processes that amd-smi sees on every GPU, from its JSON or else its table; empty may also mean that it told nothing."""
    addresses = {gpu.index: str(gpu.pci.value) for gpu in gpus(bundle) if gpu.pci.ok}
    listed = (parse_processes(bundle.read(source), addresses) for source in (PROCESS, TABLE))
    return next((found for found, counted in listed if counted.ok), ())


def parse_processes(
    text: Text, addresses: dict[int, str]
) -> tuple[tuple[SmiProcess, ...], Reading]:
    """Processes and their number from ``amd-smi process --json`` or the bare table; ``addresses`` maps indices to PCI.

    None seen by a user who, it says, lacks a group is no zero but not allowed.
    """
    found: list[SmiProcess] = []
    answered = False
    for index, row in _by_gpu(text).items():
        for entry in rows(row.get("process_list")):
            info, pid = entry.inner("process_info"), entry.inner("process_info").number("pid")
            answered = answered or isinstance(entry.get("process_info"), (dict, str))
            if pid is not None and pid > 0:
                vram = size(info.inner("memory_usage").get("vram_mem"), text, "B")
                address, name = addresses.get(index, ""), _name(info.get("name"))
                found.append(SmiProcess(address, pid, name, vram))
    if not answered:
        words = plain(text.text)
        lines = (line.strip() for line in words.splitlines() if len(line) < 200)
        for match in filter(None, map(_TABLE_PROCESS.fullmatch, lines)):
            gpu, number, name, _, used, _ = match.groups()
            address = addresses.get(int(gpu), "")
            found.append(SmiProcess(address, int(number), _name(name), size(used, text)))
        answered = bool(found) or "No running processes" in words
    blind = not found and _GROUPS_WARNING in text.text
    if answered and not blind:
        return tuple(found), text.seen(len({process.pid for process in found}), "count")
    return (), why_nothing(text, "amd-smi", "list of processes").reading("count")


def _name(raw: object) -> str:
    return raw if isinstance(raw, str) and raw != "N/A" else ""

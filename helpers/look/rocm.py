"""What rocm-smi and amd-ttm say: memory pools and KFD processes, by rocm-smi's own index and PCI address.

rocm-smi's index is neither the DRM card number nor the HIP index; ``--showbus`` maps it to the PCI address. Its JSON prints
every value as a string, lower-cases process names and joins a process's fields by ``", "`` (rocm_smi.py, print2DArray), so
processes are read from the text form first. It may open /dev/kfd, so it runs after sysfs was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from helpers.units import pci_address

from .bundle import Bundle, Text
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading, not_available, seen
from .vendor_text import Failure, count, find_json, mapping, size, stdout_of, why_nothing, word

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("rocm-smi", "--showbus", "--showproductname", "--showuniqueid", "--json"),
    ("rocm-smi", "--showmeminfo", "all", "--json"),
    ("rocm-smi", "--showmeminfo", "all"),
    ("rocm-smi", "--showpids"),
    ("rocm-smi", "--showpids", "--json"),
    ("rocm-smi", "--showdriverversion", "--json"),
    # Without arguments it prints two lines and writes nothing (amd-debug-tools, amd_debug/ttm.py, get()).
    ("amd-ttm",),
)
FILES: tuple[str, ...] = ("/opt/rocm/.info/version*", "/opt/rocm*/.info/version*")
BUS, MEMORY_JSON, MEMORY, PIDS, PIDS_JSON, DRIVER, TTM = (" ".join(argv) for argv in COMMANDS)

POSTED = "rocm-smi --showmeminfo vram"
POOLS = tuple(f"{pool} {part}" for pool in ("vram", "vis_vram", "gtt") for part in ("total", "used"))
_FAILURES = (
    ("Permission denied", NOT_ALLOWED), ("Operation not permitted", NOT_ALLOWED),
    ("Driver not initialized", NOT_AVAILABLE), ("No DRM devices", NOT_AVAILABLE), ("No AMD GPUs specified", NOT_AVAILABLE),
    ("ROCm SMI returned", NOT_AVAILABLE), ("cannot open shared object", NOT_AVAILABLE), ("Traceback", NOT_AVAILABLE),
    ("No JSON data to report", NOT_AVAILABLE), ("Error: Could not find", NOT_AVAILABLE),
)
_CARD_LINE = re.compile(r"GPU\[([0-9]{1,4})\](?:\s+XCP\[[0-9]+\])?\s*:?")
_CARD_KEY = re.compile(r"card[0-9]{1,4}")
_PID_LABELS = re.compile(r"PID|PROCESS NAME|GPU\(s\)|GPU|VRAM USED|SDMA USED|CU OCCUPANCY")


@dataclass(frozen=True)
class SmiCard:
    """One card as rocm-smi numbers it. ``pools`` maps "vram total", "vram used", "gtt total", ... to readings in bytes."""

    index: int
    pci: Reading
    name: Reading
    gfx: Reading
    unique_id: Reading
    pools: dict[str, Reading]


@dataclass(frozen=True)
class KfdPid:
    """A process that opened /dev/kfd. The PID is the host's, also inside a container (rocm-systems#3752).

    A monitor that only opened the device is listed with a true zero of ``vram`` (ROCm#4411). ``gpus`` counts the GPUs.
    """

    pid: int
    name: str
    gpus: Reading
    vram: Reading
    sdma: Reading
    cu_occupancy: Reading


@dataclass(frozen=True)
class TtmQuery:
    """What amd-ttm prints. It says GB and computes GiB; it reads the module ``ttm`` only, never ``amdttm``."""

    limit_pages: Reading
    limit: Reading
    total_ram: Reading


def cards(bundle: Bundle) -> tuple[SmiCard, ...]:
    """Cards with memory pools, in rocm-smi's order; empty when it told nothing (then ``card_count`` says why)."""
    return _cards(bundle)[0]


def card_count(bundle: Bundle) -> Reading:
    """How many cards rocm-smi listed, or why it listed none."""
    found, failure = _cards(bundle)
    if not found:
        return failure.reading("count", MEMORY_JSON, bundle.read(MEMORY_JSON).item)
    first = found[0].pools[POOLS[0]]
    return seen(len(found), "count", first.source, first.item)


def kfd_pids(bundle: Bundle) -> tuple[KfdPid, ...]:
    """The KFD processes; empty when there are none, or when rocm-smi told nothing (``kfd_pid_count`` tells which)."""
    return _kfd_pids(bundle)[0]


def kfd_pid_count(bundle: Bundle) -> Reading:
    """How many KFD processes there are: 0 is rocm-smi's own "No KFD PIDs", otherwise the reason why it is not known."""
    return _kfd_pids(bundle)[1]


def driver_version(bundle: Bundle) -> Reading:
    """The amdgpu version that rocm-smi reports; on an inbox driver it is the kernel release."""
    text = bundle.read(DRIVER)
    system = mapping(find_json(stdout_of(text))).get("system")
    if isinstance(system, dict):
        for key, value in system.items():
            if key.lower() == "driver version":
                return word(value, DRIVER, text.item)
    return why_nothing(text, _FAILURES, "driver version").reading("text", DRIVER, text.item)


def rocm_versions(bundle: Bundle) -> tuple[Reading, ...]:
    """Releases of the system's ROCm trees, one per version file. A pip or conda ROCm has no such file."""
    texts = [bundle.read(source) for source in sorted({s for pattern in FILES for s in bundle.sources(pattern)})]
    found = tuple(word(text.text, text.source, text.item) for text in texts if text.ok and text.text.strip())
    return found or (not_available("no ROCm tree with a version file", "text", FILES[1]),)


def ttm_query(bundle: Bundle) -> TtmQuery:
    """The TTM limit and total RAM as amd-ttm prints them; GB there means GiB, rounded to two decimals."""
    return parse_ttm(bundle.read(TTM))


def parse_ttm(text: Text) -> TtmQuery:
    """``ttm_query`` of a text. A limit that amd-ttm has only just written (``--set``) is no query and reads as unavailable."""
    words = stdout_of(text)
    failure = why_nothing(text, _FAILURES, "TTM limit")
    limit = re.search(r"Current TTM pages limit: ([0-9]{1,18}) pages \(([0-9.]+) GB\)", words)
    total = re.search(r"Total system memory: ([0-9.]+) GB", words)
    nothing = failure.reading("bytes", text.source, text.item)
    return TtmQuery(
        seen(int(limit.group(1)), "pages", text.source, text.item) if limit
        else failure.reading("pages", text.source, text.item),
        size(limit.group(2), text.source, text.item, "GiB") if limit else nothing,
        size(total.group(1), text.source, text.item, "GiB") if total else nothing)


def parse_memory(text: Text) -> dict[int, dict[str, Reading]]:
    """Card index -> pool readings from ``--showmeminfo``, text or JSON. A pool that rocm-smi could not read is named so."""
    words = stdout_of(text)
    found: dict[int, dict[str, Reading]] = {}
    for index, label, value in _json_values(words) or _text_values(words):
        match = re.fullmatch(r"(vram|vis_vram|gtt)\s+total\s+(used\s+)?memory \(b\)", label.lower())
        if match:
            pool = f"{match.group(1)} {'used' if match.group(2) else 'total'}"
            found.setdefault(index, {})[pool] = size(value, text.source, text.item)
    return found


def parse_pids(text: Text) -> tuple[tuple[KfdPid, ...], Reading]:
    """KFD processes and their number from ``--showpids``, text or JSON."""
    words = stdout_of(text)
    system = mapping(find_json(words)).get("system")
    rows = _json_pids(system) if isinstance(system, dict) else _text_pids(words)
    if rows:
        found = tuple(_kfd_pid(pid, name, values, text) for pid, name, values in rows)
        return found, seen(len(found), "count", text.source, text.item)
    # In JSON mode a run without processes prints no JSON at all (rocm_smi.py, main: "No JSON data to report").
    if text.ok and ("No KFD PIDs" in words or "No JSON data to report" in text.text):
        return (), seen(0, "count", text.source, text.item)
    return (), why_nothing(text, _FAILURES, "list of KFD processes").reading("count", text.source, text.item)


def _cards(bundle: Bundle) -> tuple[tuple[SmiCard, ...], Failure]:
    text, spoken, names = bundle.read(MEMORY_JSON), bundle.read(MEMORY), bundle.read(BUS)
    memory: dict[int, dict[str, Reading]] = {}
    # What people post is often the short form, which has the VRAM alone.
    for said in (bundle.read(POSTED), spoken, text):
        for index, pools in parse_memory(said).items():
            memory[index] = {**memory.get(index, {}), **pools}
    told = spoken if spoken.text and not text.text else text
    failure = why_nothing(told, _FAILURES, "memory pools")
    known = mapping(find_json(stdout_of(names)))
    indices = set(memory) | {int(key[4:]) for key in known if _CARD_KEY.fullmatch(key)}
    return tuple(_card(index, mapping(known.get(f"card{index}")), memory.get(index), failure, told, names)
                 for index in sorted(indices)), failure


def _card(index: int, named: dict[str, Any], pools: dict[str, Reading] | None, failure: Failure, told: Text,
          names: Text) -> SmiCard:
    fields = {key.lower(): value for key, value in named.items()}
    address = pci_address(fields.get("pci bus", ""))
    missing = failure if pools is None else Failure(NOT_AVAILABLE, "rocm-smi printed no such pool")
    return SmiCard(
        index, seen(address, "text", BUS, names.item) if address
        else not_available("no PCI address reported", "text", BUS, names.item),
        word(fields.get("card series") or fields.get("card model"), BUS, names.item),
        word(fields.get("gfx version"), BUS, names.item), word(fields.get("unique id"), BUS, names.item),
        {**{pool: missing.reading("bytes", told.source, told.item) for pool in POOLS}, **(pools or {})})


def _kfd_pids(bundle: Bundle) -> tuple[tuple[KfdPid, ...], Reading]:
    spoken, counted = parse_pids(bundle.read(PIDS))
    if counted.ok:
        return spoken, counted
    found, other = parse_pids(bundle.read(PIDS_JSON))
    return (found, other) if other.ok else (spoken, counted)


def _json_values(words: str) -> list[tuple[int, str, Any]]:
    return [(int(card[4:]), label, value) for card, fields in mapping(find_json(words)).items()
            if _CARD_KEY.fullmatch(card) for label, value in mapping(fields).items()]


def _text_values(words: str) -> list[tuple[int, str, Any]]:
    found = []
    for line in words.splitlines():
        card = _CARD_LINE.match(line.strip())
        if card:
            said = line.strip()[card.end():]
            label, colon, value = said.rpartition(":")
            # rocm_smi.py, printLog: a pool that could not be read is printed without colon and value.
            found.append((int(card.group(1)), (label if colon else said).strip(), value if colon else "N/A"))
    return found


def _text_pids(words: str) -> list[tuple[str, str, list[str]]]:
    found = []
    values = 0
    for line in words.splitlines():
        tokens = line.split()
        if "PROCESS NAME" in line and tokens[0] == "PID":
            values = len(_PID_LABELS.findall(line)) - 2
        elif line.startswith("="):
            values = 0
        elif values > 0 and tokens and re.fullmatch("[0-9]{1,10}", tokens[0]) and len(tokens) > values:
            # The name may hold spaces; every other column is one word.
            found.append((tokens[0], " ".join(tokens[1:len(tokens) - values]), tokens[len(tokens) - values:]))
    return found


def _json_pids(system: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    found = []
    for key, value in system.items():
        pid = re.fullmatch(r"PID([0-9]{1,10})", key)
        parts = value.split(", ") if isinstance(value, str) else []
        if pid and len(parts) >= 3:
            # Three fields after the name before CU occupancy was added (rocm_smi_lib 20ae72b, 2020-10).
            tail = 4 if len(parts) > 4 else len(parts) - 1
            found.append((pid.group(1), " ".join(parts[:-tail]), parts[-tail:]))
    return found


def _kfd_pid(pid: str, name: str, values: list[str], text: Text) -> KfdPid:
    gpus, vram, sdma, occupancy = (values + ["", "", "", ""])[:4]
    return KfdPid(int(pid), "" if name.upper() == "UNKNOWN" else name, count(gpus, text.source, text.item),
                  size(vram, text.source, text.item), size(sdma, text.source, text.item),
                  count(occupancy, text.source, text.item))

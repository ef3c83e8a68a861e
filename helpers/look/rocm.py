"""What AMD's tools print: rocm-smi, amd-smi, rocminfo (the HSA agents with their memory pools),
and ROCm's version files.

An index of a tool is neither the DRM card number nor the HIP index. rocm-smi's JSON prints
every value as a string, lower-cases process names and joins a process's fields by ``", "``
(rocm_smi.py, print2DArray). amd-smi's JSON has two roots: a bare array (ROCm 6.x, distribution
builds) and ``{"gpu_data": [...]}`` (7.x); a value is ``{"value": n, "unit": "MB"}``, where MB
is MiB, or the text "N/A". On an APU its ``vram`` is the firmware carve-out only. Its process
list comes from /proc/PID/fdinfo (ROCm/amdsmi src/amd_smi/fdinfo.cc): processes of other users
(without root) and of other PID namespaces are not in it. Its Python package is never imported
here: where its library is missing, the import raises KeyError and prints on stdout. rocminfo
prints KB and means KiB (ROCm/rocminfo rocminfo.cc divides by 1024); pool 1 of a GPU agent is
what HIP reports as the device's total. All may open /dev/kfd, so they run after sysfs was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from helpers.ground.shapes import Reading, not_available
from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, Row, Text, rows
from helpers.look.vendor_text import (
    count,
    find_json,
    find_object,
    size,
    stdout_of,
    why_nothing,
    word,
)

BUS = "rocm-smi --showbus --showproductname --showuniqueid --json"
MEMORY_JSON = "rocm-smi --showmeminfo all --json"
MEMORY = "rocm-smi --showmeminfo all"
LIST = "amd-smi list --json"
LIST_ALL = "amd-smi list -e --json"
STATIC = "amd-smi static --json"
USAGE = "amd-smi metric --mem-usage --json"
PROCESS = "amd-smi process --json"
ROCMINFO = "rocminfo"
POSTED = "rocm-smi --showmeminfo vram"
VERSION_FILES = "/opt/rocm*/.info/version*"
_LABELS = {
    "vram total memory (b)": "vram total",
    "vram total used memory (b)": "vram used",
    "gtt total memory (b)": "gtt total",
    "gtt total used memory (b)": "gtt used",
}
"""What rocm-smi calls the figures of its pools, in lower case, and what they are called here."""
POOLS = tuple(_LABELS.values())
_CARD_LINE = re.compile(r"GPU\[([0-9]{1,4})\](?:\s+XCP\[[0-9]+\])?\s*:?")
_CARD_KEY = re.compile(r"card[0-9]{1,4}")

_FIELD_LINE = re.compile(r" *([^:\n]{1,40}):+(.*)")
_AGENT_LINE = re.compile(r"\s*Agent [0-9]{1,4}\s*")
_POOL_LINE = re.compile(r"\s*Pool [0-9]{1,4}\s*")
_KINDS = {"CPU": "cpu", "GPU": "gpu", "DSP": "npu"}
HIDDEN_NAMES = ("N/A", "UNKNOWN")
"""What amd-smi prints for the name of another user's process."""


@dataclass(frozen=True)
class SmiCard:
    """One card as a tool numbers it.

    ``pools`` maps POOLS to readings in bytes; ``hip`` is its HIP index, or empty.
    """

    index: int
    pci: Reading
    name: Reading
    pools: dict[str, Reading]
    hip: str = ""


@dataclass(frozen=True)
class SmiProcess:
    """A process on one card.

    Its name may be kept from other users ("N/A", "UNKNOWN") and is then empty.

    rocm-smi's PID is the host's, also inside a container (rocm-systems#3752), and it names no
    card; a monitor that only opened the device is listed with a true zero of ``vram``
    (ROCm#4411).
    """

    pci: str
    pid: int
    name: str
    vram: Reading


class _PrintedAgent(NamedTuple):
    """The lines of an agent, and of each of its pools, by their names."""

    fields: dict[str, str]
    pools: list[dict[str, str]]


@dataclass(frozen=True)
class Agent:
    """One HSA agent: ``kind`` is cpu, gpu, npu or empty where the output was cut.

    ``pci`` comes from the 16-bit BDFID, which holds no PCI domain: 0000 is taken.
    ``integrated`` is None before the line "Memory Properties" existed (ROCm/rocminfo 7e159e6,
    2023-11) and for what is no GPU. ``memory`` is its first global pool, which HIP makes the
    device's total (ROCm/clr rocdevice.cpp).
    """

    kind: str
    name: Reading
    marketing_name: Reading
    pci: Reading
    integrated: bool | None
    memory: Reading


def rocm_versions(bundle: Bundle) -> tuple[Reading, ...]:
    """Releases of the system's ROCm trees, one per version file.

    A pip or conda ROCm has no such file.
    """
    versions = []
    for source in bundle.sources(VERSION_FILES):
        text = bundle.read(source)
        if text.ok and text.text.strip():
            versions.append(word(text.text, text))
    if not versions:
        why = "no ROCm tree with a version file"
        versions.append(not_available(why, "text", VERSION_FILES))
    return tuple(versions)


def cards(bundle: Bundle) -> tuple[SmiCard, ...]:
    """Cards with memory pools, in rocm-smi's order; empty when it gave none."""
    lines = bundle.read(MEMORY)
    answer = bundle.read(MEMORY_JSON)
    memory: dict[int, dict[str, Reading]] = {}
    # What people post is often the short form, which has the VRAM alone.
    for text in (bundle.read(POSTED), lines, answer):
        for index, pools in parse_memory(text).items():
            memory.setdefault(index, {}).update(pools)
    if lines.text and not answer.text:
        answer = lines
    nothing = why_nothing(answer, "rocm-smi", "memory pools").missing(unit="bytes")
    no_pool = answer.refused("", "rocm-smi printed no such pool", "bytes")
    bus = bundle.read(BUS)
    named = _by_card(find_object(bus))
    listed = []
    for index in sorted(memory.keys() | named.keys()):
        fields = {key.lower(): value for key, value in named.get(index, {}).items()}
        pools = dict.fromkeys(POOLS, nothing)
        if index in memory:
            pools = {**dict.fromkeys(POOLS, no_pool), **memory[index]}
        card = SmiCard(
            index=index,
            pci=_address((bus, fields.get("pci bus"))),
            name=word(fields.get("card series") or fields.get("card model"), bus),
            pools=pools,
        )
        listed.append(card)
    return tuple(listed)


def _by_card(answer: Row) -> dict[int, Row]:
    """The objects "card0", "card1" and so on of rocm-smi's JSON, by their numbers."""
    return {
        int(key[4:]): answer.inner(key) for key in answer if _CARD_KEY.fullmatch(key)
    }


def _address(*places: tuple[Text, object]) -> Reading:
    """The first PCI address among what texts say."""
    for text, words in places:
        address = pci_address(words)
        if address:
            return text.seen(address)
    return places[0][0].refused("", "no PCI address reported")


def parse_memory(text: Text) -> dict[int, dict[str, Reading]]:
    """Card index -> pool readings from ``--showmeminfo``, text or JSON.

    A pool that rocm-smi could not read is named so.
    """
    printed: list[tuple[int, str, object]] = []
    for index, fields in _by_card(find_object(text)).items():
        printed += [(index, label, value) for label, value in fields.items()]
    if not printed:
        printed += _memory_lines(stdout_of(text))
    memory: dict[int, dict[str, Reading]] = {}
    for index, label, value in printed:
        pool = _LABELS.get(" ".join(label.lower().split()))
        if pool:
            memory.setdefault(index, {})[pool] = size(value, text)
    return memory


def _memory_lines(words: str) -> Iterator[tuple[int, str, str]]:
    """The card, the label and the value of each line."""
    for line in map(str.strip, words.splitlines()):
        card = _CARD_LINE.match(line)
        if card:
            label, colon, value = line[card.end() :].rpartition(":")
            # rocm_smi.py, printLog: a pool that could not be read is printed without colon and
            # value.
            if not colon:
                label = value
                value = "N/A"
            yield int(card[1]), label, value


def gpus(bundle: Bundle) -> tuple[SmiCard, ...]:
    """GPUs in amd-smi's order; empty when it gave none."""
    list_text = bundle.read(LIST)
    static_text = bundle.read(STATIC)
    usage_text = bundle.read(USAGE)
    listed = _by_gpu(list_text)
    listed_with_hip = _by_gpu(bundle.read(LIST_ALL))
    statics = _by_gpu(static_text)
    usages = _by_gpu(usage_text)
    nothing = why_nothing(usage_text, "amd-smi", "memory usage").missing(unit="bytes")
    cards = []
    for index in sorted({*listed, *listed_with_hip, *statics, *usages}):
        named = {**listed.get(index, {}), **listed_with_hip.get(index, {})}
        static = statics.get(index, Row())
        usage = usages.get(index, Row()).inner("mem_usage")
        pools = dict.fromkeys(POOLS, nothing)
        if usage:
            for pool in POOLS:
                memory, figure = pool.split()
                pools[pool] = size(usage.get(f"{figure}_{memory}"), usage_text)
        hip = named.get("hip_id")
        if hip in (None, "N/A"):
            hip = ""
        card = SmiCard(
            index=index,
            pci=_address(
                (list_text, named.get("bdf")),
                (static_text, static.inner("bus").get("bdf")),
            ),
            name=word(static.inner("asic").get("market_name"), static_text),
            pools=pools,
            hip=str(hip),
        )
        cards.append(card)
    return tuple(cards)


def _by_gpu(text: Text) -> dict[int, Row]:
    """GPU index -> its object, from either JSON root; objects of CPUs and NICs are left out."""
    answer = find_json(stdout_of(text))
    if isinstance(answer, Row):
        answer = answer.get("gpu_data")
    by_gpu = {}
    for row in rows(answer):
        number = row.number("gpu")
        if number is not None and number >= 0:
            by_gpu[number] = row
    return by_gpu


def processes(bundle: Bundle) -> tuple[SmiProcess, ...]:
    """Processes that amd-smi sees on every GPU; empty may also mean that it gave none."""
    addresses = {gpu.index: str(gpu.pci.value) for gpu in gpus(bundle) if gpu.pci.ok}
    return parse_processes(bundle.read(PROCESS), addresses)


def parse_processes(text: Text, addresses: dict[int, str]) -> tuple[SmiProcess, ...]:
    """Processes from ``amd-smi process --json``; ``addresses`` maps indices to PCI."""
    listed = []
    for index, row in _by_gpu(text).items():
        for entry in rows(row.get("process_list")):
            info = entry.inner("process_info")
            pid = info.number("pid")
            if pid is None or pid <= 0:
                continue
            name = info.text("name")
            if name.upper() in HIDDEN_NAMES:
                name = ""
            vram = size(info.inner("memory_usage").get("vram_mem"), text, "B")
            listed.append(SmiProcess(addresses.get(index, ""), pid, name, vram))
    return tuple(listed)


def agents(bundle: Bundle) -> tuple[Agent, ...]:
    """The agents in rocminfo's order; empty when it gave none (then ``agent_count`` says why)."""
    return parse_agents(bundle.read(ROCMINFO))


def agent_count(bundle: Bundle) -> Reading:
    """How many GPU agents there are (0 where only the CPU shows), or why rocminfo listed no
    agent at all.
    """
    text = bundle.read(ROCMINFO)
    listed = parse_agents(text)
    if listed:
        return text.seen(sum(agent.kind == "gpu" for agent in listed), "count")
    return why_nothing(text, ROCMINFO, "HSA agent").missing(unit="count")


def parse_agents(text: Text) -> tuple[Agent, ...]:
    """Agents of a text; of one that was cut or filtered (``rocminfo | grep``) what is left, an
    agent for each "Pool Info".
    """
    printed: list[_PrintedAgent] = []
    section = ""
    for line in stdout_of(text).splitlines():
        match = _FIELD_LINE.match(line[:400])
        name = match[1].strip() if match else ""
        if _AGENT_LINE.fullmatch(line):
            printed.append(_PrintedAgent({}, []))
            section = "agent"
        elif name == "Pool Info":
            if not printed or section != "agent":
                printed.append(_PrintedAgent({}, []))
            section = "pools"
        elif name == "ISA Info":
            section = "isas"
        elif printed and section == "pools" and _POOL_LINE.fullmatch(line):
            printed[-1].pools.append({})
        elif match and printed and name != "Cache Info":
            if section == "agent":
                printed[-1].fields.setdefault(name, match[2].strip())
            elif section == "pools" and printed[-1].pools:
                printed[-1].pools[-1].setdefault(name, match[2].strip())
    return tuple(_agent(agent, text) for agent in printed)


def _agent(printed: _PrintedAgent, text: Text) -> Agent:
    fields = printed.fields
    kind = _KINDS.get(fields.get("Device Type", ""), "")
    integrated = None
    if kind == "gpu" and "Memory Properties" in fields:
        integrated = "APU" in fields["Memory Properties"]
    return Agent(
        kind=kind,
        name=word(fields.get("Name"), text),
        marketing_name=word(fields.get("Marketing Name"), text),
        pci=_address_of_agent(kind, count(fields.get("BDFID"), text), text),
        integrated=integrated,
        memory=_first_global_pool(printed.pools, text),
    )


def _address_of_agent(kind: str, bdf: Reading, text: Text) -> Reading:
    """The PCI address that the bits of a GPU's BDFID say: bus, device and function."""
    if not bdf.ok:
        return text.refused("", bdf.why)
    if kind == "gpu" and 0 < bdf.bytes < 1 << 16:
        bus = bdf.bytes >> 8
        device = bdf.bytes >> 3 & 31
        return text.seen(f"0000:{bus:02x}:{device:02x}.{bdf.bytes & 7}")
    return text.refused("", "rocminfo prints none")


def _first_global_pool(pools: list[dict[str, str]], text: Text) -> Reading:
    for pool in pools:
        segment = pool.get("Segment", "").partition("; FLAGS:")[0].strip()
        if segment in ("GLOBAL", ""):
            printed = re.sub(r"\(0x[0-9a-f]+\) ?KB.*", " KiB", pool.get("Size", ""))
            return size(printed, text)
    return text.refused("", "this agent has no global pool", "bytes")

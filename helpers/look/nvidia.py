"""NVIDIA GPUs and the processes on them, by nvidia-smi's XML (``-q -x``), NVML, and the kernel
driver's list.

nvidia-smi counts in MiB. ``N/A`` means that it did not measure; a part that shares the RAM (GB10)
prints it for the memory totals, too. The XML is read without its DTD, and refused if it declares an
entity or is nested more deeply than nvidia-smi writes it.
"""

from __future__ import annotations

import io
import pkgutil
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree

from helpers.ground.shapes import NOT_ALLOWED, Reading
from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, JsonRow, Row, Text, rows
from helpers.look.vendor_text import count, size, stdout_of, why_nothing, word

from . import commands

XML = "nvidia-smi -q -x"
TABLE = "nvml"
VERSION = "/proc/driver/nvidia/version"
NOT_READ = "not read"
INFORMATION = "/proc/driver/nvidia/gpus/*/information"
LISTED = "nvidia-smi -L"
FRAMEBUFFER = ("total", "reserved", "used", "free")
SIZES = (*FRAMEBUFFER, "bar1_total", "bar1_used")
_NO_INSTANCE = (None, "N/A", 0xFFFFFFFF)
"""What stands for no GPU instance: in XML "N/A", by nvml.h nvmlProcessInfo_t the largest number."""
MOST_DEPTH = 32
"""Elements within elements: chosen far above what nvidia-smi writes."""
LONGEST_WHY = 400
_PID = re.compile("[0-9]{1,10}")
_MIG_LINE = re.compile(
    r"(?m)^ {1,8}MIG [^\n]{1,40}Device +[0-9]+: \(UUID: (MIG-[^)\n]{1,80})\)"
)
_DRIVER = re.compile(
    r"NVRM version: NVIDIA UNIX (Open )?[^\n]{0,60}"
    r"Kernel Module(?: for \S{1,20})?\s+([0-9][0-9.]{2,20})"
)


@dataclass(frozen=True)
class NvidiaGpu:
    """One GPU, its sizes in bytes.

    Since driver 510 ``used`` does not include ``reserved``, the driver's own memory; before, it
    does, and ``reserved`` is missing. ``cuda`` is the highest CUDA release that its driver can
    run. ``bar1_total`` and ``bar1_used`` are the window through which the CPU and other devices
    reach its memory.
    """

    pci: str
    index: Reading
    name: Reading
    total: Reading
    reserved: Reading
    used: Reading
    free: Reading
    bar1_total: Reading
    bar1_used: Reading
    cuda: Reading
    slices: tuple[MigSlice, ...] = ()


@dataclass(frozen=True)
class MigSlice:
    """One MIG device: a part of a GPU with memory of its own, in bytes, which processes in another
    part cannot use.

    ``index`` is its number on the GPU; processes name their part by its ``gpu_instance``.
    """

    index: str
    gpu_instance: str
    total: Reading
    used: Reading
    free: Reading


@dataclass(frozen=True)
class NvidiaHolder:
    """A process on one GPU. ``pid`` is the host's number, also in a container, where ``name`` is
    often empty (nvidia-docker#179). ``gpu_instance`` is empty on a GPU without MIG.
    """

    pci: str
    pid: int
    name: str
    memory: Reading
    gpu_instance: str = ""


@dataclass(frozen=True)
class Listing:
    """What one source says: for each GPU, by its PCI address, the readings by the names of fields
    of NvidiaGpu; the processes, and whether it lists processes at all; the MIG devices of each GPU.
    """

    text: Text
    gpus: dict[str, dict[str, Reading]]
    holders: tuple[NvidiaHolder, ...] = ()
    lists_processes: bool = False
    slices: dict[str, tuple[MigSlice, ...]] = field(default_factory=dict)


def collect_nvml(timeout_s: float) -> list[JsonRow]:
    """The table ``nvml``, read by a child process: one row for each GPU, or one row with the status
    and the reason why there is none. Takes no CUDA context.
    """
    program = pkgutil.get_data(__package__, "nvml.py")
    assert program is not None  # only a loader that cannot read files gives None
    return commands.run_python(sys.executable, program, (), timeout_s)


def gpus(bundle: Bundle) -> tuple[NvidiaGpu, ...]:
    """Every GPU that a source lists. Each field has the first value in the order XML, NVML, kernel
    driver. The memory of a GPU that only the kernel driver lists says why nvidia-smi does not.
    """
    by_pci: dict[str, dict[str, Reading]] = {}
    for listing in (*_listings(bundle), _of_driver(bundle)):
        for pci, readings in listing.gpus.items():
            best = by_pci.setdefault(pci, dict(readings))
            for name, reading in readings.items():
                if not best[name].ok and reading.ok:
                    best[name] = reading
    xml, _ = _listings(bundle)  # only the XML has MIG devices
    return tuple(
        NvidiaGpu(pci, **readings, slices=xml.slices.get(pci, ()))
        for pci, readings in by_pci.items()
    )


def mig_uuids(bundle: Bundle) -> tuple[str, ...]:
    """The UUIDs of the MIG devices that nvidia-smi lists, GPU by GPU."""
    return tuple(_MIG_LINE.findall(bundle.read(LISTED).text))


def holders(bundle: Bundle) -> tuple[NvidiaHolder, ...]:
    """The processes on every GPU, by the first source that lists processes. Empty also if none
    does, which ``holder_count`` tells.
    """
    listing = _with_processes(bundle)
    if listing is None:
        return ()
    return listing.holders


def holder_count(bundle: Bundle) -> Reading:
    """How many processes are on the GPUs, or why that is not known. In a container it may be 0
    while processes outside of it compute.
    """
    listing = _with_processes(bundle)
    if listing is None:
        return _failure(bundle).missing(unit="count")
    pids = {holder.pid for holder in listing.holders}
    return listing.text.seen(len(pids), "count")


def driver(bundle: Bundle) -> Reading:
    """The release of the loaded kernel module, with "(open)" behind it if it is the open one."""
    text = bundle.read(VERSION)
    match = _DRIVER.search(text.text)
    if match is None:
        return why_nothing(text, "", "driver release").missing()
    is_open, release = match.groups()
    if is_open:
        release += " (open)"
    return text.seen(release)


def _listings(bundle: Bundle) -> tuple[Listing, Listing]:
    """What nvidia-smi's XML and NVML say; where they differ, the first counts."""
    return bundle.once(
        "nvidia", lambda: (parse_xml(bundle.read(XML)), _of_nvml(bundle))
    )


def _with_processes(bundle: Bundle) -> Listing | None:
    """The first listing with processes, which may be none; None if no source lists processes."""
    for listing in _listings(bundle):
        if listing.lists_processes:
            return listing
    return None


def _readings(raw: JsonRow, text: Text, unit: str = "MiB") -> dict[str, Reading]:
    """The readings of a GPU's fields, by the names of fields of NvidiaGpu. ``raw`` has for each
    field what a source printed: words or a number, whose unit is ``unit`` if it is a size; or a
    reading already, which stays. A field that it lacks reads as not available.
    """
    readings = {}
    for name in ("index", "name", *SIZES, "cuda"):
        value = raw.get(name)
        if isinstance(value, Reading):
            readings[name] = value
        elif name in SIZES:
            readings[name] = size(value, text, unit)
        elif name == "index":
            readings[name] = count(value, text)
        else:
            readings[name] = word(value, text)
    return readings


def parse_xml(text: Text) -> Listing:
    """What ``nvidia-smi -q -x`` says; if its end is missing, the GPUs before it."""
    cuda, elements = _gpu_elements(stdout_of(text))
    readings: dict[str, dict[str, Reading]] = {}
    slices: dict[str, tuple[MigSlice, ...]] = {}
    running: list[NvidiaHolder] = []
    lists_processes = False
    for index, gpu in enumerate(elements):
        address = pci_address(gpu.get("id"))
        if not address:
            address = pci_address(gpu.findtext("pci/pci_bus_id"))
        if not address:
            continue
        raw: JsonRow = {
            "index": index,
            "name": gpu.findtext("product_name"),
            **_framebuffer(gpu),
            "bar1_total": gpu.findtext("bar1_memory_usage/total"),
            "bar1_used": gpu.findtext("bar1_memory_usage/used"),
            "cuda": cuda,
        }
        readings[address] = _readings(raw, text)
        devices = gpu.iterfind("mig_devices/mig_device")
        slices[address] = tuple(_mig_slice(device, text) for device in devices)
        if gpu.find("processes") is not None:
            lists_processes = True
            running += _xml_processes(gpu, address, text)
    return Listing(text, readings, tuple(running), lists_processes, slices)


def _xml_processes(
    gpu: ElementTree.Element, address: str, text: Text
) -> Iterator[NvidiaHolder]:
    """The processes in the element of a GPU."""
    for process in gpu.iterfind("processes/process_info"):
        pid = process.findtext("pid", "").strip()
        if _PID.fullmatch(pid):
            yield NvidiaHolder(
                pci=address,
                pid=int(pid),
                name=process.findtext("process_name", "").strip(),
                memory=size(process.findtext("used_memory"), text, "MiB"),
                gpu_instance=_instance(process.findtext("gpu_instance_id", "").strip()),
            )


def _instance(number: object) -> str:
    """The GPU instance of a process as text; empty on a GPU without MIG."""
    if number in _NO_INSTANCE:
        return ""
    return str(number)


def _framebuffer(element: ElementTree.Element) -> JsonRow:
    return {part: element.findtext("fb_memory_usage/" + part) for part in FRAMEBUFFER}


def _mig_slice(device: ElementTree.Element, text: Text) -> MigSlice:
    sizes = {part: size(raw, text, "MiB") for part, raw in _framebuffer(device).items()}
    return MigSlice(
        index=device.findtext("index", "").strip(),
        gpu_instance=device.findtext("gpu_instance_id", "").strip(),
        total=sizes["total"],
        used=sizes["used"],
        free=sizes["free"],
    )


def _gpu_elements(words: str) -> tuple[str | None, list[ElementTree.Element]]:
    """The CUDA release that the XML names, or None, and the complete elements of GPUs. None and
    none if the XML is refused.
    """
    # Entities, also in a DTD within the document, can expand without end.
    if re.search(r"<!ENTITY|<!DOCTYPE[^>\[]{0,400}\[", words, re.IGNORECASE):
        return None, []
    # A warning may come before it.
    start = words.find("<?xml")
    if start < 0:
        start = max(words.find("<nvidia_smi_log"), 0)
    cuda: str | None = None
    complete: list[ElementTree.Element] = []
    depth = 0
    source = io.BytesIO(words[start:].encode("utf-8", "replace"))
    # If it is cut off, or a warning comes behind it, the elements before that count.
    with suppress(ElementTree.ParseError, ValueError):
        # Element by element, so that a text that is too deep is refused before it fills the RAM.
        for event, element in ElementTree.iterparse(source, ("start", "end")):
            if event == "start":
                depth += 1
                if depth > MOST_DEPTH:
                    return None, []
                continue
            depth -= 1  # 1 for the children of the root
            if depth == 1 and element.tag == "gpu":
                complete.append(element)
            elif depth == 1 and element.tag == "cuda_version":
                cuda = element.text
    return cuda, complete


def _of_nvml(bundle: Bundle) -> Listing:
    """What the table ``nvml`` says, in which sizes are bytes and processes have no names.

    The table has a row for each GPU (``nvml.py`` writes it). Of a field that NVML did not give the
    row has null, and in ``unread``, by the name of its column, an object of the status and the
    reason: {"used_bytes": {"status": "not_allowed", "why": "..."}}.
    """
    text = bundle.read(TABLE)
    lists_processes = False
    readings: dict[str, dict[str, Reading]] = {}
    running: list[NvidiaHolder] = []
    for row in bundle.table(TABLE):
        address = pci_address(row.get("pci"))
        if not address:
            continue
        raw = {**row, "cuda": row.get("cuda_driver")}
        for part in SIZES:
            raw[part] = row.get(part + "_bytes")
        refusals = row.inner("unread")
        for column in refusals:
            refusal = refusals.inner(column)
            name = column.replace("_bytes", "")
            unit = "text"
            if name in SIZES:
                unit = "bytes"
            why = refusal.text("why")
            if not why:  # only a table that nvml.py did not write lacks it
                why = NOT_READ
            raw[name] = text.refused(refusal.get("status"), why, unit)
        readings[address] = _readings(raw, text, "B")
        # A list, also an empty one, is NVML's answer; where NVML gave none, the row has null.
        if isinstance(row.get("compute"), list):
            lists_processes = True
        running += _nvml_processes(row, address, text)
    return Listing(text, readings, tuple(running), lists_processes)


def _nvml_processes(row: Row, address: str, text: Text) -> list[NvidiaHolder]:
    """The processes of a GPU, each once: one that computes and draws is in both lists of NVML."""
    by_place: dict[tuple[int, str], NvidiaHolder] = {}
    for process in rows(row.get("compute")) + rows(row.get("graphics")):
        pid = process.number("pid")
        if pid is None or pid < 0:
            continue
        instance = _instance(process.get("gpu_instance"))
        used = process.get("used_bytes")
        if used is None:
            used = "N/A"
        memory = size(used, text, "B")
        holder = NvidiaHolder(address, pid, "", memory, instance)
        by_place.setdefault((pid, instance), holder)
    return list(by_place.values())


def _of_driver(bundle: Bundle) -> Listing:
    """What the kernel driver says, which are addresses and names."""
    nothing = _failure(bundle)
    readings = {}
    unread = dict.fromkeys(SIZES, nothing.missing(unit="bytes"))
    for source in bundle.sources(INFORMATION):
        text = bundle.read(source)
        *_, folder, _ = source.split("/")
        address = pci_address(folder)
        model = re.search(r"(?m)^\s*Model\s*:([^\n]*)", text.text)
        if not address:
            continue
        raw: JsonRow = {**unread}  # no size is in that file
        if model:
            raw["name"] = model[1].strip()
        readings[address] = _readings(raw, text)
    return Listing(nothing, readings)


def _failure(bundle: Bundle) -> Text:
    """nvidia-smi's output with the reason why it lists nothing, and NVML's reason if that is
    another.
    """
    nothing = why_nothing(bundle.read(XML), "nvidia-smi", "list of GPUs")
    row = next(iter(bundle.table(TABLE)), Row())
    why = row.text("why")
    if not why or why in nothing.why:
        return nothing
    words = f"nvidia-smi: {nothing.why}; NVML: {why}"
    if row.get("status") == NOT_ALLOWED:
        nothing = replace(nothing, status=NOT_ALLOWED)
    return replace(nothing, why=words[:LONGEST_WHY])

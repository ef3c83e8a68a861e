"""NVIDIA GPUs and the processes on them: nvidia-smi's XML (``-q -x``) first, then NVML, then
the kernel driver's list.

nvidia-smi counts in MiB. ``N/A`` for a process is "not measured", never 0; a unified-memory part
(GB10) prints it for the memory totals as well. The XML is read without its DTD, and refused when
it declares an entity or is nested deeper than any that nvidia-smi writes.
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
MOST_DEPTH = 32
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
    """One GPU, in bytes.

    ``used`` leaves ``reserved`` out since driver 510 and holds it before (then ``reserved`` is
    missing).

    ``cuda`` is the highest CUDA release that its driver can run. ``bar1_total`` and ``bar1_used``
    are the window through which the CPU and other devices reach its memory.
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
    """One MIG device: a part of a GPU with memory of its own, in bytes. A process in one takes
    nothing from another.

    ``index`` is its number on the GPU; processes are listed by ``gpu_instance``.
    """

    index: str
    gpu_instance: str
    total: Reading
    used: Reading
    free: Reading


@dataclass(frozen=True)
class NvidiaHolder:
    """A process on one GPU.

    The PID is the host's also in a container, where ``name`` is often empty
    (nvidia-docker#179).
    """

    pci: str
    pid: int
    name: str
    memory: Reading
    gpu_instance: str = ""


@dataclass(frozen=True)
class Listing:
    """One source's answer: readings by field of each GPU, by PCI address; the processes, and
    whether it has a table of them at all; and the MIG devices by PCI address.
    """

    text: Text
    gpus: dict[str, dict[str, Reading]]
    holders: tuple[NvidiaHolder, ...] = ()
    lists_processes: bool = False
    slices: dict[str, tuple[MigSlice, ...]] = field(default_factory=dict)


def collect_nvml(timeout_s: float) -> list[JsonRow]:
    """The table ``nvml``, taken in a child: one row per GPU, or one row with status and why.

    Takes no CUDA context.
    """
    program = pkgutil.get_data(__package__, "nvml.py") or b""
    return commands.run_python(sys.executable, program, (), timeout_s)


def gpus(bundle: Bundle) -> tuple[NvidiaGpu, ...]:
    """GPUs by PCI address.

    Each field is the first that holds a value, in the order XML, NVML, kernel driver.

    A GPU that only the kernel driver knows says in its memory fields why nvidia-smi gave nothing.
    """
    by_pci: dict[str, dict[str, Reading]] = {}
    for listing in (*_listings(bundle), _of_driver(bundle)):
        for pci, readings in listing.gpus.items():
            best = by_pci.setdefault(pci, dict(readings))
            for name, reading in readings.items():
                if not best[name].ok and reading.ok:
                    best[name] = reading
    slices = _listings(bundle)[0].slices  # the XML alone has them
    return tuple(
        NvidiaGpu(pci, **readings, slices=slices.get(pci, ()))
        for pci, readings in by_pci.items()
    )


def mig_uuids(bundle: Bundle) -> tuple[str, ...]:
    """The UUIDs of the MIG devices that nvidia-smi lists, GPU by GPU."""
    return tuple(_MIG_LINE.findall(bundle.read(LISTED).text))


def holders(bundle: Bundle) -> tuple[NvidiaHolder, ...]:
    """Processes on every GPU, from the first source with a process table; empty may mean that
    none gave one (``holder_count``).
    """
    listing = _with_processes(bundle)
    if listing is None:
        return ()
    return listing.holders


def holder_count(bundle: Bundle) -> Reading:
    """How many processes are on the GPUs. 0 is an empty process table: a container may be shown
    one while others compute.
    """
    listing = _with_processes(bundle)
    if listing is None:
        return _failure(bundle).missing(unit="count")
    pids = {holder.pid for holder in listing.holders}
    return listing.text.seen(len(pids), "count")


def driver(bundle: Bundle) -> Reading:
    """Release of the loaded kernel module, with "(open)" for the open one, from
    /proc/driver/nvidia/version.
    """
    text = bundle.read(VERSION)
    match = _DRIVER.search(text.text)
    if match is None:
        return why_nothing(text, "", "driver release").missing()
    release = match.group(2)
    if match.group(1):
        release += " (open)"
    return text.seen(release)


def _listings(bundle: Bundle) -> tuple[Listing, ...]:
    """The answers of nvidia-smi and NVML, in the order in which they are believed."""
    return bundle.once(
        "nvidia", lambda: (parse_xml(bundle.read(XML)), _of_nvml(bundle))
    )


def _with_processes(bundle: Bundle) -> Listing | None:
    """The first answer with a process table."""
    for listing in _listings(bundle):
        if listing.lists_processes:
            return listing
    return None


def _readings(raw: JsonRow, text: Text, unit: str = "MiB") -> dict[str, Reading]:
    """Each field from its raw value, or a reading as it is; a field that is not there reads as
    not available.
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
    """The listing of ``nvidia-smi -q -x``; of a text that was cut, the GPUs that are whole."""
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
    """The GPU instance of a process; empty on a card that is not cut."""
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
    """The CUDA release that the XML names, and the element of each GPU that is whole."""
    if re.search(r"<!ENTITY|<!DOCTYPE[^>\[]{0,400}\[", words, re.IGNORECASE):
        return None, []
    start = words.find("<?xml")
    if start < 0:
        start = max(words.find("<nvidia_smi_log"), 0)
    cuda: str | None = None
    complete: list[ElementTree.Element] = []
    depth = 0
    source = io.BytesIO(words[start:].encode("utf-8", "replace"))
    # Cut off, or followed by a warning: what was whole until there stands.
    with suppress(ElementTree.ParseError, ValueError):
        # What is refused on the way is never built whole.
        for event, element in ElementTree.iterparse(source, ("start", "end")):
            if event == "start":
                depth += 1
                if depth > MOST_DEPTH:
                    return None, []
                continue
            depth -= 1
            if depth == 1 and element.tag == "gpu":
                complete.append(element)
            elif depth == 1 and element.tag == "cuda_version":
                cuda = element.text
    return cuda, complete


def _of_nvml(bundle: Bundle) -> Listing:
    """The table ``nvml``, in bytes; NVML gives no names of processes."""
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
        for column in row.inner("unread"):
            name = column.replace("_bytes", "")
            reason = row.inner("unread").inner(column)
            unit = "bytes" if name in SIZES else "text"
            why = str(reason.get("why") or NOT_READ)
            raw[name] = text.refused(reason.get("status"), why, unit)
        readings[address] = _readings(raw, text, "B")
        if isinstance(row.get("compute"), list):
            lists_processes = True
        running += _nvml_processes(row, address, text)
    return Listing(text, readings, tuple(running), lists_processes)


def _nvml_processes(row: Row, address: str, text: Text) -> list[NvidiaHolder]:
    """The processes of a GPU; one that computes and draws is in both lists."""
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
    """What the kernel driver lists: names alone."""
    nothing = _failure(bundle)
    readings = {}
    unread = dict.fromkeys(SIZES, nothing.missing(unit="bytes"))
    for source in bundle.sources(INFORMATION):
        text = bundle.read(source)
        address = pci_address(source.split("/")[-2])
        model = re.search(r"(?m)^\s*Model\s*:([^\n]*)", text.text)
        if not address:
            continue
        raw: JsonRow = {**unread}
        if model:
            raw["name"] = model[1].strip()
        readings[address] = _readings(raw, text)
    return Listing(nothing, readings)


def _failure(bundle: Bundle) -> Text:
    """Why nothing was listed: nvidia-smi's own words, and NVML's where they add something."""
    nothing = why_nothing(bundle.read(XML), "nvidia-smi", "list of GPUs")
    row = next(iter(bundle.table(TABLE)), Row())
    why = row.text("why")
    if not why or why in nothing.why:
        return nothing
    words = f"nvidia-smi: {nothing.why}; NVML: {why}"
    if row.get("status") == NOT_ALLOWED:
        nothing = replace(nothing, status=NOT_ALLOWED)
    return replace(nothing, why=words[:400])

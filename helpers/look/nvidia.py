"""NVIDIA GPUs and the processes on them: nvidia-smi's XML (``-q -x``) first, then NVML, then the kernel driver's list.

nvidia-smi counts in MiB; its CSV is kept as text only. ``N/A`` for a process is "not measured", never 0; a unified-memory part
(GB10) prints it for the memory totals as well. The XML is read without its DTD, and refused when it declares an entity.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any
from xml.etree import ElementTree

from helpers.units import pci_address

from . import commands
from .bundle import Bundle, Row, Text, rows
from .reading import NOT_ALLOWED, Reading
from .vendor_text import count, find_object, size, stdout_of, why_nothing, word

XML = "nvidia-smi -q -x"
GPU_CSV = (
    "nvidia-smi --query-gpu=index,pci.bus_id,name,uuid,memory.total,memory.reserved,memory.used,memory.free,"
    "driver_version,compute_cap,compute_mode,mig.mode.current --format=csv"
)
APPS_CSV = (
    "nvidia-smi --query-compute-apps=gpu_bus_id,pid,process_name,used_gpu_memory --format=csv"
)
NVCC = "nvcc --version"
COMMANDS = tuple(tuple(line.split()) for line in (XML, GPU_CSV, APPS_CSV, NVCC))
VERSION = "/proc/driver/nvidia/version"
INFORMATION = "/proc/driver/nvidia/gpus/*/information"
TOOLKIT = "/usr/local/cuda/version.json"
FILES: tuple[str, ...] = (VERSION, INFORMATION, TOOLKIT)
TABLE = "nvml"
SIZES = ("total", "reserved", "used", "free")
_NO_INSTANCE = (None, 0xFFFFFFFF)
_PID = re.compile("[0-9]{1,10}")


@dataclass(frozen=True)
class NvidiaGpu:
    """One GPU, in bytes. ``used`` leaves ``reserved`` out since driver 510 and holds it before (then ``reserved`` is missing).

    ``cuda`` is the highest CUDA release that its driver can run.
    """

    pci: str
    index: Reading
    name: Reading
    total: Reading
    reserved: Reading
    used: Reading
    free: Reading
    cuda: Reading


@dataclass(frozen=True)
class NvidiaHolder:
    """A process on one GPU. The PID is the host's also in a container, where ``name`` is often empty (nvidia-docker#179)."""

    pci: str
    pid: int
    name: str
    memory: Reading
    gpu_instance: str = ""


@dataclass(frozen=True)
class Listing:
    """GPUs and processes of one answer. ``lists_processes`` tells an empty process table from none at all."""

    gpus: tuple[NvidiaGpu, ...]
    holders: tuple[NvidiaHolder, ...]
    lists_processes: bool
    text: Text


def collect_nvml(timeout_s: float = 5.0) -> list[dict[str, Any]]:
    """The table ``nvml``, taken in a child: one row per GPU, or one row with status and why. Takes no CUDA context."""
    source = pkgutil.get_data(__package__, "nvml.py") or b""
    return commands.ask(sys.executable, source, (), timeout_s)


def gpus(bundle: Bundle) -> tuple[NvidiaGpu, ...]:
    """GPUs by PCI address. Each field is the first that holds a value, in the order XML, NVML, kernel driver.

    A GPU that only the kernel driver knows says in its memory fields why nvidia-smi gave nothing.
    """
    found: dict[str, NvidiaGpu] = {}
    listed = [gpu for listing in _listings(bundle) for gpu in listing.gpus]
    for gpu in [*listed, *_driver_gpus(bundle)]:
        if gpu.pci:
            found[gpu.pci] = _merged(found[gpu.pci], gpu) if gpu.pci in found else gpu
    return tuple(found.values())


def holders(bundle: Bundle) -> tuple[NvidiaHolder, ...]:
    """Processes on every GPU, from the first source with a process table; empty may mean that none gave one (``holder_count``)."""
    return next((listing.holders for listing in _listings(bundle) if listing.lists_processes), ())


def holder_count(bundle: Bundle) -> Reading:
    """How many processes are on the GPUs. 0 is an empty process table: a container may be shown one while others compute."""
    for listing in _listings(bundle):
        if listing.lists_processes:
            return listing.text.seen(len({holder.pid for holder in listing.holders}), "count")
    return _failure(bundle).missing("", "count")


def driver(bundle: Bundle) -> Reading:
    """Release of the loaded kernel module, with "(open)" for the open one, from /proc/driver/nvidia/version."""
    text = bundle.read(VERSION)
    form = r"NVRM version: NVIDIA UNIX (Open )?[^\n]{0,60}Kernel Module(?: for \S{1,20})?\s+([0-9][0-9.]{2,20})"
    match = re.search(form, text.text)
    if match:
        return text.seen(match.group(2) + (" (open)" if match.group(1) else ""))
    return why_nothing(text, "", "driver release").missing("")


def toolkit(bundle: Bundle) -> Reading:
    """Release of the CUDA toolkit of the system; a torch wheel brings its own runtime and needs none."""
    text, compiler = bundle.read(TOOLKIT), bundle.read(NVCC)
    version = word(find_object(text).inner("cuda").get("version"), text)
    found = compiler.find(r"release [0-9.]+, V([0-9.]+)")
    nothing = why_nothing(compiler, "", "release").missing("")
    return next((one for one in (version, found) if one.ok), nothing)


def _gpu(pci: str, raw: dict[str, Any], text: Text, unit: str = "MiB") -> NvidiaGpu:
    """A GPU from raw values or readings by field name; a field that is not there reads as not available."""
    read: dict[str, Any] = {**dict.fromkeys(SIZES, partial(size, unit=unit)), "index": count}
    names = [one.name for one in fields(NvidiaGpu)[1:]]
    values = ((raw.get(name), read.get(name, word)) for name in names)
    return NvidiaGpu(pci, *(v if isinstance(v, Reading) else made(v, text) for v, made in values))


def parse_xml(text: Text) -> Listing:
    """The listing of ``nvidia-smi -q -x``; of a text that was cut, the GPUs that are whole."""
    root, elements = _elements(stdout_of(text))
    found, running, listed = [], [], False
    for index, gpu in enumerate(elements):
        address = pci_address(gpu.get("id")) or pci_address(gpu.findtext("pci/pci_bus_id"))
        if not address or root is None:
            continue
        raw: dict[str, Any] = {part: gpu.findtext("fb_memory_usage/" + part) for part in SIZES}
        cuda = root.findtext("cuda_version")
        raw.update(index=index, name=gpu.findtext("product_name"), cuda=cuda)
        found.append(_gpu(address, raw, text))
        listed = listed or gpu.find("processes") is not None
        for process in gpu.iterfind("processes/process_info"):
            tags = ("pid", "process_name", "gpu_instance_id")
            pid, name, instance = ((process.findtext(tag) or "").strip() for tag in tags)
            if _PID.fullmatch(pid):
                memory = size(process.findtext("used_memory"), text, "MiB")
                instance = "" if instance == "N/A" else instance
                running.append(NvidiaHolder(address, int(pid), name, memory, instance))
    return Listing(tuple(found), tuple(running), listed, text)


def _elements(words: str) -> tuple[ElementTree.Element | None, list[ElementTree.Element]]:
    if re.search(r"<!ENTITY|<!DOCTYPE[^>\[]{0,400}\[", words, re.IGNORECASE):
        return None, []
    start = words.find("<?xml")
    words = words[start if start >= 0 else max(words.find("<nvidia_smi_log"), 0) :]
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    root: ElementTree.Element | None = None
    found: list[ElementTree.Element] = []
    depth = 0
    try:
        parser.feed(words)
        for event, element in parser.read_events():
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if event == "end" and depth == 1 and element.tag == "gpu":
                found.append(element)
    except (ElementTree.ParseError, ValueError):
        return root, found  # cut off, or followed by a warning: what was whole until there stands
    return root, found


def nvml_listing(bundle: Bundle) -> Listing:
    """The table ``nvml`` as a listing, in bytes; NVML gives no names of processes."""
    text = bundle.read(TABLE)
    found, running, listed = [], [], False
    for row in bundle.table(TABLE):
        address = pci_address(row.get("pci"))
        if not address:
            continue
        raw = {**row, **{part: row.get(part + "_bytes") for part in SIZES}}
        raw["cuda"] = row.get("cuda_driver")
        for field in row.inner("unread"):
            name, reason = field.replace("_bytes", ""), row.inner("unread").inner(field)
            why = str(reason.get("why") or "not read")
            unit = "bytes" if name in SIZES else "text"
            raw[name] = text.refused(reason.get("status"), why, unit)
        found.append(_gpu(address, raw, text, "B"))
        listed = listed or isinstance(row.get("compute"), list)
        running += _nvml_holders(address, row, text)
    return Listing(tuple(found), tuple(running), listed, text)


def _nvml_holders(address: str, row: Row, text: Text) -> list[NvidiaHolder]:
    memory: dict[tuple[int, str], Any] = {}
    for process in rows(row.get("compute")) + rows(row.get("graphics")):
        pid, instance = process.number("pid"), process.get("gpu_instance")
        if pid is not None and pid >= 0:
            instance = "" if instance in _NO_INSTANCE else str(instance)
            memory.setdefault((pid, instance), process.get("used_bytes"))
    return [
        NvidiaHolder(address, pid, "", size("N/A" if used is None else used, text, "B"), instance)
        for (pid, instance), used in memory.items()
    ]


def _listings(bundle: Bundle) -> tuple[Listing, ...]:
    """The answers in the order in which they are believed."""
    return parse_xml(bundle.read(XML)), nvml_listing(bundle)


def _driver_gpus(bundle: Bundle) -> list[NvidiaGpu]:
    found = []
    unread = dict.fromkeys(SIZES, _failure(bundle).missing("", "bytes"))
    for source in bundle.sources(INFORMATION):
        text = bundle.read(source)
        address = pci_address(source.split("/")[-2])
        model = re.search(r"(?m)^\s*Model\s*:([^\n]*)", text.text)
        if address:
            name = model.group(1).strip() if model else None
            found.append(_gpu(address, {**unread, "name": name}, text))
    return found


def _failure(bundle: Bundle) -> Text:
    """Why nothing was listed: nvidia-smi's own words, and NVML's where they add something."""
    nothing = why_nothing(bundle.read(XML), "nvidia-smi", "list of GPUs")
    row = next(iter(bundle.table(TABLE)), Row())
    why = row.text("why")
    if why and why not in nothing.why:
        status = NOT_ALLOWED if row.get("status") == NOT_ALLOWED else nothing.status
        words = f"nvidia-smi: {nothing.why}; NVML: {why}"
        return replace(nothing, status=status, why=words[:400])
    return nothing


def _merged(first: NvidiaGpu, other: NvidiaGpu) -> NvidiaGpu:
    names = (field.name for field in fields(first)[1:] if not getattr(first, field.name).ok)
    better: dict[str, Any] = {name: getattr(other, name) for name in names}
    return replace(first, **{name: value for name, value in better.items() if value.ok})

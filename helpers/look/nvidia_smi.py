"""nvidia-smi's own words: its XML (``-q -x``) and its CSV answers, in any driver generation.

It counts in MiB. ``N/A`` for a process is "not measured", never 0; a unified-memory part (GB10) prints it for the memory
totals as well. The XML is read without its DTD, and refused when it declares an entity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from helpers.units import pci_address

from .bundle import Text
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading
from .vendor_text import count, size, stdout_of, word

FAILURES = (
    ("Insufficient Permissions", NOT_ALLOWED), ("Permission denied", NOT_ALLOWED),
    ("couldn't communicate with the NVIDIA driver", NOT_AVAILABLE), ("Failed to initialize NVML", NOT_AVAILABLE),
    ("NVML library version", NOT_AVAILABLE), ("No devices were found", NOT_AVAILABLE),
    ("Unable to determine the device handle", NOT_AVAILABLE), ("is not a valid field to query", NOT_AVAILABLE),
    ("couldn't find libnvidia-ml.so", NOT_AVAILABLE), ("has failed because", NOT_AVAILABLE),
)
_PID = re.compile("[0-9]{1,10}")


@dataclass(frozen=True)
class MigDevice:
    """A slice of a GPU in MIG mode, in bytes."""

    gpu_instance: str
    compute_instance: str
    total: Reading
    used: Reading
    free: Reading


@dataclass(frozen=True)
class NvidiaGpu:
    """One GPU, in bytes. ``used`` leaves ``reserved`` out since driver 510 and holds it before (then ``reserved`` is missing).

    ``driver`` is the release of the kernel driver, ``cuda`` the highest CUDA release it can run.
    """

    pci: str
    index: Reading
    name: Reading
    uuid: Reading
    total: Reading
    reserved: Reading
    used: Reading
    free: Reading
    bar1_total: Reading
    bar1_used: Reading
    driver: Reading
    cuda: Reading
    compute_mode: Reading
    compute_capability: Reading
    mig_mode: Reading
    mig: tuple[MigDevice, ...] = ()


SIZES = ("total", "reserved", "used", "free", "bar1_total", "bar1_used")
WORDS = ("name", "uuid", "driver", "cuda", "compute_mode", "compute_capability", "mig_mode")


@dataclass(frozen=True)
class NvidiaHolder:
    """A process on one GPU. ``kind`` is C (compute), G (graphics), C+G or M+C (a client of MPS) in nvidia-smi's letters.

    The PID is the host's also inside a container, where ``name`` is often empty (nvidia-docker#179).
    """

    pci: str
    pid: int
    name: str
    kind: str
    memory: Reading
    gpu_instance: str = ""


@dataclass(frozen=True)
class Listing:
    """GPUs and processes of one answer. ``processes_told`` tells an empty process table from none at all."""

    gpus: tuple[NvidiaGpu, ...]
    holders: tuple[NvidiaHolder, ...]
    processes_told: bool
    source: str
    item: str


def build(address: str, raw: dict[str, Any], source: str, item: str, unit: str = "MiB",
          mig: tuple[MigDevice, ...] = ()) -> NvidiaGpu:
    """A GPU from raw values or readings by field name; a field that is not there reads as not available."""
    readings = {name: size(raw.get(name), source, item, unit) for name in SIZES}
    readings.update({name: word(raw.get(name), source, item) for name in WORDS})
    readings["index"] = count(raw.get("index"), source, item)
    readings.update({name: value for name, value in raw.items() if name in readings and isinstance(value, Reading)})
    return NvidiaGpu(pci=address, mig=mig, **readings)


def parse_xml(text: Text) -> Listing:
    """The listing of ``nvidia-smi -q -x``; of a text that was cut, the GPUs that are whole."""
    root, elements = _elements(stdout_of(text))
    gpus, holders, told = [], [], False
    for index, element in enumerate(elements):
        address = pci_address(element.get("id")) or pci_address(element.findtext("pci/pci_bus_id"))
        if address and root is not None:
            gpus.append(_xml_gpu(index, address, element, root, text))
            told = told or element.find("processes") is not None
            holders += _xml_holders(address, element, text)
    return Listing(tuple(gpus), tuple(holders), told, text.source, text.item)


def parse_gpu_csv(text: Text) -> Listing:
    """The listing of ``--query-gpu``; a GPU without ``pci.bus_id`` among the fields has an empty address."""
    named = {"total": "memory.total", "reserved": "memory.reserved", "used": "memory.used", "free": "memory.free",
             "driver": "driver_version", "compute_capability": "compute_cap", "mig_mode": "mig.mode.current"}
    return Listing(tuple(build(pci_address(row.get("pci.bus_id", row.get("gpu_bus_id"))),
                               {**row, **{name: row.get(field) for name, field in named.items()}}, text.source, text.item)
                         for row in csv_rows(text)), (), False, text.source, text.item)


def parse_apps_csv(text: Text) -> Listing:
    """The listing of ``--query-compute-apps``: compute processes only. A header without rows is an empty table."""
    rows = csv_rows(text)
    holders = tuple(NvidiaHolder(
        pci_address(row.get("gpu_bus_id")), int(row["pid"]), row.get("process_name", row.get("name", "")), "C",
        size(row.get("used_gpu_memory", row.get("used_memory")), text.source, text.item, "MiB"))
        for row in rows if _PID.fullmatch(row.get("pid", "")))
    words = stdout_of(text).strip()
    empty = not rows and ("used_gpu_memory" in words or "used_memory" in words or not words and "noheader" in text.source)
    return Listing((), holders, bool(holders) or text.ok and empty, text.source, text.item)


def csv_rows(text: Text) -> list[dict[str, str]]:
    """Rows of a CSV answer by field name; the names come from the header, or from the query in the command line.

    nvidia-smi quotes nothing: a name with commas takes what the other fields leave.
    """
    lines = [line.strip() for line in stdout_of(text).splitlines() if line.strip()]
    query = re.search(r"--query-(?:gpu|compute-apps)=([a-z0-9_.,]+)", text.source)
    names = query.group(1).split(",") if query else []
    header = [name.split(" [")[0].strip() for name in lines[0].split(",")] if lines else []
    if header and all(re.fullmatch(r"[a-z_0-9.]*[a-z][a-z_0-9.]*", name) for name in header):
        names, lines = header, lines[1:]
    free = next((at for at, name in enumerate(names) if name in ("name", "process_name")), 0)
    rows = []
    for line in lines:
        parts = line.split(", ")
        extra = len(parts) - len(names)
        if names and extra >= 0:
            parts[free:free + extra + 1] = [", ".join(parts[free:free + extra + 1])]
            rows.append({name: parts[at].strip() for at, name in enumerate(names)})
    return rows


def _elements(words: str) -> tuple[ElementTree.Element | None, list[ElementTree.Element]]:
    if re.search(r"<!ENTITY|<!DOCTYPE[^>\[]{0,400}\[", words, re.IGNORECASE):
        return None, []
    start = words.find("<?xml")
    words = words[start if start >= 0 else max(words.find("<nvidia_smi_log"), 0):]
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    root: ElementTree.Element | None = None
    gpus: list[ElementTree.Element] = []
    depth = 0
    try:
        parser.feed(words)
        for event, element in parser.read_events():
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if event == "end" and depth == 1 and element.tag == "gpu":
                gpus.append(element)
    except (ElementTree.ParseError, ValueError):
        return root, gpus  # cut off, or followed by a warning: what was whole until there stands
    return root, gpus


def _xml_gpu(index: int, address: str, gpu: ElementTree.Element, log: ElementTree.Element, text: Text) -> NvidiaGpu:
    memory, bar1 = "fb_memory_usage/", "bar1_memory_usage/"
    paths = {"name": "product_name", "uuid": "uuid", "total": memory + "total", "reserved": memory + "reserved",
             "used": memory + "used", "free": memory + "free", "bar1_total": bar1 + "total", "bar1_used": bar1 + "used",
             "compute_mode": "compute_mode", "mig_mode": "mig_mode/current_mig"}
    raw: dict[str, Any] = {name: gpu.findtext(path) for name, path in paths.items()}
    raw.update(index=index, driver=log.findtext("driver_version"), cuda=log.findtext("cuda_version"))
    mig = tuple(MigDevice(
        (device.findtext("gpu_instance_id") or "").strip(), (device.findtext("compute_instance_id") or "").strip(),
        *(size(device.findtext(memory + part), text.source, text.item) for part in ("total", "used", "free")))
        for device in gpu.iterfind("mig_devices/mig_device"))
    return build(address, raw, text.source, text.item, mig=mig)


def _xml_holders(address: str, gpu: ElementTree.Element, text: Text) -> list[NvidiaHolder]:
    found = []
    for process in gpu.iterfind("processes/process_info"):
        pid, kind, name, instance = ((process.findtext(tag) or "").strip()
                                     for tag in ("pid", "type", "process_name", "gpu_instance_id"))
        if _PID.fullmatch(pid):
            memory = size(process.findtext("used_memory"), text.source, text.item, "MiB")
            found.append(NvidiaHolder(address, int(pid), name, kind, memory, "" if instance == "N/A" else instance))
    return found

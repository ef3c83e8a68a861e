"""NVIDIA GPUs and the processes on them: nvidia-smi's XML first, then its CSV, NVML and the kernel driver's own list."""

from __future__ import annotations

import pkgutil
import re
import sys
from dataclasses import fields, replace
from typing import Any

from helpers.units import pci_address

from . import program
from .bundle import Bundle
from .nvidia_smi import (
    FAILURES,
    SIZES,
    Listing,
    MigDevice,
    NvidiaGpu,
    NvidiaHolder,
    build,
    parse_apps_csv,
    parse_gpu_csv,
    parse_xml,
)
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading, seen
from .vendor_text import Failure, find_json, listed, mapping, size, why_nothing, word

__all__ = ["COMMANDS", "FILES", "MigDevice", "NvidiaGpu", "NvidiaHolder", "collect_nvml", "driver", "gpu_count", "gpus",
           "holder_count", "holders", "toolkit"]

GPU_FIELDS = ("index", "pci.bus_id", "name", "uuid", "memory.total", "memory.reserved", "memory.used", "memory.free",
              "driver_version", "compute_cap", "compute_mode", "mig.mode.current")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", "-q", "-x"),
    ("nvidia-smi", "--query-gpu=" + ",".join(GPU_FIELDS), "--format=csv"),
    ("nvidia-smi", "--query-compute-apps=gpu_bus_id,pid,process_name,used_gpu_memory", "--format=csv"),
    ("nvcc", "--version"),
)
FILES: tuple[str, ...] = ("/proc/driver/nvidia/version", "/proc/driver/nvidia/gpus/*/information",
                          "/usr/local/cuda/version.json")
XML, GPU_CSV, APPS_CSV, NVCC = (" ".join(argv) for argv in COMMANDS)
VERSION, INFORMATION, TOOLKIT = FILES
TABLE = "nvml"
_NO_INSTANCE = (None, 0xFFFFFFFF)


def collect_nvml(timeout_s: float = 5.0) -> list[dict[str, Any]]:
    """The table ``nvml``, taken in a child: one row per GPU, or one row with status and why. Takes no CUDA context."""
    source = pkgutil.get_data(__package__, "nvml.py") or b""
    return program.ask(sys.executable, source, (), timeout_s)


def gpus(bundle: Bundle) -> tuple[NvidiaGpu, ...]:
    """GPUs by PCI address. Each field is the first that holds a value, in the order XML, CSV, NVML, kernel driver.

    A GPU that only the kernel driver knows says in its memory fields why nvidia-smi told nothing.
    """
    found: dict[str, NvidiaGpu] = {}
    for gpu in [gpu for listing in _listings(bundle) for gpu in listing.gpus] + _driver_gpus(bundle):
        if gpu.pci:
            found[gpu.pci] = _merged(found[gpu.pci], gpu) if gpu.pci in found else gpu
    return tuple(found.values())


def gpu_count(bundle: Bundle) -> Reading:
    """How many GPUs nvidia-smi or NVML listed, or why neither listed one."""
    for listing in _listings(bundle):
        if listing.gpus:
            return seen(len(listing.gpus), "count", listing.source, listing.item)
    return _failure(bundle).reading("count", XML, bundle.read(XML).item)


def holders(bundle: Bundle) -> tuple[NvidiaHolder, ...]:
    """Processes on every GPU, from the first source with a process table; empty may mean "told nothing" (``holder_count``)."""
    return next((listing.holders for listing in _listings(bundle) if listing.processes_told), ())


def holder_count(bundle: Bundle) -> Reading:
    """How many processes are on the GPUs. 0 is an empty process table: a container may be shown one while others compute."""
    for listing in _listings(bundle):
        if listing.processes_told:
            return seen(len({holder.pid for holder in listing.holders}), "count", listing.source, listing.item)
    return _failure(bundle).reading("count", XML, bundle.read(XML).item)


def driver(bundle: Bundle) -> Reading:
    """Release of the loaded kernel module, with "(open)" for the open one, from /proc/driver/nvidia/version."""
    text = bundle.read(VERSION)
    match = re.search(r"NVRM version: NVIDIA UNIX (Open )?[^\n]{0,60}Kernel Module(?: for \S{1,20})?\s+([0-9][0-9.]{2,20})",
                      text.text)
    if match:
        return seen(match.group(2) + (" (open)" if match.group(1) else ""), "text", VERSION, text.item)
    return why_nothing(text, (), "driver release").reading("text", VERSION, text.item)


def toolkit(bundle: Bundle) -> Reading:
    """Release of the CUDA toolkit of the system; a torch wheel brings its own runtime and needs none."""
    text = bundle.read(TOOLKIT)
    version = word(mapping(mapping(find_json(text.text)).get("cuda")).get("version"), TOOLKIT, text.item)
    if version.ok:
        return version
    said = bundle.read(NVCC)
    match = re.search(r"release [0-9.]+, V([0-9.]+)", said.text)
    if match:
        return seen(match.group(1), "text", NVCC, said.item)
    return why_nothing(said, (), "release").reading("text", NVCC, said.item)


def nvml_listing(bundle: Bundle) -> Listing:
    """The table ``nvml`` as a listing, in bytes; NVML gives no names of processes."""
    item = bundle.read(TABLE).item
    found, running, told = [], [], False
    for row in bundle.table(TABLE):
        address = pci_address(row.get("pci"))
        if not address:
            continue
        raw = {**row, **{part: row.get(part + "_bytes") for part in ("total", "reserved", "used", "free")},
               "cuda": row.get("cuda_driver")}
        for field, reason in mapping(row.get("unread")).items():
            name = field.replace("_bytes", "")
            refused = NOT_ALLOWED if mapping(reason).get("status") == NOT_ALLOWED else NOT_AVAILABLE
            raw[name] = Failure(refused, str(mapping(reason).get("why") or "not read")).reading(
                "bytes" if name in SIZES else "text", TABLE, item)
        found.append(build(address, raw, TABLE, item, "B"))
        told = told or isinstance(row.get("compute"), list)
        running += _nvml_holders(address, row, item)
    return Listing(tuple(found), tuple(running), told, TABLE, item)


def _nvml_holders(address: str, row: dict[str, Any], item: str) -> list[NvidiaHolder]:
    kinds: dict[tuple[int, str], str] = {}
    memory: dict[tuple[int, str], Any] = {}
    for letter, name in (("C", "compute"), ("G", "graphics")):
        for process in listed(row.get(name)):
            pid, instance = mapping(process).get("pid"), mapping(process).get("gpu_instance")
            if type(pid) is int and pid >= 0:
                key = pid, "" if instance in _NO_INSTANCE else str(instance)
                kinds[key] = f"{kinds[key]}+{letter}" if kinds.get(key, letter) != letter else letter
                memory.setdefault(key, process.get("used_bytes"))
    return [NvidiaHolder(address, key[0], "", kind,
                         size("N/A" if memory[key] is None else memory[key], TABLE, item, "B"), key[1])
            for key, kind in kinds.items()]


def _listings(bundle: Bundle) -> tuple[Listing, ...]:
    """The answers in the order in which they are believed."""
    return (parse_xml(bundle.read(XML)), parse_gpu_csv(bundle.read(GPU_CSV)), parse_apps_csv(bundle.read(APPS_CSV)),
            nvml_listing(bundle))


def _driver_gpus(bundle: Bundle) -> list[NvidiaGpu]:
    found = []
    failure = _failure(bundle)
    for source in bundle.sources(INFORMATION):
        text = bundle.read(source)
        address = pci_address(source.split("/")[-2])
        told = dict(line.partition(":")[::2] for line in text.text.splitlines() if ":" in line)
        told = {key.strip(): value.strip() for key, value in told.items()}
        uuid = told.get("GPU UUID", "")
        if address:
            raw: dict[str, Any] = {name: failure.reading("bytes", XML) for name in SIZES}
            raw.update(name=told.get("Model"), uuid=None if "?" in uuid else uuid or None)
            found.append(build(address, raw, source, text.item))
    return found


def _failure(bundle: Bundle) -> Failure:
    """Why nothing was listed: nvidia-smi's own words, and NVML's where they add something."""
    failure = why_nothing(bundle.read(XML), FAILURES, "list of GPUs")
    row = next(iter(bundle.table(TABLE)), {})
    why = row.get("why")
    if isinstance(why, str) and why and why not in failure.why:
        return Failure(NOT_ALLOWED if NOT_ALLOWED in (failure.status, row.get("status")) else failure.status,
                       f"nvidia-smi: {failure.why}; NVML: {why}"[:400])
    return failure


def _merged(first: NvidiaGpu, other: NvidiaGpu) -> NvidiaGpu:
    better: dict[str, Any] = {field.name: getattr(other, field.name) for field in fields(first)
              if isinstance(getattr(first, field.name), Reading)
              and not getattr(first, field.name).ok and getattr(other, field.name).ok}
    return replace(first, mig=first.mig or other.mig, **better)

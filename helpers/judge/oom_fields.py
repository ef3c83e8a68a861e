"""The sizes that a failure message prints, and torch's own out-of-memory messages from 1.0 to 2.15.

Reads squeezed text: lower case, without any blank, so that a message wrapped at any column reads like a whole one. Every
pattern is bounded, so no text makes the reading slow. Wordings: CUDACachingAllocator.cpp, CUDAMallocAsyncAllocator.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "к": 1, "м": 2, "г": 3, "т": 4}
_UNIT = r"bytes?|octets?|байт|[kmgt]i?b(?:ytes?)?|[kmgt]io|[кмгт]и?б|b(?![a-z])"
NUMBER = r"[0-9][0-9.,']{0,30}"
SIZE = rf"{NUMBER}(?:{_UNIT})"
_SIZE_PARTS = re.compile(rf"({NUMBER})({_UNIT})?")
UNMEASURED_BYTES = 1 << 62
"""NVML says 2**64 - 1 for "not available"; torch prints it as 17179869184.00 GiB."""


@dataclass(frozen=True)
class Quantity:
    """A size as it was printed. The true one lies within ``precision_bytes`` of ``bytes``: half of the last printed digit."""

    bytes: int
    precision_bytes: int
    text: str


@dataclass(frozen=True)
class OomMessage:
    """One failure found in a text. A number that the text does not give is None.

    ``allocated`` counts what tensors hold plus, where ``private_pools`` is given, the idle blocks of private pools: torch adds
    them (CUDACachingAllocator.cpp, get_size_block over the pools' free blocks). ``reserved_unallocated`` is also what torch 1.0
    to 1.3 called "cached". ``requested`` of torch is a segment, not the tensor. ``pids`` goes with ``others``, entry by entry;
    NVML gives host numbers, so in a container one of them may be this process itself. ``hints``: at_create, workspace_warning,
    cuda_malloc_async, shared_memory, startup_check, expandable_segments, max_split_size_mb, address_space, warning,
    report_failed.
    """

    kind: str
    framework: str = ""
    backend: str = ""
    device: int | None = None
    requested: Quantity | None = None
    capacity: Quantity | None = None
    free: Quantity | None = None
    allowed: Quantity | None = None
    process: Quantity | None = None
    allocated: Quantity | None = None
    reserved_unallocated: Quantity | None = None
    reserved_total: Quantity | None = None
    private_pools: Quantity | None = None
    non_torch: Quantity | None = None
    others: tuple[Quantity, ...] = ()
    pids: tuple[int, ...] = ()
    hints: tuple[str, ...] = ()
    words: str = ""
    start: int = 0

    @property
    def numbers(self) -> tuple[Quantity, ...]:
        """Every size that the message gives."""
        own = (getattr(self, field.name) for field in fields(self))
        return (*(value for value in own if isinstance(value, Quantity)), *self.others)


@dataclass(frozen=True)
class Found:
    """What a wording gave: the message's own fields, where it stands in the squeezed text, and sizes that could not be read."""

    start: int
    end: int
    values: dict[str, Any]
    unread: tuple[str, ...] = ()


def quantity(text: str, retyped: bool = False) -> Quantity | None:
    """A size such as ``1.41gib``, ``1,41 GiB``, ``1,073,741,824 bytes`` or ``512``; None where it is ambiguous or not measured.

    KB, MB and GB are binary, as every program read here prints them. ``retyped``: the program never prints them, so a person
    did, and the decimal meaning lies within the precision too.
    """
    match = _SIZE_PARTS.fullmatch("".join(text.lower().split()))
    if not match:
        return None
    number, unit = match.group(1).rstrip(".,'"), match.group(2) or "bytes"
    scale = 1024 ** _POWERS[unit[0]] if unit[0] in _POWERS else 1
    parts = _digits(number.replace("'", ""), scale == 1)
    if parts is None:
        return None
    whole, decimals = parts
    value, divisor = int(whole + decimals) * scale, 10 ** len(decimals)
    size = value // divisor
    precision = 0 if scale == 1 or value == 0 else scale // (2 * divisor)
    if retyped and scale > 1 and "i" not in unit and "и" not in unit:
        precision += size - size * 1000 ** _POWERS[unit[0]] // scale
    name = unit if scale == 1 else unit[0].upper() + unit[1:-1] + unit[-1:].upper() if len(unit) < 4 else unit
    return Quantity(size, precision, f"{number} {name}") if size < UNMEASURED_BYTES else None


def _digits(number: str, whole: bool) -> tuple[str, str] | None:
    """Digits before and after the decimal sign, or None where the sign may as well part thousands."""
    marks = [char for char in number if char in ".,"]
    if not marks:
        return number, ""
    last = marks[-1]
    head, tail = number.rsplit(last, 1)
    other = "," if last == "." else "."
    if len(set(marks)) == 2:
        groups = head.split(other)
        fits = marks.count(last) == 1 and all(len(group) == 3 for group in groups[1:]) and 1 <= len(groups[0]) <= 3
        return ("".join(groups), tail) if fits and not whole else None
    groups = number.split(last)
    thousands = all(len(group) == 3 for group in groups[1:]) and 1 <= len(groups[0]) <= 3
    if len(marks) > 1 or whole:
        return ("".join(groups), "") if thousands else None
    if last == "," and thousands:
        return None
    return (head, tail) if tail else None


_SPAN = 1600
"""Squeezed characters that one message may take; the longest of torch is near 900."""
_HEAD = re.compile(r"(?:cuda|hip|xpu)outofmemory|(?<!you)triedtoallocate(?=[0-9])|torch\.(?:cuda\.)?outofmemoryerror"
                   r"|allocationondevice[0-9]{0,3}wouldexceedallowedmemory")
_TAIL = re.compile(r"hastotal|hasatotalcapac|totalcapacity;|alreadyallocated|reservedintotalby|allocatedbypytorch"
                   rf"|reservedbypytorchbut|gpu[0-9]{{0,3}}has{SIZE}total")
_TORCH = {name: tuple(re.compile(pattern.replace("SIZE", SIZE)) for pattern in patterns) for name, patterns in {
    "requested": ("triedtoallocate(SIZE)", "requested:(SIZE)"),
    "capacity": ("totalcapaci?tyof(SIZE)", "(SIZE)totalcapaci?ty", "gpu[0-9]{0,3}has(SIZE)total", "devicelimit:(SIZE)"),
    "free": ("ofwhich(SIZE)(?:is|are)?free", r"(SIZE)(?:is|are)?free(?![a-z(])", r"free\(accordingtocuda\):(SIZE)"),
    "allowed": ("(SIZE)allowed", "pytorchlimit[^:]{0,60}:(SIZE)"),
    "process": ("thisprocesshas(SIZE)memoryinuse", "(?<![a-z0-9])processhas(SIZE)memoryinuse"),
    "non_torch": ("including(SIZE)(?:of)?non-?pytorchmemory",),
    "allocated": ("(SIZE)(?:is)?allocatedbypytorch", "(SIZE)(?:is)?alreadyallocated", "currentlyallocated:(SIZE)"),
    "private_pools": ("(SIZE)(?:is)?allocatedinprivatepools",),
    "reserved_unallocated": ("(SIZE)(?:is)?reservedbypytorchbut", "(SIZE)cached"),
    "reserved_total": ("(SIZE)(?:is)?reservedintotal",),
}.items()}
_OTHER_PROCESS = re.compile(rf"process([0-9]{{1,10}})has({SIZE})memoryinuse")
# torch 2.3 printed the index as a character, so device 0 is a NUL that most pages drop.
_DEVICE = re.compile(r"gpu([0-9]{1,3})(?:has|;)|gpu([\x00-\x08])has|allocationondevice([0-9]{1,3})would")
_HINTS = (("expandable_segments", "expandable_segments:true"), ("max_split_size_mb", "max_split_size_mb"),
          ("cuda_malloc_async", "wouldexceedallowedmemory"), ("address_space", "virtualaddress"))


def torch_messages(text: str) -> Iterator[Found]:
    """Out-of-memory messages of torch's allocators, whole, abridged, or only their second half."""
    heads: list[int] = []
    last = rank = -100
    for match in _HEAD.finditer(text):
        # "OutOfMemoryError: CUDA out of memory. Tried to allocate" is one head in up to three parts.
        this = 0 if match.group().startswith("torch.") else 2 if match.group() == "triedtoallocate" else 1
        if (match.start() - last > 16 or this <= rank) and text[max(0, match.start() - 6):match.start()] != "except":
            heads.append(match.start())
        last, rank = match.end(), this
    for start, stop in zip(heads, [*heads[1:], len(text)], strict=False):
        yield _torch(text, start, min(stop, start + _SPAN))
    covered, number = 0, 0
    for match in _TAIL.finditer(text):
        if match.start() < covered:
            continue
        while number < len(heads) and heads[number] <= match.start():
            covered, number = heads[number] + _SPAN, number + 1
        if match.start() < covered:
            continue
        start = max(covered, match.start() - 60)
        stop = min(heads[number] if number < len(heads) else len(text), start + _SPAN)
        yield _torch(text, start, stop)
        covered = stop


def _torch(text: str, start: int, stop: int) -> Found:
    span = text[start:stop]
    values: dict[str, Any] = {"kind": "oom", "framework": "torch"}
    unread: list[str] = []
    end = match.end() if (match := _HEAD.match(span)) else 0
    first = len(span) if match is None else 0
    if stop - start > 40:
        for name, patterns in _TORCH.items():
            for pattern in patterns:
                if match := pattern.search(span):
                    first, end = min(first, match.start()), max(end, match.end())
                    values[name] = read_size(match.group(1), unread)
                    break
        others = [(int(match.group(1)), size, match) for match in _OTHER_PROCESS.finditer(span)
                  if (size := read_size(match.group(2), unread))]
        values["pids"] = tuple(pid for pid, _, _ in others)
        values["others"] = tuple(size for _, size, _ in others)
        end = max([end, *(match.end() for _, _, match in others)])
    elif match := _TORCH["requested"][0].search(span):
        values["requested"], end = read_size(match.group(1), unread), match.end()
    if match := _DEVICE.search(span):
        digits, char, asynchronous = match.groups()
        values["device"] = ord(char) if char else int(digits or asynchronous)
    words = span[:end + 420]
    values["hints"] = tuple(name for name, sign in _HINTS if sign in words)
    named = re.search("(cuda|hip|xpu)outofmemory", span[:80])
    values["backend"] = named.group(1).replace("xpu", "") if named else backend_of(words)
    return Found(start + min(first, end), start + end, values, tuple(unread))


def read_size(text: str, unread: list[str], retyped: bool = True) -> Quantity | None:
    """The size, or None with its text kept among the unread."""
    size = quantity(text, retyped)
    if size is None:
        unread.append(text)
    return size


def backend_of(words: str) -> str:
    """``hip``, ``cuda`` or nothing, from the names in a message. HIP first: a ROCm build says "CUDA error: HIPBLAS_...". """
    if re.search(r"hip(?:blas|error|solver|sparse|fft|graph|outof|malloc|gpu|failure|_)|rocm|rocblas|hsa_|miopen|rccl|amd|kfd"
                 r"|tensile",
                 words):
        return "hip"
    return "cuda" if re.search(r"cuda|cublas|cudnn|cufft|cusolver|cusparse|nvml|nvidia|nccl", words) else ""

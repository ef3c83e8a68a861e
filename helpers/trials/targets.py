"""Which GPUs of this machine may be loaded, and how a child process sees one of them alone."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from helpers.ground import child
from helpers.ground.units import show_bytes
from helpers.judge.holders import IN_USE_BYTES
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu
from helpers.look.gpus import gpus as gpus_of
from helpers.look.holders import Holder, holding, one_each
from helpers.look.kernel_log import Event, events
from helpers.settings.table import CONF_NAMES, NO_CACHE

FAULTS = (
    "gpu_reset",
    "vram_lost",
    "ring_timeout",
    "mes_hang",
    "vm_fault",
    "xid",
    "gpu_lost",
    "engine_fault",
)
"""Kinds of events in the kernel log after which a GPU is not trusted
(helpers/look/kernel_log.json).
"""
VISIBLE = {"amdgpu": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}
"""The variable that chooses the GPUs of a process, by the kernel's driver."""
UNBOUND = (*CONF_NAMES, *NO_CACHE)
"""Variables that a child does not get, as a limit of torch's allocator may not hold under them:
without its cache torch takes each tensor from the driver past every limit, and allocator settings
may choose another allocator or another limit.
"""


@dataclass(frozen=True)
class Target:
    """What is loaded: the GPU with the PCI address ``pci``, or the CPU (``pci`` "cpu").

    In a child the variable ``visible_variable`` has the value ``visible_value``, so that torch sees
    this GPU alone, as ``device``. ``refused`` is a sentence that says why it must not be loaded, or
    empty. ``several``: the box has others of its driver, so that a child must make sure which it
    sees.
    """

    pci: str = "cpu"
    visible_variable: str = ""
    visible_value: str = ""
    device: str = "cpu"
    several: bool = False
    refused: str = ""


CPU = Target()


def environment(
    target: Target = CPU,
    without: Collection[str] = UNBOUND,
    more: Mapping[str, str] | None = None,
    own_program: bool = True,
) -> dict[str, str]:
    """The environment of a child that sees this target alone.

    It has no variable named in ``without``; those in ``more`` are set last. ``own_program``: the
    child is a program of this checkout and must find its modules.
    """
    variables = child.environment(without, more, own_program)
    variable = target.visible_variable
    if not variable:
        return variables
    if variable == "HIP_VISIBLE_DEVICES":
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # HIP reads it, too
    elif "CUDA_VISIBLE_DEVICES" not in os.environ:
        # _visible_value counts in this order; by default CUDA counts the fastest GPU first.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    variables[variable] = target.visible_value
    return variables


def gate(gpu: Gpu, events: Iterable[Event]) -> str:
    """Why this GPU must not be loaded, as a sentence that begins with "not run because", or empty.

    The first reason that holds: a process has memory on it, memory of no visible process is used,
    or ``events`` have a fault of this boot. A fault that names no card counts for every card.
    """
    holders = one_each(holding(gpu.holders))
    if holders:
        return f"not run because {_held_by(holders)}"
    readings = [gpu.unattributed]
    # If the memory of no visible process cannot be told, all that is used counts.
    if not gpu.unattributed.ok:
        readings = [
            pool.used for pool in gpu.pools if pool.pci == gpu.pci and pool.used.ok
        ]
    used_bytes = max((reading.bytes for reading in readings), default=0)
    if used_bytes > IN_USE_BYTES:
        nobody = "by no process that can be seen from here"
        return f"not run because {show_bytes(used_bytes)} is used, {nobody}"
    of_this_boot = [event for event in events if event.boot == 0]
    faults = [event for event in of_this_boot if event.kind in FAULTS]
    faults = [event for event in faults if event.pci in ("", gpu.pci)]
    if not faults:
        return ""
    kind = faults[-1].kind.replace("_", " ")
    when = faults[-1].when
    time = ""
    if when.ok and when.unit == "text":  # a date and a time
        time = f" at {when.value}"
    elif when.ok:
        time = f" {when.value} s after boot"
    return f"not run because the kernel log shows {kind}{time}"


def _held_by(holders: Sequence[Holder]) -> str:
    """Who holds a card, in words: the first, which holds most, and how many others."""
    largest = holders[0]
    size = largest.memory.show()
    if not largest.memory.ok:
        size = f"memory ({size})"
    name = largest.name or "a process"
    words = f"{name} ({largest.pid}) holds {size}"
    if len(holders) == 2:
        words += ", and 1 other holds some"
    elif len(holders) > 2:
        words += f", and {len(holders) - 1} others hold some"
    return words


def free_targets(bundle: Bundle) -> tuple[list[Target], str]:
    """(the GPUs of a box that torch can use and nobody else uses now, why there is none)."""
    targets = targets_of(bundle)
    # The CPU, which is a target if there is no GPU that torch can use, has no such variable.
    free = [
        target for target in targets if target.visible_variable and not target.refused
    ]
    if free:
        return free, ""
    refusals = [target.refused for target in targets if target.refused]
    if not refusals:
        return [], "this box has no GPU"
    return [], "; ".join(refusals)


def targets_of(bundle: Bundle, gpu: str = "") -> list[Target]:
    """Every target of a box, some of them refused; or only the GPU ``gpu``, whoever uses it."""
    return gpu_targets(gpus_of(bundle), events(bundle), only=gpu)


def gpu_targets(
    gpus: Sequence[Gpu],
    events: Sequence[Event] = (),
    only: str = "",
    environ: Mapping[str, str] = os.environ,
) -> list[Target]:
    """The targets of a box: each GPU, or the one with the PCI address ``only``, whoever uses it;
    and the CPU if torch can use no GPU.

    ``events`` are of the kernel log, ``environ`` is the environment of this process. Raises
    ValueError if this box has no GPU ``only``.
    """
    wanted = [gpu for gpu in gpus if only.lower() in ("", gpu.pci)]
    if only and not wanted:
        listed = "no GPU"
        if gpus:
            listed = ", ".join(gpu.pci for gpu in gpus)
        raise ValueError(
            f"GPU {only!r}: this box has {listed}; give a PCI address such as "
            "0000:03:00.0"
        )
    targets = []
    for gpu in wanted:
        alike = [other for other in gpus if other.driver == gpu.driver]
        variable = VISIBLE.get(gpu.driver, "")
        value = ""
        driver = gpu.driver or "(none)"
        why_hidden = f"torch has no use for its driver {driver}"
        if variable:
            value, why_hidden = _visible_value(gpu, alike, environ)
        refused = ""
        if why_hidden:
            refused = f"not run because {why_hidden}"
        elif not only:
            refused = gate(gpu, events)
        target = Target(
            pci=gpu.pci,
            visible_variable=variable,
            visible_value=value,
            device="cuda:0",
            several=len(alike) > 1,
            refused=refused,
        )
        targets.append(target)
    if not any(target.visible_variable for target in targets):
        targets.append(CPU)
    return targets


def _visible_value(
    gpu: Gpu, alike: Sequence[Gpu], environ: Mapping[str, str]
) -> tuple[str, str]:
    """(the value of the GPU's variable of VISIBLE that makes it the only visible one, why there is
    none); ``alike`` are all GPUs of its driver.

    If ``environ`` chooses GPUs already, the value is one of these. Otherwise it is a number: for
    CUDA in PCI order (``environment`` asks for it); for ROCm that of torch, else HIP's as amd-smi
    tells it, else by the order of KFD's nodes. The number may be wrong: the child compares the PCI
    address before it takes memory (under_torch/device.py, wrong_card).
    """
    variable = VISIBLE[gpu.driver]
    choice = environ.get(variable)
    if choice is None and gpu.driver == "amdgpu":
        choice = environ.get("CUDA_VISIBLE_DEVICES")  # HIP reads it, too
    numbers = _torch_numbers(alike)
    number = numbers.get(gpu.pci)
    if choice is not None:
        # torch numbers the GPUs in the order in which they are listed there
        listed = [word.strip() for word in choice.split(",") if word.strip()]
        if number is not None and number < len(listed):
            return listed[number], ""
        return "", f"torch does not see this GPU ({variable} is set to {choice!r})"
    if numbers and number is None:
        return "", "torch does not see this GPU"
    if gpu.driver == "nvidia":
        seen = [other.pci for other in alike]
        if numbers:  # those that torch sees
            seen = list(numbers)
        return str(sorted(seen).index(gpu.pci)), ""
    if number is None:
        number = _number(gpu, "HIP")
    if number is None:
        number = sorted(alike, key=_kfd_order).index(gpu)
    return str(number), ""


def _torch_numbers(gpus: Sequence[Gpu]) -> dict[str, int]:
    """torch's numbers of the GPUs that it sees, by PCI address."""
    numbers = {}
    for gpu in gpus:
        number = _number(gpu, "torch")
        if number is not None:
            numbers[gpu.pci] = number
    return numbers


def _kfd_order(gpu: Gpu) -> tuple[int, str]:
    """The sort key of GPUs in the order of KFD's nodes; without a node by PCI address."""
    return _number(gpu, "kfd node") or 0, gpu.pci


def _number(gpu: Gpu, space: str) -> int | None:
    """The number at the end of a GPU's name in ``space``, a tool or a runtime; None without one."""
    digits = re.search(r"\d+$", gpu.indices.get(space, ""))
    if digits is None:
        return None
    return int(digits[0])

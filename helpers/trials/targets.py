"""What is loaded: which GPU of this machine, how a child comes to see it alone, and why it is
left alone.
"""

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
VISIBLE = {"amdgpu": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}
UNBOUND = (*CONF_NAMES, *NO_CACHE)
"""Under these of the user's own a limit of torch's allocator may not hold: without its cache
memory is taken from the driver past every limit, and a setting may name another allocator or
another fraction.
"""


@dataclass(frozen=True)
class Target:
    """What is checked: a GPU, made the only visible one by an environment variable, or the CPU
    (``pci`` "cpu").

    ``refused`` is why not (a sentence); ``several`` says that the box has other GPUs, so that a
    card which cannot be told is not used.
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
    """The environment of a child that sees this target alone; ``without`` are names it does not
    get, ``more`` is set last.

    ``own_program``: a program of this checkout, which must find it. Where a variable makes a choice
    of GPUs now, the target's number is one within it.
    """
    variables = child.environment(without, more, own_program)
    variable = target.visible_variable
    if not variable:
        return variables
    if variable == "HIP_VISIBLE_DEVICES":
        variables.pop("CUDA_VISIBLE_DEVICES", None)
    elif "CUDA_VISIBLE_DEVICES" not in os.environ:
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    variables[variable] = target.visible_value
    return variables


def gate(gpu: Gpu, events: Iterable[Event]) -> str:
    """Why this GPU must be left alone, as a sentence that begins with "not run because", or empty.

    Holders come first, the largest named; then memory that no visible process accounts for;
    then faults of the running boot among ``events``. A fault that names no card counts for
    every card.
    """
    holders = one_each(holding(gpu.holders))
    if holders:
        return f"not run because {_held_by(holders)}"
    readings = [gpu.unattributed]
    if not gpu.unattributed.ok:
        readings = [
            pool.used for pool in gpu.pools if pool.pci == gpu.pci and pool.used.ok
        ]
    used_bytes = max((reading.bytes for reading in readings), default=0)
    if used_bytes > IN_USE_BYTES:
        nobody = "by no process that can be seen from here"
        return f"not run because {show_bytes(used_bytes)} is used, {nobody}"
    faults = [
        event
        for event in events
        if event.kind in FAULTS and event.pci in ("", gpu.pci) and event.boot == 0
    ]
    if not faults:
        return ""
    kind = faults[-1].kind.replace("_", " ")
    when = faults[-1].when
    time = ""
    if when.ok and when.unit == "text":
        time = f" at {when.value}"
    elif when.ok:
        time = f" {when.value} s after boot"
    return f"not run because the kernel log shows {kind}{time}"


def _held_by(holders: Sequence[Holder]) -> str:
    """Who holds a card, in words: the largest, and how many others."""
    largest = holders[0]
    size = largest.memory.show()
    if not largest.memory.ok:
        size = f"memory ({size})"
    words = f"{largest.name or 'a process'} ({largest.pid}) holds {size}"
    if len(holders) == 2:
        words += ", and 1 other holds some"
    elif len(holders) > 2:
        words += f", and {len(holders) - 1} others hold some"
    return words


def free_targets(bundle: Bundle) -> tuple[list[Target], str]:
    """The GPUs of a box that torch could use and nobody else does now, and where there is none,
    why.
    """
    targets = targets_of(bundle)
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
    """Every target of a box, with why it is left alone; or the GPU ``gpu`` alone, in any case."""
    log = [event for event in events(bundle) if event.boot == 0]
    return gpu_targets(gpus_of(bundle), log, only=gpu)


def gpu_targets(
    gpus: Sequence[Gpu],
    events: Sequence[Event] = (),
    only: str = "",
    environ: Mapping[str, str] = os.environ,
) -> list[Target]:
    """The targets of a box: each GPU, or the one named by ``only``, whoever holds it, and the
    CPU where there is no GPU that torch could use.

    Raises ValueError when ``only`` is no GPU of this box.
    """
    wanted = [gpu for gpu in gpus if only.lower() in ("", gpu.pci)]
    if only and not wanted:
        listed = ", ".join(gpu.pci for gpu in gpus) or "no GPU"
        raise ValueError(
            f"GPU {only!r}: this box has {listed}; give a PCI address such as "
            "0000:03:00.0"
        )
    targets = []
    for gpu in wanted:
        alike = [other for other in gpus if other.driver == gpu.driver]
        variable = VISIBLE.get(gpu.driver, "")
        value = ""
        hidden = f"torch has no use for its driver {gpu.driver or '(none)'}"
        if variable:
            value, hidden = _visible_value(gpu, alike, environ)
        refused = ""
        if hidden:
            refused = f"not run because {hidden}"
        elif not only:
            refused = gate(gpu, events)
        targets.append(
            Target(gpu.pci, variable, value, "cuda:0", len(alike) > 1, refused)
        )
    if not any(target.visible_variable for target in targets):
        targets.append(CPU)
    return targets


def _visible_value(
    gpu: Gpu, alike: Sequence[Gpu], environ: Mapping[str, str]
) -> tuple[str, str]:
    """What to set the variable to, or why the GPU cannot be made visible; ``alike`` are all GPUs
    of its driver. A choice that the variable makes now is kept within.

    CUDA's numbers are those of PCI order, which the child's CUDA_DEVICE_ORDER asks for where
    nothing is set now; ROCm's are torch's own, HIP's as amd-smi tells it, or the order of KFD's
    nodes. The child compares addresses before it takes anything.
    """
    variable = VISIBLE[gpu.driver]
    choice = environ.get(variable)
    if choice is None and gpu.driver == "amdgpu":
        choice = environ.get("CUDA_VISIBLE_DEVICES")
    numbers = {other.pci: _number(other, "torch") for other in alike}
    numbers = {pci: number for pci, number in numbers.items() if number is not None}
    number = numbers.get(gpu.pci)
    if choice is not None:
        listed = [word.strip() for word in choice.split(",") if word.strip()]
        if number is not None and number < len(listed):
            return listed[number], ""
        return "", f"torch does not see this GPU ({variable} is set to {choice!r})"
    if numbers and number is None:
        return "", "torch does not see this GPU"
    if gpu.driver == "nvidia":
        seen = numbers or {other.pci for other in alike}
        return str(sorted(seen).index(gpu.pci)), ""
    if number is None:
        number = _number(gpu, "HIP")
    if number is None:
        by_node = sorted(
            alike, key=lambda other: (_number(other, "kfd node") or 0, other.pci)
        )
        number = by_node.index(gpu)
    return str(number), ""


def _number(gpu: Gpu, space: str) -> int | None:
    """The number by which a tool or runtime (``space``) knows a GPU."""
    digits = re.search(r"\d+$", gpu.indices.get(space, ""))
    return int(digits[0]) if digits else None

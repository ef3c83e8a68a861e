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
from helpers.look.holders import holding, one_each
from helpers.look.kernel_log import Event, events
from helpers.settings.table import CONF_NAMES, NO_CACHE

FAULTS = ("gpu_reset", "vram_lost", "ring_timeout", "mes_hang", "vm_fault", "xid")
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
    own: bool = True,
) -> dict[str, str]:
    """The environment of a child that sees this target alone; ``without`` are names it does not
    get, ``more`` is set last.

    ``own`` as of child.environment. Where a variable makes a choice of GPUs now, the target's
    number is one within it.
    """
    found = child.environment(without, more, own)
    variable = target.visible_variable
    if not variable:
        return found
    if variable == "HIP_VISIBLE_DEVICES":
        found.pop("CUDA_VISIBLE_DEVICES", None)
    elif "CUDA_VISIBLE_DEVICES" not in os.environ:
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return {**found, variable: target.visible_value}


def gate(gpu: Gpu, events: Iterable[Event], force: bool = False) -> str:
    """Why this GPU must be left alone, as a sentence that begins with "not run because", or empty.

    Holders come first, the largest named; then memory that no visible process accounts for;
    then faults of the running boot among ``events``. A fault that names no card counts for
    every card.
    """
    if force:
        return ""
    holders = one_each(holding(gpu.holders))
    if holders:
        first = holders[0]
        more = len(holders) - 1
        size = first.memory.show()
        what = size if first.memory.ok else f"memory ({size})"
        others = f", and {more} other{'s hold' if more > 1 else ' holds'} some" if more else ""
        return f"not run because {first.name or 'a process'} ({first.pid}) holds {what}{others}"
    used = [pool.used for pool in gpu.pools if pool.pci == gpu.pci and pool.used.ok]
    hidden = [gpu.unattributed] if gpu.unattributed.ok else used
    size_bytes = max((int(one.value or 0) for one in hidden), default=0)
    if size_bytes > IN_USE_BYTES:
        nobody = "by no process that can be seen from here"
        return f"not run because {show_bytes(size_bytes)} is used, {nobody}"
    faults = [e for e in events if e.kind in FAULTS and e.pci in ("", gpu.pci) and e.boot == 0]
    if not faults:
        return ""
    kind = faults[-1].kind.replace("_", " ")
    when = faults[-1].when
    time = ""
    if when.ok:
        time = f" at {when.value}" if when.unit == "text" else f" {when.value} s after boot"
    return f"not run because the kernel log shows {kind}{time}"


def free_targets(bundle: Bundle) -> tuple[list[Target], str]:
    """The GPUs of a box that torch could use and nobody else does now, and where there is none,
    why.
    """
    found = targets_of(bundle)
    free = [one for one in found if one.visible_variable and not one.refused]
    why = "; ".join(one.refused for one in found if one.refused) or "this box has no GPU"
    return free, "" if free else why


def targets_of(bundle: Bundle, gpu: str = "") -> list[Target]:
    """Every target of a box, with why it is left alone; or the GPU ``gpu`` alone, in any case."""
    log = [event for event in events(bundle) if event.boot == 0]
    return gpu_targets(gpus_of(bundle), log, force=bool(gpu), only=gpu)


def gpu_targets(
    gpus: Sequence[Gpu],
    events: Sequence[Event] = (),
    force: bool = False,
    only: str = "",
    environ: Mapping[str, str] = os.environ,
) -> list[Target]:
    """The targets of a box: each GPU, or the one named by ``only``, and the CPU where there is
    no GPU that torch could use.

    Raises ValueError when ``only`` is no GPU of this box.
    """
    here = [gpu.pci for gpu in gpus]
    if only and only.lower() not in here:
        seen = f"GPU {only!r}: this box has {', '.join(here) or 'no GPU'}"
        raise ValueError(f"{seen}; give a PCI address such as 0000:03:00.0")
    found = []
    for gpu in (gpu for gpu in gpus if only.lower() in ("", gpu.pci)):
        variable = VISIBLE.get(gpu.driver, "")
        value = ""
        hidden = f"torch has no use for its driver {gpu.driver or '(none)'}"
        if variable:
            value, hidden = _visible_value(gpu, gpus, environ)
        several = sum(other.driver == gpu.driver for other in gpus) > 1
        refused = f"not run because {hidden}" if hidden else gate(gpu, events, force)
        found.append(Target(gpu.pci, variable, value, "cuda:0", several, refused))
    return found if any(target.visible_variable for target in found) else [*found, Target()]


def _visible_value(gpu: Gpu, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[str, str]:
    """What to set the variable to, or why the GPU cannot be made visible.

    A choice that the variable makes now is kept within.

    CUDA's numbers are those of PCI order, which the child's CUDA_DEVICE_ORDER asks for where
    nothing is set now; ROCm's are torch's own, HIP's as amd-smi tells it, or the order of KFD's
    nodes. The child compares addresses before it takes anything.
    """
    variable = VISIBLE[gpu.driver]
    now = environ.get(variable)
    if now is None and gpu.driver == "amdgpu":
        now = environ.get("CUDA_VISIBLE_DEVICES")
    alike = [other for other in gpus if other.driver == gpu.driver]
    numbers = {other.pci: _number(other.indices.get("torch")) for other in alike}
    known = {pci: number for pci, number in numbers.items() if number is not None}
    if now is not None:
        listed = [word.strip() for word in now.split(",") if word.strip()]
        if known.get(gpu.pci, len(listed)) < len(listed):
            return listed[known[gpu.pci]], ""
        return "", f"torch does not see this GPU ({variable} is set to {now!r})"
    if known and gpu.pci not in known:
        return "", "torch does not see this GPU"
    if gpu.driver == "nvidia":
        return str(sorted(known or numbers).index(gpu.pci)), ""
    number = known.get(gpu.pci, _number(gpu.indices.get("HIP")))
    if number is None:
        nodes = [(_number(other.indices.get("kfd node")) or 0, other.pci) for other in alike]
        number = [pci for _, pci in sorted(nodes)].index(gpu.pci)
    return str(number), ""


def _number(text: str | None) -> int | None:
    digits = re.search(r"\d+$", text or "")
    return int(digits[0]) if digits else None

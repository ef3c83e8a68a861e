"""What is checked: which GPU, how a child comes to see it alone, and why it may have to be left alone."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from helpers import child
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Holder
from helpers.look.gpus import gpus as gpus_of
from helpers.look.kernel_log import Event, events
from helpers.look.reading import GIB, MIB, show_bytes
from helpers.settings.table import CONF_NAMES, NO_CACHE

FAULTS = ("gpu_reset", "vram_lost", "ring_timeout", "mes_hang", "vm_fault", "xid")
# What no process seen here accounts for and still is no other user: firmware, page tables, a console's framebuffer.
UNEXPLAINED_BYTES = GIB
VISIBLE = {"amdgpu": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}
SLACK_BYTES = 64 * MIB
"""What the driver may count more as used after a job than before it."""
UNBOUND = (*CONF_NAMES, *NO_CACHE)
"""Under these of the user's own a limit of torch's allocator may not hold: without its cache memory is taken from the driver
past every limit, and a setting may name another allocator or another fraction."""


@dataclass(frozen=True)
class Target:
    """What is checked: a GPU, made the only visible one by an environment variable, or the CPU (``pci`` "cpu").

    ``refused`` is why not (a sentence); ``several`` says that the box has other GPUs, so that a card which cannot be told is
    not used; ``peer`` is the second card of a pair.
    """

    pci: str = "cpu"
    visible_variable: str = ""
    visible_value: str = ""
    device: str = "cpu"
    peer: str = ""
    several: bool = False
    refused: str = ""


CPU = Target()


def environment(
    target: Target = CPU,
    without: Collection[str] = UNBOUND,
    more: Mapping[str, str] | None = None,
    own: bool = True,
) -> dict[str, str]:
    """The environment of a child that sees this target alone; ``without`` are names it does not get, ``more`` is set last.

    ``own`` as of child.environment. Where a variable makes a choice of GPUs now, the target's number is one within it.
    """
    found = child.environment(without, more, own)
    if target.visible_variable == "HIP_VISIBLE_DEVICES":
        found.pop("CUDA_VISIBLE_DEVICES", None)
    elif target.visible_variable and "CUDA_VISIBLE_DEVICES" not in os.environ:
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return (
        {**found, target.visible_variable: target.visible_value}
        if target.visible_variable
        else found
    )


def gate(gpu: Gpu, events: Iterable[Event], force: bool = False) -> str:
    """Why this GPU must be left alone, as a sentence that begins with "not run because", or empty.

    Holders come first, the largest named; then memory that no visible process accounts for; then faults of the running boot
    among ``events``. A fault that names no card counts for every card.
    """
    if force:
        return ""
    holders = sorted(
        (h for h in gpu.holders if not (h.memory.ok and h.memory.value == 0)), key=_held_bytes
    )
    if holders:
        first, more = holders[-1], len({h.pid for h in holders}) - 1
        what = (
            show_bytes(_held_bytes(first)) if first.memory.ok else f"memory ({first.memory.show()})"
        )
        others = (
            ""
            if not more
            else ", and 1 other holds some"
            if more == 1
            else f", and {more} others hold some"
        )
        return f"not run because {first.name or 'a process'} ({first.pid}) holds {what}{others}"
    hidden = gpu.unattributed
    if not hidden.ok:
        used = [pool.used for pool in gpu.pools if pool.pci == gpu.pci and pool.used.ok]
        hidden = max(used, key=lambda reading: int(reading.value or 0), default=hidden)
    if hidden.ok and int(hidden.value or 0) > UNEXPLAINED_BYTES:
        return f"not run because {show_bytes(int(hidden.value or 0))} is used, by no process that can be seen from here"
    faults = [e for e in events if e.kind in FAULTS and e.pci in ("", gpu.pci) and e.boot == 0]
    if faults:
        kind, when = faults[-1].kind.replace("_", " "), faults[-1].when
        time = (
            ""
            if not when.ok
            else f" at {when.value}"
            if when.unit == "text"
            else f" {when.value} s after boot"
        )
        return f"not run because the kernel log shows {kind}{time}"
    return ""


def free_targets(bundle: Bundle) -> tuple[list[Target], str]:
    """The GPUs of a box that torch could use and nobody else does now, and where there is none, why."""
    found = gpu_targets(gpus_of(bundle), [event for event in events(bundle) if event.boot == 0])
    free = [one for one in found if one.visible_variable and not one.refused]
    return free, "" if free else "; ".join(
        one.refused for one in found if one.refused
    ) or "this box has no GPU"


def largest_pool(bundle: Bundle) -> tuple[int, int, Gpu | None]:
    """The largest pool of a box's GPUs: its bytes, those in use as far as that is known, and whose it is; 0 without one."""
    pools = [
        (int(pool.total.value or 0), int(pool.used.value or 0) if pool.used.ok else 0, gpu)
        for gpu in gpus_of(bundle)
        for pool in gpu.pools
        if pool.total.ok
    ]
    return max(pools, key=lambda row: row[0], default=(0, 0, None))


def _held_bytes(holder: Holder) -> int:
    return int(holder.memory.value or 0) if holder.memory.ok else -1


def gpu_targets(
    gpus: Sequence[Gpu],
    events: Sequence[Event] = (),
    force: bool = False,
    only: str = "",
    environ: Mapping[str, str] = os.environ,
) -> list[Target]:
    """The targets of a box: each GPU, or the one named by ``only``, and the CPU where there is no GPU that torch could use.

    Raises ValueError when ``only`` is no GPU of this box.
    """
    if only and only.lower() not in [gpu.pci for gpu in gpus]:
        here = ", ".join(gpu.pci for gpu in gpus) or "no GPU"
        raise ValueError(
            f"GPU {only!r}: this box has {here}; give a PCI address such as 0000:03:00.0"
        )
    found = []
    for gpu in gpus:
        if only and gpu.pci != only.lower():
            continue
        variable = VISIBLE.get(gpu.driver, "")
        value, hidden = _visible_value(gpu, gpus, environ) if variable else ("", "")
        if not variable:
            hidden = f"not run because torch has no use for its driver {gpu.driver or '(none)'}"
        several = sum(other.driver == gpu.driver for other in gpus) > 1
        found.append(
            Target(
                gpu.pci, variable, value, "cuda:0", "", several, hidden or gate(gpu, events, force)
            )
        )
    return found if any(target.visible_variable for target in found) else [*found, Target()]


def _visible_value(gpu: Gpu, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[str, str]:
    """What to set the variable to, or why the GPU cannot be made visible. A choice that the variable makes now is kept within.

    CUDA's numbers are those of PCI order, which the child's CUDA_DEVICE_ORDER asks for where nothing is set now; ROCm's are
    torch's own, HIP's as amd-smi tells it, or the order of KFD's nodes. The child compares addresses before it takes anything.
    """
    variable = VISIBLE[gpu.driver]
    now = environ.get(variable)
    if now is None and gpu.driver == "amdgpu":
        now = environ.get("CUDA_VISIBLE_DEVICES")
    alike = [other for other in gpus if other.driver == gpu.driver]
    known = {
        other.pci: index
        for other in alike
        for index in [_number(other.indices.get("torch"))]
        if index is not None
    }
    if now is not None:
        listed = [word.strip() for word in now.split(",") if word.strip()]
        if known.get(gpu.pci, len(listed)) < len(listed):
            return listed[known[gpu.pci]], ""
        return "", f"not run because torch does not see this GPU ({variable} is set to {now!r})"
    if known and gpu.pci not in known:
        return "", "not run because torch does not see this GPU"
    if gpu.driver == "nvidia":
        return str(sorted(known or [other.pci for other in alike]).index(gpu.pci)), ""
    if known or _number(gpu.indices.get("HIP")) is not None:
        return str(known.get(gpu.pci, _number(gpu.indices.get("HIP")))), ""
    nodes = sorted(
        alike, key=lambda other: (_number(other.indices.get("kfd node")) or 0, other.pci)
    )
    return str(nodes.index(gpu)), ""


def _number(text: str | None) -> int | None:
    digits = re.search(r"\d+$", text or "")
    return int(digits[0]) if digits else None


def pair_targets(targets: Sequence[Target]) -> list[Target]:
    """Every pair of GPUs of one runtime; the first target alone where there is none."""
    pairs = [
        replace(
            a,
            peer=b.pci,
            visible_value=f"{a.visible_value},{b.visible_value}",
            refused=a.refused or b.refused,
        )
        for a, b in combinations([t for t in targets if t.device != "cpu"], 2)
        if a.visible_variable == b.visible_variable
    ]
    return pairs or list(targets[:1])

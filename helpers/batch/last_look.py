"""What was last read of a box, kept while runs go on, for a run whose machine goes down under it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from helpers.ground.contract import to_json
from helpers.ground.units import show_bytes
from helpers.look.earlier_boot import last_lines
from helpers.look.files import whole, write_atomic

from .look_shapes import BoxState, read_state
from .record import in_words, seconds_since
from .shapes import Run

LOOK = "last-look.json"
"""In a batch's folder: the newest look at the box."""


def keep(folder: Path, state: BoxState) -> None:
    """Leave a look in the folder of a batch; a full disk costs it."""
    with suppress(OSError):
        write_atomic(folder / LOOK, to_json(state))


def before_the_end(batch: Path, run: Run, root: str = "") -> list[str]:
    """Of a run whose machine went down: what was read of that machine last, and what its kernel
    logged last, or why not.
    """
    began_s = time.time() - seconds_since(run.started_at)
    first, *others = last_lines(run.boot_id, began_s, root)
    return [
        *_readings(batch, run.boot_id),
        f"The kernel's last words before it, {first}",
        *others,
    ]


def _readings(batch: Path, boot_id: str) -> Iterator[str]:
    head = "The last readings before it"
    try:
        look = read_state(whole(batch / LOOK))
    except FileNotFoundError:
        yield f"{head}: not available because nothing looked at that machine while it ran"
        return
    except (OSError, ValueError) as error:
        yield f"{head}: not available because {in_words(error)}"
        return
    if look.boot_id != boot_id:
        yield f"{head}: not available because the box was last looked at under another boot"
        return
    yield f"{head}, at {look.at}:"
    for gpu in look.gpus:
        for layer, used, total in gpu.pools:
            yield f"{layer} of {gpu.pci}: {show_bytes(used)} of {show_bytes(total)} in use"
        for holder in gpu.holders:
            size = "memory not measured" if holder.bytes is None else show_bytes(holder.bytes)
            yield f"{holder.name or 'a process'} ({holder.pid}) on {gpu.pci}: {size}"
        for sensor, degrees, _ in gpu.celsius:
            yield f"{sensor} of {gpu.pci}: {degrees:g} degrees Celsius"
    sizes = {
        "host memory available": look.available_bytes,
        "free on the disk": look.disk_free_bytes,
    }
    for name, size_bytes in sizes.items():
        yield f"{name}: {'not available' if size_bytes is None else show_bytes(size_bytes)}"
    for trouble in look.errors:
        yield f"{trouble.scope}: {trouble.why}"

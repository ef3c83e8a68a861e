"""What the GPUs of a box, or a card that is named, can give, as inputs of a sheet."""

from __future__ import annotations

from typing import Any, NamedTuple

from helpers.judge.ceilings import Stack, ceilings
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus
from helpers.look.parts import UNIFIED


class Room(NamedTuple):
    """What one GPU can give, what others hold of it now, and the limit that says so."""

    bytes: int
    held_bytes: int
    words: str


def cards_of(bundle: Bundle, alike: int = 0) -> dict[str, Any]:
    """What each GPU of a box can give, by the judgement that ``ttm`` makes, and what others
    hold of it now, as inputs.

    ``alike``: for a server that takes the same of so many cards, the freest of them and what is
    held of the fullest of those. Raises ValueError where no GPU memory was seen.
    """
    stacks = list(ceilings(bundle))
    if any(stack.kind in ("card", "other vendor") for stack in stacks):
        stacks = [stack for stack in stacks if stack.kind != "apu"]  # an APU beside it is idle
    by_pci = {gpu.pci: gpu for gpu in gpus(bundle)}
    rooms = [_room(stack, by_pci[stack.pci]) for stack in stacks if stack.pci in by_pci]
    rooms = [room for room in rooms if room.bytes]
    if not rooms:
        raise ValueError(f"{bundle.box}: seen no GPU memory; expected --gpu or --capacity")
    if alike:
        rooms = sorted(rooms, key=lambda room: room.held_bytes - room.bytes)[:alike]
    held = [room.held_bytes for room in rooms]
    return {
        "card_total_bytes": [room.bytes for room in rooms],
        "others_bytes": max(held) if alike else sum(held),
        "ceiling_words": "; ".join(room.words for room in rooms),
    }


def _room(stack: Stack, gpu: Gpu) -> Room:
    """What a GPU can give: the limit that binds, else its largest pool."""
    pools = [
        pool
        for pool in gpu.pools
        if pool.total.ok and ("GTT" not in pool.layer or stack.kind == "apu")
    ]
    pool = max(pools, key=lambda pool: pool.total.bytes, default=None)
    size = stack.decision.binding_bytes
    layer: str | None = stack.decision.binding
    used = 0
    if pool is not None:
        size = size or pool.total.bytes
        layer = layer or pool.layer
        used = pool.used.bytes if pool.used.ok else 0
    numbers = stack.numbers
    if numbers.kind == UNIFIED and numbers.ram and numbers.available is not None:
        size = numbers.ram
        used = numbers.ram - numbers.available
    return Room(size or 0, used, f"{stack.name or stack.pci}: {layer or 'RAM'}")

"""What the GPUs of a box, or a card that is named, can give, as inputs of a sheet."""

from __future__ import annotations

from typing import Any, NamedTuple

from helpers.ground.units import show_bytes
from helpers.judge.ceilings import Stack, ceilings
from helpers.judge.evidence import evidence_from_bundle
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus
from helpers.look.parts import UNIFIED

FAILURES = ("refused", "refused-by-limit")


class FailedProcess(NamedTuple):
    """What a process held as it failed, and what was in use of its card then, 0 where that is not
    said.
    """

    bytes: int
    used_bytes: int

    def is_still_in(self, used_bytes: int) -> bool:
        """Whether what is in use later has the process in it; it may have ended, or be another
        card's.
        """
        without = self.used_bytes - self.bytes // 2
        return self.bytes <= 1.02 * used_bytes and used_bytes >= without


NO_FAILURE = FailedProcess(0, 0)


class GpuMemory(NamedTuple):
    """What one GPU can give, what is in use of it now, what of that the failed process held, and the
    limit that says so.
    """

    bytes: int
    used_bytes: int
    failed_bytes: int
    words: str

    @property
    def held_bytes(self) -> int:
        """What others than the failed process hold, which is gone when it is started again."""
        return max(0, self.used_bytes - self.failed_bytes)


def cards_of(bundle: Bundle, alike: int = 0) -> dict[str, Any]:
    """What each GPU of a box can give, by the judgement that ``ttm`` makes, and what others
    hold of it now, as inputs; a process that failed there, by the error it left, is not counted
    among them. ``held_words`` says both figures.

    ``alike``: for a server that takes the same of so many cards, the freest of them and what is
    held of the fullest of those. Raises ValueError where no GPU memory was seen.
    """
    stacks = list(ceilings(bundle))
    if any(stack.kind in ("card", "other vendor") for stack in stacks):
        # An APU beside a card is idle.
        stacks = [stack for stack in stacks if stack.kind != "apu"]
    by_pci = {gpu.pci: gpu for gpu in gpus(bundle)}
    failures = _failures(bundle)
    rooms = [
        _room(stack, by_pci[stack.pci], failures.get(number, NO_FAILURE))
        for number, stack in enumerate(stacks)
        if stack.pci in by_pci
    ]
    rooms = [room for room in rooms if room.bytes]
    if not rooms:
        seen = f"{bundle.box}: seen no GPU memory"
        raise ValueError(f"{seen}; expected --gpu or --capacity")
    if alike:
        rooms = sorted(rooms, key=lambda room: room.held_bytes - room.bytes)[:alike]
    held_bytes = [room.held_bytes for room in rooms]
    inputs = {
        "card_total_bytes": [room.bytes for room in rooms],
        "others_bytes": max(held_bytes) if alike else sum(held_bytes),
        "ceiling_words": "; ".join(room.words for room in rooms),
    }
    if any(room.failed_bytes for room in rooms):
        inputs["held_words"] = _held_in_words(rooms)
    return inputs


def _held_in_words(rooms: list[GpuMemory]) -> str:
    """What is in use with the process that failed, and without it."""
    used = sum(room.used_bytes for room in rooms)
    failed = sum(min(room.used_bytes, room.failed_bytes) for room in rooms)
    return (
        f"In use at capture: {show_bytes(used)}, of which the process that failed held "
        f"{show_bytes(failed)}. It is counted as gone; without it others hold "
        f"{show_bytes(used - failed)}. To count it, give --held {show_bytes(used).replace(' ', '')}."
    )


def _failures(bundle: Bundle) -> dict[int, FailedProcess]:
    """The process of the error that a box left, the largest of each card, by the card's number."""
    failures: dict[int, FailedProcess] = {}
    for message in evidence_from_bundle(bundle).messages:
        if not message.process or message.event not in FAILURES:
            continue
        used = 0
        if message.capacity and message.free:
            used = message.capacity.bytes - message.free.bytes
        failed = FailedProcess(message.process.bytes, used)
        number = message.device or 0
        failures[number] = max(failed, failures.get(number, NO_FAILURE))
    return failures


def _room(stack: Stack, gpu: Gpu, failed: FailedProcess) -> GpuMemory:
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
        if pool.used.ok:
            used = pool.used.bytes
    numbers = stack.numbers
    if numbers.kind == UNIFIED and numbers.ram and numbers.available is not None:
        size = numbers.ram
        used = numbers.ram - numbers.available
    if not failed.is_still_in(used):
        failed = NO_FAILURE
    words = f"{stack.name or stack.pci}: {layer or 'RAM'}"
    return GpuMemory(size or 0, used, failed.bytes, words)

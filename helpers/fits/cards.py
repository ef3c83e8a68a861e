"""What the GPUs of a box, or a card that is named, can give, as inputs of a sheet."""

from __future__ import annotations

from typing import Any, NamedTuple

from helpers.ground.units import show_bytes
from helpers.judge.ceilings import Stack, ceilings
from helpers.judge.evidence import evidence_from_bundle
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Pool, gpus
from helpers.look.parts import UNIFIED

FAILURES = ("refused", "refused-by-limit")
"""Events of messages that say that a process got no memory."""
PRINTED_ALIKE = 1.02
"""Two figures of one thing may differ by 2 %: a message rounds, and a driver counts in pages."""


class FailedProcess(NamedTuple):
    """What a process held when it failed (``bytes``), and what was in use of its card then
    (``used_bytes``; 0: not known).
    """

    bytes: int
    used_bytes: int

    def is_still_in(self, used_bytes: int) -> bool:
        """Whether ``used_bytes``, which were in use of a card later, still count the process: it
        may have ended, or be on another card.

        The process is gone where less is in use than it held. It is gone, too, where the use fell
        by more than half of what it held: others may have taken some of it since.
        """
        least_with_it = self.used_bytes - self.bytes // 2
        return self.bytes <= PRINTED_ALIKE * used_bytes and used_bytes >= least_with_it


NO_FAILURE = FailedProcess(0, 0)


class GpuMemory(NamedTuple):
    """What one GPU can give (``bytes``), what is in use of it now, how much of that the failed
    process still holds, and ``words`` that name the GPU and the limit that decides.
    """

    bytes: int
    used_bytes: int
    failed_bytes: int
    words: str

    @property
    def held_bytes(self) -> int:
        """What others hold. The failed process is not among them: it ends before it is started
        again.
        """
        return max(0, self.used_bytes - self.failed_bytes)

    def free_bytes(self) -> int:
        """What others leave of what the GPU can give."""
        return self.bytes - self.held_bytes


def cards_of(bundle: Bundle, alike: int = 0) -> dict[str, Any]:
    """The inputs of a sheet for a box: what each of its GPUs can give (the limit that ``ttm``
    finds) and what others hold of them now. A process that left its error in the box does not
    count, since it will be started again; ``held_words`` then says what is held with it and without
    it.

    ``alike``: the server takes the same of so many cards (0: it does not). Then it is given the
    cards with the most room, and others hold what they hold of the fullest of these. Raises
    ValueError where no GPU memory was seen.
    """
    stacks = list(ceilings(bundle))
    if any(stack.kind in ("card", "other vendor") for stack in stacks):
        # Programs leave an APU idle that is beside a card.
        stacks = [stack for stack in stacks if stack.kind != "apu"]
    by_pci = {gpu.pci: gpu for gpu in gpus(bundle)}
    failures = _failures(bundle)
    memories = []
    # The number of a card in a message counts the cards that programs use: these.
    for number, stack in enumerate(stacks):
        if stack.pci in by_pci:
            failed = failures.get(number, NO_FAILURE)
            memory = _memory(stack, by_pci[stack.pci], failed)
            if memory.bytes:
                memories.append(memory)
    if not memories:
        seen = f"{bundle.box}: seen no GPU memory"
        raise ValueError(f"{seen}; expected --gpu or --capacity")
    others_bytes = sum(memory.held_bytes for memory in memories)
    if alike:
        memories.sort(key=GpuMemory.free_bytes, reverse=True)
        memories = memories[:alike]
        others_bytes = max(memory.held_bytes for memory in memories)
    inputs = {
        "card_total_bytes": [memory.bytes for memory in memories],
        "others_bytes": others_bytes,
        "ceiling_words": "; ".join(memory.words for memory in memories),
    }
    if any(memory.failed_bytes for memory in memories):
        inputs["held_words"] = _held_in_words(memories)
    return inputs


def _held_in_words(memories: list[GpuMemory]) -> str:
    """What is in use with the process that failed and without it, and how to count it."""
    used = sum(memory.used_bytes for memory in memories)
    failed = sum(min(memory.used_bytes, memory.failed_bytes) for memory in memories)
    option = f"--held {show_bytes(used).replace(' ', '')}"
    return (
        f"In use at capture: {show_bytes(used)}, of which the process that failed held "
        f"{show_bytes(failed)}. It is counted as gone; without it others hold "
        f"{show_bytes(used - failed)}. To count it, give {option}."
    )


def _failures(bundle: Bundle) -> dict[int, FailedProcess]:
    """The largest process that failed on each card, by the card's number, from the error messages
    of a box. A message that names no card counts as of card 0, which programs take first.
    """
    failures: dict[int, FailedProcess] = {}
    for message in evidence_from_bundle(bundle).messages:
        if not message.process or message.event not in FAILURES:
            continue
        used = 0  # not known, unless the message names the card's size and what is free
        if message.capacity and message.free:
            used = message.capacity.bytes - message.free.bytes
        number = 0
        if message.device is not None:
            number = message.device
        failed = FailedProcess(message.process.bytes, used)
        failures[number] = max(failed, failures.get(number, NO_FAILURE))
    return failures


def _memory(stack: Stack, gpu: Gpu, failed: FailedProcess) -> GpuMemory:
    """What a GPU can give: the limit that decides, else its largest pool. Where it has one memory
    with the processor (UNIFIED), that is all of the RAM, of which the part that is not available is
    in use.
    """
    pool = _largest_pool(gpu, with_gtt=stack.kind == "apu")
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
    name = stack.name or stack.pci
    words = f"{name}: {layer or 'RAM'}"
    return GpuMemory(size or 0, used, failed.bytes, words)


def _largest_pool(gpu: Gpu, with_gtt: bool) -> Pool | None:
    """The largest memory pool of a GPU; GTT counts only where the GPU has no memory of its own."""
    pools = [pool for pool in gpu.pools if pool.total.ok]
    if not with_gtt:
        pools = [pool for pool in pools if "GTT" not in pool.layer]
    return max(pools, key=lambda pool: pool.total.bytes, default=None)

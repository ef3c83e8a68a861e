"""What a memory snapshot of torch shows of a failure: its blocks, its out-of-memory event, and
what grows.

The allocator's room reads the snapshot and works these facts out (allocator.snapshot_facts);
here they become observations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from helpers.ground.units import MIB, show_bytes
from helpers.judge.observation import Observation, make_observation


@dataclass(frozen=True)
class Refusal:
    """The allocator at the out-of-memory event: bytes allocated, reserved and free on the
    device, and what was asked for.

    ``largest_bytes`` is the largest unused block, known where nothing happened between the
    event and the end. ``where`` is the call that asked, empty where it was not recorded.
    """

    request_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    largest_bytes: int | None
    where: str

    @property
    def stranded_bytes(self) -> int:
        """What is reserved and not allocated."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True)
class GrowingSite:
    """A call site that keeps more with each step: how many bytes over how many steps."""

    where: str
    bytes: int
    steps: int


@dataclass(frozen=True)
class SnapshotFacts:
    """What a memory snapshot shows; ``refusal`` is None where the recording has none.

    ``growing`` names the sites that grow, most bytes first of the program's own.
    """

    reserved_bytes: int
    refusal: Refusal | None = None
    growing: tuple[GrowingSite, ...] = ()


def snapshot_observations(facts: SnapshotFacts) -> Iterator[Observation]:
    """What the blocks decide, and what grows."""
    yield _observed("snapshot-reserved", facts.reserved_bytes)
    if facts.refusal is not None:
        yield from _of_refusal(facts.refusal)
    for site in facts.growing[:3]:
        if site.bytes >= MIB:
            says = (
                f"Kept by {site.where}, more with each step: so much over {site.steps} steps of "
                "the recording"
            )
            yield _observed("snapshot-grows", site.bytes, says)


def _of_refusal(refusal: Refusal) -> Iterator[Observation]:
    """The refusal, and whether its blocks prove fragmentation or a full card."""
    request = show_bytes(refusal.request_bytes)
    free = show_bytes(refusal.device_free_bytes)
    where = "an unknown call site"
    if refusal.where:
        where = refusal.where
    says = f"Asked for at {where}, and refused with {free} free"
    yield _observed("snapshot-oom", refusal.request_bytes, says)
    can_have = refusal.reserved_bytes + refusal.device_free_bytes
    lacking = refusal.allocated_bytes + refusal.request_bytes - can_have
    if lacking > 0:
        says = (
            f"Live at the failure; with {request} that is {show_bytes(lacking)} more than this "
            "process can have"
        )
        yield _observed("blocks-full", refusal.allocated_bytes, says)
    elif is_fragmented(refusal):
        largest = refusal.largest_bytes
        says = (
            f"In unused blocks, the largest of them {show_bytes(largest)}: {request} fits "
            "in their sum and in none"
        )
        yield _observed("blocks-stranded", refusal.stranded_bytes, says, largest is not None)


def is_fragmented(refusal: Refusal) -> bool:
    """Whether the unused blocks hold the request together and none of them alone.

    It is proved where the largest block is known.
    """
    if not refusal.stranded_bytes >= refusal.request_bytes > refusal.device_free_bytes:
        return False
    largest = refusal.largest_bytes
    return largest is None or largest < refusal.request_bytes


def _observed(name: str, size: int, says: str = "", proof: bool = False) -> Observation:
    return make_observation(name, size, "memory snapshot", "snapshot", says, proof=proof)

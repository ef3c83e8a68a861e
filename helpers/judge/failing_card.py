"""Which card of a box a failing program's message is about, which part of it, and who else has
memory there.

A message gives torch's index and a capacity. A MIG device has memory of its own: who is in
another one took nothing from the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.ground.shapes import Reading
from helpers.ground.units import Quantity
from helpers.judge.contradictions import TOTALS_AGREE
from helpers.judge.evidence import CaseEvidence, vendor_of
from helpers.look.gpus import Gpu
from helpers.look.holders import Holder
from helpers.look.message import Message, of_device
from helpers.look.nvidia import MigSlice

KEPT_BACK_SHARE = 0.03
"""By what share of its memory a MIG device's total in nvidia-smi may be above the capacity that
CUDA gives: estimated.
"""
LAYERS_OF_TORCH = ("torch", "KFD bank", "sysfs VRAM")
"""Layers whose total is the capacity that torch prints."""


def card_of(message: Message, cards: Sequence[Gpu]) -> Gpu | None:
    """The GPU that a message is about: by torch's index, else the only one that it can be; None
    where several can.
    """
    # By its vendor, where the message tells that.
    fitting = [card for card in cards if vendor_of((message,)) in ("", card.vendor)]
    if message.device is not None:
        index = str(message.device)
        by_index = [card for card in fitting if card.indices.get("torch") == index]
        if len(by_index) == 1:
            return by_index[0]
    if len(fitting) > 1 and message.capacity:
        fitting = [card for card in fitting if _has_total(card, message.capacity)]
    if len(fitting) == 1:
        return fitting[0]
    return None


def _has_total(card: Gpu, capacity: Quantity) -> bool:
    """Whether a layer of a GPU, or a part of it, has the capacity that a message prints."""
    margin = capacity.precision_bytes + TOTALS_AGREE
    totals = [pool.total for pool in card.pools if pool.layer in LAYERS_OF_TORCH]
    sizes = [total.bytes for total in totals if total.ok]
    if any(abs(size - capacity.bytes) <= margin for size in sizes):
        return True
    return any(is_total_of_slice(part.total, capacity) for part in card.slices)


def is_total_of_slice(total: Reading, capacity: Quantity) -> bool:
    """Whether a MIG device with this total may be the one whose capacity a message gives; CUDA
    keeps a little of it back.
    """
    if not total.ok:
        return False
    margin = capacity.precision_bytes + KEPT_BACK_SHARE * total.bytes
    return abs(total.bytes - capacity.bytes) <= margin


def slices_of(card: Gpu, evidence: CaseEvidence) -> list[MigSlice]:
    """The MIG devices of a card that the failing program may run in, by the capacity in its first
    message; none where nothing failed or the card is not split.
    """
    message = next(filter(of_device, evidence.messages), None)
    if message is None:
        return []
    capacity = message.capacity
    return [
        part
        for part in card.slices
        if capacity is None or is_total_of_slice(part.total, capacity)
    ]


def holders_beside(
    card: Gpu, cards: Sequence[Gpu], evidence: CaseEvidence
) -> tuple[Holder, ...]:
    """The holders whose memory the failing program may have lacked: all of a card that the program
    may run on, or, where the card is split into MIG devices, those in the program's own.
    """
    message = next(filter(of_device, evidence.messages), None)
    if message is None:
        return card.holders
    if card_of(message, cards) not in (None, card):
        return ()
    if not card.slices:
        return card.holders
    instances = {part.gpu_instance for part in slices_of(card, evidence)}
    if len(instances) != 1:
        return ()  # it may run in several, so nobody is known to be beside it
    return tuple(holder for holder in card.holders if holder.gpu_instance in instances)

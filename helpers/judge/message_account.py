"""The account of one message: its sums, whether fragmentation is excluded by them, and all of it
in sentences.

Every view of a message's numbers reads this one account: the sums shown, the ledger, the
verdict, an issue text.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.judge.account_lines import account_lines, message_contradictions
from helpers.judge.fragmentation import UNKNOWN, fragmentation_by_message
from helpers.judge.message_sums import MessageSums, sums_of
from helpers.look.message import Message


@dataclass(frozen=True)
class Account(MessageSums):
    """The sums of a message with what follows from them.

    ``fragmentation`` is about the sole cause, from this message alone: excluded, possible,
    likely, or unknown where a number is missing; never proved here. ``lines`` are the sums in
    sentences, ``contradictions`` those of them that cannot be together.
    """

    lines: tuple[str, ...] = ()
    fragmentation: str = UNKNOWN
    contradictions: tuple[str, ...] = ()


def account_of(message: Message) -> Account:
    """The account of one message. Pure; every message is accepted, also one without numbers.

    ``CaseEvidence.accounts`` has those of all its messages, each made once.
    """
    sums = sums_of(message)
    odd = tuple(message_contradictions(sums))
    fragmentation, why = fragmentation_by_message(sums)
    return Account(
        **vars(sums),
        lines=(*account_lines(sums), *why, *odd),
        fragmentation=fragmentation,
        contradictions=odd,
    )

"""A verdict's title: what is wrong on this very box, with its numbers, in one sentence.

headlines.json has the sentences of each failure, the fullest first, with gaps for numbers and
names; where not one can be filled, the failure's own title stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Formatter

from helpers.ground.shapes import LONGEST_TITLE, causes
from helpers.ground.units import Quantity, show_bytes
from helpers.judge import table
from helpers.judge.case_names import card_bytes
from helpers.judge.catalogue import Failure
from helpers.judge.evidence import CaseEvidence
from helpers.judge.message_account import Account
from helpers.judge.message_sums import about, above
from helpers.judge.observation import Observation, observation_name

UNATTRIBUTED = ("unattributed", "bundle")
"""What no process accounts for: of a captured box, once for each card."""


def headline(
    failure: Failure,
    names: Mapping[str, str],
    speaking: Sequence[Observation],
    evidence: CaseEvidence,
) -> str:
    """The title of a decided verdict.

    ``names``: case_names.names_of. ``speaking``: what speaks for the failure.
    """
    gaps = {**names, **_numbers(speaking, evidence)}
    title = _fullest(failure.id, gaps)
    if not title:
        return failure.title
    return title


def open_headline(
    near: Iterable[Failure], observations: Sequence[Observation], evidence: CaseEvidence
) -> str:
    """The title where the evidence does not decide: what was refused, and which causes of
    ``near`` are possible.
    """
    hard = [observation for observation in observations if observation.hard]
    quotes = [observation for observation in hard if observation.reading.unit == "text"]
    printed = [quote for quote in quotes if quote.origin == "message"]
    gaps = _numbers([*printed, *hard, *observations], evidence)
    if not printed:  # ``says`` is what the program itself printed, or nothing
        gaps.pop("says", None)
    left = [
        causes()[failure.cause]["name"] for failure in near if failure.cause != "other"
    ]
    if left:
        gaps["causes"] = ", ".join(dict.fromkeys(left))
    return _fullest("cannot-tell", gaps)


def _fullest(row: str, gaps: Mapping[str, str]) -> str:
    """The first sentence of a row of headlines.json whose gaps are all known and that is not
    longer than a title may be, filled in; empty where there is none.
    """
    for sentence in table("headlines")["titles"].get(row, ()):
        needed = {gap for _, gap, _, _ in Formatter().parse(sentence) if gap}
        if not needed <= gaps.keys():
            continue
        title = str(sentence.format_map(gaps))
        if len(title) <= LONGEST_TITLE:
            return title
    return ""


def _numbers(speaking: Sequence[Observation], evidence: CaseEvidence) -> dict[str, str]:
    """The words that may fill a gap, by the gap's name: a field of the message or of its account,
    the name of an observation (its reading), and ``says``, the first clause of the first one.
    """
    gaps: dict[str, str] = {}
    account = _account(speaking, evidence)
    if account is not None:
        gaps.update(_of_account(account))
    for observation in reversed(speaking):  # the first one wins
        gaps[observation.name] = observation.reading.show()
        first_clause = re.split(r"[.;] ", observation.says)[0]
        gaps["says"] = first_clause.rstrip(".")
    on_cards = [
        observation.reading
        for observation in speaking
        if (observation.name, observation.origin) == UNATTRIBUTED
    ]
    if len(on_cards) > 1:
        gaps["each-unattributed"] = " and ".join(reading.show() for reading in on_cards)
    # A total is named beside what nobody holds only where it is not below that, as printed: of
    # several layers one may count less memory than another has in use.
    total = card_bytes(evidence)
    most = max((reading.bytes for reading in on_cards), default=0)
    if most and (most <= total or show_bytes(most) == show_bytes(total)):
        gaps["card"] = show_bytes(total)
    return gaps


def _account(speaking: Sequence[Observation], evidence: CaseEvidence) -> Account | None:
    """The account whose numbers a title may have: the one with most numbers, of the messages that
    speak for the failure. Where none of them does but a size speaks, of all messages, since the
    size was computed from one of them. Numbers of another message belong to another failure.
    None for none.
    """
    names = {observation.name for observation in speaking}
    accounts = [
        account
        for account in evidence.accounts
        if observation_name(account.message.side, account.message.event) in names
    ]
    if not accounts and any(row.reading.unit == "bytes" for row in speaking):
        accounts = list(evidence.accounts)
    return max(accounts, key=lambda account: len(account.message.numbers), default=None)


def _of_shortfall(account: Account) -> Iterator[tuple[str, str]]:
    """The gaps ``mine``, what the program has, and ``short``, what is missing beyond free and
    cached memory, or ``joinable``, the cached memory that would have met the request.
    """
    lacking = account.lacking_with_cache
    requested = account.message.requested
    assert lacking and account.program and requested, (
        "asked only where its own comes first"
    )
    yield "mine", show_bytes(account.program.bytes)
    if lacking.bytes > lacking.precision_bytes:
        yield "short", about(lacking).replace("about ", "")
    elif account.stranded and not above(account.stranded, requested):
        yield "joinable", account.stranded.text


def _of_account(account: Account) -> Iterator[tuple[str, str]]:
    """The gaps that a message and its sums fill, each with its words."""
    message = account.message
    for name, value in (*vars(account).items(), *vars(message).items()):
        if isinstance(value, Quantity) and value.bytes > 0:
            yield name, show_bytes(value.bytes)
    # Then the title is about this program: what it has, and what it lacks.
    if account.own_comes_first:
        yield from _of_shortfall(account)
    for name in ("tokens", "fits_tokens"):
        if getattr(message, name):
            yield name, f"{getattr(message, name):,}"
    if message.name and message.pids:
        yield "victim", f"{message.name} (pid {message.pids[0]})"

"""Weights that are larger than the card, by what a program prints while it loads them."""

from __future__ import annotations

import string
from collections.abc import Iterator

from helpers.judge import form
from helpers.judge.evidence import CaseEvidence
from helpers.judge.message_account import Account
from helpers.judge.observation import Observation, make_observation
from helpers.look.message import of_device

SCALES = {"b": 10**9, "billion": 10**9, "m": 10**6, "million": 10**6, "": 1}
"""What a count of parameters is multiplied by, by the word behind it: 7B, 70 million."""


def loading_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """That all weights need more than the card has, by the first failure that shows it: by the
    parts that were loaded when the card was full, or by the number of parameters and their type.
    """
    for account in evidence.accounts:
        message = account.message
        if message.capacity is None or not of_device(message):
            continue
        before = evidence.error_text[: message.start]
        for size, says in (*_of_parts(before, account), *_of_parameters(before)):
            if size > message.capacity.bytes:
                says = f"{says}; the card has {message.capacity.text}"
                yield make_observation(
                    "weights-above-card", size, "error text", "message", says
                )
                return


def _of_parts(text: str, account: Account) -> Iterator[tuple[int, str]]:
    """The least bytes that all parts of the weights need, and a sentence; nothing where no progress
    bar shows the parts.

    All parts but the last have one size. The one that was being loaded, at most, was allocated
    beside those that were loaded.
    """
    bars = form("weights in parts").findall(text)
    if not bars or account.message.allocated is None:
        return
    loaded, parts = map(int, bars[-1])
    if loaded < parts:
        size = account.message.allocated.bytes * (parts - 1) // (loaded + 1)
        says = f"Needed for all {parts} parts of the weights, of which {loaded} were loaded"
        yield size, says


def _of_parameters(text: str) -> Iterator[tuple[int, str]]:
    """The bytes that the parameters take in the type that is printed with them, and a sentence;
    nothing where the text does not say both, or speaks of quantisation.
    """
    # Each count: a number and a word, or two forms of it.
    counts = form("parameters").findall(text)
    types = form("type of weights").findall(text)
    if not counts or len(set(types)) != 1 or form("fewer bits").search(text):
        return
    number, *scales = [group for group in counts[-1] if group]
    scale = SCALES["".join(scales).lower()]
    count = float(number.replace(",", "")) * scale
    bits = int(types[0].lstrip(string.ascii_letters))  # bf16, float32
    says = f"Needed for {count / 10**9:.1f} billion parameters of {types[0]}"
    yield int(count * bits / 8), says

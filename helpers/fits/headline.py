"""The first sentence of an answer of fits: whether the model fits, and by how much."""

from __future__ import annotations

from helpers.fits.answer import FitsAnswer
from helpers.fits.ways import Way
from helpers.ground.units import show_bytes


def headline(answer: FitsAnswer) -> str:
    """Yes, no, or what is missing to say it; before it, that a file is incomplete."""
    return f"{incomplete_file(answer)}{_yes_or_no(answer)}"


def incomplete_file(answer: FitsAnswer) -> str:
    """How much of a file is there whose end is not, to put before an answer."""
    if answer.cut_off:
        return f"The file is incomplete ({answer.cut_off}). Once it is whole: "
    return ""


def _yes_or_no(answer: FitsAnswer) -> str:
    """The headline of a whole file."""
    contexts = answer.contexts
    card = on_the_card(answer)
    if answer.incomplete and answer.fits is None:
        least = show_bytes(sum(filter(None, (row["low_bytes"] for row in answer.rows))))
        lack = f"{answer.incomplete}; what is here needs at least {least}"
        return f"Cannot tell whether it fits{card}: {lack}"
    if answer.ran is not None:
        return _of_a_log(answer)
    weights = answer.rows[0]["bytes"]
    if answer.ceiling_bytes is None and weights:
        takes = f"The weights take {show_bytes(weights)}{per_card(answer)}"
        return f"{takes}; name a card to learn whether the model fits"
    is_cache_unknown = contexts.longest is None and answer.cache["need_bytes"] is None
    if answer.spare_bytes is None or is_cache_unknown:
        lacks = "; ".join(answer.missing[:2])
        return f"Cannot tell whether it fits{card}: {lacks}"
    if contexts.longest is None:
        return _by_what_is_left(answer, answer.spare_bytes)
    if contexts.longest < contexts.least:
        return f"{_does_not_fit(answer)}{card}: {_too_much(answer, answer.spare_bytes)}"
    if contexts.has_no_end and answer.fits:
        return "The model fits with a context of any length: a token takes no memory of its own"
    return f"{with_the_context(answer)}{_longest_in_the_headline(answer)}"


def _does_not_fit(answer: FitsAnswer) -> str:
    if answer.fits is False:
        return "The model does not fit"
    return "The model likely does not fit"


def with_the_context(answer: FitsAnswer) -> str:
    """Whether the model fits, with the context asked for where there is one."""
    contexts = answer.contexts
    if contexts.asked is None:
        if contexts.holds_a_model:
            return "The model fits"
        return "The model likely fits"
    tokens = f"the {contexts.asked:,} tokens asked for"
    if contexts.asked <= contexts.certain:
        return f"The model fits with {tokens}"
    if contexts.asked <= contexts.likely:
        return f"The model likely fits with {tokens}"
    if not contexts.holds_a_model:
        return f"{_does_not_fit(answer)} with {tokens}"
    if answer.fits is False:
        return f"The model fits, but not with {tokens}"
    return f"The model fits, but likely not with {tokens}"


def _longest_in_the_headline(answer: FitsAnswer) -> str:
    """The longest context to ask for; empty where it is as likely as what was asked for."""
    contexts = answer.contexts
    tokens = contexts.longest_to_ask_for
    maxima = _other_contexts(answer)
    if tokens == contexts.longest_low == contexts.longest:
        return f"; the longest context is {tokens:,}{maxima}"
    if tokens == contexts.longest_low:
        return f"; the longest context that certainly fits is {tokens:,}{maxima}"
    if contexts.asked is None:
        return f" with a context of up to {tokens:,}{maxima}"
    return ""


def longest_line(answer: FitsAnswer) -> str:
    """The longest context to ask for, and how sure that is; empty where none can be solved for."""
    contexts = answer.contexts
    tokens = contexts.longest_to_ask_for
    if tokens is None or tokens < contexts.least or contexts.has_no_end:
        return ""
    if answer.ran is not None or answer.incomplete or answer.ceiling_bytes is None:
        return ""
    maxima = _other_contexts(answer)
    if tokens != contexts.longest_low:
        return f"Longest context: likely {tokens:,} tokens{maxima}"
    if tokens == contexts.longest:
        return f"Longest context: {tokens:,} tokens{maxima}"
    return f"Longest context: {tokens:,} tokens, certain to fit{maxima}"


def on_the_card(answer: FitsAnswer) -> str:
    """The size of the card, to put behind *fits*; empty where no card is known."""
    if answer.ceiling_bytes is None:
        return ""
    return f" in {show_bytes(answer.ceiling_bytes)}{per_card(answer)}"


def per_card(figures: FitsAnswer | Way) -> str:
    """That sizes are those of one of several cards."""
    if figures.cards_alike > 1:
        return " per card"
    return ""


def _by_what_is_left(answer: FitsAnswer, left_bytes: int) -> str:
    """Whether it fits by what is left, where no context can be solved for."""
    card = on_the_card(answer)
    if left_bytes < 0:
        return f"{_does_not_fit(answer)}{card}: {show_bytes(-left_bytes)} too much"
    if answer.fits is None:
        return f"The model likely fits{card}: {show_bytes(left_bytes)} to spare"
    return f"The model fits{card}: {show_bytes(left_bytes)} to spare"


def _too_much(answer: FitsAnswer, left_bytes: int) -> str:
    """By how much it misses with the context that is counted, and what takes most."""
    weights = answer.rows[0]["bytes"]
    contexts = answer.contexts
    misses = f"{show_bytes(max(0, -left_bytes))} too much"
    if contexts.counted:
        misses += f" with a context of {contexts.counted:,}"
    if weights and answer.ceiling_bytes and weights > answer.ceiling_bytes:
        return f"{misses}; the weights alone take {show_bytes(weights)}"
    others = next(row["bytes"] for row in answer.rows if row["part"] == "others")
    if others:
        return f"{misses}; others hold {show_bytes(others)}"
    if not contexts.likely:
        return f"{misses}; nothing is left for it beside the weights"
    return f"{misses}; beside the weights there is room for {contexts.likely:,} tokens"


def _other_contexts(answer: FitsAnswer) -> str:
    """What the longest context is to be compared with, in brackets: that none was asked for, the
    server's default, the model's maximum.

    Empty where the model has as many tokens as were asked for, and they are too many.
    """
    contexts = answer.contexts
    if contexts.longest_to_ask_for == contexts.model:
        return ", the model's own maximum"
    if (
        contexts.asked is not None
        and contexts.model is not None
        and contexts.certain < contexts.asked <= contexts.model
    ):
        return ""
    parts = []
    if contexts.asked is None:
        parts.append("asked: none")
    if contexts.default not in (None, contexts.model, contexts.asked):
        parts.append(f"{answer.program}'s default here is {contexts.default:,}")
    if contexts.model is not None:
        parts.append(f"the model's own maximum is {contexts.model:,}")
    if not parts:
        return ""
    return f" ({'; '.join(parts)})"


def _of_a_log(answer: FitsAnswer) -> str:
    """How a server's log ended, and what it had room for."""
    if answer.ran:
        return _of_a_server_that_runs(answer)
    longest = answer.solved["context"]
    left = answer.spare_bytes
    asked_for = answer.contexts.asked
    says = f"It does not fit{on_the_card(answer)}"
    if left is not None and left < 0:
        says += f": {show_bytes(-left)} too much"
    if longest and asked_for and longest < asked_for:
        says += f"; the longest context is {longest:,} (asked: {asked_for:,})"
    return says


def _of_a_server_that_runs(answer: FitsAnswer) -> str:
    tokens = answer.solved["tokens"]
    left = answer.spare_bytes
    asked_for = answer.contexts.asked
    if answer.fits is False and tokens and asked_for:
        return (
            f"The server runs, but a request of {asked_for:,} tokens does not fit: its pool holds "
            f"{tokens:,}"
        )
    if answer.fits is False:
        layers = answer.solved["layers_on_gpu"]
        return f"The server runs with {layers} layers on the card, the rest on the CPU"
    says = f"It fits{on_the_card(answer)}"
    if left is not None and left >= 0:
        says += f": {show_bytes(left)} to spare"
    return says

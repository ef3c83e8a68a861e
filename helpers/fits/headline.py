"""The first sentence of an answer of fits: whether the model fits, and by how much."""

from __future__ import annotations

from helpers.fits.answer import FitsAnswer
from helpers.fits.ways import Way
from helpers.ground.units import show_bytes


def headline(answer: FitsAnswer) -> str:
    """Whether the model fits, or what is missing to tell. For a file whose end is missing, words
    that say so come first.
    """
    return f"{incomplete_file(answer)}{_yes_or_no(answer)}"


def incomplete_file(answer: FitsAnswer) -> str:
    """The words before an answer where the end of the file is missing; else empty."""
    if answer.cut_off:
        return f"The file is incomplete ({answer.cut_off}). Once it is whole: "
    return ""


def _yes_or_no(answer: FitsAnswer) -> str:
    """The headline without the words about a file whose end is missing: about the whole file."""
    contexts = answer.contexts
    card = on_the_card(answer)
    if answer.incomplete and answer.fits is None:
        sizes = [row["low_bytes"] for row in answer.rows]
        least = show_bytes(sum(size for size in sizes if size is not None))
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
        lacks = "; ".join(answer.missing[:2])  # the rest is in the answer below
        return f"Cannot tell whether it fits{card}: {lacks}"
    if contexts.longest is None:
        return _by_what_is_left(answer, answer.spare_bytes)
    if contexts.longest < contexts.least:
        return f"{_does_not_fit(answer)}{card}: {_too_much(answer, answer.spare_bytes)}"
    # A token takes no memory in a model of states alone.
    if contexts.has_no_end and answer.fits:
        return "The model fits with a context of any length: a token takes no memory of its own"
    return f"{with_the_context(answer)}{_longest_in_the_headline(answer)}"


def _does_not_fit(answer: FitsAnswer) -> str:
    """That the model does not fit; that it likely does not, where the answer is not certain."""
    if answer.fits is False:
        return "The model does not fit"
    return "The model likely does not fit"


def with_the_context(answer: FitsAnswer) -> str:
    """Whether the model fits, and with the context that was asked for, if any."""
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
    """How the headline goes on about the longest context to ask for: the longest there is, or the
    longest that certainly fits, or a likely one.

    It is empty where a context was asked for and the longest one is no more than likely: then the
    words about the context that was asked for say enough.
    """
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
    """A line about the longest context to ask for, and how sure that is.

    It is empty where the context is not known, too short to be of use, or without end. It is empty,
    too, for a log, for weights of which parts are not here, and without a card.
    """
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
    """The size of the card, as it follows the word *fits*; empty where no card is known."""
    if answer.ceiling_bytes is None:
        return ""
    return f" in {show_bytes(answer.ceiling_bytes)}{per_card(answer)}"


def per_card(figures: FitsAnswer | Way) -> str:
    """The words that say that a size is that of one of several cards; empty for one card."""
    if figures.cards_alike > 1:
        return " per card"
    return ""


def _by_what_is_left(answer: FitsAnswer, left_bytes: int) -> str:
    """Whether the model fits, by the bytes that are left, where no longest context is known."""
    card = on_the_card(answer)
    if left_bytes < 0:
        return f"{_does_not_fit(answer)}{card}: {show_bytes(-left_bytes)} too much"
    if answer.fits is None:
        return f"The model likely fits{card}: {show_bytes(left_bytes)} to spare"
    return f"The model fits{card}: {show_bytes(left_bytes)} to spare"


def _too_much(answer: FitsAnswer, left_bytes: int) -> str:
    """How much more than the card has the model needs with the context that is counted, and the
    first reason that holds: its weights alone, what others hold, or what is left for the context.
    """
    weights = answer.rows[0]["bytes"]
    ceiling = answer.ceiling_bytes
    contexts = answer.contexts
    misses = f"{show_bytes(max(0, -left_bytes))} too much"
    if contexts.counted:
        misses += f" with a context of {contexts.counted:,}"
    if weights and ceiling and weights > ceiling:
        return f"{misses}; the weights alone take {show_bytes(weights)}"
    others = next(row["bytes"] for row in answer.rows if row["part"] == "others")
    if others:
        return f"{misses}; others hold {show_bytes(others)}"
    if not contexts.likely:
        return f"{misses}; nothing is left for it beside the weights"
    return f"{misses}; beside the weights there is room for {contexts.likely:,} tokens"


def _other_contexts(answer: FitsAnswer) -> str:
    """Contexts to compare the longest one with, in brackets: that none was asked for, the server's
    default, the model's maximum.

    Empty where only memory keeps the model from the context that was asked for: then no other
    context matters.
    """
    contexts = answer.contexts
    asked = contexts.asked
    if contexts.longest_to_ask_for == contexts.model:
        return ", the model's own maximum"
    if contexts.only_memory_is_short:
        return ""
    parts = []
    if asked is None:
        parts.append("asked: none")
    if contexts.default not in (None, contexts.model, asked):
        parts.append(f"{answer.program}'s default here is {contexts.default:,}")
    if contexts.model is not None:
        parts.append(f"the model's own maximum is {contexts.model:,}")
    if not parts:
        return ""
    return f" ({'; '.join(parts)})"


def _of_a_log(answer: FitsAnswer) -> str:
    """The headline for a server's log: that it runs, or that it does not fit, by how much, and the
    longest context that it had room for, where that is less than the one asked for.
    """
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
    """The headline for the log of a server that started. It may still lack memory for a request of
    the context that was asked for, or for some layers.
    """
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

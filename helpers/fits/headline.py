"""The first sentence of an answer of fits: whether the model fits, and by how much."""

from __future__ import annotations

from helpers.fits.answer import FitsAnswer
from helpers.fits.ways import Way
from helpers.ground.units import show_bytes


def headline(answer: FitsAnswer) -> str:
    """Yes, no, or what is missing to say it; before it, that a file is incomplete."""
    return f"{incomplete_file(answer)}{_says(answer)}"


def incomplete_file(answer: FitsAnswer) -> str:
    """How much of a file is there whose end is not, to put before an answer."""
    if answer.cut_off:
        return f"The file is incomplete ({answer.cut_off}). Once it is whole: "
    return ""


def _says(answer: FitsAnswer) -> str:
    if answer.incomplete and answer.fits is None:
        within = within_the_card(answer)
        least = show_bytes(sum(row["low_bytes"] or 0 for row in answer.rows))
        part = f"{answer.incomplete}; what is here needs at least {least}"
        return f"Cannot tell whether it fits{within}: {part}"
    if answer.ran is not None:
        return of_a_log(answer)
    if answer.ceiling_bytes is None and answer.rows[0]["bytes"]:
        weights = show_bytes(answer.rows[0]["bytes"])
        return f"The weights take {weights}{per_card(answer)}; name a card to learn whether the model fits"
    contexts = answer.contexts
    is_part_unknown = contexts.longest is None and answer.cache["need_bytes"] is None
    if answer.spare_bytes is None or is_part_unknown:
        why = "; ".join(answer.missing[:2])
        return f"Cannot tell whether it fits{within_the_card(answer)}: {why}"
    if contexts.longest is None:
        return by_the_sum(answer)
    if contexts.longest < contexts.least:
        likely = "" if answer.fits is False else "likely "
        return f"The model {likely}does not fit{within_the_card(answer)}: {too_much(answer)}"
    if contexts.has_no_end and answer.fits:
        return "The model fits with a context of any length: a token takes no memory of its own"
    return f"{with_the_context(answer)}{_longest_in_the_headline(answer)}"


def with_the_context(answer: FitsAnswer) -> str:
    """Whether the model fits, with the context asked for where there is one."""
    contexts = answer.contexts
    asked = contexts.asked
    if asked is None:
        return "The model fits" if contexts.holds_a_model else "The model likely fits"
    tokens = f"the {asked:,} tokens asked for"
    if asked <= (contexts.longest_low or 0):
        return f"The model fits with {tokens}"
    if asked <= (contexts.longest or 0):
        return f"The model likely fits with {tokens}"
    likely = "" if answer.fits is False else "likely "
    if contexts.holds_a_model:
        return f"The model fits, but {likely}not with {tokens}"
    return f"The model {likely}does not fit with {tokens}"


def _longest_in_the_headline(answer: FitsAnswer) -> str:
    """The longest context to ask for; empty where it is as likely as what was asked for."""
    contexts = answer.contexts
    tokens = contexts.longest_to_ask_for or 0
    beside = _beside(answer)
    if tokens == contexts.longest_low == contexts.longest:
        return f"; the longest context is {tokens:,}{beside}"
    if tokens == contexts.longest_low:
        return f"; the longest context that certainly fits is {tokens:,}{beside}"
    if contexts.asked is None:
        return f" with a context of up to {tokens:,}{beside}"
    return ""


def longest_line(answer: FitsAnswer) -> str:
    """The longest context to ask for, and how sure that is; empty where none can be solved for."""
    contexts = answer.contexts
    tokens = contexts.longest_to_ask_for
    if (
        tokens is None
        or tokens < contexts.least
        or contexts.has_no_end
        or answer.ran is not None
    ):
        return ""
    if answer.incomplete or answer.ceiling_bytes is None:
        return ""
    if tokens != contexts.longest_low:
        return f"Longest context: likely {tokens:,} tokens{_beside(answer)}"
    if tokens == contexts.longest:
        return f"Longest context: {tokens:,} tokens{_beside(answer)}"
    return f"Longest context: {tokens:,} tokens, certain to fit{_beside(answer)}"


def within_the_card(answer: FitsAnswer) -> str:
    if answer.ceiling_bytes is None:
        return ""
    return f" in {show_bytes(answer.ceiling_bytes)}{per_card(answer)}"


def per_card(figures: FitsAnswer | Way) -> str:
    """That sizes are those of one of several cards."""
    return " per card" if figures.cards_alike > 1 else ""


def by_the_sum(answer: FitsAnswer) -> str:
    """Whether it fits by what is left, where no context can be solved for."""
    left = answer.spare_bytes or 0
    likely = "" if answer.fits is not None else "likely "
    if left >= 0:
        return f"The model {likely}fits{within_the_card(answer)}: {show_bytes(left)} to spare"
    return f"The model {likely}does not fit{within_the_card(answer)}: {show_bytes(-left)} too much"


def too_much(answer: FitsAnswer) -> str:
    """By how much it misses with the context reckoned with, and what takes most."""
    weights = answer.rows[0]["bytes"]
    contexts = answer.contexts
    short = show_bytes(max(0, -(answer.spare_bytes or 0)))
    misses = f"{short} too much"
    if contexts.served:
        misses += f" with a context of {contexts.served:,}"
    if weights and answer.ceiling_bytes and weights > answer.ceiling_bytes:
        return f"{misses}; the weights alone take {show_bytes(weights)}"
    others = next(row["bytes"] for row in answer.rows if row["part"] == "others")
    if others:
        return f"{misses}; others hold {show_bytes(others)}"
    if not contexts.longest:
        return f"{misses}; nothing is left for it beside the weights"
    return f"{misses}; beside the weights there is room for {contexts.longest:,} tokens"


def _beside(answer: FitsAnswer) -> str:
    """That nothing was asked for, the server's own default where it is another, and the model's
    maximum. Nothing where a context that was asked for is too long, and the model has as much.
    """
    contexts = answer.contexts
    if contexts.longest_to_ask_for == contexts.model:
        return ", the model's own maximum"
    parts = []
    if (contexts.longest_low or 0) < (contexts.asked or 0) <= (contexts.model or 0):
        return ""
    if contexts.asked is None:
        parts.append("asked: none")
    if contexts.default not in (None, contexts.model, contexts.asked):
        parts.append(f"{answer.program}'s default here is {contexts.default:,}")
    if contexts.model is not None:
        parts.append(f"the model's own maximum is {contexts.model:,}")
    return f" ({'; '.join(parts)})" if parts else ""


def of_a_log(answer: FitsAnswer) -> str:
    """How a server's log ended, and what it had room for."""
    wanted = answer.contexts.asked
    longest = answer.solved.get("context")
    tokens = answer.solved.get("tokens")
    layers = answer.solved.get("layers_on_gpu")
    if answer.ran and answer.fits is False and tokens and wanted:
        return (
            f"The server runs, but a request of {wanted:,} tokens does not fit: its pool holds "
            f"{tokens:,}"
        )
    if answer.ran and answer.fits is False:
        return f"The server runs with {layers} layers on the card, the rest on the CPU"
    if answer.ran:
        left = answer.spare_bytes
        rest = "" if left is None or left < 0 else f": {show_bytes(left)} to spare"
        return f"It fits{within_the_card(answer)}{rest}"
    left = answer.spare_bytes
    head = f"It does not fit{within_the_card(answer)}"
    if left is not None and left < 0:
        head += f": {show_bytes(-left)} too much"
    if longest and wanted and longest < wanted:
        head += f"; the longest context is {longest:,} (asked: {wanted:,})"
    return head

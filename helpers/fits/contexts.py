"""The context that was asked for, what a server takes where none was, and the longest that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from helpers.fits.arithmetic import whole
from helpers.fits.sheet import HIGH, LIKELY, LOW, Sheet
from helpers.fits.solving import context

LEAST_CONTEXT = 4096
"""Tokens below which a model is of no use on a card: the least that llama.cpp's --fit goes down to
(common/common.h, fit_params_min_ctx).
"""
ENDLESS = 1 << 24
"""Tokens from which a context counts as endless: the most that is tried where a model names no
maximum (n_ctx_most of servers.json).
"""


@dataclass
class Contexts:
    """Contexts in tokens, None where they are not known. Its fields are part of an answer's JSON.

    - ``asked``: what the user asked for
    - ``default``: what the server takes by itself, with ``default_source``
    - ``model``: the model's own maximum
    - ``longest``: the longest that likely fits; ``longest_low``: that certainly fits;
      ``longest_high``: that may fit at best
    - ``token_bytes``: bytes of a token in the cache of each card
    """

    asked: int | None
    default: int | None
    default_source: str
    model: int | None
    longest: int | None
    longest_low: int | None
    longest_high: int | None
    token_bytes: int | None

    @property
    def has_no_end(self) -> bool:
        """Whether no context is too long: the model has no maximum, and no token takes memory."""
        if self.model is not None or self.longest is None:
            return False
        return self.longest >= ENDLESS

    @property
    def least(self) -> int:
        """The fewest tokens that are of use: LEAST_CONTEXT, or less where less was asked for, or
        where the model's own maximum is less.
        """
        return min(filter(None, (LEAST_CONTEXT, self.model, self.asked)))

    @property
    def certain(self) -> int:
        """The longest context that certainly fits, 0 where none is known."""
        return self.longest_low or 0

    @property
    def likely(self) -> int:
        """The longest context that likely fits, 0 where none is known."""
        return self.longest or 0

    @property
    def only_memory_is_short(self) -> bool:
        """Whether the model has the context that was asked for, and it does not certainly fit."""
        if self.asked is None or self.model is None:
            return False
        return self.certain < self.asked <= self.model

    @property
    def counted(self) -> int | None:
        """The context that the rows are counted for: what was asked for, else the server's default,
        but no more than the longest to ask for. Where that is too short to be of use, ``least``
        counts, so that the rows show what is lacking. None where no default is known.
        """
        if self.asked is not None:
            return self.asked
        if self.default is None or self.longest_to_ask_for is None:
            return self.default
        return min(self.default, max(self.longest_to_ask_for, self.least))

    @property
    def to_start_with(self) -> int:
        """The context to start a server with: what was asked for where that likely fits, else the
        longest to ask for; 0 where nothing is known.
        """
        longest = self.longest
        if longest is None:  # not known: what was asked for may fit
            longest = ENDLESS
        if self.asked is not None and self.asked <= longest:
            return self.asked
        for tokens in (self.longest_to_ask_for, self.default):
            if tokens is not None:
                return tokens
        return 0

    @property
    def longest_to_ask_for(self) -> int | None:
        """The longest context that certainly fits; where that is too short to be of use, the
        longest that likely fits, None where that is not known.
        """
        if self.certain >= self.least:
            return self.certain
        return self.longest

    @property
    def holds_a_model(self) -> bool | None:
        """Whether a context that is of use fits: True where it certainly does, False where it does
        not even at best, None between them.
        """
        if self.certain >= self.least:
            return True
        if self.longest_high is not None and self.longest_high < self.least:
            return False
        return None


def contexts_of(sheets: Mapping[str, Sheet]) -> Contexts:
    """The contexts of a server; ``sheets`` are by the ends of their ranges."""
    sheet = sheets[LIKELY]
    asked = None
    if "n_ctx" in sheet.inputs:
        asked = int(sheet.n_ctx)
    return Contexts(
        asked=asked,
        default=whole(sheet.value("default_context")),
        default_source=sheet.sources.get("default_context", ""),
        model=whole(sheet.value("n_ctx_train")),
        longest=context(sheet),
        longest_low=context(
            sheets[HIGH]
        ),  # the shortest, as all else takes the most there
        longest_high=context(sheets[LOW]),
        token_bytes=whole(sheet.value("token_bytes")),
    )

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
NO_LONGEST = 1 << 24
"""Tokens from which a context counts as endless (servers.json, n_ctx_most)."""


@dataclass
class Contexts:
    """Tokens, None where they are not known.

    ``asked``: for how many somebody asked; ``default``: how many the server takes by itself, with
    ``default_source``; ``model``: the model's own maximum; ``longest``: what fits, likely;
    ``longest_low``: what fits certainly, ``longest_high``: what may fit at best; ``token_bytes`` of
    the cache, on each card.
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
        """Whether nothing ends the context: the model names no maximum, and no token takes memory."""
        return (
            self.model is None
            and self.longest is not None
            and self.longest >= NO_LONGEST
        )

    @property
    def least(self) -> int:
        """The fewest tokens with which the model is of use, to whoever asked for fewer, too."""
        return min(filter(None, (LEAST_CONTEXT, self.model, self.asked)))

    @property
    def certain(self) -> int:
        """The longest context that certainly fits, 0 where none is known to."""
        return self.longest_low or 0

    @property
    def likely(self) -> int:
        """The longest context that likely fits, 0 where none is known to."""
        return self.longest or 0

    @property
    def counted(self) -> int | None:
        """The context that the rows are counted for: as asked, else the default where it fits,
        else the longest.
        """
        if self.asked is not None:
            return self.asked
        if self.default is None or self.longest_to_ask_for is None:
            return self.default
        return min(self.default, max(self.longest_to_ask_for, self.least))

    @property
    def to_start_with(self) -> int:
        """The context to start a server with: as asked where that fits, else the longest to ask
        for; 0 where neither is known.
        """
        if self.asked is not None and (
            self.longest is None or self.asked <= self.longest
        ):
            return self.asked
        for tokens in (self.longest_to_ask_for, self.default):
            if tokens is not None:
                return tokens
        return 0

    @property
    def longest_to_ask_for(self) -> int | None:
        """The longest context that is certain, or the likely one where no context of use is certain."""
        if self.certain >= self.least:
            return self.certain
        return self.longest

    @property
    def holds_a_model(self) -> bool | None:
        """Whether a context of use fits, where none was asked for; None where that is not certain."""
        if self.certain >= self.least:
            return True
        if self.longest_high is not None and self.longest_high < self.least:
            return False
        return None


def contexts_of(sheets: Mapping[str, Sheet]) -> Contexts:
    """The contexts of a server, by its sheets at the ends of their ranges."""
    sheet = sheets[LIKELY]
    default = whole(sheet.value("default_context"))
    return Contexts(
        asked=int(sheet.n_ctx) if "n_ctx" in sheet.inputs else None,
        default=default,
        default_source=sheet.sources.get("default_context", ""),
        model=whole(sheet.value("n_ctx_train")),
        longest=context(sheet),
        longest_low=context(sheets[HIGH]),
        longest_high=context(sheets[LOW]),
        token_bytes=whole(sheet.value("token_bytes")),
    )

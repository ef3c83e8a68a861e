"""What a person reads before it leaves: each text that was left out, and what they ticked."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import category

from helpers.look.files import json_of
from helpers.tell.prose import uncoloured
from helpers.tell.render import render

from .redactor import Redactor
from .secrets import is_secret
from .subject import ShareError, Subject
from .texts import SharedText, of_bundle

Choices = frozenset[str]
"""Digests of the texts that a person ticked."""
NOTHING_TICKED: Choices = frozenset()
INVISIBLE = "Cf"
"""Unicode's category of characters that only format: of no width, or for a direction."""
FEW_LINES = 10
EXPECTED = "expected the file that the review page saved"


@dataclass(frozen=True)
class ReviewRow:
    """A text of the review, without what is known of the box in it."""

    text: SharedText
    redactor: Redactor

    @property
    def digest(self) -> str:
        return self.text.digest

    @cached_property
    def _printed(self) -> str:
        """The text as a screen shows it: no colours, nothing invisible that hides a name, and each
        state of a progress bar in a line of its own.
        """
        lines = "\n".join(self.text.text.splitlines())
        for char in set(lines):
            if category(char) == INVISIBLE:
                lines = lines.replace(char, "")
        return uncoloured(lines)

    @cached_property
    def shown(self) -> str:
        """The text as it would stand on the page."""
        return self.redactor.redacted(self._printed)

    @property
    def about(self) -> str:
        """Its kind, and how many lines it has where they are many."""
        lines = self.shown.count("\n") + 1
        if lines <= FEW_LINES:
            return self.text.kind
        return f"{self.text.kind}, {lines} lines"

    @cached_property
    def is_secret(self) -> bool:
        """Whether it holds what looks like a secret, so that it cannot be ticked."""
        return is_secret(self._printed)


@dataclass(frozen=True)
class Review:
    """Every text of a subject that stays at home unless it is ticked."""

    name: str
    rows: tuple[ReviewRow, ...]

    def ticked(self, choices: Choices) -> list[ReviewRow]:
        """The rows that were ticked and hold no secret. A digest of no row picks nothing."""
        return [row for row in self.rows if row.digest in choices and not row.is_secret]

    def unknown(self, choices: Choices) -> int:
        """How many ticks are of no text here: it has changed since, or is of another subject."""
        return len(choices - {row.digest for row in self.rows})

    def groups(self) -> Mapping[str, list[ReviewRow]]:
        """The rows by their place, in order."""
        groups: dict[str, list[ReviewRow]] = {}
        for row in self.rows:
            groups.setdefault(row.text.where, []).append(row)
        return groups

    def html(self, choices: Choices = NOTHING_TICKED, command: str = "") -> str:
        """The page on which a person ticks what may leave: one file, which sends nothing.

        What was ticked before, by ``choices``, is ticked. ``command`` makes the page for others,
        and is shown with the file of the choices when they are saved.
        """
        page = render(
            "review.html.j2",
            subject=self.name,
            groups=self.groups(),
            rows=self.rows,
            choices=choices,
            command=command,
        )
        return str(page)


def review_beside(about: Subject, said: Container[str]) -> Review:
    """The review of a subject beside the sentences that its page has already, ``said``; a text that
    stands in several places is asked for once.
    """
    texts = [text for text in about.texts if text.text not in said]
    if about.bundle is not None:
        texts += of_bundle(about.bundle)
    once: dict[str, SharedText] = {}
    for text in texts:
        once.setdefault(text.digest, text)
    redactor = Redactor(about.bundle)
    return Review(
        about.name, tuple(ReviewRow(text, redactor) for text in once.values())
    )


def save_choices(folder: Path, name: str, choices: Choices) -> Path:
    """Write choices below a folder, as the review page saves them, for their owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{name}.choices.json"
    out.touch(mode=0o600)
    out.write_text(json.dumps({"include": sorted(choices)}, indent=1), "utf-8")
    return out


def read_choices(path: Path) -> Choices:
    """The choices that the review page saved. Raises ShareError in one line for another file."""
    try:
        saved: Any = json_of(path)
        return frozenset(map(str, saved["include"]))
    except OSError as error:
        raise ShareError(f"{path}: {error.strerror}; {EXPECTED}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ShareError(f"{path}: no list 'include' in it; {EXPECTED}") from error

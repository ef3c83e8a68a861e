"""The review of a page by its owner: each text that is left out, and which of them were ticked."""

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
"""Unicode's category of format characters: those of no width, and those that set a direction."""
FEW_LINES = 10
"""A text of at most so many lines is seen as a whole beside its tick box."""
EXPECTED = "expected the file that the review page saved"


@dataclass(frozen=True)
class ReviewRow:
    """A text of the review; ``redactor`` replaces private values of the box in it."""

    text: SharedText
    redactor: Redactor

    @property
    def digest(self) -> str:
        """What identifies the text in a file of choices."""
        return self.text.digest

    @cached_property
    def _printed(self) -> str:
        """The text as a screen shows it: without colours, without invisible characters, which could
        hide a name from the redactor, and with each state of a progress bar in a line of its own.
        """
        lines = "\n".join(self.text.text.splitlines())
        for char in set(lines):
            if category(char) == INVISIBLE:
                lines = lines.replace(char, "")
        return uncoloured(lines)

    @cached_property
    def shown(self) -> str:
        """The text as the page would have it."""
        return self.redactor.redacted(self._printed)

    @property
    def about(self) -> str:
        """The kind of the text, and the number of its lines if that is above FEW_LINES."""
        lines = self.shown.count("\n") + 1
        if lines <= FEW_LINES:
            return self.text.kind
        return f"{self.text.kind}, {lines} lines"

    @cached_property
    def is_secret(self) -> bool:
        """Whether the text seems to have a secret in it, so that it cannot be ticked."""
        return is_secret(self._printed)


@dataclass(frozen=True)
class Review:
    """Every text of a subject that is not shared unless it is ticked."""

    name: str
    rows: tuple[ReviewRow, ...]

    def ticked(self, choices: Choices) -> list[ReviewRow]:
        """The rows that were ticked and have no secret. A digest without a row is ignored."""
        return [row for row in self.rows if row.digest in choices and not row.is_secret]

    def unknown(self, choices: Choices) -> int:
        """How many ticks match no text here: it has changed since, or is of another subject."""
        return len(choices - {row.digest for row in self.rows})

    def groups(self) -> Mapping[str, list[ReviewRow]]:
        """The rows by their place, such as "cell 3", in order."""
        groups: dict[str, list[ReviewRow]] = {}
        for row in self.rows:
            groups.setdefault(row.text.where, []).append(row)
        return groups

    def html(self, choices: Choices = NOTHING_TICKED, command: str = "") -> str:
        """The page on which a person ticks texts: a single file, which sends nothing.

        The texts of ``choices`` are ticked already. ``command`` makes the page for others; it is
        shown, with the file of the choices, when they are saved.
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
    """The review of a subject, with each text once, and without the texts ``said``, which its page
    has anyway.
    """
    texts = [text for text in about.texts if text.text not in said]
    if about.bundle is not None:
        texts += of_bundle(about.bundle)
    by_digest: dict[str, SharedText] = {}
    for text in texts:
        by_digest.setdefault(text.digest, text)
    redactor = Redactor(about.bundle)
    rows = [ReviewRow(text, redactor) for text in by_digest.values()]
    return Review(about.name, tuple(rows))


def save_choices(folder: Path, name: str, choices: Choices) -> Path:
    """Write choices into a folder, in the form of the review page's file, readable by the owner
    alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{name}.choices.json"
    out.touch(mode=0o600)
    out.write_text(json.dumps({"include": sorted(choices)}, indent=1), "utf-8")
    return out


def read_choices(path: Path) -> Choices:
    """The choices of a file that the review page saved. Raises ShareError for another file."""
    try:
        saved: Any = json_of(path)
        return frozenset(map(str, saved["include"]))
    except OSError as error:
        raise ShareError(f"{path}: {error.strerror}; {EXPECTED}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ShareError(f"{path}: no list 'include' in it; {EXPECTED}") from error

"""Settings files of the program: a key that nothing reads, a value that is too large."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.regions import STATISTICS
from helpers.fix.settings_file import SettingsFile
from helpers.fix.source import SourceFile

_SETTING = re.compile(
    r"""^[ \t{,-]*(?P<quote>["']?)(?P<key>[A-Za-z_][\w.-]*)(?P=quote)[ \t]*[:=][ \t]*"""
    r"""(?P<value>[^\s#,{}\[\]"']*)""",
    re.MULTILINE,
)
"""A key and its value, as YAML, JSON, TOML and INI write it on a line."""
IN_PARTS = re.compile(r"micro|chunk|accum|checkpoint", re.IGNORECASE)
"""Keys of settings that compute the same in parts."""
ALIKE = 0.8
"""How like two names have to be (difflib's ratio, 1 for equal ones) so that one counts as the other
misspelt. Stricter than difflib's own 0.6, at which train_size and eval_size (0.63) would be alike;
micro_batch_size and microbatchsize have 0.93.
"""


@dataclass(frozen=True)
class FileSetting:
    """A key and its value in a settings file; ``key_at`` and ``value_at``: their first bytes."""

    file: SettingsFile
    line: int
    key: str
    key_at: int
    value: str
    value_at: int

    @property
    def place(self) -> str:
        return f"{self.file.name}:{self.line}"

    def with_key(self, key: str) -> TextEdit:
        """Another key in place of this one."""
        return self._replaced(self.key_at, self.key, key)

    def with_value(self, value: str) -> TextEdit:
        """Another value in place of this one."""
        return self._replaced(self.value_at, self.value, value)

    def _replaced(self, at: int, old: str, new: str) -> TextEdit:
        """``new`` in place of ``old``, which begins at the byte ``at``."""
        return TextEdit(self.file.name, at, at + len(old.encode()), new)


def misspelt_settings(program: Program) -> Changes:
    """A key of a settings file that no source reads, renamed to a similar one that a source reads
    and no settings file has.
    """
    read = set(_keys_read(program.sources))
    settings = list(settings_in(program))
    present = {setting.key for setting in settings}
    for setting in settings:
        if setting.key in read:
            continue
        missing = sorted(read - present)
        for key in difflib.get_close_matches(setting.key, missing, cutoff=ALIKE):
            # Only a setting that divides work is known to leave the results as they are, unless
            # the model has statistics over the batch.
            results = Results.OTHER
            costs = "what the setting itself costs"
            if IN_PARTS.search(key):
                costs = "smaller GPU kernels"
                if not program.mentions(STATISTICS):
                    results = Results.ROUNDED
            yield Change(
                title=f"{key} in the place of {setting.key}, which nothing reads ({setting.place})",
                results=results,
                why=f"{setting.key} has no effect now; with its right name its value counts",
                costs=costs,
                edits=(setting.with_key(key),),
                only_if_measured=True,
            )


def settings_in(program: Program) -> Iterator[FileSetting]:
    """The keys and values of the program's settings files."""
    for file in program.files:
        text = file.text.decode(errors="surrogateescape")
        for match in _SETTING.finditer(text):
            yield FileSetting(
                file=file,
                line=text.count("\n", 0, match.start("key")) + 1,
                key=match["key"],
                key_at=_bytes_before(text, match.start("key")),
                value=match["value"].strip("\"'"),
                value_at=_bytes_before(text, match.start("value")),
            )


def _bytes_before(text: str, at: int) -> int:
    """How many bytes of a file are before the character ``at`` of its text."""
    return len(text[:at].encode(errors="surrogateescape"))


def _keys_read(sources: Sequence[SourceFile]) -> Iterator[str]:
    """The texts in the sources that may be keys, and the attributes that they read."""
    for source in sources:
        for string in source.find(cst.SimpleString):
            value = string.evaluated_value
            if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w-]*", value):
                yield value
        for attribute in source.find(cst.Attribute):
            yield attribute.attr.value

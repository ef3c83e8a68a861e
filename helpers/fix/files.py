"""Settings files of the program: a key that nothing reads, a value that is too large."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from helpers.fix.change import Change, Results, TextEdit
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
"""Keys of what computes the same in parts."""
ALIKE = 0.8
"""How like two names are where one is taken for the other misspelt (difflib's ratio)."""


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
        """Another key in the place of this one."""
        return TextEdit(
            self.file.name, self.key_at, self.key_at + len(self.key.encode()), key
        )

    def with_value(self, value: str) -> TextEdit:
        """Another value in the place of this one."""
        return TextEdit(
            self.file.name,
            self.value_at,
            self.value_at + len(self.value.encode()),
            value,
        )


def misspelt_settings(program: Program) -> Iterator[Change]:
    """A key of a settings file that no source reads, spelt as the one is that they read."""
    read = set(_keys_read(program.sources))
    settings = list(settings_in(program))
    present = {setting.key for setting in settings}
    for setting in settings:
        if setting.key in read:
            continue
        for key in difflib.get_close_matches(
            setting.key, sorted(read - present), cutoff=ALIKE
        ):
            yield Change(
                title=f"{key} in the place of {setting.key}, which nothing reads ({setting.place})",
                results=_results_of(program, key),
                why=f"{setting.key} has no effect now; with its right name its value counts",
                costs="smaller GPU kernels"
                if IN_PARTS.search(key)
                else "what the setting itself costs",
                edits=(setting.with_key(key),),
                only_if_measured=True,
            )


def _results_of(program: Program, key: str) -> Results:
    """Up to rounding, where a key says in how many parts the same is computed."""
    over_all = program.mentions(STATISTICS)
    return Results.ROUNDED if IN_PARTS.search(key) and not over_all else Results.OTHER


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

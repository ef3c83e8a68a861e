"""What was wrong with the allocator's settings of a program that was recorded: set too late,
misspelt, of a form that torch refuses, or not read by this build.

Pure: it compares the variables that the recorder saw with the settings that the snapshot says are
in force.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from helpers.settings.allocator_text import OPTION, AllocatorText, SettingsError
from helpers.settings.audit import ALIKE_OPTIONS, audit, nearest_name
from helpers.settings.in_force import Settings, from_environment, parse
from helpers.settings.releases import NEWEST, Behaviour, nearest
from helpers.settings.rules import dotted, release
from helpers.settings.table import CONF_NAMES, OPTIONS

if TYPE_CHECKING:
    Facts = Mapping[str, Any]
    Environment = Mapping[str, str]
Kind = Literal["late", "misspelt", "malformed", "overwritten", "ineffective"]
NOT_READ = ("misspelt", "shadowed", "unsupported", "ineffective")
"""Verdicts of the audit on a variable that does not reach the allocator."""
REPEATED_NAME = re.compile(r"\w{0,20}ALLOC_CONF\s*=")
"""The variable's name inside its own value, as in ``export X=X=max_split_size_mb:64``."""
PAIR = re.compile(r"([A-Za-z][\w-]*)(?:[:=\s]+(\[[^\]]*\]?|[^,;\s]+))?")
"""An option as people write it: a key, and perhaps a value behind a colon, = or a blank."""
SIGNS = {
    "['\"]": "has a quotation mark in it, which PyTorch reads as a part of the text",
    r"ALLOC_CONF\s*=": "repeats the name of the variable",
    ";": "has a semicolon where PyTorch wants a comma",
    "=": "has = where PyTorch wants a colon",
    r"^\w+\s+[^\s:]+$": "has a blank where PyTorch wants a colon",
    r"\w\s+\w+\s*:": "has no comma before its next option",
}
"""What people write that torch does not read as it was meant: a regular expression, and how the
mistake is said.
"""
YES = ("true", "1", "yes", "on", "")
"""How people switch a flag on that torch wants as True; an option without a value is meant so."""
NO = ("false", "0", "no", "off")


@dataclass(frozen=True)
class SettingsTrouble:
    """One setting of the allocator, ``variable`` = ``value``, that does not do what was meant.

    ``instead`` is what to type in its place, ``NAME=value``; empty: take it away. ``why`` is one
    clause; ``where`` is the line that sets it ("train.py:7"), empty where the program was started
    with it. ``fatal``: torch stops with an error as it reads it, before any memory is requested.
    ``overwritten_in``: the line of the program that sets another value in its place; empty where
    none does.
    """

    kind: Kind
    variable: str
    value: str
    instead: str
    why: str
    where: str = ""
    fatal: bool = False
    overwritten_in: str = ""

    @property
    def says(self) -> str:
        """The trouble in one sentence."""
        setting = f"{self.variable}={self.value}"
        if self.where:
            setting += f", set in {self.where},"
        return f"{setting} {self.why}"

    @property
    def advice(self) -> str:
        """What to do, in one clause."""
        if self.overwritten_in:
            return (
                f"set {self.instead} after {self.overwritten_in}, or change that line"
            )
        if self.instead:
            return f"start with {self.instead}"
        return "take it away"


def settings_trouble(
    variables: Facts, in_force: Facts, torch: Facts
) -> SettingsTrouble | None:
    """The first thing that is wrong with the allocator's settings of one process, the gravest
    kind first; None where nothing is.

    ``variables`` and ``torch`` are what the recorder keeps of the process under
    ``allocator_variables`` ({"start", "import", "end"}: the variables at these moments;
    "assignments": [{"name", "value", "where"}]) and ``torch`` ({"version", "cuda", "hip"}; a
    version that is not known is taken for the newest). ``in_force`` is ``allocator_settings`` of
    its snapshot, empty where there is none.
    """
    version = torch.get("version")
    hip = torch.get("hip")
    build = "cuda"
    if hip:
        build = f"rocm{hip}"
    elif version and not torch.get("cuda"):
        return None  # a CPU build reads none of them
    if not version:
        version = dotted(NEWEST)
    process = _Process(variables, in_force, nearest(version, build))
    kinds = (process.malformed, process.late, process.overwritten, process.not_read)
    for kind in kinds:
        trouble = kind()
        if trouble is not None:
            return process.located(trouble)
    return None


class _Process:
    """The allocator's variables of one process at three moments, which of its lines set them, and
    ``text_read``, the text that its torch read (None where no snapshot says it).

    A moment that the recording lacks counts as like the next one.
    """

    def __init__(self, variables: Facts, in_force: Facts, behaviour: Behaviour):
        self.behaviour = behaviour
        self.at_end: Environment = variables.get("end", {})
        self.at_import: Environment = variables.get("import", self.at_end)
        self.at_start: Environment = variables.get("start", self.at_import)
        self.assignments: Sequence[Facts] = variables.get("assignments", ())
        self.text_read = next(
            (in_force[name] for name in CONF_NAMES if name in in_force), None
        )

    def malformed(self) -> SettingsTrouble | None:
        """The text that torch refuses as it starts, or None.

        A text that is in force was taken. So may be one by a release newer than the table's,
        which may know more keys.
        """
        text, name = from_environment(self.at_start, self.behaviour)
        error = AllocatorText(text, self.behaviour).error
        is_newer = release(self.behaviour.torch) > NEWEST
        if error is None or is_newer or self.text_read == text:
            return None
        why = f"cannot be read: {refused_option(text, self.behaviour)}"
        return self._trouble("malformed", name, text, why)

    def late(self) -> SettingsTrouble | None:
        """The text set at the end, where torch had read another one before; or None."""
        text, name = from_environment(self.at_end, self.behaviour)
        if self.text_read is None or text == self.text_read:
            return None
        if text == self.at_import.get(name, ""):  # it was set in time
            return None
        # Two texts that make the same settings are no trouble.
        if self._settings(text) == self._settings(self.text_read):
            return None
        why = "comes after torch's allocator started, so it has no effect"
        return self._trouble("late", name, text, why)

    def overwritten(self) -> SettingsTrouble | None:
        """A text that the program was started with or set, and replaced by another before torch
        read it; or None.
        """
        for row, later in self._replaced():
            text = row["value"]
            if later["value"] != self.text_read:  # torch did not read the later one
                continue
            if AllocatorText(text, self.behaviour).error is not None:
                continue  # torch would have refused it: it is well that it was replaced
            if self._settings(text) != self._settings(later["value"]):
                why = f"is overwritten in {later['where']} before torch reads it"
                trouble = self._trouble("overwritten", row["name"], text, why)
                return replace(trouble, overwritten_in=later["where"])
        return None

    def _replaced(self) -> list[tuple[Facts, Facts]]:
        """Pairs of assignments to one variable of the allocator, {"name", "value", "where"}: an
        earlier one, without "where" if the program was started with it, and the one that replaced
        it. An empty text is no setting that could be replaced.
        """
        latest: dict[str, Facts] = {
            name: {"name": name, "value": text}
            for name, text in self.at_import.items()
            if text
        }
        pairs = []
        for assignment in self.assignments:
            name = assignment["name"]
            if name not in CONF_NAMES:
                continue
            if name in latest:
                pairs.append((latest[name], assignment))
            if assignment["value"]:
                latest[name] = assignment
        return pairs

    def not_read(self) -> SettingsTrouble | None:
        """A variable whose name is misspelt, or that this build does not read; or None."""
        for finding in audit(self.at_end, self.behaviour.torch, self.behaviour.build):
            if finding.cause == "config-ineffective" and finding.verdict in NOT_READ:
                text = self.at_end[finding.name]
                if finding.verdict != "misspelt":
                    why = f"has no effect: {finding.says}"
                    return self._trouble("ineffective", finding.name, text, why)
                why = f"has no effect: the name is {self.behaviour.conf_names[0]}"
                return self._trouble("misspelt", finding.name, text, why)
        return None

    def located(self, trouble: SettingsTrouble) -> SettingsTrouble:
        """A trouble with the line that last made this setting, if one did."""
        for row in self.assignments:
            if row["name"] == trouble.variable and row["value"] == trouble.value:
                trouble = replace(trouble, where=row["where"])
        return trouble

    def _settings(self, text: str) -> Settings | str:
        """The settings that a text makes; the text itself where torch refuses it."""
        try:
            return replace(parse(text, self.behaviour), conf="")
        except SettingsError:
            return text

    def _trouble(self, kind: Kind, name: str, text: str, why: str) -> SettingsTrouble:
        """The trouble with the setting ``name`` = ``text``, with the repaired text in a variable
        that this build reads.
        """
        variable = name
        if kind in ("misspelt", "ineffective"):
            variable = self.behaviour.conf_names[0]
        meant = repaired(text, self.behaviour)
        instead = ""
        if meant:
            instead = f"{variable}={meant}"
        is_fatal = kind == "malformed"
        return SettingsTrouble(kind, name, text, instead, why, fatal=is_fatal)


def refused_option(text: str, behaviour: Behaviour) -> str:
    """Which option of a text torch refuses, and what is wrong with it, in one clause; the whole
    text where torch takes each of its options alone.

    Raises AssertionError for a text that torch takes.
    """
    for option in OPTION.findall(text):
        error = AllocatorText(option, behaviour).error
        if error is not None:
            return f"{option.strip()!r} {_wrong_with(option.strip(), error, behaviour)}"
    # Each option alone is taken: only together are they refused.
    error = AllocatorText(text, behaviour).error
    assert error is not None, "asked only of a text that torch refuses"
    return f"{text!r}: {error.why}"


def _wrong_with(option: str, error: SettingsError, behaviour: Behaviour) -> str:
    """What is wrong with one option that torch refuses, in one clause: the first of the visible
    mistakes (SIGNS), a list or a value that is not complete, the key, and last the value.
    """
    for sign, mistake in SIGNS.items():
        if re.search(sign, option):
            return mistake
    name, colon, value = option.partition(":")
    key = _key(name.strip(), behaviour)
    if colon and value.count("[") != value.count("]"):
        return "has no ] at the end of its list"
    if colon and not value.strip():
        return "has no value behind its colon"
    if not key:
        return "is none of torch's options"
    if not colon:
        return "has no colon and no value"
    if key != name.strip():
        return f"is misspelt: the option is {key}"
    return f"is refused: {error.why}"


def _key(spelling: str, behaviour: Behaviour) -> str:
    """The key that a spelling means; empty where it is near none."""
    key = spelling.lower().replace("-", "_")
    if key in behaviour.keys:
        return key
    return nearest_name(key, sorted(behaviour.keys), ALIKE_OPTIONS)


def repaired(text: str, behaviour: Behaviour) -> str:
    """The text as it was meant: keys spelt as torch spells them, a colon before each value, commas
    between. An option that torch refuses all the same is left out.
    """
    options: dict[str, str] = {}
    without_quotes = re.sub("['\"]", "", text)
    for match in PAIR.finditer(REPEATED_NAME.sub("", without_quotes)):
        spelling, value = match.groups(default="")
        key = _key(spelling, behaviour)
        if not key:
            continue
        option = f"{key}:{_value(OPTIONS[key].kind, value)}"
        if AllocatorText(option, behaviour).error is None:
            options[key] = option
    return ",".join(options.values())


def _value(kind: str, text: str) -> str:
    """A value as torch reads it for an option of this kind: a flag as True or False, a size in MiB
    without its unit, a share as a number below 1; others as they are.
    """
    words = text.lower()
    if text.startswith("[") and not text.endswith("]"):
        return text + "]"
    if kind == "flag":
        if words in YES:
            return "True"
        if words in NO:
            return "False"
    if kind == "size":
        size = re.fullmatch(r"([0-9]+)\s*([mg])i?b?", words)
        if size:
            number, unit = size.groups()
            mib = {"m": 1, "g": 1024}[unit]
            return str(int(number) * mib)
    if kind in ("share", "open share"):
        percent = re.fullmatch(r"([0-9]{1,2})%?", words)
        if percent and int(percent[1]) > 1:  # 0 and 1 are shares themselves
            return f"{int(percent[1]) / 100:g}"
    return text

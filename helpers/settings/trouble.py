"""What was wrong with the allocator's settings of a program that was recorded: set too late,
misspelt, of a form that torch refuses, or not read by this build.

Pure: it compares the variables that the recorder saw with the settings that the snapshot says are
in force.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
REPEATED_NAME = re.compile(r"\w{0,20}ALLOC_CONF\s*=")
PAIR = re.compile(r"([A-Za-z][\w-]*)(?:[:=\s]+(\[[^\]]*\]?|[^,;\s]+))?")
SIGNS = {
    "['\"]": "has a quotation mark in it, which PyTorch reads as a part of the text",
    r"ALLOC_CONF\s*=": "repeats the name of the variable",
    ";": "has a semicolon where PyTorch wants a comma",
    "=": "has = where PyTorch wants a colon",
    r"^\w+\s+[^\s:]+$": "has a blank where PyTorch wants a colon",
    r"\w\s+\w+\s*:": "has no comma before its next option",
}
"""Signs that torch does not read as they were meant, and how that is said."""
YES = ("true", "1", "yes", "on")
NO = ("false", "0", "no", "off")


@dataclass(frozen=True)
class SettingsTrouble:
    """One setting that does not do what was meant.

    ``instead`` is what to type in its place, ``NAME=value``; empty: take it away. ``why`` is one
    clause; ``where`` is the line that sets it ("train.py:7"), empty where the program was started
    with it. ``fatal``: torch stops at it, before any memory is asked for. ``overwritten_in``: the
    line of the program that sets another value in its place; empty where none does.
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
    """The first thing that is wrong with the allocator's settings of one process, or None.

    ``variables`` and ``torch`` are what the recorder keeps of the process under
    ``allocator_variables`` and ``torch`` ({"version", "cuda", "hip"}; a version that is not known
    is taken for the newest). ``in_force`` is ``allocator_settings`` of its snapshot, empty where
    there is none.
    """
    if torch.get("version") and not (torch.get("cuda") or torch.get("hip")):
        return None  # a CPU build reads none of them
    version = torch.get("version") or dotted(NEWEST)
    build = f"rocm{torch['hip']}" if torch.get("hip") else "cuda"
    process = _Process(variables, in_force, nearest(version, build))
    trouble = (
        process.malformed()
        or process.late()
        or process.overwritten()
        or process.not_read()
    )
    if trouble is None:
        return None
    for assignment in variables.get("assignments", ()):
        if (assignment["name"], assignment["value"]) == (
            trouble.variable,
            trouble.value,
        ):
            trouble = replace(trouble, where=assignment["where"])
    return trouble


class _Process:
    """The allocator's variables of one process, and the text that its torch read: None where no
    snapshot says it.
    """

    def __init__(self, variables: Facts, in_force: Facts, behaviour: Behaviour):
        self.behaviour = behaviour
        self.at_end: Environment = variables.get("end", {})
        self.at_import: Environment = variables.get("import", self.at_end)
        self.at_start: Environment = variables.get("start", self.at_import)
        self.assignments = [
            row for row in variables.get("assignments", ()) if row["name"] in CONF_NAMES
        ]
        self.text_read = next(
            (in_force[name] for name in CONF_NAMES if name in in_force), None
        )

    def malformed(self) -> SettingsTrouble | None:
        """The text that torch reads, where it stops at it; a text in force was taken."""
        text, name = from_environment(self.at_start, self.behaviour)
        error = AllocatorText(text, self.behaviour).error
        is_newer = release(self.behaviour.torch) > NEWEST  # it may know more keys
        if error is None or is_newer or self.text_read == text:
            return None
        why = f"cannot be read: {slip(text, self.behaviour)}"
        return self._trouble("malformed", name, text, why)

    def late(self) -> SettingsTrouble | None:
        """A text that stands there at the end and is not what is in force."""
        text, name = from_environment(self.at_end, self.behaviour)
        if self.text_read is None or text in (
            self.text_read,
            self.at_import.get(name, ""),
        ):
            return None
        if self._settings(text) == self._settings(self.text_read):
            return None
        why = "comes after torch's allocator started, so it has no effect"
        return self._trouble("late", name, text, why)

    def overwritten(self) -> SettingsTrouble | None:
        """A text that the program was started with or set, and then set to another before torch
        read it.
        """
        for row, later in self._replaced():
            in_its_place = AllocatorText(row["value"], self.behaviour)
            lost = in_its_place.error is None and self._settings(
                row["value"]
            ) != self._settings(later["value"])
            if later["value"] == self.text_read and lost:
                why = f"is overwritten in {later['where']} before torch reads it"
                trouble = self._trouble("overwritten", row["name"], row["value"], why)
                return replace(trouble, overwritten_in=later["where"])
        return None

    def _replaced(self) -> list[tuple[Facts, Facts]]:
        """Each text of a variable of the allocator with the text that came in its place."""
        earlier: dict[str, Facts] = {
            name: {"name": name, "value": text}
            for name, text in self.at_import.items()
            if text
        }
        pairs = []
        for later in self.assignments:
            if later["name"] in earlier:
                pairs.append((earlier[later["name"]], later))
            if later["value"]:
                earlier[later["name"]] = later
        return pairs

    def not_read(self) -> SettingsTrouble | None:
        """A name that this build does not read, or an option that it passes over."""
        for finding in audit(self.at_end, self.behaviour.torch, self.behaviour.build):
            if finding.cause == "config-ineffective" and finding.verdict in NOT_READ:
                text = self.at_end[finding.name]
                if finding.verdict != "misspelt":
                    why = f"has no effect: {finding.says}"
                    return self._trouble("ineffective", finding.name, text, why)
                why = f"has no effect: the name is {self.behaviour.conf_names[0]}"
                return self._trouble("misspelt", finding.name, text, why)
        return None

    def _settings(self, text: str) -> Settings | str:
        """What a text makes; the text itself where torch refuses it."""
        try:
            return replace(parse(text, self.behaviour), conf="")
        except SettingsError:
            return text

    def _trouble(self, kind: Kind, name: str, text: str, why: str) -> SettingsTrouble:
        meant = repaired(text, self.behaviour)
        is_read = kind in ("malformed", "late", "overwritten")
        variable = name if is_read else self.behaviour.conf_names[0]
        instead = f"{variable}={meant}" if meant else ""
        return SettingsTrouble(
            kind, name, text, instead, why, fatal=kind == "malformed"
        )


def slip(text: str, behaviour: Behaviour) -> str:
    """Which option of a text torch refuses, and what is wrong with it, in one clause.

    Raises AssertionError for a text that torch takes.
    """
    for option in OPTION.findall(text):
        error = AllocatorText(option, behaviour).error
        if error is not None:
            return f"{option.strip()!r} {_wrong_with(option.strip(), error, behaviour)}"
    error = AllocatorText(text, behaviour).error
    assert error is not None, "asked only of a text that torch refuses"
    return f"{text!r}: {error.why}"


def _wrong_with(option: str, error: SettingsError, behaviour: Behaviour) -> str:
    """What is wrong with one option, the most visible first."""
    name, colon, value = option.partition(":")
    for sign, mistake in SIGNS.items():
        if re.search(sign, option):
            return mistake
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
    between; what torch would refuse all the same is left out.
    """
    options: dict[str, str] = {}
    bare = REPEATED_NAME.sub("", re.sub("['\"]", "", text))
    for match in PAIR.finditer(bare):
        key = _key(match[1], behaviour)
        if not key:
            continue
        option = f"{key}:{_value(OPTIONS[key].kind, match[2] or '')}"
        if AllocatorText(option, behaviour).error is None:
            options[key] = option
    return ",".join(options.values())


def _value(kind: str, text: str) -> str:
    """A value as torch reads its kind: True and False, MiB without a unit, a share below 1."""
    words = text.lower()
    if text.startswith("[") and not text.endswith("]"):
        return text + "]"
    if kind == "flag" and words in (*YES, ""):
        return "True"
    if kind == "flag" and words in NO:
        return "False"
    size = re.fullmatch(r"([0-9]+)\s*([mg])i?b?", words)
    if kind == "size" and size and size[2] == "g":
        return str(int(size[1]) * 1024)
    if kind == "size" and size:
        return str(int(size[1]))
    percent = re.fullmatch(r"([0-9]{1,2})%?", words)
    if kind in ("share", "open share") and percent and int(percent[1]) > 1:
        return f"{int(percent[1]) / 100:g}"
    return text

"""Which settings does a preset make, and does it keep its word? env/presets, read and audited.

A preset is a file that a shell can source: comments ``# why:``, ``# for:``, ``# only:`` (the one
build, cuda or rocm, that it is for), ``# since:``, ``# danger:``, ``# status:`` (use, inert or
harmful), ``# claims:`` (of env/claims.yaml) and ``# checked:`` (torch, build and chip that it is
audited for), then ``export NAME=value``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child import CHECKOUT
from helpers.ground.units import cut
from helpers.look.files import read_whole
from helpers.settings.audit import audit, without_device
from helpers.settings.table import OTHER_NAMES, VARIABLES, Finding

FOLDER = CHECKOUT / "env" / "presets"
FIELDS = ("why", "for", "only", "since", "danger", "status", "claims", "checked")
SHOWN = 60
"""Characters of a wrong line that an error shows, so that it stays one line of a terminal."""


class PresetError(ValueError):
    """A preset that cannot be used: one line with what was seen, expected and what to do."""


@dataclass(frozen=True)
class Preset:
    """A preset: the variables that it sets, its comments by name (``fields``), and those of the
    variables that the table of settings does not know (``unknown``).
    """

    name: str
    environ: Mapping[str, str]
    fields: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    @property
    def checked(self) -> tuple[str, str, str]:
        """torch's version, build and chip that it is audited for: of ``# checked: torch 2.9.1,
        rocm7.0, gfx1100``. What is not said is empty.
        """
        words = [word.strip() for word in self.fields.get("checked", "").split(",")]
        torch, build, gfx = [*words, "", ""][:3]
        return torch.replace("torch ", ""), build, gfx


NONE = Preset("none", {}, {})
"""No setting at all: the control."""


def names() -> list[str]:
    """The presets of env/presets."""
    return sorted(path.stem for path in FOLDER.glob("*.env"))


def load(preset: str | Path) -> Preset:
    """The preset with a name in env/presets, or of a file; "none" and "" stand for no setting.

    Raises PresetError where it cannot be read, or where a variable or an allocator option is
    misspelt: it would be measured as doing nothing.
    """
    if str(preset) in ("", "none"):
        return NONE
    path = Path(preset)
    if path.suffix != ".env":
        path = FOLDER / f"{preset}.env"
    try:
        text = read_whole(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(
            f"preset {str(preset)!r}: cannot be read ({type(error).__name__}); "
            f"expected none, a .env file or one of {', '.join(names())}"
        ) from error
    loaded = parse(text, path.stem)
    for finding in findings(loaded):
        if finding.verdict == "misspelt":
            setting = f"{finding.name}={finding.value}"
            raise PresetError(
                f"preset {loaded.name}: {setting}: {finding.says}; correct it"
            )
    return loaded


def parse(text: str, name: str) -> Preset:
    """The preset of a text.

    Raises PresetError for a line that is neither a comment nor one assignment.
    """
    fields: dict[str, str] = {}
    environ: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        # Comments with another word than those of FIELDS are for people only.
        comment = re.match(r"#\s*(\w+):(.*)", line)
        if comment and comment[1] in FIELDS:
            fields[comment[1]] = comment[2].strip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"preset {name}, line {number}"
        try:
            variable, value = _assignment(line)
        except ValueError as error:
            raise PresetError(f"{where}: {error}") from error
        if variable in environ:
            raise PresetError(f"{where}: {variable} is set twice; keep one")
        environ[variable] = value
    unknown = [variable for variable in environ if not _is_known(variable)]
    return Preset(name, environ, fields, tuple(unknown))


def _is_known(variable: str) -> bool:
    """Whether the table of settings has the variable, also as one that is not about memory."""
    name = without_device(variable)
    return name in VARIABLES or name in OTHER_NAMES


def _assignment(line: str) -> tuple[str, str]:
    """Name and value of ``export NAME=value``. A value that a shell would compute ($ or `) is
    refused, as it differs from box to box.

    Raises ValueError with what was seen and what was expected.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        seen = f"{cut(line.strip(), SHOWN)!r} has a quotation mark that is not closed"
        raise ValueError(f"{seen}; expected export NAME=value") from error
    match = None
    if len(words) == 2 and words[0] == "export":
        match = re.fullmatch(r"(?s)([A-Za-z_]\w*)=(.*)", words[1])
    if match is None or "$" in line or "`" in line:
        seen = line.strip()[:SHOWN]
        raise ValueError(f"{seen!r}; expected export NAME=value, and no $ or `")
    return match[1], match[2]


def findings(
    preset: Preset, torch: str = "", build: str = "", gfx: str = ""
) -> tuple[Finding, ...]:
    """What the audit of settings says of a preset on a box with this torch, build and chip; with
    none of them, on the box that the preset is checked for.
    """
    if not (torch or build or gfx):
        torch, build, gfx = preset.checked
    return audit(preset.environ, torch, build, gfx)

"""Which settings does a preset make, and does it keep its word? env/presets, read and audited.

A preset is a file that a shell can source: comments ``# why:``, ``# for:``, ``# since:``, ``# danger:``, ``# status:`` (use,
inert or harmful), ``# claims:`` (of env/claims.yaml) and ``# checked:`` (torch, build and chip that it is audited for), then
``export NAME=value``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.child import CHECKOUT
from helpers.look.files import whole
from helpers.settings.audit import audit
from helpers.settings.table import OTHER_NAMES, VARIABLES, Finding

FOLDER = CHECKOUT / "env" / "presets"
FIELDS = ("why", "for", "since", "danger", "status", "claims", "checked")


class PresetError(ValueError):
    """A preset that cannot be used: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Preset:
    """A preset. ``fields`` are its comments by name; ``unknown`` the variables that no table here knows."""

    name: str
    environ: Mapping[str, str]
    fields: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    @property
    def checked(self) -> tuple[str, str, str]:
        """torch, build and chip that it is audited for; empty where not said."""
        words = [word.strip() for word in self.fields.get("checked", "").split(",")]
        torch, build, gfx = (*words, "", "", "")[:3]
        return torch.partition("torch ")[2] or torch, build, gfx


NONE = Preset("none", {}, {})
"""No setting at all: the control."""


def names() -> list[str]:
    """The presets of env/presets."""
    return sorted(path.stem for path in FOLDER.glob("*.env"))


def load(preset: str | Path) -> Preset:
    """The preset of a name in env/presets, or of a file; "none" and "" are no setting. Raises PresetError.

    A variable or an allocator option that is spelt nearly like a known one is refused: it would be measured as doing nothing.
    """
    if str(preset) in ("", "none"):
        return NONE
    path = Path(preset) if Path(preset).suffix == ".env" else FOLDER / f"{preset}.env"
    try:
        text = whole(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        seen, known = f"cannot be read ({error.__class__.__name__})", ", ".join(names())
        expected = f"expected none, a .env file or one of {known}"
        raise PresetError(f"preset {str(preset)!r}: {seen}; {expected}") from error
    found = parse(text, path.stem)
    for one in findings(found):
        if one.verdict == "misspelt":
            where = f"preset {found.name}: {one.name}={one.value}"
            raise PresetError(f"{where}: {one.says}; correct it")
    return found


def parse(text: str, name: str) -> Preset:
    """The preset of a text. Raises PresetError for a line that is neither a comment nor one assignment."""
    said = re.findall(r"(?m)^#\s*(\w+):[^\S\n]*(.*?)\s*$", text)
    environ: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            one, value = _assignment(line)
        except ValueError as error:
            raise PresetError(f"preset {name}, line {number}: {error}") from error
        if one in environ:
            raise PresetError(f"preset {name}, line {number}: {one} is set twice; keep one")
        environ[one] = value
    plain = {one: re.sub(r"(?<=GFX_VERSION)_\d+$", "", one) for one in environ}
    unknown = (one for one in environ if plain[one] not in {*VARIABLES, *OTHER_NAMES})
    return Preset(name, environ, {a: b for a, b in said if a in FIELDS}, tuple(unknown))


def _assignment(line: str) -> tuple[str, str]:
    """Name and value of ``export NAME=value``. Raises ValueError with what was seen and what was expected."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ValueError(f"{error}; expected export NAME=value") from error
    given = re.fullmatch(r"(?s)([A-Za-z_]\w*)=(.*)", words[-1]) if words else None
    if words[:-1] != ["export"] or given is None or "$" in line or "`" in line:
        raise ValueError(f"{line.strip()[:60]!r}; expected export NAME=value, and no $ or `")
    return given[1], given[2]


def findings(
    preset: Preset, torch: str = "", build: str = "", gfx: str = ""
) -> tuple[Finding, ...]:
    """What the audit of settings says of it, on the box it is checked for or on another."""
    where = (torch, build, gfx) if torch or build or gfx else preset.checked
    return audit(preset.environ, *where)

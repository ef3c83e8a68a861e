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

from helpers.judge.claims import claims
from helpers.judge.settings import CONF_NAMES, OTHER_NAMES, SETTINGS
from helpers.judge.settings_audit import VERDICTS, SettingFinding, audit

FOLDER = Path(__file__).resolve().parents[2] / "env" / "presets"
FIELDS = ("why", "for", "since", "danger", "status", "claims", "checked")
STATUSES = ("use", "inert", "harmful")
# Read by the C library and OpenMP, not by torch or the GPU's runtime: mallopt(3), OpenMP specification 5.0 section 6.
HOST_NAMES = {"OMP_NUM_THREADS": r"[1-9][0-9]*(,[1-9][0-9]*)*", "MALLOC_ARENA_MAX": "[1-9][0-9]*",
              "MALLOC_MMAP_THRESHOLD_": "[0-9]+", "MALLOC_TRIM_THRESHOLD_": "[0-9]+"}
KNOWN = {*CONF_NAMES, *OTHER_NAMES, *HOST_NAMES, *(setting.name for setting in SETTINGS)}
WRONG = tuple(verdict for verdict in VERDICTS if verdict != "effective")
HARM = ("dangerous", "contradictory", "debug_only", "unsupported")


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
        words = [word.strip() for word in self.fields.get("checked", "").removeprefix("torch ").split(",")]
        return (*words, "", "", "")[:3]  # type: ignore[return-value]


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
    path = Path(preset)
    if path.suffix != ".env":
        path = FOLDER / f"{preset}.env"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"preset {str(preset)!r}: cannot be read ({error.__class__.__name__}); expected none, a .env file "
                          f"or one of {', '.join(names())}") from error
    found = parse(text, path.stem)
    misspelt = [finding for finding in findings(found) if finding.verdict == "misspelt"]
    if misspelt:
        one = misspelt[0]
        raise PresetError(f"preset {found.name}: {one.name}={one.value}: {one.says}; correct it")
    return found


def parse(text: str, name: str) -> Preset:
    """The preset of a text. Raises PresetError for a line that is neither a comment nor one assignment."""
    fields: dict[str, str] = {}
    environ: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.fullmatch(r"#\s*(\w+):\s*(.*?)\s*", line)
        if comment and comment[1] in FIELDS:
            fields[comment[1]] = comment[2]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise PresetError(f"preset {name}, line {number}: {error}; expected export NAME=value") from error
        assignment = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[-1], re.DOTALL) if words else None
        if words[:-1] != ["export"] or assignment is None or "$" in line or "`" in line:
            raise PresetError(f"preset {name}, line {number}: {line.strip()[:60]!r}; expected export NAME=value, and no $ or `")
        if assignment[1] in environ:
            raise PresetError(f"preset {name}, line {number}: {assignment[1]} is set twice; keep one")
        environ[assignment[1]] = assignment[2]
    unknown = tuple(one for one in environ if re.sub(r"(?<=GFX_VERSION)_\d+$", "", one) not in KNOWN)
    return Preset(name, environ, fields, unknown)


def findings(preset: Preset, torch: str = "", build: str = "", gfx: str = "") -> tuple[SettingFinding, ...]:
    """What the environment audit says of it, on the box it is checked for or on another."""
    where = (torch, build, gfx) if torch or build or gfx else preset.checked
    host = {name: value for name, value in preset.environ.items() if name in HOST_NAMES}
    wrong = [SettingFinding(name, value, "misspelt", f"{value!r} is not {HOST_NAMES[name]}", "mallopt(3), OpenMP specification")
             for name, value in host.items() if not re.fullmatch(HOST_NAMES[name], value)]
    return (*wrong, *audit({name: value for name, value in preset.environ.items() if name not in host}, *where))


def lint(preset: Preset) -> list[str]:
    """What is wrong with a preset, a line each: words missing, names that nothing reads, a status that the audit refutes."""
    wrong = [f"no line # {field}:" for field in FIELDS if not preset.fields.get(field) and field != "claims"]
    status = preset.fields.get("status", "")
    if status and status not in STATUSES:
        wrong.append(f"status {status!r}; expected {', '.join(STATUSES)}")
    known = {claim.id for claim in claims()}
    named = preset.fields.get("claims", "").split()
    wrong += [f"claim {ident}: not in env/claims.yaml" for ident in named if ident not in known]
    wrong += [f"{name}: no table of settings knows it" for name in preset.unknown]
    if not preset.environ:
        wrong.append("it sets nothing")
    said = findings(preset)
    for one in said:
        refused = WRONG if status == "use" else ("misspelt", "dangerous") if status == "inert" else ("misspelt",)
        if one.verdict in refused:
            wrong.append(f"{one.name}={one.value} is {one.verdict} there, and the status is {status}: {one.says}")
    if status == "harmful" and not any(one.verdict in HARM for one in said):
        wrong.append("the status is harmful, and the audit finds no harm on the box it is checked for")
    return wrong

"""What each setting that people try against memory trouble does on this build and this chip:
pure, from the table of settings.

A fact that depends on what the box does not tell (a torch release, a chip) is ``unknown`` and
says on what it depends. Settings that people post have a remark behind the value, or stand in a
program's text, where they may come too late.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from helpers.ground.child import CHECKOUT
from helpers.ground.units import show_bytes
from helpers.look.bundle import Bundle
from helpers.look.files import whole
from helpers.look.machine import machine
from helpers.look.ttm import MODULES, parse_cmdline, parse_modprobe, settings
from helpers.settings import table
from helpers.settings.table import LONGEST, OPTIONS, OTHER_NAMES, POSTED, VARIABLES, finding
from helpers.settings.text import Conf, parts

ALIKE = 0.88
ALIKE_OPTIONS = 0.6
EMPTY = " (empty counts as set)"
OWN_BUILD = ("ollama", "llama.cpp", "vLLM", "JAX", "TensorFlow", "loader", *("OpenMP", "C library"))
"""Programs that read their variables whatever torch is built for."""
QUIET = {*table.HOST_NAMES, "LD_LIBRARY_PATH", "LD_PRELOAD"}


def audit_box(bundle: Bundle) -> tuple[table.Finding, ...]:
    """What the captured environment's settings do on this box, by its torch build and its GPU's
    target.
    """
    from helpers.look.access import variables  # only a captured box needs its readers
    from helpers.look.framework import framework
    from helpers.look.gpus import gpus

    build = framework(bundle)
    targets = [gpu.indices["gfx"] for gpu in gpus(bundle) if gpu.indices.get("gfx")]
    environ = {v.name: v.value for v in variables(bundle)}
    version = str(build.version.value or "")
    gfx = targets[0] if targets else ""
    return audit(environ, version, build.build, gfx, posted=bundle.kind != "live")


def audit(
    environ: Mapping[str, str], torch: str, build: str, gfx: str = "", posted: bool = False
) -> tuple[table.Finding, ...]:
    """Findings on every variable that is known here or looks like one, by urgency, then by name.

    ``torch`` is its version as it prints itself ("2.9.1+rocm7.0"), ``build`` cuda, rocm, cpu or
    empty, ``gfx`` the chip ("gfx1100"); each may be empty where it is not known. ``posted``:
    the values were typed by a person, who may have put a remark behind them ("True (second
    attempt)"); one that says when it was set counts as hearsay that it was too late. Names that
    are no concern of GPU memory are passed over.
    """
    split = {name: value_and_remark(name, v) if posted else (v, "") for name, v in environ.items()}
    environ = {name: value for name, (value, _) in split.items() if value is not None}
    facts = table.facts_of(environ, torch, build, gfx)
    found = _findings(facts)
    if not facts.build and facts.torch:
        either = [_findings(table.facts_of(environ, torch, one, gfx)) for one in ("cuda", "rocm")]
        found = [known for one in found for known in _known(one, either)]
    for name, (value, remark) in split.items():
        found += late_by_remark(name, value or "", remark) if remark else []
    return table.sort(found)


def _findings(facts: table.Facts) -> list[table.Finding]:
    found = [f for n in facts.environ if n not in table.CONF_NAMES for f in _variable(n, facts)]
    return found + _conf(facts)


def _known(one: table.Finding, either: list[list[table.Finding]]) -> list[table.Finding]:
    """An unknown finding, or what stands in its place where the answer is known for one build
    and unchecked for the other.
    """
    cuda, rocm = ([f for f in of if (f.name, f.value) == (one.name, one.value)] for of in either)
    unchecked = any(f.verdict == "unknown" for f in rocm)
    if one.verdict != "unknown" or not unchecked or not all(f.cause for f in cuda):
        return [one]
    return [replace(f, says=f"{f.says} (a CUDA build; ROCm not checked)") for f in cuda] or [one]


def _variable(name: str, facts: table.Facts) -> list[table.Finding]:
    value = facts.environ[name]
    row = VARIABLES.get(re.sub(r"(?<=HSA_OVERRIDE_GFX_VERSION)_[0-9]+$", "", name))
    if row is None:
        return _stranger(name, value)
    programs = row.build if row.build and facts.build not in ("", row.build) else ""
    other = "cpu build" if facts.build == "cpu" else f"{programs} programs" if programs else ""
    if other and row.by not in OWN_BUILD:
        return [finding(other, name, value, source=row.source)]
    if row.otherwise and not re.fullmatch(row.form, value):
        gaps = {"verdict": row.otherwise, "expected": row.expected, "source": row.source}
        return [finding("value", name, value, given=value[:LONGEST], **gaps)]
    found = table.rule_findings(row.name, name, value, value, facts)
    if found or name in QUIET:
        return found
    says = f"{row.says}; read {row.when}"
    return [table.Finding(name, value, row.verdict, says, row.source, row.cause, row.why)]


def _stranger(name: str, value: str) -> list[table.Finding]:
    """What to say of a name that is not in the table: it may be misspelt."""
    plain = name.upper().replace("-", "_")
    if name in table.OTHER_NAMES or not plain.startswith(table.PREFIXES) or len(name) > LONGEST:
        return []
    near = "".join(difflib.get_close_matches(plain, [*VARIABLES, *table.OTHER_NAMES], 1, ALIKE))
    if near in VARIABLES:
        return [finding("near name", name, value, near=near, source=VARIABLES[near].source)]
    if not near and re.search("ALLOC|MEM", plain) and plain.startswith("PYTORCH"):
        return [finding("strange name", name, value)]
    return []


@lru_cache(maxsize=64)
def _behaviours(
    torch: tuple[int, ...], rocm: tuple[int, ...], build: str
) -> tuple[table.Behaviour, ...]:
    """What may be running: one release and build, or every one that is possible where they are
    not known.
    """
    known = [torch] if torch else [(2, m) for m in range(table.OLDEST[1], table.NEWEST[1] + 1)]
    builds = {"cuda": "cuda", "rocm": "rocm" + ".".join(map(str, rocm))}
    builds = {build: builds[build]} if build in builds else builds
    return tuple(table.nearest(".".join(map(str, v)), of) for v in known for of in builds.values())


def _conf(facts: table.Facts) -> list[table.Finding]:
    """The allocator's text: the first of its names that is set and read wins, also where it is
    empty.
    """
    found: list[table.Finding] = []
    behaviours = _behaviours(facts.torch, facts.rocm, facts.build)
    source = behaviours[0].source("conf_names")
    winner = ""
    sure = True
    for name in (name for name in table.CONF_NAMES if name in facts.environ):
        value = facts.environ[name]
        here = replace(facts, options=dict(parts(value)[:LONGEST]))
        read, said = _read(name, here, behaviours)
        found += said
        if read is False:
            continue
        if winner:
            gaps = {"winner": winner, "empty": "" if facts.environ[winner] else EMPTY}
            kind = "shadowed" if sure else "perhaps shadowed"
            found.append(finding(kind, name, value, source=source, **gaps))
        else:
            winner = name
            sure = read is True
            if sure and not here.options:
                kind = "no option" if value else "empty text"
                found.append(finding(kind, name, value, source=source))
        judged = _options(name, here, behaviours, winner, sure)
        found += judged if sure else [one for one in judged if one.verdict != "effective"]
    return found


def _read(
    name: str, facts: table.Facts, behaviours: tuple[table.Behaviour, ...]
) -> tuple[bool | None, list[table.Finding]]:
    """Whether this build reads a name for the allocator's text, and what is to be said of that
    and of the whole text.
    """
    value = facts.environ[name]
    states = {name in one.conf_names for one in behaviours}
    source = behaviours[0].source("conf_names")
    names = ", ".join(behaviours[0].conf_names)
    if facts.build == "cpu":
        return False, [finding("cpu build", name, value, source="the torch build")]
    said = table.rule_findings(name, name, value, value, facts)
    if states == {True}:
        return True, said if value else []
    if len(states) > 1:
        return None, [finding("perhaps read", name, value, source=source)]
    unsure = [one for one in said if one.verdict == "unknown"]
    if unsure:
        return None, unsure
    inert = [one for one in said if one.verdict == "ineffective"]
    return False, inert or [finding("not read", name, value, names=names, source=source)]


def _options(
    name: str, facts: table.Facts, behaviours: tuple[table.Behaviour, ...], winner: str, sure: bool
) -> list[table.Finding]:
    """What the options of one name's text do: of the name that wins, and of those that this
    build takes from another.
    """
    found: list[table.Finding] = []
    certain = sure and len(behaviours) == 1
    for key, value in facts.options.items():
        names = behaviours[-1].names_for(key)
        reader = next((one for one in names if one in facts.environ), "") if certain else winner
        piece = f"{key}:{value}"
        if key not in OPTIONS:
            near = "".join(difflib.get_close_matches(key[:LONGEST], OPTIONS, 1, ALIKE_OPTIONS))
            kind = "near option" if near else "strange option"
            found.append(finding(kind, name, piece, near=near))
        elif certain and name not in names:
            gaps = {"names": " or ".join(names), "source": behaviours[0].source("own_conf_names")}
            found.append(finding("passed over", name, piece, key=key, **gaps))
        elif name == reader:
            found += _option(name, OPTIONS[key], value, facts, behaviours)
    return found


def _option(
    name: str,
    option: table.Option,
    value: str,
    facts: table.Facts,
    behaviours: tuple[table.Behaviour, ...],
) -> list[table.Finding]:
    """What one option does where its text is read: whether torch takes it at all, then what the
    rules say.
    """
    piece = f"{option.name}:{value}"
    if table.between(facts.torch, option.since, "") is False:
        return [finding("newer option", name, piece, option=option)]
    refusals = [Conf(piece, one).error for one in behaviours if option.name in one.keys]
    refused = [str(one).partition("settings: ")[2] for one in refusals if one is not None]
    if refused and not re.fullmatch(option.form, value):
        return [finding("option value", name, piece, given=value[:LONGEST], option=option)]
    if refused:
        kind = "refused" if len(refused) == len(refusals) else "perhaps refused"
        return [finding(kind, name, piece, refusal=refused[-1])]
    found = table.rule_findings("option:" + option.name, name, piece, value, facts)
    return found or [table.Finding(name, piece, "effective", option.says, option.source)]


LONGEST_REMARK = 1000
LONGEST_LINE = 2000
"""A longer value has no remark of a person behind it; of a longer line the start is read."""


def value_and_remark(name: str, value: str) -> tuple[str | None, str]:
    """A value as somebody posted it, taken apart: "True (second attempt)" is True and a remark.

    The value is None where the words say that the variable was not set.
    """
    text = value.strip().strip("\"'`")
    unset = re.fullmatch(POSTED["unset"], text)
    if len(value) > LONGEST_REMARK:
        return value, ""
    if unset:
        return None, unset[1]
    if text.endswith(")") and "(" in text:
        kept, _, remark = text[:-1].rpartition("(")
        return kept.rstrip(), remark
    if name in table.CONF_NAMES:
        # A blank ends the text, unless a separator stands beside it or an option follows.
        cut = re.search(r"(?<=[^\s,:\[>])\s+(?=[^\s,:\]][^\s:]*(?!\S))", text)
        return (text[: cut.start()], text[cut.end() :]) if cut else (value, "")
    form = VARIABLES[name].form if name in VARIABLES else ""
    head, _, tail = text.partition(" ")
    plain = head.rstrip(",;")
    if form and tail and not re.fullmatch(form, text) and re.fullmatch(form, plain):
        return plain, tail.strip()
    return value, ""


def late_by_remark(name: str, value: str, remark: str) -> list[table.Finding]:
    """A finding where a remark says that a setting was made after it is read; what a person
    says is hearsay.

    Without a word on the moment, a program's own lines count as too late for what is read as it
    is imported.
    """
    passed = "import" if re.search(POSTED["in code"], remark) else ""
    if re.search(POSTED["after"], remark):
        passed = "allocation" if re.search(POSTED["a use"], remark) else passed
        passed = "runtime" if re.search(POSTED["an import"], remark) else passed
    if name not in VARIABLES or not passed:
        return []
    late = _late(VARIABLES[name], value, passed, f"said to be set late ({remark})")
    return [replace(one, hearsay=True) for one in late]


def late_assignments(code: str) -> tuple[table.Finding, ...]:
    """Assignments in a program's text that come after the moment at which the variable is read.

    What counts as that moment are an ``import`` of the program that reads it, and the first use
    of the GPU, both in the same text. A variable that the GPU's runtime reads is late after the
    import already: it starts the runtime, or may. Lines of a shell that a program starts for
    itself never reach the program.
    """
    found: list[table.Finding] = []
    imported: set[str] = set()
    used = 0
    for number, line in enumerate(code.splitlines(), 1):
        line = line[:LONGEST_LINE].split(" #")[0]
        if line.lstrip().startswith("#"):
            continue
        shell = re.search(POSTED["shell line"], line)
        if shell and shell[1] in VARIABLES:
            found.append(finding("in a shell", shell[1], shell[2], number=number))
        for match in re.finditer(POSTED["set line"], line):
            name, value = [part for part in match.groups() if part is not None][:2]
            if name in VARIABLES:
                # Each of the programs that can be imported starts the runtimes, or may.
                every = [module for names in table.IMPORTS.values() for module in names]
                done = imported & set(table.IMPORTS.get(VARIABLES[name].by, every))
                passed = "runtime" if done else "process"
                after = "import" if done else "start"
                if used:
                    passed = "allocation"
                    after = f"first use of the GPU in line {used}"
                says = f"line {number}: set after the {after}"
                found += _late(VARIABLES[name], value, passed, says)
        module = re.match(POSTED["import line"], line)
        imported |= {module[1]} if module else set()
        used = used or (number if re.search(POSTED["use line"], line) else 0)
    return table.sort(found)


def _late(row: table.Variable, value: str, passed: str, says: str) -> list[table.Finding]:
    """A finding where the moment at which a setting is read has passed; of a text, its first
    option that is read earlier.
    """
    read = [(row.moment, value, row.when)]
    for key, given in parts(value) if row.name in table.CONF_NAMES else []:
        if key in OPTIONS and OPTIONS[key].moment:
            read.append((OPTIONS[key].moment, f"{key}:{given}", "as torch is imported"))
    for moment, shown, when in read:
        if table.MOMENTS.index(moment) <= table.MOMENTS.index(passed):
            return [finding("late", row.name, shown, says=says, when=when, source=row.source)]
    return []


# Are the memory parameters on a kernel command line, or in a modprobe.d file, spelt right, in
# the right module and unit?

UNITS = {"bytes": 1, "pages": 4096, "MiB": 1 << 20, "GiB": 1 << 30, "KiB": 1 << 10}
"""Units that people write sizes in, the likelier mistake first."""
LEAST_BYTES = 1 << 30
MOST_BYTES = 16 << 40
"""No pool that people ask for is smaller or larger; where the RAM is known, than 1/64 or twice
of that.
"""
ALIKE_PARAMETERS = 0.72
ROWS = {f"{row.module}.{row.name}": row for row in table.PARAMETERS}


def audit_kernel(bundle: Bundle) -> tuple[table.Finding, ...]:
    """Findings on the parameters that a box has in modprobe.d files and on its kernel command
    line.
    """
    ram = machine(bundle).ram_total
    given = [(one.module, one.name, one.value) for place in settings(bundle) for one in place]
    return _audit_parameters(given, int(ram.value or 0) if ram.ok else None)


def audit_cmdline(text: str, ram_bytes: int | None = None) -> tuple[table.Finding, ...]:
    """Findings on the memory parameters of amdgpu and TTM in a kernel command line or in lines
    of modprobe.d.

    ``ram_bytes`` is the RAM left to Linux. A size of a pool that is implausible for it, and
    plausible in another unit, is a mistake in the unit. Pages are 4 KiB (x86).
    """
    return _audit_parameters(
        [*parse_cmdline(text), *(row[1:] for row in parse_modprobe(text))], ram_bytes
    )


def _audit_parameters(
    given: Iterable[tuple[str, str, str]], ram_bytes: int | None
) -> tuple[table.Finding, ...]:
    found = (_parameter(*one, ram_bytes) for one in given if one[0] in MODULES)
    return table.sort(one for one in found if one is not None)


def _parameter(module: str, name: str, value: str, ram_bytes: int | None) -> table.Finding | None:
    shown = f"{module}.{name}"
    if shown in ROWS:
        row = ROWS[shown]
        off = row.verdict == "dangerous" and value.upper() in ("0", "N")
        usual = table.Finding(
            shown, value, "ineffective" if off else row.verdict, row.says, row.source
        )
        return _size(row, shown, value, ram_bytes) or usual
    if name in table.OTHER_PARAMETERS.get(module, ()):
        return None
    near = _nearest(module, name[:LONGEST])
    if not near:
        return finding("strange parameter", shown, value, module=module)
    source = ROWS[near].source
    return finding("near parameter", shown, value, module=module, near=near, source=source)


def _nearest(module: str, name: str) -> str:
    """The parameter of this name in another module, else one spelt nearly so in this module,
    else in any; or nothing.
    """
    every = {row.name: key for key, row in reversed(ROWS.items())}
    own = {row.name: key for key, row in ROWS.items() if row.module == module}
    near = [
        names[n]
        for names in (own, every)
        for n in difflib.get_close_matches(name, names, 1, ALIKE_PARAMETERS)
    ]
    return every.get(name) or (near[0] if near else "")


def _size(
    row: table.Parameter, shown: str, value: str, ram_bytes: int | None
) -> table.Finding | None:
    """A finding where a size cannot be meant as it is written."""
    if not row.unit:
        return None
    try:
        count = int(value[:LONGEST], 0)
    except ValueError:
        return finding("no number", shown, value, given=value[:LONGEST], row=row)
    least, most = (ram_bytes // 64, 2 * ram_bytes) if ram_bytes else (LEAST_BYTES, MOST_BYTES)
    meant = [factor for factor in UNITS.values() if least <= count * factor <= most]
    unit = UNITS[row.unit]
    if not row.pool or count <= 0 or not meant or unit in meant:
        return None
    size = count * meant[0]
    sizes = {"read": show_bytes(count * unit), "size": show_bytes(size), "meant": -(-size // unit)}
    return finding("unit", shown, value, row=row, count=count, **sizes)


# Which settings does a preset make, and does it keep its word? env/presets, read and audited.
#
# A preset is a file that a shell can source: comments ``# why:``, ``# for:``, ``# since:``, ``#
# danger:``, ``# status:`` (use, inert or harmful), ``# claims:`` (of env/claims.yaml) and ``#
# checked:`` (torch, build and chip that it is audited for), then ``export NAME=value``.

FOLDER = CHECKOUT / "env" / "presets"
FIELDS = ("why", "for", "since", "danger", "status", "claims", "checked")


class PresetError(ValueError):
    """A preset that cannot be used: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Preset:
    """A preset.

    ``fields`` are its comments by name; ``unknown`` the variables that no table here knows.
    """

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
    """The preset of a name in env/presets, or of a file; "none" and "" are no setting.

    Raises PresetError.

    A variable or an allocator option that is spelt nearly like a known one is refused: it would
    be measured as doing nothing.
    """
    if str(preset) in ("", "none"):
        return NONE
    path = Path(preset) if Path(preset).suffix == ".env" else FOLDER / f"{preset}.env"
    try:
        text = whole(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        seen = f"cannot be read ({error.__class__.__name__})"
        known = ", ".join(names())
        expected = f"expected none, a .env file or one of {known}"
        raise PresetError(f"preset {str(preset)!r}: {seen}; {expected}") from error
    found = parse(text, path.stem)
    for one in findings(found):
        if one.verdict == "misspelt":
            where = f"preset {found.name}: {one.name}={one.value}"
            raise PresetError(f"{where}: {one.says}; correct it")
    return found


def parse(text: str, name: str) -> Preset:
    """The preset of a text.

    Raises PresetError for a line that is neither a comment nor one assignment.
    """
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
    """Name and value of ``export NAME=value``.

    Raises ValueError with what was seen and what was expected.
    """
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
) -> tuple[table.Finding, ...]:
    """What the audit of settings says of it, on the box it is checked for or on another."""
    where = (torch, build, gfx) if torch or build or gfx else preset.checked
    return audit(preset.environ, *where)

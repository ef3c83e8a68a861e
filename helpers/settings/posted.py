"""Settings as people post them: a remark behind the value, an assignment in a program that comes too late."""

from __future__ import annotations

import re
from dataclasses import replace

from helpers.settings.rules import Finding, finding, sort
from helpers.settings.table import CONF_NAMES, IMPORTS, MOMENTS, OPTIONS, VARIABLES, Variable
from helpers.settings.text import parts

LONGEST = 1000
"""Values longer than this are no remark of a person."""
_UNSET = re.compile(r"(?i)\s*(?:unset|not set|none set|undefined|<unset>)\b[\s:,;-]*(.{0,400})")
_AFTER = r"(?i)\bafter(?:wards)?\b|\btoo late\b|\blater\b|\bonce\b.{0,40}\bstarted\b"
_IN_CODE = r"(?i)\bin(?:side)? (?:the |my |a )?(?:code|python|script|notebook|program|cell)\b|os\.environ|\bat run ?time\b"
_IMPORT = r"(?i)\bimport(?:ed|ing)?\b"
_USE = r"(?i)\bfirst\b|\balloc|\buse[ds]?\b|\bstart(?:ed|ing|s)?\b|\bload(?:ed|ing)?\b|\brunning\b|\binit"
_IMPORT_LINE = re.compile(r"\s*(?:import|from)\s+([A-Za-z_]\w{0,40})")
_USE_LINE = re.compile(
    r"\.cuda\(|\.to\(\s*(?:device\s*=\s*)?['\"]cuda|device\s*=\s*['\"]cuda|torch\.cuda\.(?:is_available|init|mem_get_info|"
    r"current_device|device_count|get_device|set_device|empty_cache|synchronize)\b|\bjax\.(?:devices|numpy\.\w+\(|device_put)|"
    r"tf\.config\.list_physical_devices|device_map\s*="
)
_NAME, _TEXT = r"['\"]([A-Za-z_]\w{2,60})['\"]", r"['\"]([^'\"]{0,400})['\"]"
_SET_LINE = re.compile(
    rf"environ\s*\[\s*{_NAME}\s*\]\s*=\s*(?:str\()?{_TEXT}|environ\.setdefault\(\s*{_NAME}\s*,\s*{_TEXT}|"
    rf"(?:os\.)?putenv\(\s*{_NAME}\s*,\s*{_TEXT}|^\s*%(?:set_)?env\s+([A-Za-z_]\w{{2,60}})[=\s]\s*(\S.{{0,400}})"
)
_SHELL_LINE = re.compile(
    r"(?:^\s*!\s*|os\.system\(\s*['\"])(?:export|set)\s+([A-Za-z_]\w{2,60})=([^'\"\s;]{0,400})"
)


def value_and_remark(name: str, value: str) -> tuple[str | None, str]:
    """A value as somebody posted it, taken apart: "True (second attempt)" is True and a remark.

    The value is None where the words say that the variable was not set.
    """
    text = value.strip().strip("\"'`")
    if len(value) > LONGEST:
        return value, ""
    unset = _UNSET.fullmatch(text)
    if unset:
        return None, unset[1]
    if text.endswith(")") and "(" in text:
        kept, _, remark = text[:-1].rpartition("(")
        return kept.rstrip(), remark
    if name in CONF_NAMES:
        words = list(re.finditer(r"\S+", text))
        for at, word in enumerate(words[1:]):
            before = words[at]
            if before[0][-1] not in ",:[>" and word[0][0] not in ",:]" and ":" not in word[0]:
                return text[: before.end()], text[word.start() :]
        return value, ""
    row = VARIABLES.get(name)
    head, _, tail = text.partition(" ")
    plain = head.rstrip(",;")
    if row and row.form and tail and not re.fullmatch(row.form, text):
        return (plain, tail.strip()) if re.fullmatch(row.form, plain) else (value, "")
    return value, ""


def late_by_remark(name: str, value: str, remark: str) -> list[Finding]:
    """A finding where a remark says that a setting was made after it is read; what a person says is hearsay.

    Without a word on the moment, a program's own lines count as too late for what is read as it is imported.
    """
    stage = "code" if re.search(_IN_CODE, remark) else ""
    if re.search(_AFTER, remark):
        use = "use" if re.search(_USE, remark) else stage
        stage = "import" if re.search(_IMPORT, remark) else use
    row = VARIABLES.get(name)
    if row is None or not stage:
        return []
    late = _late(row, value, stage, f"said to be set late ({remark})")
    return [replace(one, remark=remark, hearsay=True) for one in late]


def late_assignments(code: str) -> tuple[Finding, ...]:
    """Assignments in a program's text that come after the moment at which the variable is read.

    What counts as that moment are an ``import`` of the program that reads it, and the first use of the GPU, both in the same
    text. A variable that the GPU's runtime reads is late after the import already: it starts the runtime, or may. Lines of a
    shell that a program starts for itself never reach the program.
    """
    found: list[Finding] = []
    imported: set[str] = set()
    used = 0
    for number, line in enumerate(code.splitlines(), 1):
        line = line[:2000].split(" #")[0]
        if line.lstrip().startswith("#"):
            continue
        shell = _SHELL_LINE.search(line)
        if shell and shell[1] in VARIABLES:
            says = f"line {number}: set in a shell that ends with this line"
            one = finding(
                shell[1], shell[2], "ineffective", says, "environ(7): a child's is its own"
            )
            found.append(replace(one, cause="config-ineffective", why="the program never has it"))
        for match in _SET_LINE.finditer(line):
            name, value = [part for part in match.groups() if part is not None][:2]
            if name in VARIABLES:
                stage = "import" if _imports(VARIABLES[name], imported) else "start"
                after = f"first use of the GPU in line {used}" if used else stage
                says = f"line {number}: set after the {after}"
                found += _late(VARIABLES[name], value, "use" if used else stage, says)
        module = _IMPORT_LINE.match(line)
        imported |= {module[1]} if module else set()
        used = used or (number if _USE_LINE.search(line) else 0)
    return sort(found)


def _imports(row: Variable, imported: set[str]) -> bool:
    """Whether a program that reads the variable is imported; the runtimes are read by each of them."""
    modules = IMPORTS.get(row.by) or [name for names in IMPORTS.values() for name in names]
    return bool(imported & set(modules))


def _late(row: Variable, value: str, stage: str, says: str) -> list[Finding]:
    """A finding where a setting made in this stage, or after it, comes too late: for the text's options one each."""
    last = {"start": "process", "code": "import", "import": "runtime", "use": "allocation"}[stage]
    options = parts(value) if row.name in CONF_NAMES else []
    early = [f"{k}:{v}" for k, v in options if k in OPTIONS and OPTIONS[k].moment]
    moments = {row.moment: (value, row.when)}
    moments.update(
        {OPTIONS[o.partition(":")[0]].moment: (o, "as torch is imported") for o in early}
    )
    for moment, (shown, when) in moments.items():
        if MOMENTS.index(moment) <= MOMENTS.index(last):
            said = f"{says}; it is read once, {when}"
            return [finding(row.name, shown, "too_late", said, row.source)]
    return []

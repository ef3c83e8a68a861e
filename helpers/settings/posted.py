"""Settings as people post them: a remark behind the value, an assignment in a program that comes too late."""

from __future__ import annotations

import re
from dataclasses import replace

from helpers.settings.rules import Finding, sort, told
from helpers.settings.table import (
    CONF_NAMES,
    IMPORTS,
    MOMENTS,
    OPTIONS,
    POSTED,
    VARIABLES,
    Variable,
)
from helpers.settings.text import parts

LONGEST_REMARK, LONGEST_LINE = 1000, 2000
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
    if name in CONF_NAMES:
        # A blank ends the text, unless a separator stands beside it or an option follows.
        cut = re.search(r"(?<=[^\s,:\[>])\s+(?=[^\s,:\]][^\s:]*(?!\S))", text)
        return (text[: cut.start()], text[cut.end() :]) if cut else (value, "")
    form = VARIABLES[name].form if name in VARIABLES else ""
    head, _, tail = text.partition(" ")
    plain = head.rstrip(",;")
    if form and tail and not re.fullmatch(form, text) and re.fullmatch(form, plain):
        return plain, tail.strip()
    return value, ""


def late_by_remark(name: str, value: str, remark: str) -> list[Finding]:
    """A finding where a remark says that a setting was made after it is read; what a person says is hearsay.

    Without a word on the moment, a program's own lines count as too late for what is read as it is imported.
    """
    passed = "import" if re.search(POSTED["in code"], remark) else ""
    if re.search(POSTED["after"], remark):
        passed = "allocation" if re.search(POSTED["a use"], remark) else passed
        passed = "runtime" if re.search(POSTED["an import"], remark) else passed
    if name not in VARIABLES or not passed:
        return []
    says = f"said to be set late ({remark})"
    late = _late(VARIABLES[name], value, passed, says)
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
        line = line[:LONGEST_LINE].split(" #")[0]
        if line.lstrip().startswith("#"):
            continue
        shell = re.search(POSTED["shell line"], line)
        if shell and shell[1] in VARIABLES:
            found.append(told("in a shell", shell[1], shell[2], number=number))
        for match in re.finditer(POSTED["set line"], line):
            name, value = [part for part in match.groups() if part is not None][:2]
            if name in VARIABLES:
                # Each of the programs that can be imported starts the runtimes, or may.
                every = [module for names in IMPORTS.values() for module in names]
                done = imported & set(IMPORTS.get(VARIABLES[name].by, every))
                after = (
                    f"first use of the GPU in line {used}"
                    if used
                    else "import"
                    if done
                    else "start"
                )
                passed = "allocation" if used else "runtime" if done else "process"
                says = f"line {number}: set after the {after}"
                found += _late(VARIABLES[name], value, passed, says)
        module = re.match(POSTED["import line"], line)
        imported |= {module[1]} if module else set()
        used = used or (number if re.search(POSTED["use line"], line) else 0)
    return sort(found)


def _late(row: Variable, value: str, passed: str, says: str) -> list[Finding]:
    """A finding where the moment at which a setting is read has passed; of a text, its first option that is read earlier."""
    read = [(row.moment, value, row.when)]
    for key, given in parts(value) if row.name in CONF_NAMES else []:
        if key in OPTIONS and OPTIONS[key].moment:
            read.append((OPTIONS[key].moment, f"{key}:{given}", "as torch is imported"))
    for moment, shown, when in read:
        if MOMENTS.index(moment) <= MOMENTS.index(passed):
            return [told("late", row.name, shown, says=says, when=when, source=row.source)]
    return []

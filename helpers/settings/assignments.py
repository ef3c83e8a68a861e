"""Which settings does a program's text make too late, or where they never reach the program?"""

from __future__ import annotations

import re

from helpers.settings.allocator_text import parts
from helpers.settings.audit import unknown_name
from helpers.settings.table import (
    CODE_FORMS,
    CONF_NAMES,
    IMPORTS,
    MOMENTS,
    OPTIONS,
    VARIABLES,
    Finding,
    Variable,
    finding,
    sort,
)

LONGEST_LINE = 2000
"""Of a longer line the start is read."""


def late_assignments(code: str) -> tuple[Finding, ...]:
    """Assignments in a program's text that come after the moment at which the variable is read.

    What counts as that moment are an ``import`` of the program that reads it, and the first use
    of the GPU, both in the same text. A variable that the GPU's runtime reads is late after the
    import already: it starts the runtime, or may. Lines of a shell that a program starts for
    itself never reach the program.
    """
    program = _Program()
    for number, line in enumerate(code.splitlines(), 1):
        line = line[:LONGEST_LINE].split(" #")[0]
        if not line.lstrip().startswith("#"):
            program.read(number, line)
    return sort(program.findings)


class _Program:
    """A program's text, read line by line: what it imported, and where it first used the GPU."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.imported: set[str] = set()
        self.used_in_line = 0

    def read(self, number: int, line: str) -> None:
        """Take in one line: its assignments come before what it imports and uses."""
        shell = re.search(CODE_FORMS["shell line"], line)
        if shell and shell[1] in VARIABLES:
            self.findings.append(
                finding("in a shell", shell[1], shell[2], number=number)
            )
        for match in re.finditer(CODE_FORMS["set line"], line):
            name, value = [group for group in match.groups() if group is not None]
            if name in VARIABLES:
                self._assign(number, VARIABLES[name], value)
            else:
                self.findings += unknown_name(name, value)
        for name, value in re.findall(CODE_FORMS["export line"], line):
            if name not in VARIABLES:
                self.findings += unknown_name(name, value)
        module = re.match(CODE_FORMS["import line"], line)
        if module:
            self.imported.add(module[1])
        if not self.used_in_line and re.search(CODE_FORMS["use line"], line):
            self.used_in_line = number

    def _assign(self, number: int, variable: Variable, value: str) -> None:
        passed = "process"
        after = "start"
        if self.used_in_line:
            passed = "allocation"
            after = f"first use of the GPU in line {self.used_in_line}"
        elif self.imported & _modules_that_read(variable):
            passed = "runtime"
            after = "import"
        says = f"line {number}: set after the {after}"
        self.findings += _late(variable, value, passed, says)


def _modules_that_read(variable: Variable) -> set[str]:
    """The modules whose import starts what reads the variable; each may start the GPU's runtime."""
    if variable.read_by in IMPORTS:
        return set(IMPORTS[variable.read_by])
    return set().union(*IMPORTS.values())


def _late(variable: Variable, value: str, passed: str, says: str) -> list[Finding]:
    """A finding where the moment at which a setting is read has passed; of a text, its first
    option that is read earlier.
    """
    readings = [(variable.moment, value, variable.read)]
    if variable.name in CONF_NAMES:
        for key, option_value in parts(value):
            if key in OPTIONS and OPTIONS[key].moment:
                piece = f"{key}:{option_value}"
                readings.append((OPTIONS[key].moment, piece, "as torch is imported"))
    for moment, shown, when in readings:
        if MOMENTS.index(moment) <= MOMENTS.index(passed):
            return [
                finding(
                    "late",
                    variable.name,
                    shown,
                    says=says,
                    when=when,
                    source=variable.source,
                )
            ]
    return []

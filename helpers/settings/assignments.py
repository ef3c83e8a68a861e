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
"""Characters of a line that are searched: more than people write, and soon done where a line of a
notebook holds a whole picture.
"""


def late_assignments(code: str) -> tuple[Finding, ...]:
    """Findings on assignments in a program's text that come too late or never reach the program.

    An assignment is late after the ``import`` of a module that reads the variable, or after the
    first use of the GPU, both in the same text. A variable that the GPU's runtime reads is late
    after the import already, which may start the runtime. A setting in a shell that the program
    starts never reaches the program itself.
    """
    program = _Program()
    for number, line in enumerate(code.splitlines(), 1):
        statement, _, _comment = line[:LONGEST_LINE].partition(" #")
        if not statement.lstrip().startswith("#"):
            program.read(number, statement)
    return sort(program.findings)


class _Program:
    """A program's text, read line by line: which modules it imported, and the number of the line
    that first used the GPU (0: none so far).
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.imported: set[str] = set()
        self.used_in_line = 0

    def read(self, number: int, line: str) -> None:
        """Judge the assignments of one line, then note what the line imports and uses."""
        shell = re.search(CODE_FORMS["shell line"], line)
        if shell and shell[1] in VARIABLES:
            name, value = shell.groups()
            self.findings.append(finding("in a shell", name, value, number=number))
        # A line of Python sets a variable for its own process: late or not is a question of order.
        for match in re.finditer(CODE_FORMS["set line"], line):
            # Of the alternatives one has matched: its name and value are not None.
            name, value = [group for group in match.groups() if group is not None]
            if name in VARIABLES:
                self._judge(number, VARIABLES[name], value)
            else:
                self.findings += unknown_name(name, value)
        # A shell's line before the program is in time: only its name can be wrong.
        for name, value in re.findall(CODE_FORMS["export line"], line):
            if name not in VARIABLES:
                self.findings += unknown_name(name, value)
        module = re.match(CODE_FORMS["import line"], line)
        if module:
            self.imported.add(module[1])
        if not self.used_in_line and re.search(CODE_FORMS["use line"], line):
            self.used_in_line = number

    def _judge(self, number: int, variable: Variable, value: str) -> None:
        """Add a finding where the assignment in line ``number`` comes too late."""
        passed = "process"  # of MOMENTS the last one that is over in this line
        after = "start"
        if self.used_in_line:
            passed = "allocation"
            after = f"first use of the GPU in line {self.used_in_line}"
        elif self.imported & _modules_that_read(variable):
            passed = "runtime"
            after = "import"
        says = f"line {number}: set after the {after}"
        late = _late(variable, value, passed, says)
        if late is not None:
            self.findings.append(late)


def _modules_that_read(variable: Variable) -> set[str]:
    """The modules whose import makes a program read the variable: any one that may start the
    GPU's runtime, where no program's own are known.
    """
    if variable.read_by in IMPORTS:
        return set(IMPORTS[variable.read_by])
    return set().union(*IMPORTS.values())


def _late(variable: Variable, value: str, passed: str, says: str) -> Finding | None:
    """The finding on a setting that is read at or before the moment ``passed``, which is over;
    None where it is read later.

    Some options of the allocator's text are read earlier than the text. Where the text is in time
    and such options are not, the finding is on the first of them.
    """
    readings = [(variable.moment, value, variable.read)]  # moment, shown value, when
    if variable.name in CONF_NAMES:
        for key, option_value in parts(value):
            if key in OPTIONS and OPTIONS[key].moment:
                piece = f"{key}:{option_value}"
                readings.append((OPTIONS[key].moment, piece, "as torch is imported"))
    source = variable.source
    for moment, shown, when in readings:
        if MOMENTS.index(moment) <= MOMENTS.index(passed):
            name = variable.name
            return finding("late", name, shown, says=says, when=when, source=source)
    return None

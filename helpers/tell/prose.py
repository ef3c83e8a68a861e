"""Words for a terminal: wrapped prose, commands that can be pasted, bold where there is any."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap

from helpers.ground.places import PROGRAM, typed_here
from helpers.ground.units import columns_of, cut, plain

WIDE = 88
"""Columns of prose that fit the column of a page."""
SCREEN = 80
"""Columns of prose and of commands that fit a usual terminal."""
LONGEST_LINE = 140
"""Columns of the line of a folded view: one line of a page on a desk."""
# The control sequence that sets colours (SGR of ECMA-48): ESC [ numbers m.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# A word as a shell reads it: letters, escaped ones, and quotations of both kinds.
_SHELL_WORDS = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")


def uncoloured(text: str) -> str:
    """The output of a program without terminal colours; other control characters are spelt out."""
    return plain(_COLOUR.sub("", text.replace("\r\n", "\n")), keep="\n\t")


def bold(text: str) -> str:
    """The text in bold on a terminal that can show it; unchanged elsewhere, and where NO_COLOR
    (no-color.org) is set.
    """
    no_styles = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    if no_styles or not sys.stdout.isatty():
        return text
    return f"\x1b[1m{text}\x1b[0m"


def flat(text: str) -> str:
    """Text in one line: blanks of any kind become one space, control characters are spelt out."""
    return plain(" ".join(text.split()))


def one_line(words: str) -> str:
    """Words in one line of LONGEST_LINE columns; a longer one is cut after a whole word."""
    kept = cut(" ".join(words.split()), LONGEST_LINE)
    if kept.endswith("…") and " " in kept:
        return f"{kept.rsplit(' ', 1)[0]} …"
    return kept


def within(text: str, columns: int = 0) -> str:
    """Text wrapped to so many columns (0: the terminal's); the lines after the first of a wrapped
    one are indented further.

    Left as they are: what a reader pastes (a command of this program, a line that ends with a
    backslash), a label with a path, which may have blanks in it, and lines of at most two words.
    """
    if not columns:
        columns = shutil.get_terminal_size().columns
    output = []
    for line in text.split("\n"):
        words = line.lstrip()
        indent = _indent(line)
        # "page: /home/..." has a short label; a label and one word cannot be wrapped well.
        is_path = words.count(" ") < 2 or ": /" in line[:20]
        is_command = words.startswith(f"{PROGRAM} ") or line.endswith("\\")
        if is_path or is_command or columns_of(line) <= columns:
            output.append(line)
        else:
            output += wrapped(line.strip(), indent, indent + "  ", columns)
    return "\n".join(output)


def _indent(line: str) -> str:
    """The blanks that a line begins with."""
    return line[: len(line) - len(line.lstrip())]


def wrapped(
    text: str,
    indent: str = "",
    later_indent: str | None = None,
    columns: int = WIDE,
    most: int | None = None,
) -> list[str]:
    """Prose in lines of so many columns, control characters spelt out. Where there are no words it
    is one line, the indent alone. Words are never broken, so a long one may be wider than its line.

    ``later_indent`` is the indent of the lines after the first; None: the same. Beyond ``most``
    lines (None: any number) the text is cut and ends with "...".
    """
    if later_indent is None:
        later_indent = indent
    lines = textwrap.wrap(
        plain(text),
        columns,
        initial_indent=indent,
        subsequent_indent=later_indent,
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" ...",
    )
    if not lines:
        return [indent]
    return lines


def typed(command: str, indent: str = "") -> list[str]:
    """The lines of a command as a person types them.

    A line longer than SCREEN is continued with a backslash: quoted words stay whole, and its
    comment is put above it.
    """
    output: list[str] = []
    for line in typed_here(command).splitlines():
        output += _typed_line(indent + plain(line))
    return output


def parted(line: str) -> tuple[str, str]:
    """The command of a typed line, and its comment without the ``#``; either may be empty.

    A ``#`` within a word or within quotation marks begins no comment.
    """
    for sign in re.finditer(r"(?<!\S)#", line):
        command = line[: sign.start()].rstrip()
        if _ends_its_quotations(command):
            return command, line[sign.start() :].strip(" #")
    return line, ""


def _ends_its_quotations(command: str) -> bool:
    """Whether every quotation that begins in a command also ends in it. A quotation without an end
    is no word of _SHELL_WORDS: only without one do the words have all letters of the command.
    """
    words = "".join(_SHELL_WORDS.findall(command))
    return "".join(words.split()) == "".join(command.split())


def _typed_line(line: str) -> list[str]:
    """A line of a command in lines of SCREEN columns, each but the last with a backslash. A comment
    comes before it, and a command after a semicolon begins a line of its own. A line that fits, or
    has a quotation without an end, stays as it is.
    """
    command, comment = parted(line)
    if columns_of(line) <= SCREEN or not _ends_its_quotations(command):
        return [line]
    indent = _indent(line)
    output = []
    if comment:
        output = wrapped(comment, indent + "# ", columns=SCREEN)
    begins_command = True
    for word in _SHELL_WORDS.findall(command):
        if begins_command:
            output.append(indent + word)
        elif columns_of(f"{output[-1]} {word} \\") <= SCREEN:
            output[-1] += f" {word}"
        else:
            output[-1] += " \\"
            output.append(f"{indent}    {word}")
        # "\;" is a word of find, which ends no command.
        begins_command = word[-1] == ";" and word != "\\;"
        if begins_command:
            output[-1] = output[-1].removesuffix(";")
    return output

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
SCREEN = 80
"""Columns of prose, so that it also fits the column of a page, and of a terminal."""
LONGEST_LINE = 140
"""Columns that the line of a folded view has."""
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_SHELL_WORDS = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")


def uncoloured(text: str) -> str:
    """The output of a program without terminal colours; other control characters are spelt out."""
    return plain(_COLOUR.sub("", text.replace("\r\n", "\n")), keep="\n\t")


def bold(text: str) -> str:
    """The text in bold on a terminal that has it; as it is elsewhere, and where NO_COLOR is set."""
    no_styles = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    if no_styles or not sys.stdout.isatty():
        return text
    return f"\x1b[1m{text}\x1b[0m"


def flat(text: str) -> str:
    """Text made plain, without its line breaks."""
    return plain(" ".join(text.split()))


def one_line(words: str) -> str:
    """Words in one line of LONGEST_LINE columns; what is too long ends after a whole word."""
    kept = cut(" ".join(words.split()), LONGEST_LINE)
    if kept.endswith("…") and " " in kept:
        return f"{kept.rsplit(' ', 1)[0]} …"
    return kept


def within(text: str, columns: int = 0) -> str:
    """Text in lines of so many columns (0: the terminal's); a wrapped line goes on indented.

    A label with a path is never wrapped, as a path may hold blanks, nor is a command of ours, or a
    line that a shell goes on from, which can be pasted.
    """
    most = columns or shutil.get_terminal_size().columns
    output = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        is_label = line.count(" ", len(indent)) < 2 or ": /" in line[:20]
        is_command = line.startswith(f"{PROGRAM} ", len(indent)) or line.endswith("\\")
        if is_label or is_command or columns_of(line) <= most:
            output.append(line)
        else:
            output += wrapped(line.strip(), indent, indent + "  ", most)
    return "\n".join(output)


def wrapped(
    text: str,
    indent: str = "",
    later_indent: str | None = None,
    columns: int = WIDE,
    most: int | None = None,
) -> list[str]:
    """Prose in lines of so many columns, made plain.

    ``later_indent`` is that of the lines after the first, where it differs from ``indent``. Beyond
    ``most`` lines the text is cut, and ends with "...".
    """
    lines = textwrap.wrap(
        plain(text),
        columns,
        initial_indent=indent,
        subsequent_indent=indent if later_indent is None else later_indent,
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" ...",
    )
    return lines or [indent]


def typed(command: str, indent: str = "") -> list[str]:
    """The lines of a command as they are typed.

    A line that is too long is broken where a shell goes on reading; quoted words stay whole, and a
    comment behind a command stands above it.
    """
    output: list[str] = []
    for line in typed_here(command).splitlines():
        output += _typed_line(indent + plain(line))
    return output


def parted(line: str) -> tuple[str, str]:
    """A typed line without its comment, and the comment without its sign."""
    for sign in re.finditer(r"(?<!\S)#", line):
        command = line[: sign.start()].rstrip()
        if _is_whole(command):
            return command, line[sign.start() :].strip(" #")
    return line, ""


def _is_whole(command: str) -> bool:
    """Whether every quotation of a command ends in it."""
    words = _SHELL_WORDS.findall(command)
    return "".join("".join(words).split()) == "".join(command.split())


def _typed_line(line: str) -> list[str]:
    command, comment = parted(line)
    if columns_of(line) <= SCREEN or not _is_whole(command):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    output = wrapped(comment, indent + "# ", columns=SCREEN) if comment else []
    begins_command = True
    for word in _SHELL_WORDS.findall(command):
        if begins_command:
            output.append(indent + word)
        elif columns_of(f"{output[-1]} {word}") <= SCREEN - 2:
            output[-1] += f" {word}"
        else:
            output[-1] += " \\"
            output.append(f"{indent}    {word}")
        begins_command = word[-1] == ";" and word != "\\;"
        if begins_command:
            output[-1] = output[-1][:-1]
    return output

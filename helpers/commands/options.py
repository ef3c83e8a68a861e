"""How the docstring of a verb becomes its options and its help.

A verb is one function: the first sentence of its docstring says what it does, and each line below
the blank one is an option as ``--help`` shows it, with a colon before its help (an indented line
goes on with it)::

    plan: a word that must be there            [batch]: one that may be, "" without it
    folders DIR ...: one word or more          [what ...]: any number, none too
    --wide: set or not                         --box BOX: text, "" without it
    --device N <int>: a number or None         --events N <int> = 9: a number with a default
    --conf STR ...: may be given again         --resume [BATCH]: "" where no word follows it
    --policy {a,b}: one of these words         --out FOLDER !: must be given
    command -- COMMAND: all that follows       --engine {a,b} = a: hidden
    Example: what follows `casebook`

An option whose help is the word ``hidden`` works, and ``--help`` does not show it. A line
``<trace>`` stands for the options that SHARED has under that name. Docstrings are read without
    importing the
verb's file, which loads what its work needs.
"""

from __future__ import annotations

import argparse
import ast
import pkgutil
import re
from typing import Any

from helpers.ground.places import PROGRAM

NUMBERS = {"<int>": int, "<float>": float}
"""The words for an option that takes a number, each with the type of that number."""

EXAMPLE = "\nExample: "
"""How the last line of a verb's docstring begins; other functions have no such line."""

SHARED = {
    "<recording>": """\
--out TRACE: the trace file (default: in outputs)
--force: replace an earlier recording of that name
--torch-python PATH: the Python to use for a leading `python` in COMMAND
command -- COMMAND: the program and its arguments""",
    "<trace>": """\
trace: a torch snapshot (.pickle), the oracle's lines (.jsonl, .xz) or a Parquet trace
--capacity SIZE: the card's memory, such as 20GiB
--gpu NAME: the card by its name, such as 4090, instead of --capacity
--held SIZE: memory of the card that other processes use
--fraction F <float>: set_per_process_memory_fraction
--torch VER: the torch release (default: the recording's, else 2.14.1)
--build B: cuda or rocmX.Y (default: the recording's, else cuda)
--device N <int>: the device, if the snapshot has several
--max-bytes SIZE: the largest trace file to read (default: 1 GiB)""",
}


def verbs_of(module: str) -> dict[str, str]:
    """The docstring of each verb of a file in helpers/commands: of each function with
    an example.
    """
    source = pkgutil.get_data("helpers.commands", f"{module}.py") or b""
    verbs = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and EXAMPLE in docstring:
                verbs[node.name] = docstring
    return verbs


def says(docstring: str) -> str:
    """The first sentence of a verb's docstring, as help has it: in lower case, without
    a full stop.
    """
    sentence, _, _ = docstring.partition("\n\n")
    words = " ".join(sentence.split())
    return words[0].lower() + words[1:].rstrip(".")


def described(parser: argparse.ArgumentParser, docstring: str) -> None:
    """Give a verb's parser its help, the option that every verb has, and those of its docstring."""
    parser.description = says(docstring)
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of text"
    )
    _, _, lines = docstring.partition("\n\n")
    for name, options in SHARED.items():
        lines = lines.replace(name, options)
    unwrapped = re.sub(r"\n\s+", " ", lines)  # an indented line goes on with the help
    for line in unwrapped.splitlines():
        form, _, words = line.partition(": ")
        if form == "Example":
            parser.epilog = f"example: {PROGRAM} {words}"
        elif form:
            _add(parser, form, words)


def _add(parser: argparse.ArgumentParser, form: str, words: str) -> None:
    """Add the option or the positional word that ``form`` describes, with its help."""
    if words == "hidden":
        words = argparse.SUPPRESS
    is_optional = form.startswith("[")
    if is_optional:
        form = form[1:-1]
    name, *marks = form.split()
    if name.startswith("-"):
        parser.add_argument(name, help=words, **_option(marks))
    else:
        parser.add_argument(name, help=words, **_positional(marks, is_optional))


def _option(marks: list[str]) -> dict[str, Any]:
    """The keywords of ``add_argument`` for an option; ``marks`` are the words after its name."""
    if not marks:
        return {"action": "store_true"}
    value = marks[0]
    if value.startswith("["):
        return {"nargs": "?", "const": "", "metavar": value[1:-1]}
    keywords: dict[str, Any] = {"default": ""}
    for word, number in NUMBERS.items():
        if word in marks:
            keywords = {"default": None, "type": number}
    if "=" in marks:
        # A text: argparse makes a number of it where the option takes one.
        default = marks[marks.index("=") + 1]
        keywords["default"] = default
        if default == "None":
            keywords["default"] = None
    if "..." in marks:
        keywords.update(action="append", default=[])
    if "!" in marks:
        keywords["required"] = True
    if value.startswith("{"):
        keywords["choices"] = value[1:-1].split(",")
    else:
        keywords["metavar"] = value
    return keywords


def _positional(marks: list[str], is_optional: bool) -> dict[str, Any]:
    """The keywords of ``add_argument`` for a word without a dash; ``marks`` follow its name."""
    if marks[:1] == ["--"]:
        return {"nargs": argparse.REMAINDER, "metavar": " ".join(marks)}
    keywords: dict[str, Any] = {}
    if "..." in marks:
        keywords["nargs"] = "*" if is_optional else "+"
    elif is_optional:
        keywords = {"nargs": "?", "default": ""}
    if marks and marks[0] != "...":
        keywords["metavar"] = marks[0]
    return keywords

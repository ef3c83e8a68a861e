"""How the docstring of a verb becomes its options and its help.

A verb is one function: the first sentence of its docstring says what it does, and each line below the
blank one is an option as ``--help`` shows it, with a colon before its help (an indented line goes on
with it)::

    plan: a word that must be there            [batch]: one that may be, "" without it
    folders DIR ...: one word or more          [what ...]: any number, none too
    --wide: set or not                         --box BOX: text, "" without it
    --device N <int>: a number or None         --events N <int> = 9: a number with a default
    --conf STR ...: may be given again         --resume [BATCH]: "" where no word follows it
    --policy {a,b}: one of these words         --out FOLDER !: must be given
    command -- COMMAND: all that follows       --engine {a,b} = a: hidden
    Example: what follows `casebook`

A line ``<trace>`` stands for the options that SHARED has under that name. Docstrings are read without
importing the verb's file, which loads what its work needs.
"""

from __future__ import annotations

import argparse
import ast
import pkgutil
import re
from typing import Any

from helpers.ground.places import PROGRAM

KINDS = {"<int>": int, "<float>": float}

EXAMPLE = "\nExample: "
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
    """The docstring of each verb of a file in helpers/commands: of each function with an example."""
    source = pkgutil.get_data("helpers.commands", f"{module}.py") or b""
    docstrings = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    return {verb: text for verb, text in docstrings.items() if EXAMPLE in text}


def says(docstring: str) -> str:
    """What a verb does, as the first sentence of its docstring has it."""
    sentence = " ".join(docstring.partition("\n\n")[0].split())
    return sentence[0].lower() + sentence[1:].rstrip(".")


def described(parser: argparse.ArgumentParser, docstring: str) -> None:
    """Give a verb's parser its help, the option that every verb has, and those of its docstring."""
    parser.description = says(docstring)
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of text"
    )
    lines = docstring.partition("\n\n")[2]
    for name, options in SHARED.items():
        lines = lines.replace(name, options)
    for line in re.sub(r"\n\s+", " ", lines).splitlines():
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
    name, *behind = form.split()
    if name.startswith("-"):
        parser.add_argument(name, help=words, **_option(behind))
    else:
        parser.add_argument(name, help=words, **_positional(behind, is_optional))


def _option(behind: list[str]) -> dict[str, Any]:
    """What argparse is told of an option, by the words behind its name."""
    if not behind:
        return {"action": "store_true"}
    value = behind[0]
    if value.startswith("["):
        return {"nargs": "?", "const": "", "metavar": value[1:-1]}
    keywords: dict[str, Any] = {"default": ""}
    for word, number in KINDS.items():
        if word in behind:
            keywords = {"default": None, "type": number}
    if "=" in behind:
        default = behind[behind.index("=") + 1]
        # argparse makes a number of it where the option takes one.
        keywords["default"] = None if default == "None" else default
    if "..." in behind:
        keywords.update(action="append", default=[])
    if "!" in behind:
        keywords["required"] = True
    if value.startswith("{"):
        keywords["choices"] = value[1:-1].split(",")
    else:
        keywords["metavar"] = value
    return keywords


def _positional(behind: list[str], is_optional: bool) -> dict[str, Any]:
    """What argparse is told of a word without a dash, by the words behind its name."""
    if behind[:1] == ["--"]:
        return {"nargs": argparse.REMAINDER, "metavar": " ".join(behind)}
    keywords: dict[str, Any] = {}
    if "..." in behind:
        keywords["nargs"] = "*" if is_optional else "+"
    elif is_optional:
        keywords = {"nargs": "?", "default": ""}
    if behind and behind[0] != "...":
        keywords["metavar"] = behind[0]
    return keywords

"""The lines that start a server with the context and the options of an answer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from helpers.fits.contexts import Contexts
from helpers.fits.servers import table
from helpers.fits.sheet import Sheet
from helpers.fits.solving import layers_on_gpu

GAP = re.compile(r"(?<!\{)\{(\w+)\}")
"""A gap such as {context} in a form of servers.json; {{ stands for a brace."""
ONE_BY_DEFAULT = ("slots", "tp")
"""Gaps whose option is left out for 1, the server's default."""
LINE_CHARS = 74
"""Letters of a line: with the indent of an answer, 6, it fits a terminal of 80."""


def start_lines(
    path: str, sheet: Sheet, contexts: Contexts, changed: Mapping[str, object]
) -> list[str]:
    """The lines to paste, from the forms of the server in servers.json, with their gaps filled in.
    ``changed`` are the gaps that a change of options fills with something else.

    Empty where the server has no form, or where no context that is of use likely fits.
    """
    forms = table()["start"].get(sheet.server)
    tokens = contexts.to_start_with
    if not forms or not tokens or contexts.likely < contexts.least:
        return []
    slots = int(sheet.value_or("n_parallel", 1))
    gaps: dict[str, object] = {
        "model": shlex.quote(_model(path, sheet)),
        "context": tokens,
        "context_of_a_slot": tokens // slots,
        "slots": slots,
        "layers": _layers(sheet, tokens),
        "share": _share(sheet),
        "tp": int(sheet.value_or("tp", 1)),
        "kv": _cache_type(sheet),
        # only changes fill the next three with anything else (gaps in changes.py)
        "device": "cuda",
        "offload": None,
        "quantised": None,
    }
    # Without an end there is no number to ask for: the option is left out.
    if contexts.has_no_end and contexts.asked is None:
        gaps["context"] = None
    gaps.update(changed)
    return [_line(words, gaps) for words in forms]


def _line(words: Sequence[str], gaps: Mapping[str, object]) -> str:
    """A line of a form with its gaps filled; a long one in several lines, but a comment (``#``) as
    it is, since nothing continues one.
    """
    filled = [word.format(**gaps) for word in words if _is_needed(word, gaps)]
    line = " ".join(filled)
    if len(line) <= LINE_CHARS or line.startswith("#"):
        return line
    if line.endswith(")"):  # a call in Python, which may go on below
        return "\n    ".join(filled)
    return _continued(filled)


def _is_needed(word: str, gaps: Mapping[str, object]) -> bool:
    """Whether a word of a form belongs into the line: it has no gap, or its gap is filled with
    other than the server's default. None and empty stand for the default; 1 does in ONE_BY_DEFAULT.
    """
    gap = GAP.search(word)
    if gap is None:
        return True
    name = gap[1]
    if name in ONE_BY_DEFAULT:
        return gaps[name] != 1
    return gaps[name] not in (None, "")


def _continued(words: Sequence[str]) -> str:
    """A shell's command in lines of at most LINE_CHARS, each but the last with a backslash."""
    lines = [words[0]]
    for word in words[1:]:
        longer = f"{lines[-1]} {word}"
        if len(longer) <= LINE_CHARS:
            lines[-1] = longer
        else:
            lines.append(f"    {word}")
    return " \\\n".join(lines)


def _layers(sheet: Sheet, tokens: int) -> int | None:
    """How many layers go to the cards: as given, else as many as fit; None for a server that puts
    all of them there.
    """
    if "n_gpu_layers" in sheet.inputs:
        return int(sheet.figure("n_gpu_layers"))
    return layers_on_gpu(sheet.at({"n_ctx": tokens}))


def _model(path: str, sheet: Sheet) -> str:
    """The path of the model; MODEL or MODEL.gguf where none is known, and where the server cannot
    read the form that is there.
    """
    if path and path.endswith(".gguf") is sheet.is_ggml:
        return path
    if sheet.is_ggml:
        return "MODEL.gguf"
    return "MODEL"


def _cache_type(sheet: Sheet) -> str:
    """The type of the cache; empty where it is the default, of 2 bytes for an element of the keys."""
    if sheet.value("bk") == 2:
        return ""
    return sheet.text("kv_type_k")


def _share(sheet: Sheet) -> str:
    """The share of the card, for servers that take one; else empty."""
    name = sheet.option("share")
    if not name or not sheet.has(name):
        return ""
    return f"{sheet.figure(name):.3g}"  # SGLang's default has three digits

"""Texts, notebooks and any data of JSON without the values that must not leave, and the count
of what was replaced.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from . import redact_known as facts
from .redact_known import TABLE, WRITING, Known, Span, has_name, is_strange
from .redact_patterns import JOINT, PAGE, View, detected, named, parts, placed, runs

_is_named = lru_cache(1 << 12)(re.compile(TABLE["named"], re.IGNORECASE).search)
BINARY = re.compile(TABLE["binary"])
_LINES = TABLE["kept_by_line"].split()
"""Keys under which nbformat keeps one text as a list of its lines."""
_TELLING = ("name", "key", "label", "description", "placeholder")
"""Under these keys data has the name of what stands beside it as its value."""
_DEPTH = 6
_WHOLE = 36
_ANSWER = 4096
_COUNT = re.compile(r"[\d.,]+\w{0,4}")
_LINES_LEAST = 5
"""A known value cut by the end of a line is looked for from this length on."""
Look = Callable[[str, Known], None]
LEFT_OUT = "left out: what it holds cannot be read for sure"


@dataclass
class Replaced:
    """What was replaced: how often each kind at each place, never the value.

    ``notes`` name what could not be read for sure.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def kinds(self) -> dict[str, int]:
        """How many of each kind, by kind."""
        return dict(Counter(kind for kind, _ in sorted(self.counts.elements())))

    def add(self, other: Replaced, where: str) -> None:
        """Count what was replaced in a part, under the part's place."""
        for (kind, place), count in other.counts.items():
            self.counts[kind, where + place] += count
        self.notes += [f"{where}{note}" for note in other.notes]


def redact_text(
    text: str, known: Known, replaced: Replaced | None = None, where: str = "text"
) -> str:
    """The text with a pseudonym for every value of ``known`` and every value that a detector
    finds.

    Values found by what stands before them are added to ``known``, so the same text later has
    the same pseudonyms.
    """
    learn(text, known)
    return replace(text, known, replaced, where)


def learn(text: str, known: Known, ahead: Mapping[str, Any] = {}) -> None:
    """Remember the values that a text tells: the user of a home folder, the host of a prompt,
    what has a shape of its own.

    ``ahead``: what is ``detected`` in some parts of texts.
    """
    for part in parts(text):
        if part not in known.read:
            known.read[part] = named(ahead.get(part) or detected(part), known)
            for match in View(part).found("base64"):
                inner = facts.decoded_base64(match.group())
                if isinstance(inner, str):
                    learn(inner, known)


def replace(
    text: str, known: Known, replaced: Replaced | None = None, where: str = "text", depth: int = 0
) -> str:
    """The text with pseudonyms, by what is known so far and by detectors; ``learn`` all texts
    first.
    """
    replaced = Replaced() if replaced is None else replaced
    each = parts(text)
    if len(each) > 1:
        return "".join(replace(part, known, replaced, where, depth) for part in each)
    text = _replaced(text, known, replaced, where)
    if depth == _DEPTH:
        return text
    return WRITING["base64"].sub(
        lambda match: _payload(match.group(), known, replaced, where, depth), text
    )


def _replaced(text: str, known: Known, replaced: Replaced, where: str, again: int = 3) -> str:
    """The text with pseudonyms; where one had to wait for another that it overlaps, ``again``
    with what is near.
    """
    each, values = known.read.pop(text, None) or named(detected(text), known)
    for name, view in each:
        spans = known.spans(view.text, _LINES_LEAST if name == "joined" else 0)
        values = values + [placed(span, view, name) for span in spans]
    over = [one for one in values if one.joined and "\n" in text[one.start : one.end]]
    if over:  # the half of a known value in a line of its own is no name
        halves = [one for one in values if one.kind == "name" and not one.joined]
        cut = {one for one in halves if any(a.start <= one.start < a.end for a in over)}
        values = [one for one in values if one not in cut]
    text, waiting = _put(text, values, replaced, where)
    lines = (
        (text.rfind("\n", 0, max(0, at - PAGE)) + 1, text.find("\n", at + PAGE)) for at in waiting
    )
    near = [*runs((a, b if b >= 0 else len(text)) for a, b in lines)] if again else []
    for start, end in reversed(near):
        clean = _replaced(text[start:end], known, replaced, where, again - 1)
        text = text[:start] + clean + text[end:]
    return text


def _name_of(payload: str, known: Known) -> str:
    return known.name("payload", hashlib.sha256(payload.encode()).hexdigest())


def _put(text: str, values: list[Span], replaced: Replaced, where: str) -> tuple[str, list[int]]:
    """The text with the spans replaced, the longest of those that overlap; where in it any had
    to wait.
    """
    parts = []
    at = 0
    waiting = []
    spans = []
    sure = sorted({span.start: span.end for span in values if not span.joined}.items())
    for span in values:
        end = span.end
        between = ""
        if span.joined:
            end = _end(text, span, sure)
            between = _glue(text[span.start : end], True)
        if not span.joined or between:
            spans.append((span.start, end, between, span))
    taken: list[tuple[int, int]] = []
    chosen = []
    for start, end, between, span in sorted(spans, key=lambda one: (one[3].weak, one[0] - one[1])):
        place = bisect(taken, (start, end))
        before = taken[max(0, place - 1) : place]
        after = taken[place : place + 1]
        if (before and before[0][1] > start) or (after and after[0][0] < end):
            if not (before and before[0][1] >= end):
                waiting.append(start)
            continue
        taken.insert(place, (start, end))
        chosen.append((start, end, between, span))
    places = [0]
    shifts = [0]
    shift = 0
    for start, end, between, span in sorted(chosen, key=lambda one: one[0]):
        parts += [text[at:start], span.name, between or _glue(text[start:end], False)]
        at = end
        shift = shift + len(parts[-2]) + len(parts[-1]) - (end - start)
        places.append(start)
        shifts.append(shift)
        replaced.counts[span.kind, where] += 1
    text = "".join([*parts, text[at:]])
    return text, sorted(max(0, one + shifts[bisect(places, one) - 1]) for one in waiting)


def _glue(text: str, lines: bool) -> str:
    """The colours, tags and, with ``lines``, line ends of a piece: they stay where a value
    around them goes.
    """
    way = WRITING["wrap" if lines else "glue"]
    return "".join(match.group() for match in way.finditer(text))


def _end(text: str, span: Span, sure: list[tuple[int, int]]) -> int:
    """Where a value that goes over the ends of lines ends: before the next one that does not,
    and before a word after it.
    """
    first = WRITING["wrap"].search(text, span.start, span.end)
    if span.kind == "token" and first and _COUNT.fullmatch(text, span.start, first.start()):
        return span.start
    here = sure[bisect(sure, (span.start, 0)) :]
    later = (start for start, _ in here if span.start < start < span.end)
    end = next((at for at in later if _glue(text[span.start : at], True)), span.end)
    known = any(start == span.start for start, _ in here)
    # Where a part of it is a value, too, or it is long enough without them, words of the next
    # lines need not belong to it.
    for wrap in reversed([*WRITING["wrap"].finditer(text, span.start, end)]):
        if not known and wrap.start() - span.start < _WHOLE:
            break
        piece = text[wrap.end() : end]
        words = WRITING["words"].fullmatch(piece) and not is_strange(piece)
        if not (words or WRITING["word"].fullmatch(piece)):
            if not WRITING["name_of"].match(text, wrap.end()):
                break
        end = wrap.start()
    return end


def _payload(text: str, known: Known, replaced: Replaced, where: str, depth: int) -> str:
    inner = facts.decoded_base64(text)
    if inner is None:
        return text
    if isinstance(inner, str):
        learn(inner, known)
        clean = replace(inner, known, replaced, where + " (base64)", depth + 1)
        if clean == inner:
            return text
        plain = facts.base64_bytes(text) == inner.encode("utf-8", "replace")
        return _encoded(clean.encode(), text) if plain else _name_of(text, known)
    picture = facts.without_words(inner)
    if picture is None:
        replaced.counts["payload", where] += 1
        return _name_of(text, known)
    return text if picture == inner else _encoded(picture, text)


def _encoded(raw: bytes, like: str) -> str:
    """Base64 of ``raw``, in the alphabet, padding and line length of ``like``."""
    line = like.split("\n")[0].rstrip("\r") if "\n" in like else ""
    text = base64.b64encode(raw).decode()
    if "-" in like or "_" in like:
        text = text.replace("+", "-").replace("/", "_")
    if not like.endswith("=") and len("".join(like.split())) % 4:
        text = text.rstrip("=")
    return "\n".join(re.findall(f".{{1,{len(line)}}}", text)) if line else text


def redact_notebook(nb: Any, known: Known, allow_binary: bool = False) -> tuple[Any, Replaced]:
    """A copy of a notebook (nbformat 4, node or plain dict) with pseudonyms, and what was
    replaced.

    Pictures lose their metadata. A picture whose own words held a value is left out, as its
    pixels may hold it too, and so is data that cannot be read; ``allow_binary`` keeps both.
    """
    nb = copy.deepcopy(nb)
    learn_data(nb, known)
    walk = _Walk(known, Replaced(), allow_binary)
    nb["metadata"] = walk.data(nb.get("metadata", {}), "notebook metadata")
    for number, cell in enumerate(nb.get("cells", [])):
        for key in [key for key in cell if key != "outputs"]:
            cell[key] = walk.item(key, cell[key], f"cell {number} {key}")
        # The code that drew a picture may have written the value into it.
        own = {f"cell {number} source", f"cell {number} metadata"}
        marked = any((kind, where) in walk.replaced.counts for kind in facts.KINDS for where in own)
        for index, output in enumerate(cell.get("outputs", [])):
            walk.output(output, f"cell {number} output {index}", marked)
    return nb, walk.replaced


def redact_data(
    data: Any, known: Known, replaced: Replaced, where: str, allow_binary: bool = False
) -> Any:
    """Data of JSON with pseudonyms in keys and values; what it tells by its context is learnt
    first.
    """
    learn_data(data, known)
    return _Walk(known, replaced, allow_binary).data(data, where)


def learn_data(data: Any, known: Known, look: Look = learn) -> None:
    """Remember what texts, keys and names before values tell; each text by ``look``."""
    _Walk(known, look).item("", data, "")


def _is_column(value: dict[Any, Any] | list[Any]) -> bool:
    """Whether data is one value a row: a list of words or numbers, or such values by their number."""
    if isinstance(value, dict):
        return bool(value) and all(str(key).isdigit() for key in value)
    return bool(value) and all(
        isinstance(one, (str, int)) and "\n" not in str(one) for one in value
    )


class _Walk:
    """Goes through data, replaces, and counts under the place where it is; with a way to learn
    it only learns.
    """

    def __init__(self, known: Known, way: Replaced | Look = learn, allow_binary: bool = False):
        self.known = known
        self.way = way
        self.allow_binary = allow_binary
        self.learns = not isinstance(way, Replaced)
        self.replaced = way if isinstance(way, Replaced) else Replaced()
        self._done: dict[str, tuple[str, Replaced]] = {}

    def text(self, text: str, where: str) -> str:
        """A record names the same file a hundred thousand times: each part is read once."""
        if not isinstance(self.way, Replaced):
            self.way(text, self.known)
            return text
        each = parts(text)
        for part in each:
            if part not in self._done:
                own = Replaced()
                self._done[part] = replace(part, self.known, own, ""), own
            self.replaced.add(self._done[part][1], where)
        return "".join(self._done[part][0] for part in each)

    def item(self, key: str, value: Any, where: str) -> Any:
        """One value, read with its name."""
        if BINARY.match(key) and isinstance(value, (str, list)):
            return value if self.learns else self.binary(key, value, where, False) or ""
        if isinstance(value, str) and _is_named(key):
            clean = self.text(value, where) if self.learns else value
            return self._named(key, clean, where)
        if type(value) is int and _is_named(key):
            clean = self.text(f'"{key}": {value}', where)
            return value if clean == f'"{key}": {value}' else clean.partition(": ")[2]
        if key in _LINES and isinstance(value, list) and all(isinstance(one, str) for one in value):
            return self.text("".join(value), where).splitlines(keepends=True)
        if isinstance(value, dict) and len(value) == 1 and str(next(iter(value))).endswith("Value"):
            return {one: self.item(key, inner, where) for one, inner in value.items()}
        if _is_named(key) and isinstance(value, (dict, list)) and _is_column(value):
            rows = value.items() if isinstance(value, dict) else enumerate(value)
            own = {at: self.item(key, one, where) for at, one in rows}
            return own if isinstance(value, dict) else list(own.values())
        return self.data(value, where)

    def data(self, data: Any, where: str) -> Any:
        if isinstance(data, str):
            return self.text(data, where)
        if isinstance(data, dict):
            inside = data.get("data") if data.get("encoding") == "base64" else None
            if isinstance(inside, str) and not self.learns:
                data = {**data, "data": self.binary("a buffer", inside, where, False) or ""}
            if data.get("_model_name") == "PasswordModel" and isinstance(data.get("value"), str):
                self.known.add("password", data["value"])
            if self.learns and isinstance(data.get("outputs"), list):
                self.answers(data)
            new = type(data)()
            heads = data.get("columns")
            said = next((data[one] for one in _TELLING if isinstance(data.get(one), str)), "")
            for key, value in data.items():
                name = self.text(key, where) if isinstance(key, str) else key
                name = name if name not in new else f"{name}~{len(new)}"
                if key == "data" and isinstance(heads, list) and isinstance(value, list):
                    new[name] = [self.row(heads, row, where) for row in value]
                else:
                    new[name] = self.item(
                        said if key == "value" and said else str(key), value, where
                    )
            return new
        if isinstance(data, (list, tuple)):
            if data and all(isinstance(one, str) and JOINT not in one for one in data):
                # Read as one: a value may go on in the next text.
                return type(data)(self.text(JOINT.join(data), where).split(JOINT))
            pair = len(data) == 2 and isinstance(data[0], str) and _is_named(data[0])
            if pair and isinstance(data[1], (str, int)):
                return type(data)(self.row(["", data[0]], data, where))
            return type(data)(self.data(one, where) for one in data)
        value = self.known.of_word(str(data)) if isinstance(data, int) else None
        if value is None or self.learns:
            return data
        self.replaced.counts[value[0], where] += 1
        return value[1]

    def answers(self, cell: dict[str, Any]) -> None:
        """Remember what a cell that asks for a name was answered: the whole of it, but words of
        the field among others.
        """
        asked = WRITING["asks"].search("".join(cell.get("source", "")))
        for output in cell["outputs"] if asked else ():
            text = (output.get("data") or {}).get("text/plain") or output.get("text") or ""
            words = WRITING["answer"].findall("".join(text)[:_ANSWER])
            for word in words:
                if asked and (len(words) == 1 or is_strange(word) or has_name(word)):
                    self.known.add("host" if asked.lastgroup else "user", word)

    def row(self, heads: list[Any], row: Any, where: str) -> Any:
        """The cells of a row, each read with the head of its column."""
        if not isinstance(row, (list, tuple)) or len(row) != len(heads):
            return self.data(row, where)
        return [self.item(str(head), one, where) for head, one in zip(heads, row, strict=True)]

    def output(self, output: Any, where: str, marked: bool) -> None:
        """An output of a cell, in place; ``marked``: its code held a value, which a picture may
        show.
        """
        before = self.replaced.total
        data = output.get("data") or {}
        for key in [key for key in output if key != "data"]:
            output[key] = self.item(key, output[key], f"{where} {key}")
        for kind in sorted(data, key=lambda kind: kind.startswith("image/")):  # words first
            named = marked or self.replaced.total > before
            if not (BINARY.match(kind) or "svg" in kind and named and not self.allow_binary):
                data[kind] = self.item(kind, data[kind], f"{where} {kind}")
                continue
            # Of an SVG too: a word that its figure cuts short is no word that is looked for.
            clean = self.binary(kind, data[kind], where, named)
            if clean is None:
                del data[kind]
                data.setdefault("text/plain", f"[{kind} {LEFT_OUT}]")
            else:
                data[kind] = clean

    def _named(self, key: str, value: str, where: str) -> str:
        for mark in ("'", '"'):
            if mark not in value:
                head = f"{key}={mark}"
                clean = self.text(f"{head}{value}{mark}", where)
                if clean.startswith(head) and clean.endswith(mark):
                    return clean[len(head) : -1]
        return self.text(value, where)

    def binary(self, kind: str, content: Any, where: str, marked: bool) -> str | None:
        """Base64 content without metadata, or None where it must not stay."""
        encoded = "".join(content) if isinstance(content, list) else str(content)
        raw = facts.base64_bytes(encoded) or b""
        clean = facts.without_words(raw)
        if clean is None and kind == "a buffer" and isinstance(facts.decoded_base64(encoded), str):
            return self.text(encoded, where)
        if (clean is None or marked) and not self.allow_binary:
            self.replaced.notes.append(f"{where}: {kind} {LEFT_OUT}")
            return None
        self.replaced.notes.append(f"{where}: {kind} kept: words drawn in it were not read")
        return encoded if clean in (None, raw) else base64.b64encode(clean).decode() + "\n"

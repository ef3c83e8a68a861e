"""What a person handed over about one failure, and the observations that are made of it.

An observation is one thing seen, with its reading and where it stands. It says nothing about
causes; the catalogue does.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Tuple

from helpers.ground.shapes import Reading, seen
from helpers.judge import form, table
from helpers.look.bundle import Bundle
from helpers.look.files import whole
from helpers.look.message import Message
from helpers.look.messages import read_message, without_footers
from helpers.look.text_file import encoding, ends

if TYPE_CHECKING:
    from helpers.allocator.snapshot import Snapshot

LONGEST_TEXT = 60_000
"""Characters of one text that are looked at: its beginning, its end, and what stands around
each failure in it.
"""


@dataclass(frozen=True)
class Observation:
    """One thing seen. ``origin``: message, tool, bundle, snapshot or environment.

    ``hard``: a parser of the program that prints it, or arithmetic on printed numbers, gave it;
    else it is hearsay (a description of a tool's output). ``proof``: it proves its cause
    by itself (the kernel's own line, blocks of a snapshot, layers really read that agree).
    ``filled``: it rests on a reading that was filled in for a recorded box.
    """

    name: str
    reading: Reading
    says: str
    origin: str
    hard: bool = True
    proof: bool = False
    filled: bool = False


@dataclass(frozen=True)
class CaseEvidence:
    """Everything a person handed over about one failure.

    ``facts`` are the environment's words (gpu, gfx, ram_gib, ...).

    ``snapshot`` is what was read from a memory snapshot. ``narrative`` is what a person told
    in prose: it is kept to say that it was not read.
    """

    messages: tuple[Message, ...] = ()
    error_text: str = ""
    bundle: Bundle | None = None
    snapshot: Snapshot | None = None
    tools: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    narrative: str = ""
    unused: str = ""

    def fact(self, name: str) -> str:
        return dict(self.facts).get(name, "")

    @property
    def nothing(self) -> bool:
        """Whether nothing at all was handed over."""
        said = self.error_text.strip() or self.narrative.strip()
        rest = (said, self.tools, self.facts, self.variables)
        return self.bundle is None and self.snapshot is None and not any(rest)


SIDES = ("host", "pinned", "cgroup", "shm", "on-chip", "commit", "disk")
NAMES = {
    "refused-by-limit": "limit-refused",
    "workspace": "workspace-refused",
    "collective": "collective-refused",
    "leak": "kernel-leak",
    "reset": "gpu-reset",
    "busy": "device-busy",
}
HOSTED = ("refused", "no-room-at-start", "workspace", "collective", "driver-refused")
SILENT = ("sizes", "note", "footer")


def observation_name(side: str, event: str) -> str:
    """The name of the observation that a row of the grammar makes; empty for rows that only
    inform.
    """
    if event in SILENT:
        return ""
    if side in SIDES and event in HOSTED:
        return side + "-refused"
    return "device-refused" if event == "refused" else NAMES.get(event, event)


def note(
    name: str,
    value: Any,
    source: str,
    origin: str,
    says: str = "",
    hard: bool = True,
    proof: bool = False,
    **words: object,
) -> Observation:
    """An observation: its value a Reading, a number of bytes, or words.

    What it says is the table's sentence, unless given.
    """
    if isinstance(value, int):
        reading = seen(max(0, value), "bytes", source)
    elif isinstance(value, Reading):
        reading = value
    else:
        reading = seen(" ".join(str(value).split())[:400] or "(empty)", "text", source)
    says = says or table("observations")[name].format(**words)
    return Observation(name, reading, says, origin, hard, proof)


def _cut(text: str, messages: tuple[Message, ...] = ()) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    around = [text[max(0, m.start - 1000) : m.start + 1000] for m in messages[:5]]
    return "\n".join([text[: LONGEST_TEXT // 2], *around, text[-LONGEST_TEXT // 2 :]])


CONTROL = bytes([*range(8), *range(14, 27), *range(28, 32), 127])
"""Bytes that no text holds in number, whatever its encoding; a terminal's escapes, bells and
backspaces are not among them.
"""


def not_text(start: bytes) -> str:
    """What a file is by its first bytes, where it is no text; empty for text (UTF-16 included)."""
    starts = ((row["start"].encode("latin-1"), row["kind"]) for row in table("magic"))
    kind = next((kind for magic, kind in starts if start.startswith(magic)), "")
    if kind or start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return kind
    if encoding(start) != "utf-8":
        return ""
    odd = len(start) - len(start.translate(None, CONTROL))
    return "binary data" if odd > len(start) // 50 else ""


def evidence_from_message(text: str | bytes | Iterable[str]) -> CaseEvidence:
    """Evidence of a pasted error text or a log.

    Never raises; ``unused`` says what could not be used.
    """
    if isinstance(text, bytes):
        marked = text[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = text.decode("utf-16" if marked else "utf-8", "replace")
    if isinstance(text, str):
        text, left = ends(text)
        got = read_message(text)
        unused = "; ".join(filter(None, (left, got.unused)))
        return CaseEvidence(got.messages, _cut(text, got.messages), unused=unused)
    head: list[str] = []
    tail: deque[str] = deque(maxlen=400)
    got = read_message(_kept(text, head, tail))
    shown = "".join([*head, "\n", *(m.words + "\n" for m in got.messages[:5]), *tail])
    return CaseEvidence(got.messages, _cut(shown), unused=got.unused)


def _kept(lines: Iterable[str], head: list[str], tail: deque[str]) -> Iterator[str]:
    """The lines of a stream too long to hold, its first and last ones kept on the way."""
    size = 0
    for line in lines:
        size += len(line)
        if size <= LONGEST_TEXT // 2:
            head.append(line)
        else:
            tail.append(line[:2000])
        yield line


def evidence_from_bundle(bundle: Bundle) -> CaseEvidence:
    """Evidence of a captured box; its item ``message`` is the posted error text."""
    text = bundle.read("message")
    posted = evidence_from_message(text.text) if text.ok else CaseEvidence()
    return replace(posted, bundle=bundle)


def evidence_from_case(path: str | Path) -> CaseEvidence:
    """Evidence of a posted case (JSON: ``evidence`` with error_text, tool_outputs, environment,
    narrative).

    Raises ValueError in one line where the file is no such JSON. ``truth`` and the like are not
    looked at.
    """
    try:
        data = json.loads(whole(path).decode("utf-8", "replace"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        slip = f"{why}; expected JSON with an object 'evidence'"
        raise ValueError(f"case {path}: {slip}") from error
    evidence = data.get("evidence", data) if isinstance(data, dict) else None
    if not isinstance(evidence, dict):
        expected = "error_text, tool_outputs, environment, narrative"
        raise ValueError(f"case {path}: no object 'evidence'; expected {expected}")
    return case_evidence(evidence)


def case_evidence(evidence: Mapping[str, object]) -> CaseEvidence:
    """The same from the ``evidence`` object itself; odd values are taken as their text."""
    environment = evidence.get("environment")
    named = environment.get("env_vars") if isinstance(environment, dict) else None
    known = [row for row in _pairs(environment) if row[0] != "env_vars"]
    return replace(
        evidence_from_message(_text(evidence.get("error_text"))),
        facts=tuple(row for row in known if row[1] not in ("", "{}")),
        tools=tuple((name, _cut(text)) for name, text in _pairs(evidence.get("tool_outputs"))),
        variables=_pairs(named),
        narrative=_cut(_text(evidence.get("narrative"))),
    )


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    """The entries of a JSON object as text; nothing of any other value."""
    return tuple((str(k), _text(v)) for k, v in value.items()) if isinstance(value, dict) else ()


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, default=str)


Text = Tuple[str, str, str]  # made when imported, also on Python 3.8


def texts(evidence: CaseEvidence) -> tuple[Text, ...]:
    """(origin, source, text) of every text that a program printed, without the standing
    advice of frameworks."""
    rows = [("message", "error text", without_footers(evidence.error_text))]
    rows += [("tool", name, without_footers(text)) for name, text in evidence.tools]
    rows += [("environment", name, value) for name, value in evidence.facts]
    rows += [("environment", name, value) for name, value in evidence.variables]
    return tuple(row for row in rows if row[2].strip())


def vendor_of(messages: tuple[Message, ...]) -> str:
    """Whose GPU the failing program is about, by its messages; empty where they do not say."""
    backend = next((m.backend for m in messages if m.backend), "")
    return {"hip": "AMD", "cuda": "NVIDIA"}.get(backend, "")


def is_described(text: str) -> bool:
    """Whether a text says itself that it only describes a tool's output."""
    return bool(form("described").search(text))

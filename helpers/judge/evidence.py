"""What a person handed over about one failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Tuple, TypeVar

from helpers.ground.units import Quantity
from helpers.judge import form, table
from helpers.judge.message_account import Account, account_of
from helpers.look.bundle import Bundle, Unchanging
from helpers.look.figures import Figure, figures_of
from helpers.look.files import json_of
from helpers.look.message import Message, of_device
from helpers.look.messages import read_message, without_footers, without_own_notes
from helpers.look.printed import split_printed, unanswered
from helpers.look.text_file import encoding, ends

if TYPE_CHECKING:
    from helpers.judge.program_facts import ProgramFacts

LONGEST_TEXT = 60_000
"""Characters of one text that are looked at: its beginning, its end, and what stands around
each failure in it.
"""
ON_TORCH = (
    "torch",
    "CUDA or HIP",
    "ComfyUI",
    "Stable Diffusion web UI",
    "vLLM",
    "SGLang",
    "Hugging Face",
    "accelerate",
    "DeepSpeed",
    "bitsandbytes",
    "FlashAttention",
    "xFormers",
)
"""Programs whose refusals may be those of torch's own allocator."""
Text = Tuple[str, str, str]  # made when imported, also on Python 3.8
"""(origin, source, text): message, tool or environment; what printed it; the words."""


Source = TypeVar("Source", bound=Unchanging)
Result = TypeVar("Result")


def once(function: Callable[[Source], Result]) -> Callable[[Source], Result]:
    """The function, whose result is worked out once and kept with what it was worked out from."""

    @wraps(function)
    def kept(source: Source) -> Result:
        return source.once(function.__name__, lambda: function(source))

    return kept


@dataclass(frozen=True)
class CaseEvidence(Unchanging):
    """Everything a person handed over about one failure.

    ``facts`` are the environment's words (gpu, gfx, ram_gib, ...). ``program`` has the facts of
    a recorded program (allocator.program_facts). ``tools`` are what tools printed, also into the
    error text, which is without it, as (tool, output) pairs. ``narrative`` is what a person wrote in prose:
    it is kept to say that it was not read. ``log`` is the path of the text, to be typed; LOG
    where it has none.
    """

    messages: tuple[Message, ...] = ()
    error_text: str = ""
    bundle: Bundle | None = None
    program: ProgramFacts | None = None
    tools: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    narrative: str = ""
    unused: str = ""
    log: str = "LOG"

    def fact(self, name: str) -> str:
        """What is said of the environment under this name; empty where nothing is."""
        return dict(self.facts).get(name, "")

    @cached_property
    def accounts(self) -> tuple[Account, ...]:
        """The account of each message, in their order."""
        return tuple(
            account_of(self._with_sizes_of_torch(message)) for message in self.messages
        )

    def _with_sizes_of_torch(self, message: Message) -> Message:
        """A refusal that gives no number, with what torch's own summary beside it says."""
        if message.numbers or not of_device(message) or message.program not in ON_TORCH:
            return message
        sizes = {
            figure.measure: Quantity(
                figure.bytes or 0, figure.precision_bytes, figure.text
            )
            for figure in self.figures
            if figure.pool == "torch"
        }
        return replace(
            message, allocated=sizes.get("used"), reserved_total=sizes.get("reserved")
        )

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure of memory that the texts print."""
        return figures_of(self.texts)

    @cached_property
    def texts(self) -> tuple[Text, ...]:
        """Every text that a program printed, without the standing advice of frameworks."""
        rows = [("message", "error text", without_footers(self.error_text))]
        rows += [("tool", name, without_footers(text)) for name, text in self.tools]
        rows += [("environment", name, value) for name, value in self.facts]
        rows += [("environment", name, value) for name, value in self.variables]
        return tuple(row for row in rows if row[2].strip())

    @cached_property
    def words(self) -> tuple[Text, ...]:
        """The same without the tables in them: what stands in a table is no statement."""
        return tuple(
            (origin, source, split_printed(text)[0])
            for origin, source, text in self.texts
        )


def _cut(text: str, messages: tuple[Message, ...] = ()) -> str:
    """A text of at most LONGEST_TEXT characters, and what stands around its first failures."""
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
    if odd > len(start) // 50:
        return "binary data"
    return ""


def evidence_from_message(text: str) -> CaseEvidence:
    """Evidence of a pasted error text or a log.

    Never raises; ``unused`` says what could not be used.
    """
    text, left_out = ends(text)
    text = without_own_notes(text)
    reading = read_message(text)
    shown = _cut(text, reading.messages)
    rest, printed = split_printed(shown)
    messages = reading.messages
    if shown == text:
        # No word inside a printed table is a message of a program.
        messages = tuple(m for m in messages if text[m.start] == rest[m.start])
    return CaseEvidence(
        messages=messages,
        error_text=rest,
        tools=(*printed, *((command, "") for command in unanswered(shown))),
        unused="; ".join(filter(None, (left_out, reading.unused))),
    )


def evidence_from_bundle(bundle: Bundle) -> CaseEvidence:
    """Evidence of a captured box; its item ``message`` is the posted error text."""
    text = bundle.read("message")
    if not text.ok:
        return CaseEvidence(bundle=bundle)
    return replace(evidence_from_message(text.text), bundle=bundle)


def evidence_from_case(path: str | Path) -> CaseEvidence:
    """Evidence of a posted case (JSON: ``evidence`` with error_text, tool_outputs, environment,
    narrative).

    Raises ValueError in one line where the file is no such JSON. ``truth`` and the like are not
    looked at.
    """
    try:
        data = json_of(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        slip = f"{why}; expected JSON with an object 'evidence'"
        raise ValueError(f"case {path}: {slip}") from error
    evidence = data
    if isinstance(data, dict):
        evidence = data.get("evidence", data)
    if not isinstance(evidence, dict):
        expected = "error_text, tool_outputs, environment, narrative"
        raise ValueError(f"case {path}: no object 'evidence'; expected {expected}")
    return case_evidence(evidence)


def case_evidence(evidence: Mapping[str, object]) -> CaseEvidence:
    """The same from the ``evidence`` object itself; odd values are taken as their text."""
    environment = evidence.get("environment")
    variables = None
    if isinstance(environment, dict):
        variables = environment.get("env_vars")
    facts = [row for row in _pairs(environment) if row[0] != "env_vars"]
    posted = evidence_from_message(_text(evidence.get("error_text")))
    outputs = [
        (name, _cut(text)) for name, text in _pairs(evidence.get("tool_outputs"))
    ]
    return replace(
        posted,
        facts=tuple(row for row in facts if row[1] not in ("", "{}")),
        tools=(*posted.tools, *outputs),
        variables=_pairs(variables),
        narrative=_cut(_text(evidence.get("narrative"))),
    )


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    """The entries of a JSON object as text; nothing of any other value."""
    if not isinstance(value, dict):
        return ()
    return tuple((str(name), _text(entry)) for name, entry in value.items())


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def vendor_of(messages: tuple[Message, ...]) -> str:
    """Whose GPU the failing program is about, by its messages; empty where they do not say."""
    backend = next((m.backend for m in messages if m.backend), "")
    return {"hip": "AMD", "cuda": "NVIDIA"}.get(backend, "")


def is_described(text: str) -> bool:
    """Whether a text says itself that it only describes a tool's output."""
    return bool(form("described").search(text))

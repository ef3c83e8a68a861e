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
"""Characters of one text that are searched: its beginning and its end. A thousand lines of a log
have about so many, and a search of them takes a fraction of a second.
"""
AROUND = 1000
MOST_FAILURES = 5
"""Of a longer text also the characters around each of its first failures: a traceback before it
and the lines that follow.
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
Text = Tuple[str, str, str]  # evaluated at import, also on Python 3.8
"""(origin, source, text): message, tool or environment; what printed it; the words."""


Source = TypeVar("Source", bound=Unchanging)
Result = TypeVar("Result")


def once(function: Callable[[Source], Result]) -> Callable[[Source], Result]:
    """A decorator: the function runs once for each source, which keeps the result."""

    @wraps(function)
    def kept(source: Source) -> Result:
        return source.once(function.__name__, lambda: function(source))

    return kept


@dataclass(frozen=True)
class CaseEvidence(Unchanging):
    """Everything a person handed over about one failure.

    ``messages`` are the known error messages in ``error_text``. ``program`` has the facts of a
    recorded program (allocator.program_facts). ``tools`` are (tool, output) pairs; an output
    that was pasted into the error text is moved here. ``facts`` are (name, words) of the
    environment (gpu, gfx, ram_gib, ...), ``variables`` (name, value). ``narrative`` is what a
    person wrote in prose: it is kept to say that it was not read. ``unused`` says what could not
    be used. ``log`` is the path of the text, for commands; LOG where it has none.
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
        """A refusal that gives no number, with the sizes of torch's own summary beside it; any
        other message as it is.
        """
        if message.numbers or not of_device(message) or message.program not in ON_TORCH:
            return message
        sizes: dict[str, Quantity] = {}
        for figure in self.figures:
            if figure.pool == "torch" and figure.bytes is not None:
                size = Quantity(figure.bytes, figure.precision_bytes, figure.text)
                sizes[figure.measure] = size
        return replace(
            message, allocated=sizes.get("used"), reserved_total=sizes.get("reserved")
        )

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure of memory that the texts print."""
        return figures_of(self.texts)

    @cached_property
    def texts(self) -> tuple[Text, ...]:
        """Every text that a program printed, without the advice that frameworks add to every
        error.
        """
        rows = [("message", "error text", without_footers(self.error_text))]
        rows += [("tool", name, without_footers(text)) for name, text in self.tools]
        rows += [("environment", name, value) for name, value in self.facts]
        rows += [("environment", name, value) for name, value in self.variables]
        return tuple(row for row in rows if row[2].strip())

    @cached_property
    def words(self) -> tuple[Text, ...]:
        """The same texts without the tables in them, whose entries are no statements."""
        statements = []
        for origin, source, text in self.texts:
            without_tables, _tables = split_printed(text)
            statements.append((origin, source, without_tables))
        return tuple(statements)


def _cut(text: str, messages: tuple[Message, ...] = ()) -> str:
    """The text; of one above LONGEST_TEXT its ends, and what stands around its first failures."""
    if len(text) <= LONGEST_TEXT:
        return text
    pieces = [text[: LONGEST_TEXT // 2]]
    for message in messages[:MOST_FAILURES]:
        begin = max(0, message.start - AROUND)
        pieces.append(text[begin : message.start + AROUND])
    pieces.append(text[-LONGEST_TEXT // 2 :])
    return "\n".join(pieces)


CONTROL = bytes([*range(8), *range(14, 27), *range(28, 32), 127])
"""Control characters of ASCII that no text holds in number: all but backspace and escape (8, 27),
which terminals print, and white space (9 to 13).
"""
ODD_PART = 50
"""A file with more control characters than this part of it is no text: of random bytes a tenth are
such, and a log has a stray one.
"""


def not_text(start: bytes) -> str:
    """What a file is by its first bytes, where it is no text; empty for text (UTF-16 included)."""
    for row in table("magic"):
        if start.startswith(row["start"].encode("latin-1")):
            return str(row["kind"])
    if encoding(start) != "utf-8":
        return ""
    odd_count = len(start) - len(start.translate(None, CONTROL))
    if odd_count > len(start) // ODD_PART:
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
    rest, printed = split_printed(shown)  # with blanks in place of each table
    messages = reading.messages
    # Of a text that was cut, the places of messages are no longer those in ``rest``.
    if shown == text:
        # No word inside a printed table is a message of a program.
        messages = tuple(m for m in messages if text[m.start] == rest[m.start])
    # A command that was pasted and printed nothing, such as fuser where nobody has a device open.
    without_output = [(command, "") for command in unanswered(shown)]
    unused = [words for words in (left_out, reading.unused) if words]
    return CaseEvidence(
        messages=messages,
        error_text=rest,
        tools=(*printed, *without_output),
        unused="; ".join(unused),
    )


def evidence_from_bundle(bundle: Bundle) -> CaseEvidence:
    """Evidence of a captured box; its item ``message`` is the posted error text."""
    text = bundle.read("message")
    if not text.ok:
        return CaseEvidence(bundle=bundle)
    return replace(evidence_from_message(text.text), bundle=bundle)


def evidence_from_case(path: str | Path) -> CaseEvidence:
    """Evidence of a posted case (JSON: ``evidence`` with error_text, tool_outputs, environment,
    narrative; or these alone).

    Raises ValueError in one line where the file is no such JSON. Its other keys, such as
    ``truth``, are not read.
    """
    try:
        data = json_of(path)
    except (OSError, ValueError) as error:
        why = type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        expected = "JSON with an object 'evidence'"
        raise ValueError(f"case {path}: {why}; expected {expected}") from error
    evidence = data
    if isinstance(data, dict):
        evidence = data.get("evidence", data)
    if not isinstance(evidence, dict):
        expected = "error_text, tool_outputs, environment, narrative"
        raise ValueError(f"case {path}: no object 'evidence'; expected {expected}")
    return case_evidence(evidence)


def case_evidence(evidence: Mapping[str, object]) -> CaseEvidence:
    """Evidence of a posted case by its ``evidence`` object (see evidence_from_case). A value that
    is no string counts as its JSON, an empty one as not said.
    """
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
    """A value of JSON as text: a string as it is, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def vendor_of(messages: tuple[Message, ...]) -> str:
    """Whose GPU the failing program uses, AMD's or NVIDIA's, by the first message that tells;
    empty where none does.
    """
    for message in messages:
        if message.backend:
            return {"hip": "AMD", "cuda": "NVIDIA"}.get(message.backend, "")
    return ""


def is_described(text: str) -> bool:
    """Whether a text says itself that it only describes a tool's output."""
    return bool(form("described").search(text))

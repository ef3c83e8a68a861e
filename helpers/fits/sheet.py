"""A small spreadsheet: the figures of one program, release and set of inputs, each by its rule.

A figure is what was given, else what its rule in ``rules/`` works out, else what servers.json
says where nothing is given. A rule is a function of the sheet, which reads other figures as
attributes: ``s.n_layer * s.full_layer``. Where figures are a range, a sheet takes one end of it:
``low``, ``likely`` or ``high``. A figure that nothing gives raises ``MissingFigure``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from helpers.fits.arithmetic import listed
from helpers.fits.servers import became, date_of, family_of, table

LOW = "low"
LIKELY = "likely"
HIGH = "high"
ENDS = (LOW, LIKELY, HIGH)
MOST = 1 << 62
"""The most that any figure may be: beyond all sizes in bytes, and a whole number of 64 bits."""
Figure = float | str | list[float]


@dataclass
class ServerFacts:
    """What is known of a server: the ``inputs`` and ``tags`` of a sheet, in words what is
    ``missing``, which of its weights are not there (``incomplete``), how much is here of a file
    whose end is not (``cut_off``), what to say beside it
    (``notes``), and of a log the ``printed`` results, whether it ``ran``, and whether what was
    asked for ``fits``. ``path`` is the model's, as a server takes it; ``assumed``: nobody named the
    program.
    """

    program: str
    inputs: dict[str, Any]
    tags: Sequence[str] = ()
    version: str = ""
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    printed: dict[str, Any] = field(default_factory=dict)
    fits: bool | None = None
    ran: bool | None = None
    incomplete: str = ""
    cut_off: str = ""
    path: str = ""
    assumed: bool = False


class MissingFigure(Exception):
    """A figure that neither the inputs nor a rule gives; ``why`` where there is no bound."""

    def __init__(self, name: str, why: str = ""):
        self.name = name
        self.why = why

    @property
    def says(self) -> str:
        """What is missing, in words."""
        return self.why if self.why else table()["words"].get(self.name, self.name)


Worked = TypeVar("Worked", bound=Figure)
RULES: dict[str, Callable[[Sheet], Figure]] = {}
"""Each figure that is worked out, by its name."""


def rule(function: Callable[[Sheet], Worked]) -> Callable[[Sheet], Worked]:
    """Register a function as the rule of the figure of its name."""
    RULES[function.__name__] = function
    return function


def element_bytes(kind: str) -> float:
    """Bytes of an element of a cache of that type. Raises MissingFigure."""
    sizes = table()["element_bytes"]
    if kind not in sizes:
        raise MissingFigure(
            kind, f"type of the cache {kind[:40]!r}: not known, {', '.join(sizes)} are"
        )
    return float(sizes[kind])


MOST_COUNTS = {"context": 1 << 24, "slots": 1 << 16, "tokens": 1 << 32, "tp": 1 << 10}
"""The most that an option may be: beyond every server's own limit."""


def check_count(option: str, count: int | None) -> None:
    """Raises ValueError where the count that an option gives cannot be meant."""
    most = MOST_COUNTS[option]
    if count is not None and not 1 <= count <= most:
        raise ValueError(f"{option} {count}; expected 1 to {most:,}")


def checked(inputs: Mapping[str, Any]) -> dict[str, Figure]:
    """The inputs that are known, of the right kind; one of a wrong kind that nothing reads is left
    out.

    Raises ValueError in one line for a figure that is read and cannot be one.
    """
    sound: dict[str, Figure] = {}
    kinds = table()["inputs"]
    read = {*RULES, *table()["defaults"], *table()["words"]}
    for name, value in inputs.items():
        least = 1 if name in kinds["from one"] else 0
        most = 1 if name in kinds["shares"] else MOST
        figures = [value]
        if isinstance(value, list) and value and name in kinds["lists"]:
            figures = value
        if isinstance(value, str) and name in kinds["words"]:
            sound[name] = value.lower() if name.startswith("kv_type") else value
        elif all(isinstance(n, (int, float)) and least <= n <= most for n in figures):
            sound[name] = value
        elif value is not None and name in read:
            expected = f"expected {least} to {most}, or null where it is not known"
            raise ValueError(f"inputs: {name[:40]!r} is {value!r:.40}; {expected}")
    return sound


class Sheet:
    """The figures of one program, release and set of inputs, at one end of their ranges.

    ``inputs`` are those that are known. ``family`` and ``date`` say whose rules hold, and of which
    month; ``sources`` where figures that were worked out come from. ``is_ollama``: it is ollama
    with its own engine, before it ran llama-server. ``is_ggml``: it lays layers out on cards.
    ``is_pooled``: it takes the same of each card, for one pool.
    """

    def __init__(
        self,
        program: str,
        version: str,
        inputs: Mapping[str, Figure | None],
        tags: Sequence[str] = (),
        end: str = LIKELY,
    ):
        self.program = program.lower()
        self.version = version
        self.inputs = {name: x for name, x in inputs.items() if x is not None}
        self.tags = tuple(tags)
        self.end = end
        family = family_of(program)
        self.date = date_of(version, family)
        self.family = became(family, self.date)
        self.is_llama_cpp = self.family == "llama.cpp"
        self.is_ollama = self.family == "ollama"
        self.is_ggml = self.is_llama_cpp or self.is_ollama
        self.is_vllm = self.family == "vLLM"
        self.is_sglang = self.family == "SGLang"
        self.is_pooled = self.is_vllm or self.is_sglang
        self.sources = dict[str, str]()
        self._worked_out = dict[str, Figure]()
        self._at_work = list[str]()

    @property
    def cards_alike(self) -> int:
        """How many cards share the layers of one pool: each figure is that of one card."""
        return int(self.tp * self.pp) if self.is_pooled else 1

    @property
    def server(self) -> str:
        """The name by which servers.json holds the options of the program."""
        if "ollama" in self.program:
            return "ollama"  # also where it runs llama-server
        return self.family

    def option(self, name: str) -> str:
        """How the server calls one of its options; empty where it has none."""
        return str(table()["server_options"].get(self.server, {}).get(name, ""))

    @property
    def architecture(self) -> str:
        """The architecture, by the name that GGUF files have for it."""
        return self.text("gguf_arch")

    def at(self, changed: Mapping[str, Figure | None]) -> Sheet:
        """The same sheet with other inputs.

        The context before any change stays in ``n_ctx_asked``: sizes that a log prints are those of
        the context asked for, and are scaled from it.
        """
        inputs = {"n_ctx_asked": self.value("n_ctx"), **self.inputs, **changed}
        return Sheet(self.program, self.version, inputs, self.tags, self.end)

    def __getattr__(self, name: str) -> float:
        """The figure of that name. Raises MissingFigure."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self.figure(name)

    def figure(self, name: str) -> float:
        """The figure of that name, which is a number. Raises MissingFigure.

        A word where a number belongs ends in a TypeError of the rule that reads it.
        """
        return cast(float, self._figure(name))

    def _figure(self, name: str) -> Figure:
        """What is given under that name, else what was worked out. Raises MissingFigure."""
        if name in self.inputs:
            return self.inputs[name]
        if name not in self._worked_out:
            self._at_work.append(name)
            try:
                self._worked_out[name] = self._work_out(name)
            finally:
                self._at_work.pop()
        return self._worked_out[name]

    def _work_out(self, name: str) -> Figure:
        """The figure by its rule, else its default. Raises MissingFigure."""
        figure = RULES[name](self) if name in RULES else self._default(name)
        if isinstance(figure, float) and not math.isfinite(figure):
            raise MissingFigure(name)
        return figure

    def _default(self, name: str) -> Figure:
        """What servers.json says where nothing is given. Raises MissingFigure.

        Its row has other figures (``as``), of which the first that is given counts, and a number
        or word (``is``); without ``is`` the last of the others is worked out.
        """
        row = table()["defaults"].get(name)
        if row is None:
            raise MissingFigure(name)
        others = row.get("as", ())
        for other in others:
            if other in self.inputs:
                return self._figure(other)
        if "is" not in row:
            return self._figure(others[-1])
        figure: Figure = row["is"]
        if isinstance(figure, list):
            return self.either(*figure)
        return figure

    def cite(self, source: str) -> None:
        """Say where the figure that is being worked out comes from."""
        self.sources[self._at_work[-1]] = source

    def value(self, name: str) -> float | None:
        """The figure of a name, which is a number; None where nothing gives it."""
        return None if self.lacks(name) else self.figure(name)

    def value_or(self, name: str, otherwise: float) -> float:
        """The figure of a name, ``otherwise`` where nothing gives it."""
        return otherwise if self.lacks(name) else self.figure(name)

    def lacks(self, name: str) -> MissingFigure | None:
        """What nothing gives and a figure needs; None where nothing is missing."""
        try:
            self._figure(name)
        except MissingFigure as missing:
            return missing
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # A word where a figure belongs, or nothing to divide by.
            return MissingFigure(name)
        return None

    def has(self, *names: str) -> bool:
        """Whether each of these figures is given or can be worked out."""
        return all(self.lacks(name) is None for name in names)

    def text(self, name: str) -> str:
        """A figure that is a word, such as the type of the cache. Raises MissingFigure."""
        return str(self._figure(name))

    def sizes(self, name: str) -> list[float]:
        """A figure that may be one for each card, as a list. Raises MissingFigure."""
        return listed(self._figure(name))

    def either(self, low: float, likely: float, high: float) -> float:
        """The end of a range that this sheet takes."""
        return {LOW: low, LIKELY: likely, HIGH: high}[self.end]

    def no_bound(self, why: str) -> None:
        """Say that nothing bounds the figure that is being worked out, and raise MissingFigure at the
        high end.
        """
        self.cite(why)
        if self.end == HIGH:
            raise MissingFigure(self._at_work[-1], why)

    def unbounded(self, low: float, likely: float, why: str) -> float:
        """The low or the likely figure, of one that nothing bounds, as ``why`` says."""
        self.no_bound(why)
        return self.either(low, likely, likely)

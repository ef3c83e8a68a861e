"""A small spreadsheet: the figures of one server, release and set of inputs, each by its rule.

A figure is the input of that name, else what its rule in ``rules/`` works out, else the default in
servers.json. A rule is a function of the sheet, which reads other figures as attributes:
``s.n_layer * s.full_layer``. Where figures are a range, a sheet takes one end of it: ``low``,
``likely`` or ``high``. A figure that none of these gives raises ``MissingFigure``.
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
    """The facts about a server and its model that were read or given.

    - ``program``, ``version``: the server (``assumed`` where nobody named it) and its release
    - ``inputs``, ``tags``: those of a sheet
    - ``missing``: what nothing says; ``notes``: sentences beside the answer
    - ``incomplete``: which weights are not there; ``cut_off``: how much is there of a file whose
      end is missing; both are empty where all is there
    - of a log: the results that it ``printed``, whether the server ``ran``, and whether what was
      asked for ``fits``; None where it does not say
    - ``path``: the model, as a server takes it
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
    """A figure that neither inputs nor rules give. ``why`` is a sentence about it; without one the
    words that servers.json has for the figure's name say what is missing.
    """

    def __init__(self, name: str, why: str = ""):
        self.name = name
        self.why = why

    @property
    def says(self) -> str:
        """What is missing, in words."""
        if self.why:
            return self.why
        return str(table()["words"].get(self.name, self.name))


Worked = TypeVar("Worked", bound=Figure)
RULES: dict[str, Callable[[Sheet], Figure]] = {}
"""The rules by the names of their figures; ``rule`` fills it when ``rules/`` is imported."""


def rule(function: Callable[[Sheet], Worked]) -> Callable[[Sheet], Worked]:
    """Register a function as the rule of the figure of its name."""
    RULES[function.__name__] = function
    return function


def element_bytes(kind: str) -> float:
    """Bytes of an element of a cache of that type. Raises MissingFigure for one that is not known."""
    sizes = table()["element_bytes"]
    if kind not in sizes:
        raise MissingFigure(
            kind, f"type of the cache {kind[:40]!r}: not known, {', '.join(sizes)} are"
        )
    return float(sizes[kind])


MOST_COUNTS = {"context": 1 << 24, "slots": 1 << 16, "tokens": 1 << 32, "tp": 1 << 10}
"""The most that an option may be: more than any server allows."""


def check_count(option: str, count: int | None) -> None:
    """Raises ValueError for a count that cannot be meant; None is an option that was not given."""
    most = MOST_COUNTS[option]
    if count is not None and not 1 <= count <= most:
        raise ValueError(f"{option} {count}; expected 1 to {most:,}")


def checked(inputs: Mapping[str, Any]) -> dict[str, Figure]:
    """The inputs that are figures within their limits, or words where words belong. Any other one
    is left out, but an input that rules read raises ValueError, in one line. None is left out
    always: it is not known.
    """
    sound: dict[str, Figure] = {}
    kinds = table()["inputs"]
    read = {*RULES, *table()["defaults"], *table()["words"]}
    for name, value in inputs.items():
        least = int(name in kinds["from one"])
        most = MOST
        if name in kinds["shares"]:
            most = 1
        figures = [value]
        if isinstance(value, list) and value and name in kinds["lists"]:
            figures = value
        if isinstance(value, str) and name in kinds["words"]:
            sound[name] = value
            # types of a cache, which tables have in lower case
            if name.startswith("kv_type"):
                sound[name] = value.lower()
        elif all(isinstance(n, (int, float)) and least <= n <= most for n in figures):
            sound[name] = value
        elif value is not None and name in read:
            expected = f"expected {least} to {most}, or null where it is not known"
            raise ValueError(f"inputs: {name[:40]!r} is {value!r:.40}; {expected}")
    return sound


class Sheet:
    """The figures of one program, release and set of inputs, at one ``end`` of their ranges.

    - ``inputs``: those that are known; ``tags``: words about the model (SWA, MoE, MLA, vision)
    - ``family``, ``date``: the servers and the month (202505) whose rules hold
    - ``sources``: where the figures come from that were worked out, by their names
    - ``is_ik_llama_cpp``: the fork ik_llama.cpp, which has other releases
    - ``is_ollama``: ollama before it ran llama-server; ``is_ggml``: llama.cpp or ollama, which put
      whole layers on cards; ``is_pooled``: vLLM or SGLang, which take the same of each card for
      one pool, so that sizes are those of one card
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
        self.is_ik_llama_cpp = "ik_" in self.program
        self.is_ollama = self.family == "ollama"
        self.is_ggml = self.is_llama_cpp or self.is_ollama
        self.is_vllm = self.family == "vLLM"
        self.is_sglang = self.family == "SGLang"
        self.is_pooled = self.is_vllm or self.is_sglang
        self.sources = dict[str, str]()
        self._worked_out = dict[str, Figure]()
        self._at_work = list[str]()
        """The figures that are being worked out, each for the one before it."""

    @property
    def cards_alike(self) -> int:
        """How many cards share one pool, when sizes are those of one of them; 1 for servers without
        a pool, whose sizes are those of all cards together.
        """
        if not self.is_pooled:
            return 1
        return int(self.tp * self.pp)

    @property
    def server(self) -> str:
        """The name of the program in ``server_options`` and ``start`` of servers.json."""
        if "ollama" in self.program:
            return "ollama"  # also where it runs llama-server
        return self.family

    def option(self, name: str) -> str:
        """What ``server_options`` of servers.json has under ``name`` for the server, such as its
        own name for an option; empty where it has nothing.
        """
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

        Where an input is a word in place of a number, the rule that calculates with it raises
        TypeError, which ``lacks`` takes as a missing figure.
        """
        return cast(float, self._figure(name))

    def _figure(self, name: str) -> Figure:
        """The input of that name, else the figure that is worked out. Raises MissingFigure."""
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
        """The figure by its rule, else its default. Raises MissingFigure, also for a figure that is
        no finite number.
        """
        if name in RULES:
            figure = RULES[name](self)
        else:
            figure = self._default(name)
        if isinstance(figure, float) and not math.isfinite(figure):
            raise MissingFigure(name)
        return figure

    def _default(self, name: str) -> Figure:
        """The default of a figure in servers.json. Raises MissingFigure where it has none.

        The first of the other figures that a row names (``as``) counts, if it is an input. Else its
        value (``is``) counts: a number, a word, or a list of low, likely and high. Where a row has
        no value, the last of the other figures is worked out.
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
        """The figure of a name, which is a number; None where it cannot be worked out."""
        if self.lacks(name):
            return None
        return self.figure(name)

    def value_or(self, name: str, otherwise: float) -> float:
        """The figure of a name; ``otherwise`` where it cannot be worked out."""
        if self.lacks(name):
            return otherwise
        return self.figure(name)

    def lacks(self, name: str) -> MissingFigure | None:
        """The figure that is missing to work out the figure ``name``; None where none is."""
        try:
            self._figure(name)
        except MissingFigure as missing:
            return missing
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # An input is a word where a number belongs, or 0 where a rule divides by it.
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
        """The one of three figures that is at the end of the ranges which this sheet takes."""
        return {LOW: low, LIKELY: likely, HIGH: high}[self.end]

    def no_bound(self, why: str) -> None:
        """Say, as the source of the figure that is being worked out, why it has no upper bound.

        Raises MissingFigure at the high end.
        """
        self.cite(why)
        if self.end == HIGH:
            raise MissingFigure(self._at_work[-1], why)

    def unbounded(self, low: float, likely: float, why: str) -> float:
        """The low or the likely figure, of one that has no upper bound for the reason ``why``.

        Raises MissingFigure at the high end.
        """
        self.no_bound(why)
        return self.either(low, likely, likely)

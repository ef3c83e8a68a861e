"""A study: a recorded trace or a pattern, and the card, release, build and settings under which it
is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.allocator.capacity import Progress, Runs, prepared, smallest
from helpers.allocator.circumstances import AMPLE_BYTES, circumstances, with_record
from helpers.allocator.driver import Card
from helpers.allocator.outcome import Outcome
from helpers.allocator.patterns import PATTERNS, generate
from helpers.allocator.replay import replay
from helpers.allocator.trace import Trace
from helpers.allocator.trace_file import read_trace
from helpers.allocator.whatif import row_of, whatif
from helpers.ground.child import CHECKOUT
from helpers.ground.replays import Replay, WhatIf
from helpers.ground.units import parse_capacity, show_bytes
from helpers.settings.in_force import parse
from helpers.settings.releases import behaviour, named_release

BUNDLED = CHECKOUT / "env" / "traces"


@dataclass(frozen=True)
class Study:
    """One trace with the card, release, build and settings it is studied under.

    ``fraction``: of ``set_per_process_memory_fraction``. ``of_user``: it is the user's own file,
    and not a pattern or example of the workbook. ``path``: of that file, beside which there may be
    a record of the program.
    """

    trace: Trace
    card: Card
    name: str = "trace"
    torch: str = "2.14.1"
    build: str = "cuda"
    conf: str = ""
    fraction: float | None = None
    notes: tuple[str, ...] = ()
    of_user: bool = False
    path: Path | None = None

    @property
    def capacity_bytes(self) -> int:
        """The bytes of the card; 0 where neither the recording nor the user says how large it is.
        The card of the replays has AMPLE_BYTES then.
        """
        size = self.card.capacity_bytes
        return size if size < AMPLE_BYTES else 0

    def replay(
        self,
        conf: str | None = None,
        *,
        stop: int | None = None,
        timeline: bool = False,
        engine: str = "auto",
    ) -> Outcome:
        """The replay under the study's own settings, or under others; see ``replay.replay``."""
        if conf is None:
            conf = self.conf
        return replay(
            self.trace,
            conf,
            self.card,
            torch=self.torch,
            build=self.build,
            fraction=self.fraction,
            stop=stop,
            timeline=timeline,
            engine=engine,
        )

    def what_if(
        self, confs: Sequence[str] | None = None, progress: Progress | None = None
    ) -> WhatIf:
        """All settings of the build compared, or those of ``confs``; see ``whatif.whatif``."""
        return whatif(
            self.trace,
            self.card,
            torch=self.torch,
            build=self.build,
            confs=confs,
            fraction=self.fraction,
            progress=progress,
            path=self.path,
        )

    def row(self, outcome: Outcome) -> Replay:
        """A replay under the study's own settings as a row of a what-if; ``proved_on`` says which
        torch the model was compared with.
        """
        rules = behaviour(self.torch, self.build)
        row = row_of(parse(self.conf, rules), [outcome], rules, self.fraction)
        return replace(row, proved_on=rules.proved_on)

    def smallest_cards(self, confs: Sequence[str]) -> dict[str, int]:
        """For each setting the bytes of the smallest card on which the trace passes."""
        stream, _, _ = prepared(self.trace, self.card, anew=True)
        runs = Runs(stream, self.card, self.torch, self.build, self.fraction)
        return {conf: smallest(runs, conf) for conf in dict.fromkeys(confs)}

    @property
    def words(self) -> str:
        """The study in one line."""
        label = self.trace.header.get("label") or "label unknown"
        card = f"a card of {show_bytes(self.card.capacity_bytes)}"
        operations = f"{len(self.trace)} operations ({label})"
        return f"{self.name}: {operations} on {card}, {self.circumstances_words}"

    @property
    def circumstances_words(self) -> str:
        """Release, build and settings in words."""
        settings = self.conf or "default settings"
        return f"torch {self.torch}, {self.build}, {settings}"


def study_of(
    trace: Trace,
    path: Path | None = None,
    *,
    capacity_bytes: int = 0,
    held_bytes: int | None = None,
    policy: str = "",
    conf: str | None = None,
    torch: str = "",
    build: str = "",
) -> Study:
    """The study of a trace on the card and under the release, build and settings of its recording.
    What the caller gives stands in place of what was recorded: 0, "" and None mean that it is not
    given.

    A card of unknown size is as large as any trace needs. ``policy``: the rule by which the driver
    chooses addresses (driver.Card); the recorded addresses of segments are used again only under
    the recorded settings. ``path``: of the user's file, None for a pattern or an example.
    """
    recorded = circumstances(trace)
    notes = trace.notes
    if not torch:
        torch = recorded.torch
        notes += recorded.notes  # how the release was inferred
    if not policy:
        policy = recorded.policy if conf is None else "firstfit"
    if conf is None:
        conf = recorded.conf
    if held_bytes is None:
        held_bytes = recorded.held_bytes
    name = "trace"
    if path is not None:
        name = path.stem
    return Study(
        trace=trace,
        card=Card(
            capacity_bytes=capacity_bytes or recorded.capacity_bytes or AMPLE_BYTES,
            held_bytes=held_bytes,
            policy=policy,
        ),
        name=name,
        torch=torch,
        build=build or recorded.build,
        conf=conf,
        fraction=recorded.fraction,
        notes=notes,
        of_user=path is not None,
        path=path,
    )


def open_study(
    source: str,
    *,
    capacity: str = "",
    conf: str = "",
    torch: str = "",
    build: str = "",
    seed: int = 0,
) -> Study:
    """The study of a pattern, of a trace in env/traces by its name, or of a trace file.

    ``capacity``: a size such as 20GiB. Empty texts take what the trace says; ``seed`` is that of a
    pattern. Raises ValueError in one line, of which TraceError is a kind.
    """
    bundled = {path.stem: path for path in sorted(BUNDLED.glob("*.parquet"))}
    path = None
    if source in PATTERNS:
        trace = generate(source, seed=seed)
    elif source in bundled:
        trace = read_trace(bundled[source])
    elif Path(source).is_file():
        path = Path(source)
        trace = with_record(read_trace(path), path)
    else:
        raise ValueError(
            f"trace {source!r}: expected a file, a pattern ({', '.join(PATTERNS)}) or "
            f"a bundled trace ({', '.join(bundled)})"
        )
    capacity_bytes = 0
    if capacity:
        capacity_bytes = parse_capacity(capacity)
    study = study_of(
        trace,
        path,
        capacity_bytes=capacity_bytes,
        conf=conf or None,
        torch=named_release(torch),
        build=build,
    )
    if not study.capacity_bytes:
        raise ValueError(
            f"trace {Path(source).name}: it does not say how large the card was; give "
            "capacity, such as 20GiB"
        )
    return replace(study, name=Path(source).stem)

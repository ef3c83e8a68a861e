"""Replays and what-ifs in words, and the progress of what takes longer than a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.outcome import Outcome
from helpers.allocator.recorded import AMPLE_BYTES, Agreement
from helpers.allocator.whatif import TOP, Answer
from helpers.look.reading import show_bytes
from helpers.run.shapes import FirstOom, Replay
from helpers.settings.releases import behaviour

from .tables import table


def replay_shape(outcome: Outcome, conf: str, torch: str, build: str) -> dict[str, Any]:
    """The JSON shape of one replay."""
    first = (
        None
        if outcome.first_oom is None
        else FirstOom(index=outcome.first_oom, size_bytes=outcome.first_oom_bytes)
    )
    rules = behaviour(torch, build)
    return Replay(
        events=outcome.events,
        ooms=outcome.ooms,
        first_oom=first,
        peak_allocated_bytes=outcome.peak_allocated_bytes,
        peak_reserved_bytes=outcome.peak_reserved_bytes,
        retries=outcome.counter("num_alloc_retries"),
        device_allocs=outcome.counter("num_device_alloc"),
        settings=conf,
        torch=torch,
        build=build,
        proved="oracle" if rules.proved == "oracle" else "source",
    ).model_dump()


def replay_text(
    outcome: Outcome,
    shape: dict[str, Any],
    card: Card,
    check: Agreement | None,
    notes: Sequence[str],
) -> str:
    """One replay for a terminal."""
    if shape["first_oom"] is None:
        end = "every request is met"
    else:
        end = (
            f"{outcome.ooms} requests fail, the first at operation {outcome.first_oom}: "
            f"{show_bytes(outcome.first_oom_bytes)} asked for"
        )
    calls = f"{outcome.counter('num_device_alloc')} to take, {outcome.counter('num_device_free')} to give back"
    rows = [
        ["peak reserved", show_bytes(outcome.peak_reserved_bytes)],
        ["peak allocated", show_bytes(outcome.peak_allocated_bytes)],
        ["retries after a flush", str(shape["retries"])],
        ["calls to the card", calls],
        ["settings", shape["settings"] or "default"],
        ["torch", f"{shape['torch']}, {shape['build']}"],
        ["proved", proved_words(shape["proved"], shape["build"])],
        ["engine", outcome.engine],
    ]
    size = (
        "as large as needed"
        if card.capacity_bytes >= AMPLE_BYTES
        else show_bytes(card.capacity_bytes)
    )
    lines = [
        f"{outcome.events} operations on a card of {size}: {end}",
        "",
        table(rows, ["figure", "value"]),
    ]
    if check is not None:
        word = "exact" if check.exact else "not exact"
        lines += [
            "",
            f"Against the recording, {word}: {check.same_address} of {check.allocations} addresses, "
            f"{check.same_segment_calls} of {check.segment_calls} segment calls, reserved at the end "
            f"{check.reserved_bytes} bytes ({check.recorded_reserved_bytes} recorded)",
        ]
    return "\n".join(lines + [f"Note: {note}" for note in notes])


def league_text(answer: Answer, rows: int = TOP) -> str:
    """The answer in lines: the verdict, the table's best rows and the default's, what was live, warnings."""
    use = (
        "no setting helps" if answer.needs_bytes else f"use: {answer.use or 'the default settings'}"
    )
    shown = [row for at, row in enumerate(answer.rows) if at < rows or not row.settings]
    width = max(8, *(len(row.settings) for row in shown))
    tried = f"torch {answer.torch}, {answer.build}, {len(answer.rows)} settings tried"
    lines = [
        f"card {show_bytes(answer.capacity_bytes)}, {tried}",
        use,
        answer.why,
        "",
        f"{'settings':{width}}  runs out at       peak reserved          retries  slow calls",
    ]
    for row in shown:
        out = "passes" if row.passes else f"operation {row.first_oom:,}"
        band = (show_bytes(row.peak_reserved_low_bytes), show_bytes(row.peak_reserved_high_bytes))
        peak = " to ".join(dict.fromkeys(band))
        lines.append(
            f"{row.settings or 'default':{width}}  {out:16}  {peak:21}  {row.retries:7}  {row.slow_calls:10}"
            + (f"  never recommended: {row.flags[0]}" if row.flags else "")
        )
    if answer.groups:
        lines += ["", "most was live, when it ran out, in"]
        lines += [
            f"  {show_bytes(one.size_bytes)} in {one.count} allocations: {_where(one.frames)}"
            for one in answer.groups
        ]
        lines += [
            f"  block {one.id} of operation {one.index}: {show_bytes(one.size_bytes)}, {_where(one.frames)}"
            for one in answer.live
        ]
    return "\n".join([*lines, *(f"note: {warning}" for warning in answer.warnings)])


def _where(frames: tuple[str, ...]) -> str:
    return " < ".join(frames[:3]) or "no stack recorded"


def sweep_text(answers: Sequence[Answer]) -> str:
    """What-ifs over releases and cards, a line each."""
    rows = []
    for answer in answers:
        default = next((row for row in answer.rows if not row.settings), None)
        first = (
            "not tried"
            if default is None
            else "passes"
            if default.passes
            else f"fails at operation {default.first_oom}"
        )
        use = answer.use or "the default"
        if answer.needs_bytes:
            use = f"needs {show_bytes(answer.needs_bytes)} more, then {answer.needs_settings or 'the default'}"
        rows.append([answer.torch, answer.build, show_bytes(answer.capacity_bytes), first, use])
    return table(rows, ["torch", "build", "card", "default settings", "use"], widest=None)


def smallest_text(found: dict[str, int]) -> str:
    """The smallest card that is enough, setting by setting."""
    ranked = sorted(found.items(), key=lambda item: item[1])
    rows = [[conf or "default settings", show_bytes(size), str(size)] for conf, size in ranked]
    return table(rows, ["settings", "smallest card", "bytes"], widest=None)


def proved_words(proved: str, build: str) -> str:
    """How far an answer for a build was proved."""
    if build != "cuda":
        return "shared source, not proved on a HIP build"
    return (
        "event by event against the compiled allocator"
        if proved == "oracle"
        else "from the source of this release"
    )


@contextmanager
def progress(words: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's standard error, nothing elsewhere; call it with how many are done of how many."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done, total: None
        return
    with Progress(
        TextColumn(words),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(words)
        yield lambda done, total: bar.update(task, completed=done, total=total)

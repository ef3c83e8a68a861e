"""Would another setting have saved this run?

One request stream under many settings, the one to use, or what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from helpers.allocator.call_sites import requests_of
from helpers.allocator.capacity import (
    Progress,
    Runs,
    clashes,
    least_capacity,
    prepared,
    smallest_of,
)
from helpers.allocator.driver import Card
from helpers.allocator.growers import growth_words
from helpers.allocator.outcome import Outcome
from helpers.allocator.trace import NO_OPERATION, Trace
from helpers.ground.replays import FirstOom, LiveBytes, Replay, WhatIf
from helpers.ground.units import show_bytes
from helpers.settings.allocator_text import SettingsError, parts
from helpers.settings.in_force import Settings, grid, parse
from helpers.settings.releases import Behaviour, behaviour
from helpers.settings.table import OPTIONS

DEPENDS_ON_ADDRESSES = (
    "on this release it depends on the addresses that the driver returns whether some settings pass; "
    "a setting counts as passing if it passes under every rule tried"
)
NOTHING_SAVED = "no other setting is clearly better"
NO_NUMBA = "replayed by plain Python on one core, because numba is not installed"
TOP = 10


def whatif(
    trace: Trace,
    card: Card,
    *,
    torch: str = "2.14.1",
    build: str = "cuda",
    confs: Sequence[str] | None = None,
    fraction: float | None = None,
    progress: Progress | None = None,
    path: Path | None = None,
) -> WhatIf:
    """Which setting avoids the out-of-memory on that card, and what it costs: the league, best
    first, and the one to use.

    use is a settings string, "" for the default settings; where needs_bytes is not 0 no setting
    helps, use is "", and the card needs that many more bytes, then under needs_settings; live
    and groups are what was live when that row first ran out. floor_bytes: the peak of live
    bytes, at operation floor_index: no setting passes on less, by arithmetic. grows: see
    growth. confs are the settings to try, by default the grid of this build and what the trace
    was recorded under; path: of the trace's file. Recorded addresses are not used. Raises SettingsError for a string that
    torch refuses, ValueError for an empty trace or a card smaller than what was live on it at
    the start.
    """
    if not len(trace):
        raise ValueError(NO_OPERATION)
    rules = behaviour(torch, build)
    warnings = [rules.note] if rules.note else []
    confs, remarks = _confs(trace, rules, confs)
    settings = {conf: parse(conf, rules) for conf in confs}
    stream, origin, more = prepared(trace, card)
    warnings += [*remarks, *more]
    runs = Runs(stream, card, torch, build, fraction)
    origins = dict.fromkeys(confs, origin)
    apart = [conf for conf in confs if clashes(settings[conf], stream.start)]
    if apart:
        other, other_origin, _ = prepared(trace, card, anew=True)
        runs.others.update(dict.fromkeys(apart, other))
        origins.update(dict.fromkeys(apart, other_origin))
        warnings.append(
            f"{len(apart)} settings with max_split_size_mb cannot begin with the recorded segments, some of which "
            "are larger and split; there the blocks that were live at the start are allocated anew"
        )
    floor_bytes, floor_at = least_capacity(stream, card)
    floor_index = int(origin[floor_at])
    tried = dict(zip(confs, runs.map(_replays, confs, progress), strict=True))
    rows = [
        row_of(settings[conf], outcomes, rules, fraction, origins[conf])
        for conf, outcomes in tried.items()
    ]
    rows.sort(key=_rank)
    use, why = recommended(rows)
    warnings += _warnings_of(rows)
    if rules.proved != "oracle":
        warnings.insert(0, rules.proved_on)
    answer = WhatIf(
        capacity_bytes=card.capacity_bytes,
        held_bytes=card.held_bytes,
        torch=torch,
        build=rules.build,
        proved=rules.proved,
        proved_on=rules.proved_on,
        rows=rows,
        use=use or "",
        why=why,
        needs_bytes=0,
        floor_bytes=floor_bytes,
        floor_index=floor_index,
        warnings=warnings,
        grows=growth_words(trace, path),
        ends_at_failure=trace.ran_out,
    )
    if use is not None:
        return answer
    return _with_missing(answer, runs, tried, origins)


def _warnings_of(rows: Sequence[Replay]) -> list[str]:
    """What a reader of the league must know of its rows, and how they were replayed."""
    warnings = [
        f"{row.settings} passes, but is not recommended: {row.flags[0]}"
        for row in rows
        if row.passes and row.flags
    ]
    if not all(row.addresses_agree for row in rows):
        warnings.append(DEPENDS_ON_ADDRESSES)
    if find_spec("numba") is None:
        warnings.append(NO_NUMBA)
    return warnings


def _with_missing(
    answer: WhatIf,
    runs: Runs,
    tried: Mapping[str, Sequence[Outcome]],
    origins: Mapping[str, np.ndarray],
) -> WhatIf:
    """The answer where no setting passes: the bytes that none of them saves, the settings that
    need the fewest, and what was live when the trace first ran out under those. Raises
    ValueError where none may be recommended.
    """
    allowed = [row.settings for row in answer.rows if not row.flags]
    if not allowed:
        raise ValueError(
            "none of the settings given may be recommended "
            f"({answer.rows[0].flags[0]}): add the default, ''"
        )
    card_bytes = answer.capacity_bytes
    settings, enough_bytes = smallest_of(runs, allowed, above=card_bytes)
    missing = enough_bytes - card_bytes
    why = f"{show_bytes(missing)} ({missing:,} bytes) are missing with "
    why += f"{settings}, the best of them" if settings else "the default settings"
    if answer.ends_at_failure:
        why += ", up to the recorded failure"
    if answer.floor_bytes > card_bytes:
        why += (
            f"; tensors and other holders alone need {show_bytes(answer.floor_bytes)} "
            f"(at operation {answer.floor_index:,}), "
            f"{show_bytes(answer.floor_bytes - card_bytes)} more than the card has"
        )
    failures = [outcome.first_oom for outcome in tried[settings]]
    first_failure = next(at for at in failures if at is not None)
    live, groups = live_at(runs.of(settings), origins[settings], first_failure)
    return replace(
        answer,
        why=why,
        needs_bytes=missing,
        needs_settings=settings,
        live=live,
        groups=groups,
    )


def _replays(runs: Runs, conf: str) -> list[Outcome]:
    return list(runs.replays(conf, runs.card.capacity_bytes))


def _confs(
    trace: Trace, rules: Behaviour, confs: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """The settings to try, each once, and what is to be said about the recorded one."""
    if confs is not None:
        return list(dict.fromkeys(confs)) or [""], []
    tried = list(grid(rules))
    recorded = str(trace.header.get("conf") or "")
    if recorded in tried:
        return tried, []
    try:
        parse(recorded, rules)
    except SettingsError as error:
        return tried, [f"the recorded settings are left out: {error}"]
    return [*tried, recorded], []


def row_of(
    settings: Settings,
    outcomes: Sequence[Outcome],
    rules: Behaviour,
    fraction: float | None,
    origin: np.ndarray | None = None,
) -> Replay:
    """One setting.

    Figures are those of first-fit addresses; the band of peak reserved is over all the rules
    for addresses that matter on this release (one: no band), and it passes where it passes
    under each. flags: why never recommended; origin: the recorded operation of each, where they
    differ.
    """
    first = outcomes[0]
    peaks = [outcome.peak_reserved_bytes for outcome in outcomes]
    passed = [outcome.ooms == 0 for outcome in outcomes]
    flags = list(settings.warnings)
    if fraction is not None:
        flags = [
            text
            for text in flags
            if not text.startswith("garbage_collection_threshold:")
        ]
    options = [OPTIONS[key] for key, _ in parts(settings.conf) if key in OPTIONS]
    left_out = [f"{key.name}: {key.unmodelled}" for key in options if key.unmodelled]
    unchanged = replace(settings, conf="", ignored=()) == parse("", rules)
    if settings.conf and unchanged and not left_out:
        flags.append("; ".join(("it changes nothing here", *settings.ignored)))
    failures = [
        FirstOom(outcome.first_oom, outcome.first_oom_bytes)
        for outcome in outcomes
        if outcome.first_oom is not None
    ]
    first_oom = min(failures, key=lambda failure: failure.index, default=None)
    if first_oom is not None and origin is not None:
        first_oom = replace(first_oom, index=int(origin[first_oom.index]))
    return Replay(
        settings=settings.conf,
        torch=rules.torch,
        build=rules.build,
        events=first.events,
        ooms=max(outcome.ooms for outcome in outcomes),
        first_oom=first_oom,
        peak_allocated_bytes=first.peak_allocated_bytes,
        peak_reserved_bytes=first.peak_reserved_bytes,
        peak_reserved_low_bytes=min(peaks),
        peak_reserved_high_bytes=max(peaks),
        retries=max(outcome.counter("num_alloc_retries") for outcome in outcomes),
        slow_calls=max(outcome.slow_calls for outcome in outcomes),
        passes=all(passed),
        addresses_agree=len(set(passed)) == 1,
        flags=flags,
        danger=next(iter(settings.dangers), ""),
        not_modelled=left_out,
        proved=rules.proved,
    )


def _rank(row: Replay) -> tuple[int | str, ...]:
    """Passing rows by slow calls, retries, peak reserved, simplicity; then the others, the
    farthest first.
    """
    after = (row.peak_reserved_high_bytes, len(row.settings), row.settings)
    if row.passes or row.first_oom is None:
        return (0, row.slow_calls, row.retries, *after)
    return (1, -row.first_oom.index, row.ooms, *after)


def recommended(rows: Sequence[Replay]) -> tuple[str | None, str]:
    """The setting to use and why; None where none that may be recommended passes.

    The best of the table, or a simpler one that is about as good; but the default settings
    where they pass and the best saves neither a retry nor a slow call in a hundred operations
    (ten at least): a change that buys nothing is not recommended.
    """
    passing = [row for row in rows if row.passes and not row.flags]
    if not passing:
        return None, ""
    top = passing[0]
    about_as_good = 1.5 * top.slow_calls + max(10, top.events // 100)
    alike = [
        row
        for row in passing
        if row.retries == top.retries and row.slow_calls <= about_as_good
    ]
    best = min(alike, key=lambda row: row.settings.count(":"))  # the fewest keys
    default = next((row for row in passing if not row.settings), None)
    if default is None:
        if any(not row.settings for row in rows):
            return best.settings, "the default settings run out of memory"
        return best.settings, "no request fails with it"
    saved = 0
    if best.retries <= default.retries:
        saved = default.slow_calls - best.slow_calls
    if best.retries < default.retries or saved > max(10, default.events // 100):
        costs = f"retries: {default.retries}, slow calls: {default.slow_calls}"
        less = f"with this setting: {best.retries} and {best.slow_calls}"
        return best.settings, f"the default settings pass too ({costs}; {less})"
    return "", f"the default settings pass, and {NOTHING_SAVED}"


def live_at(
    trace: Trace, origin: np.ndarray, index: int
) -> tuple[list[LiveBytes], list[LiveBytes]]:
    """The live allocations before an operation that hold the most, and all of them by stack."""
    requests = requests_of(trace)
    asked_before = {
        block.id: block.requested or block.size for _, block in trace.live_at_start
    }
    blocks = []
    by_stack: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number in np.flatnonzero(requests.alive(index - 1)).tolist():
        ident = int(requests.id[number])
        at = int(requests.at[number])
        if at < 0:
            size = asked_before[ident]
            event = -1
        else:
            size = int(trace.size[at])
            event = int(origin[at])  # the recorded operation
        frames = trace.stack_of(at)
        blocks.append(LiveBytes(size_bytes=size, frames=frames, id=ident, index=event))
        by_stack[frames].append(size)
    groups = [
        LiveBytes(size_bytes=sum(sizes), frames=frames, count=len(sizes))
        for frames, sizes in by_stack.items()
    ]
    blocks.sort(key=lambda block: (-block.size_bytes, block.index, block.id))
    groups.sort(key=lambda group: -group.size_bytes)
    return blocks[:TOP], groups[:TOP]

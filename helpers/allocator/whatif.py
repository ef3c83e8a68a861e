"""Would another setting have saved this run? Replays the same requests under many settings; the
answer is the setting to use, or the bytes that are missing.

*Rows* are the settings that were tried, the best first; together they are the league.
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
"""Live allocations, and stacks, that an answer lists."""
FEW_CALLS = 10
FEW_CALLS_OF = 100
"""A setting saves slow calls worth a change of settings where it saves more than one in so many
operations, and more than FEW_CALLS: below that the run's time does not show it.
"""
ABOUT_AS_GOOD = 1.5
"""Times the slow calls of the best row: a simpler setting may make so many and is preferred."""


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
    """Which setting avoids the out-of-memory on that card, and what it costs.

    ``confs``: the settings to try; by default the grid of this build and the recorded settings.
    ``path``: of the trace's file. Recorded addresses are not used.

    Of the answer, ``use`` is a settings string, "" for the default settings. Where ``needs_bytes``
    is not 0, no setting helps: the card needs so many more bytes under ``needs_settings``; ``live``
    and ``groups`` are what was live when that row first ran out. ``floor_bytes``: the peak of live
    bytes, at operation ``floor_index``; by arithmetic no setting passes on less.

    Raises SettingsError for a string that torch refuses, ValueError for an empty trace or a card
    smaller than what was live at the start.
    """
    if not len(trace):
        raise ValueError(NO_OPERATION)
    rules = behaviour(torch, build)
    warnings = []
    if rules.proved != "oracle":
        warnings.append(rules.proved_on)
    if rules.note:
        warnings.append(rules.note)
    confs, remarks = _confs(trace, rules, confs)
    settings = {conf: parse(conf, rules) for conf in confs}
    # ``origin``: for each operation of ``stream`` that of the recording, -1 for an added one.
    stream, origin, changes = prepared(trace, card)
    warnings += [*remarks, *changes]
    runs = Runs(stream, card, torch, build, fraction)
    origins = dict.fromkeys(confs, origin)
    clashing = [conf for conf in confs if clashes(settings[conf], stream.start)]
    if clashing:
        # These begin without segments, and with requests for what was live at the start.
        other, other_origin, _ = prepared(trace, card, anew=True)
        runs.others.update(dict.fromkeys(clashing, other))
        origins.update(dict.fromkeys(clashing, other_origin))
        warnings.append(
            f"{len(clashing)} settings with max_split_size_mb cannot begin with the recorded segments, some of which "
            "are larger and split; there the blocks that were live at the start are allocated anew"
        )
    floor_bytes, floor_at = least_capacity(stream, card)
    tried = dict(zip(confs, runs.map(_replays, confs, progress), strict=True))
    rows = [
        row_of(settings[conf], outcomes, rules, fraction, origins[conf])
        for conf, outcomes in tried.items()
    ]
    rows.sort(key=_rank)
    use, why = recommended(rows)
    warnings += _warnings_of(rows)
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
        floor_index=int(origin[floor_at]),
        warnings=warnings,
        grows=growth_words(trace, path),
        ends_at_failure=trace.ran_out,
    )
    if use is not None:
        return answer
    return _with_missing(answer, runs, tried, origins)


def _warnings_of(rows: Sequence[Replay]) -> list[str]:
    """Warnings about the rows, and about how they were replayed."""
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
    """``answer`` with the fields that it has only where no setting passes: the settings under which
    the smallest card is enough, how many bytes larger that card is, and what was live when the
    trace first ran out under those settings.

    ``tried``: by each setting its replays, one for each rule for addresses. ``origins``: by each
    setting, for each operation that its replays carry out, the operation of the recording. Raises
    ValueError where every setting has flags, so that none may be recommended.
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
    under = "the default settings"
    if settings:
        under = f"{settings}, the best of them"
    why = f"{show_bytes(missing)} ({missing:,} bytes) are missing with {under}"
    if answer.ends_at_failure:
        why += ", up to the recorded failure"
    if answer.floor_bytes > card_bytes:
        why += (
            f"; tensors and other holders alone need {show_bytes(answer.floor_bytes)} "
            f"(at operation {answer.floor_index:,}), "
            f"{show_bytes(answer.floor_bytes - card_bytes)} more than the card has"
        )
    # A setting passes only under all rules for addresses, so some of its replays may have passed.
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
    """The replays under a setting on the card of the question, one for each rule for addresses."""
    return list(runs.replays(conf, runs.card.capacity_bytes))


def _confs(
    trace: Trace, rules: Behaviour, confs: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """The settings to try, each once, and remarks: one where the recorded settings cannot be tried
    because this release refuses them.

    ``confs`` are tried alone where they are given; an empty list means the default settings.
    """
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
    """The row of one setting. ``outcomes``: a replay for each rule by which the driver may choose
    addresses and that matters on this release, first-fit first. ``origin``: for each operation of
    the replays that of the recording; None where they are the same.

    The setting passes if it passes under each rule. The peak reserved is that of first-fit, its
    ``low`` and ``high`` are over all rules. ``flags`` say why it is never recommended.
    """
    first = outcomes[0]
    peaks = [outcome.peak_reserved_bytes for outcome in outcomes]
    passed = [outcome.ooms == 0 for outcome in outcomes]
    options = [OPTIONS[key] for key, _ in parts(settings.conf) if key in OPTIONS]
    left_out = [f"{key.name}: {key.unmodelled}" for key in options if key.unmodelled]
    flags = _flags_of(settings, fraction)
    # Settings that are read as the default ones are pointless, unless they name an option that the
    # model leaves out: that may have an effect on the card.
    is_default = replace(settings, conf="", ignored=()) == parse("", rules)
    if settings.conf and is_default and not left_out:
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


def _flags_of(settings: Settings, fraction: float | None) -> list[str]:
    """The warnings that settings carry (Settings.warnings).

    One of them says that garbage_collection_threshold does nothing without a memory fraction. It
    is left out where the program has set a ``fraction`` of the card, since then the option works.
    """
    flags = list(settings.warnings)
    if fraction is None:
        return flags
    return [
        flag for flag in flags if not flag.startswith("garbage_collection_threshold:")
    ]


def _rank(row: Replay) -> tuple[int | str, ...]:
    """The sort key of a row; the smallest key is the best row.

    Rows that pass come first, by slow calls, retries and peak reserved. Rows that run out follow:
    the later the first out-of-memory, the better, then the fewer of them. Where all that is equal,
    the shorter text of settings is better, because it usually sets less.
    """
    # The text itself comes last, so that no two rows are equal and the order is always the same.
    where_equal = (row.peak_reserved_high_bytes, len(row.settings), row.settings)
    # Each row that does not pass has a first_oom (row_of): its test is for the type checker alone.
    if row.passes or row.first_oom is None:
        return (0, row.slow_calls, row.retries, *where_equal)
    return (1, -row.first_oom.index, row.ooms, *where_equal)


def recommended(rows: Sequence[Replay]) -> tuple[str | None, str]:
    """The setting to use, "" for the default settings, and why; None and "" where no setting passes
    that may be recommended. ``rows``: the best first.

    The choice begins with the first row that passes, and goes to a simpler one that is about as
    good. Where the default settings pass too, they are recommended, unless that choice saves
    retries or more than a few slow calls: a change that gains nothing is not recommended.
    """
    passing = [row for row in rows if row.passes and not row.flags]
    if not passing:
        return None, ""
    top = passing[0]
    most_calls = ABOUT_AS_GOOD * top.slow_calls + _few_calls(top)
    alike = [
        row
        for row in passing
        if row.retries == top.retries and row.slow_calls <= most_calls
    ]
    best = min(alike, key=lambda row: row.settings.count(":"))  # the fewest keys
    default = next((row for row in passing if not row.settings), None)
    if default is None:
        if any(not row.settings for row in rows):
            return best.settings, "the default settings run out of memory"
        # The caller did not ask about the default settings.
        return best.settings, "no request fails with it"
    saved = 0  # slow calls; none count where the choice makes more retries for them
    if best.retries <= default.retries:
        saved = default.slow_calls - best.slow_calls
    if best.retries < default.retries or saved > _few_calls(default):
        costs = f"retries: {default.retries}, slow calls: {default.slow_calls}"
        less = f"with this setting: {best.retries} and {best.slow_calls}"
        return best.settings, f"the default settings pass too ({costs}; {less})"
    return "", f"the default settings pass, and {NOTHING_SAVED}"


def _few_calls(row: Replay) -> int:
    """The slow calls that a replay as long as this one may save without a gain (FEW_CALLS)."""
    return max(FEW_CALLS, row.events // FEW_CALLS_OF)


def live_at(
    trace: Trace, origin: np.ndarray, index: int
) -> tuple[list[LiveBytes], list[LiveBytes]]:
    """The TOP largest allocations that are live just before the operation ``index``, and the TOP
    stacks whose live allocations hold most together; both the largest first.

    ``origin``: for each operation of the trace that of the recording.
    """
    requests = requests_of(trace)
    # A snapshot of torch 2.0 does not have what a block at the start was asked for.
    asked_before = {
        block.id: block.requested or block.size for _, block in trace.live_at_start
    }
    blocks = []
    by_stack: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number in np.flatnonzero(requests.alive(index - 1)).tolist():
        ident = int(requests.id[number])
        at = int(requests.at[number])
        if at < 0:  # live before the trace began
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

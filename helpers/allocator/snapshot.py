"""What a torch memory snapshot says: the segments at its end, the events that it still has, and
the settings.

Every generation from torch 2.0 to 2.15 (torch/csrc/cuda/memory_snapshot.cpp,
torch/cuda/_memory_viz.py and six public files): segments alone
(``torch.cuda.memory_snapshot()``), blocks with ``history`` and no address, events without time,
with pool_id, compile_context or user_metadata. host_segments and host_traces (2.14) are the
host allocator's and are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from helpers.allocator.plain_pickle import plain_pickle
from helpers.allocator.stack_frames import CALLS, frame_text, library_line, own_line
from helpers.allocator.trace import (
    LARGEST,
    MAX_FILE_BYTES,
    StartBlock,
    StartSegment,
    TraceError,
)

FRAMES_KEPT = 8
MORE_KEPT = 40
FRAMES_SEEN = 256
"""Of a stack: its innermost frames; how many more of the program's own files, of CALLS and of
libraries outside of a forward; and how far is looked.
"""
ACTIONS = (
    "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap oom"
).split()
_NO_REQUEST = {"snapshot", "annotate", "user_defined"}
"""A snapshot was taken; a note of the program (2.14): neither is asked of the allocator."""
_STATES = {
    "active_allocated": "A",
    "active_awaiting_free": "P",
    "active_pending_free": "P",
    "inactive": "I",
}
IMPOSSIBLE = "no allocator has such a state"
MIB = 1 << 20
Entry = dict[object, object]


class TraceEntry(NamedTuple):
    """One trace entry.

    ``number`` is its place in the device's list. Of an oom, ``address`` is the free bytes of
    the device.
    """

    number: int
    action: str
    address: int
    size: int
    stream: int
    time_us: int | None
    pool: int
    frame: int


@dataclass(frozen=True)
class Snapshot:
    """One device of a snapshot.

    ``segments`` is the state after the last of ``events``, in address order; no block has an
    id.

    ``divisions``: roundup_power2_divisions, 16 numbers.
    """

    device: int
    segments: tuple[StartSegment, ...]
    events: tuple[TraceEntry, ...]
    frames: tuple[tuple[str, ...], ...]
    settings: dict[str, object]
    divisions: tuple[int, ...]
    notes: tuple[str, ...]


def load(
    path: str | Path, device: int | None = None, max_bytes: int = MAX_FILE_BYTES
) -> Snapshot:
    """One device of a snapshot file: ``device``, or the one with most events.

    Raises TraceError in one line.
    """
    path = Path(path)
    if (size := path.stat().st_size) > max_bytes:
        raise TraceError(
            f"{path.name} has {size:,} bytes and the limit is {max_bytes:,}; record "
            f"fewer entries (max_entries=100000), or allow more with max_bytes={size}"
        )
    return parse(plain_pickle(path, max_bytes), device)


def parse(content: object, device: int | None = None) -> Snapshot:
    """One device of what a snapshot's pickle holds.

    Raises TraceError where a type or a number is not what torch writes.
    """
    notes: list[str] = []
    if type(content) is list:
        content = {"segments": content}
        notes.append(
            "the file holds segments only, no events: there is a state to look at and "
            "nothing to replay"
        )
    snapshot = _snapshot_in(content)
    segments = _segments_in(snapshot)
    name = "device_traces"
    traces = [_list(entries, name) for entries in _list(snapshot.get(name, []), name)]
    device = _chosen_device(device, segments, traces, notes)
    if any(snapshot.get(key) for key in ("host_segments", "host_traces")):
        notes.append(
            "pinned host memory (host_segments, host_traces) is left out: it takes no "
            "device memory"
        )
    pools: dict[tuple[int, int], int] = {(0, 0): 0}
    mine = [
        _segment(segment, pools)
        for segment in segments
        if segment.get("device", 0) == device
    ]
    mine.sort(key=lambda segment: segment.address)
    for segment, following in pairwise(mine):
        if segment.address + segment.size > following.address:
            raise TraceError(
                f"the segments at {segment.address:#x} and {following.address:#x} "
                f"overlap: {IMPOSSIBLE}"
            )
    reader = _Events(pools, _cells(snapshot.get("casebook_cells")))
    entries = enumerate(traces[device] if device < len(traces) else [])
    events = tuple(
        filter(None, (reader.event(index, entry) for index, entry in entries))
    )
    for action, count in sorted(reader.left_out.items()):
        if action not in _NO_REQUEST:
            notes.append(f"{count} events of the unknown kind {action!r} are left out")
    settings = snapshot.get("allocator_settings")
    if type(settings) is not dict:
        settings = {}
    return Snapshot(
        device=device,
        segments=tuple(mine),
        events=events,
        frames=tuple(reader.frames),
        settings=settings,
        divisions=_divisions(settings),
        notes=tuple(notes),
    )


def _snapshot_in(content: object) -> Entry:
    if type(content) is not dict or "segments" not in content:
        raise TraceError(
            f"the pickle holds a {type(content).__name__} without segments: expected "
            "what torch.cuda.memory._dump_snapshot writes"
        )
    return content


def _segments_in(snapshot: Entry) -> list[Entry]:
    segments: list[Entry] = []
    for segment in _list(snapshot["segments"], "segments"):
        if type(segment) is not dict:
            raise TraceError(
                f"segments holds a {type(segment).__name__}: expected a dict each"
            )
        segments.append(segment)
    return segments


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list | tuple):
        raise TraceError(
            f"{name} is a {type(value).__name__}: expected a list, as torch writes"
        )
    return list(value)


def _whole_number(
    entry: Entry, key: str, where: str, default: int | None = None
) -> int:
    value = entry.get(key, default)
    if type(value) is not int or not 0 <= value < LARGEST:
        number = type(value) is int and abs(value) < 1 << 70
        shown = f"{value:,}" if number else f"a {type(value).__name__}"
        raise TraceError(
            f"{where} has {key} {shown}: expected a whole number from 0 up"
        )
    return value


def _chosen_device(
    wanted: int | None,
    segments: list[Entry],
    traces: list[list[object]],
    notes: list[str],
) -> int:
    """The device that is wanted, else the one with most events. Raises TraceError for one that
    the snapshot does not have.
    """
    busy = [number for number, entries in enumerate(traces) if entries]
    holding = sorted(
        {_whole_number(segment, "device", "a segment", 0) for segment in segments}
    )
    if wanted is not None:
        devices = sorted({*range(len(traces)), *holding})
        if wanted not in devices:
            raise TraceError(
                f"device {wanted} is not in the snapshot: it has devices {devices}"
            )
        return wanted
    if len(busy) > 1:
        chosen = max(busy, key=lambda number: len(traces[number]))
        notes.append(
            f"devices {busy} have events: device {chosen}, with most of them, was taken"
        )
        return chosen
    return next(iter(busy or holding), 0)


def _pool(entry: Entry, pools: dict[tuple[int, int], int], *keys: str) -> int:
    """The number of a private pool, in order of first sight; 0 for the default pools."""
    for key in keys:
        value = entry.get(key)
        if isinstance(value, tuple | list) and [type(part) for part in value] == [
            int,
            int,
        ]:
            return pools.setdefault((value[0], value[1]), len(pools))
    return 0


def _segment(entry: Entry, pools: dict[tuple[int, int], int]) -> StartSegment:
    address = _whole_number(entry, "address", "a segment")
    size = _whole_number(entry, "total_size", "a segment")
    where = f"the segment at {address:#x}"
    blocks = []
    at = 0
    for block in _list(entry.get("blocks"), "blocks"):
        if type(block) is not dict:
            raise TraceError(
                f"{where} holds a block that is a {type(block).__name__}: expected a "
                "dict"
            )
        length = _whole_number(block, "size", where)
        state = block.get("state")
        if type(state) is not str or state not in _STATES:
            shown = state[:40] if type(state) is str else "no text"
            raise TraceError(
                f"{where} has a block whose state is {shown}: expected one of "
                f"{', '.join(_STATES)}"
            )
        if (
            _whole_number(block, "address", where, address + at) != address + at
            or not length
        ):
            raise TraceError(
                f"{where} has blocks that do not lie one after another: {IMPOSSIBLE}"
            )
        usual = length
        history = block.get("history")  # torch 2.0: the newest use first
        if type(history) is list and history and type(history[0]) is dict:
            usual = history[0].get("real_size", length)
        requested = _whole_number(block, "requested_size", where, usual)
        live = _STATES[state] != "I"
        blocks.append(
            StartBlock(at, length, requested if live else 0, _STATES[state], -1)
        )
        at += length
    if at != size:
        raise TraceError(
            f"{where} has {size:,} bytes and its blocks {at:,}: the snapshot is damaged"
        )
    stream = _whole_number(entry, "stream", where, 0)
    small = entry.get("segment_type") == "small"
    pool = _pool(entry, pools, "segment_pool_id")
    expandable = entry.get("is_expandable") is True
    return StartSegment(address, size, stream, small, pool, expandable, tuple(blocks))


def _divisions(settings: Entry) -> tuple[int, ...]:
    name = "roundup_power2_divisions"
    table = settings.get(name)
    if type(table) is not dict:
        table = {}
    return tuple(_whole_number(table, str(1 << power), name, 0) for power in range(16))


def _cells(numbers: object) -> dict[str, int]:
    """The numbers of a notebook's cells by their files, as the recorder wrote them."""
    if type(numbers) is not dict:
        return {}
    return {file: number for file, number in numbers.items() if type(number) is int}


@lru_cache(1 << 16)
def _may_hold_a_loop(frame: str) -> bool:
    """Whether a frame is of a kind in which the steps of a program are looked for."""
    return (
        own_line(frame)
        or bool(CALLS.search(frame))
        or (library_line(frame) and not frame.endswith(" forward"))
    )


class _Events:
    """Reads entries one by one; keeps one copy of every stack."""

    def __init__(
        self, pools: dict[tuple[int, int], int], cells: dict[str, int]
    ) -> None:
        self.pools = pools
        self._cells = cells
        self.left_out: Counter[str] = Counter()
        self.frames: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {(): -1}
        # In a pickle one list or frame stands in many entries: each is read once, by its id().
        self._number_of_list: dict[int, int] = {}
        self._text_of_frame: dict[int, str] = {}

    def event(self, index: int, entry: object) -> TraceEntry | None:
        if type(entry) is not dict or type(action := entry.get("action")) is not str:
            raise TraceError(
                f"event {index} is a {type(entry).__name__} without an action: "
                "expected a dict, as torch writes"
            )
        if action not in ACTIONS:
            self.left_out[action[:40]] += 1
            return None
        where = f"event {index} ({action})"
        address = "addr"
        if action == "oom" and "device_free" in entry:
            address = "device_free"
        time_us = None
        if "time_us" in entry:
            time_us = _whole_number(entry, "time_us", where)
        stack = -1
        frames = entry.get("frames")
        if type(frames) is list and frames:
            stack = self._stack_number(frames)
        return TraceEntry(
            number=index,
            action=action,
            address=_whole_number(entry, address, where),
            size=_whole_number(entry, "size", where),
            stream=_whole_number(entry, "stream", where, 0),
            time_us=time_us,
            pool=_pool(entry, self.pools, "pool_id", "segment_pool_id"),
            frame=stack,
        )

    def _stack_number(self, frames: list[object]) -> int:
        """The number of a stack, of the Python frames of it that are kept."""
        if id(frames) not in self._number_of_list:
            stack = self._kept_frames(frames)
            if stack not in self._numbers:
                self._numbers[stack] = len(self.frames)
                self.frames.append(stack)
            self._number_of_list[id(frames)] = self._numbers[stack]
        return self._number_of_list[id(frames)]

    def _kept_frames(self, frames: list[object]) -> tuple[str, ...]:
        lines: list[str] = []
        for frame in frames[:FRAMES_SEEN]:
            if id(frame) not in self._text_of_frame:
                self._text_of_frame[id(frame)] = frame_text(frame, self._cells)
            text = self._text_of_frame[id(frame)]
            if text and (len(lines) < FRAMES_KEPT or _may_hold_a_loop(text)):
                lines.append(text)
                if len(lines) == FRAMES_KEPT + MORE_KEPT:
                    break
        return tuple(lines)

"""Reads a torch memory snapshot: the segments at its end, the events in its ring buffer, and the
settings.

It reads every generation from torch 2.0 to 2.15 (torch/csrc/cuda/memory_snapshot.cpp,
torch/cuda/_memory_viz.py and six public files): segments alone
(``torch.cuda.memory_snapshot()``), blocks with ``history`` and no address, events without time,
with pool_id, compile_context or user_metadata. host_segments and host_traces (2.14) belong to the
host allocator and are left out.
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
from helpers.settings.allocator_text import INTERVALS

FRAMES_KEPT = 8
"""Innermost frames of a stack, of any file: from the operator to the program's own line."""
MORE_KEPT = 40
"""Further frames in which a loop over steps may be (_may_hold_a_loop)."""
FRAMES_SEEN = 256
"""Frames that are looked at: the time that a stack of a deep recursion takes stays bounded."""
ACTIONS = (
    "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap oom"
).split()
_NO_REQUEST = {"snapshot", "annotate", "user_defined"}
"""Events that ask nothing of the allocator: a snapshot was taken; a note of the program (2.14)."""
_STATES = {
    "active_allocated": "A",
    "active_awaiting_free": "P",
    "active_pending_free": "P",
    "inactive": "I",
}
IMPOSSIBLE = "no allocator has such a state"
MOST_SHOWN = 1 << 70
"""Larger numbers of a forged snapshot are not written out: they may have any number of digits."""
MIB = 1 << 20
Entry = dict[object, object]


class TraceEntry(NamedTuple):
    """One trace entry.

    ``number``: its place in the device's list. ``action``: one of ACTIONS. ``address``: of the
    block or segment; of an oom it is the free bytes of the device instead. ``time_us``: None where
    torch recorded no times. ``pool``: 0 for the default pools, else the number of a private pool.
    ``frame``: index into Snapshot.frames, -1 for no stack.
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

    ``settings``: allocator_settings as torch wrote it. ``divisions``: roundup_power2_divisions,
    for sizes from 1 MiB, 2 MiB, 4 MiB ... on.
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
    """One device of the content of a snapshot's pickle: ``device``, or the one with most events.

    Raises TraceError where a type or a number is not as torch writes it.
    """
    notes: list[str] = []
    if type(content) is list:  # torch.cuda.memory_snapshot()
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
    pools: dict[tuple[int, int], int] = {(0, 0): 0}  # MempoolId_t to our number
    read_segments = _segments_of(segments, device, pools)
    reader = _Events(pools, _cells(snapshot.get("casebook_cells")))
    events = []
    if device < len(traces):
        for index, entry in enumerate(traces[device]):
            event = reader.event(index, entry)
            if event is not None:
                events.append(event)
    for action, count in sorted(reader.left_out.items()):
        if action not in _NO_REQUEST:
            notes.append(f"{count} events of the unknown kind {action!r} are left out")
    settings = snapshot.get("allocator_settings")
    if type(settings) is not dict:
        settings = {}
    return Snapshot(
        device=device,
        segments=read_segments,
        events=tuple(events),
        frames=tuple(reader.frames),
        settings=settings,
        divisions=_divisions(settings),
        notes=tuple(notes),
    )


def _segments_of(
    segments: list[Entry], device: int, pools: dict[tuple[int, int], int]
) -> tuple[StartSegment, ...]:
    """The segments of a device in address order. Raises TraceError where two overlap."""
    read = [
        _segment(segment, pools)
        for segment in segments
        if segment.get("device", 0) == device
    ]
    read.sort(key=lambda segment: segment.address)
    for segment, following in pairwise(read):
        if segment.address + segment.size > following.address:
            raise TraceError(
                f"the segments at {segment.address:#x} and {following.address:#x} "
                f"overlap: {IMPOSSIBLE}"
            )
    return tuple(read)


def _snapshot_in(content: object) -> Entry:
    """The content of a pickle, if it is a snapshot; else raises TraceError."""
    if type(content) is not dict or "segments" not in content:
        raise TraceError(
            f"the pickle holds a {type(content).__name__} without segments: expected "
            "what torch.cuda.memory._dump_snapshot writes"
        )
    return content


def _segments_in(snapshot: Entry) -> list[Entry]:
    """The segments of all devices as torch wrote them. Raises TraceError for what is no dict."""
    segments: list[Entry] = []
    for segment in _list(snapshot["segments"], "segments"):
        if type(segment) is not dict:
            raise TraceError(
                f"segments holds a {type(segment).__name__}: expected a dict each"
            )
        segments.append(segment)
    return segments


def _list(value: object, name: str) -> list[object]:
    """A list of a snapshot; else raises TraceError, which calls it by ``name``."""
    if not isinstance(value, list | tuple):
        raise TraceError(
            f"{name} is a {type(value).__name__}: expected a list, as torch writes"
        )
    return list(value)


def _whole_number(
    entry: Entry, key: str, where: str, default: int | None = None
) -> int:
    """A field of an entry. Raises TraceError, which names the entry by ``where``, for anything but
    a whole number of bytes, a count or an address.
    """
    value = entry.get(key, default)
    if type(value) is not int or not 0 <= value < LARGEST:
        shown = f"a {type(value).__name__}"
        if type(value) is int and abs(value) < MOST_SHOWN:
            shown = f"{value:,}"
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
    """The device to read: the one that is ``wanted``; without that the one with most events, or if
    none has any the first with a segment, or 0. Adds to ``notes`` which it chose where several have
    events. ``traces``: the events of each device. Raises TraceError for a wanted device that the
    snapshot does not have.
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
    return next(iter([*busy, *holding]), 0)


def _pool(entry: Entry, pools: dict[tuple[int, int], int], *keys: str) -> int:
    """The number of an entry's pool: 0 for the default pools, and where the entry names none;
    private pools are counted in the order in which they come, and new ones added to ``pools``.
    ``keys``: the fields that may hold torch's own name of a pool, a pair of numbers; the first that
    does counts.
    """
    for key in keys:
        value = entry.get(key)
        if not isinstance(value, tuple | list):
            continue
        if [type(part) for part in value] == [int, int]:
            return pools.setdefault((value[0], value[1]), len(pools))
    return 0


def _segment(entry: Entry, pools: dict[tuple[int, int], int]) -> StartSegment:
    """A segment with its blocks. Raises TraceError where they do not fill it."""
    address = _whole_number(entry, "address", "a segment")
    size = _whole_number(entry, "total_size", "a segment")
    where = f"the segment at {address:#x}"
    blocks = []
    filled = 0
    for block in _list(entry.get("blocks"), "blocks"):
        blocks.append(_block(block, where, address, filled))
        filled += blocks[-1].size
    if filled != size:
        raise TraceError(
            f"{where} has {size:,} bytes and its blocks {filled:,}: the snapshot is "
            "damaged"
        )
    stream = _whole_number(entry, "stream", where, 0)
    small = entry.get("segment_type") == "small"
    pool = _pool(entry, pools, "segment_pool_id")
    expandable = entry.get("is_expandable") is True
    return StartSegment(address, size, stream, small, pool, expandable, tuple(blocks))


def _block(block: object, where: str, segment: int, offset: int) -> StartBlock:
    """The block at ``offset`` of the segment at the address ``segment``. Raises TraceError for an
    unknown state, for no bytes, and for a block with another address than that. ``where``: names
    the segment in errors.
    """
    if type(block) is not dict:
        raise TraceError(
            f"{where} holds a block that is a {type(block).__name__}: expected a dict"
        )
    size = _whole_number(block, "size", where)
    state = block.get("state")
    if type(state) is not str or state not in _STATES:
        shown = state[:40] if type(state) is str else "no text"
        raise TraceError(
            f"{where} has a block whose state is {shown}: expected one of "
            f"{', '.join(_STATES)}"
        )
    expected = segment + offset
    address = _whole_number(block, "address", where, default=expected)
    if address != expected or not size:
        raise TraceError(
            f"{where} has blocks that do not lie one after another: {IMPOSSIBLE}"
        )
    # Torch 2.0 has no requested_size, but the history of a block, the newest use first. Without
    # either all of the block counts as requested.
    usual = size
    history = block.get("history")
    if type(history) is list and history and type(history[0]) is dict:
        usual = history[0].get("real_size", size)
    requested = _whole_number(block, "requested_size", where, default=usual)
    if state == "inactive":
        requested = 0
    return StartBlock(offset, size, requested, _STATES[state], id=-1)


def _divisions(settings: Entry) -> tuple[int, ...]:
    """roundup_power2_divisions for each interval of sizes (Snapshot.divisions), 0 where the
    snapshot has none. Torch writes a dictionary; its keys are texts, the MiB at which an interval
    begins.
    """
    name = "roundup_power2_divisions"
    table = settings.get(name)
    if type(table) is not dict:
        table = {}
    sizes = [str(1 << power) for power in range(INTERVALS)]
    return tuple(_whole_number(table, size, name, default=0) for size in sizes)


def _cells(numbers: object) -> dict[str, int]:
    """The numbers of a notebook's cells by their files, as the recorder wrote them."""
    if type(numbers) is not dict:
        return {}
    return {file: number for file, number in numbers.items() if type(number) is int}


@lru_cache(1 << 16)
def _may_hold_a_loop(frame: str) -> bool:
    """Whether the loop over steps may be in a frame (steps.py). It may be in the program's own
    files, in torch's code that runs a part of the program (CALLS), and in a library such as a
    trainer; but not in a library's forward of a module.
    """
    is_of_library = library_line(frame) and not frame.endswith(" forward")
    return own_line(frame) or bool(CALLS.search(frame)) or is_of_library


class _Events:
    """Reads entries one by one. ``frames``: every stack once; ``left_out``: how many entries of
    each unknown kind there were.
    """

    def __init__(
        self, pools: dict[tuple[int, int], int], cells: dict[str, int]
    ) -> None:
        self.pools = pools
        self._cells = cells
        self.left_out: Counter[str] = Counter()
        self.frames: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {(): -1}
        # Unpickled, one list or frame is the same object in many entries: it is read once.
        self._number_of_list: dict[int, int] = {}
        self._text_of_frame: dict[int, str] = {}

    def event(self, index: int, entry: object) -> TraceEntry | None:
        """The entry at a place of the device's list. None where its action is not one of ACTIONS:
        it asks nothing of the allocator, or is unknown, and is counted in ``left_out``.
        """
        if type(entry) is not dict or type(action := entry.get("action")) is not str:
            raise TraceError(
                f"event {index} is a {type(entry).__name__} without an action: "
                "expected a dict, as torch writes"
            )
        if action not in ACTIONS:
            self.left_out[action[:40]] += 1  # in a forged file it may be of any length
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
        """The place in ``self.frames`` of the kept frames of a stack, which are added if they are
        new; -1 where none is kept. ``frames``: the stack as torch wrote it.
        """
        if id(frames) not in self._number_of_list:
            stack = self._kept_frames(frames)
            if stack not in self._numbers:
                self._numbers[stack] = len(self.frames)
                self.frames.append(stack)
            self._number_of_list[id(frames)] = self._numbers[stack]
        return self._number_of_list[id(frames)]

    def _kept_frames(self, frames: list[object]) -> tuple[str, ...]:
        """The FRAMES_KEPT innermost Python frames of a stack, and further out up to MORE_KEPT of
        those that may hold a loop.
        """
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

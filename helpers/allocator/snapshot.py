"""What a torch memory snapshot says: the segments at its end, the events that it still has, and
the settings.

Every generation from torch 2.0 to 2.15 (torch/csrc/cuda/memory_snapshot.cpp,
torch/cuda/_memory_viz.py and six public files): segments alone
(``torch.cuda.memory_snapshot()``), blocks with ``history`` and no address, events without time,
with pool_id, compile_context or user_metadata. host_segments and host_traces (2.14) are the
host allocator's and are left out.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from helpers.allocator.trace import (
    CALLS,
    MAX_FILE_BYTES,
    StartBlock,
    StartSegment,
    TraceError,
    own_line,
)
from helpers.look import files

MAX_OPCODES = 60_000_000
"""About 250 MB of a snapshot; the objects of so many take at most 5 GB."""
FRAMES_KEPT = 8
MORE_KEPT = 16
FRAMES_SEEN = 256
"""Of a stack: its innermost frames; how many more of the program's own files and of CALLS; and
how far is looked.
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
_LIMIT = 1 << 62
IMPOSSIBLE = "no allocator has such a state"
MIB = 1 << 20


class Event(NamedTuple):
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

    ``divisions``: roundup_power2_divisions, 16 numbers. ``pools``: the pool id that stands
    behind each number, from 1 up.
    """

    device: int
    segments: tuple[StartSegment, ...]
    events: tuple[Event, ...]
    frames: tuple[tuple[str, ...], ...]
    settings: dict[str, Any]
    divisions: tuple[int, ...]
    pools: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]


def load(
    path: str | Path,
    device: int | None = None,
    max_bytes: int = MAX_FILE_BYTES,
    max_opcodes: int = MAX_OPCODES,
) -> Snapshot:
    """One device of a snapshot file: ``device``, or the one with most events.

    Raises TraceError in one line.
    """
    path = Path(path)
    if (size := path.stat().st_size) > max_bytes:
        more = f"(max_entries=100000), or allow more with max_bytes={size}"
        limit = f"{size:,} bytes and the limit is {max_bytes:,}"
        raise TraceError(f"{path.name} has {limit}; record fewer entries {more}")
    return parse(plain_pickle(path, max_opcodes, max_bytes), device)


def parse(content: Any, device: int | None = None) -> Snapshot:
    """One device of what a snapshot's pickle holds.

    Raises TraceError where a type or a number is not what torch writes.
    """
    notes: list[str] = []
    if type(content) is list:
        content = {"segments": content}
        state = "there is a state to look at and nothing to replay"
        notes.append(f"the file holds segments only, no events: {state}")
    if type(content) is not dict or "segments" not in content:
        expected = "expected what torch.cuda.memory._dump_snapshot writes"
        raise TraceError(
            f"the pickle holds a {type(content).__name__} without segments: {expected}"
        )
    segments = _list(content["segments"], "segments")
    name = "device_traces"
    traces = [_list(entries, name) for entries in _list(content.get(name, []), name)]
    for segment in segments:
        if type(segment) is not dict:
            raise TraceError(f"segments holds a {type(segment).__name__}: expected a dict each")
    device = _device(device, segments, traces, notes)
    if any(content.get(key) for key in ("host_segments", "host_traces")):
        host = "pinned host memory (host_segments, host_traces)"
        notes.append(f"{host} is left out: it takes no device memory")
    pools: dict[tuple[int, int], int] = {(0, 0): 0}
    mine = [_segment(segment, pools) for segment in segments if segment.get("device", 0) == device]
    mine.sort(key=lambda segment: segment.address)
    for one, other in zip(mine, mine[1:], strict=False):
        if one.address + one.size > other.address:
            both = f"{one.address:#x} and {other.address:#x}"
            raise TraceError(f"the segments at {both} overlap: {IMPOSSIBLE}")
    reader = _Events(pools)
    entries = enumerate(traces[device] if device < len(traces) else [])
    events = tuple(filter(None, (reader.event(index, entry) for index, entry in entries)))
    for action, count in sorted(reader.left_out.items()):
        if action not in _NO_REQUEST:
            notes.append(f"{count} events of the unknown kind {action!r} are left out")
    settings = content.get("allocator_settings")
    settings = settings if type(settings) is dict else {}
    return Snapshot(
        device=device,
        segments=tuple(mine),
        events=events,
        frames=tuple(reader.frames),
        settings=settings,
        divisions=_divisions(settings),
        pools=tuple(pools)[1:],
        notes=tuple(notes),
    )


def _list(value: Any, name: str) -> list[Any]:
    if type(value) not in (list, tuple):
        raise TraceError(f"{name} is a {type(value).__name__}: expected a list, as torch writes")
    return list(value)


def _whole(entry: dict[Any, Any], key: str, where: str, default: int | None = None) -> int:
    value = entry.get(key, default)
    if type(value) is not int or not 0 <= value < _LIMIT:
        number = type(value) is int and abs(value) < 1 << 70
        shown = f"{value:,}" if number else f"a {type(value).__name__}"
        raise TraceError(f"{where} has {key} {shown}: expected a whole number from 0 up")
    return value


def _device(
    asked: int | None, segments: list[Any], traces: list[list[Any]], notes: list[str]
) -> int:
    busy = [number for number, entries in enumerate(traces) if entries]
    holding = sorted({_whole(segment, "device", "a segment", 0) for segment in segments})
    if asked is not None:
        there = sorted({*range(len(traces)), *holding})
        if asked not in there:
            raise TraceError(f"device {asked} is not in the snapshot: it has devices {there}")
        return asked
    if len(busy) > 1:
        chosen = max(busy, key=lambda number: len(traces[number]))
        notes.append(f"devices {busy} have events: device {chosen}, with most of them, was taken")
        return chosen
    return (busy or holding or [0])[0]


def _pool(entry: dict[Any, Any], pools: dict[tuple[int, int], int], *keys: str) -> int:
    """The number of a private pool, in order of first sight; 0 for the default pools."""
    for key in keys:
        value = entry.get(key)
        if isinstance(value, tuple | list) and [type(part) for part in value] == [int, int]:
            return pools.setdefault((value[0], value[1]), len(pools))
    return 0


def _segment(entry: dict[Any, Any], pools: dict[tuple[int, int], int]) -> StartSegment:
    address = _whole(entry, "address", "a segment")
    size = _whole(entry, "total_size", "a segment")
    where = f"the segment at {address:#x}"
    blocks = []
    at = 0
    for block in _list(entry.get("blocks"), "blocks"):
        if type(block) is not dict:
            what = f"a block that is a {type(block).__name__}"
            raise TraceError(f"{where} holds {what}: expected a dict")
        length = _whole(block, "size", where)
        state = block.get("state")
        if type(state) is not str or state not in _STATES:
            what = f"a block whose state is {state[:40] if type(state) is str else 'no text'}"
            raise TraceError(f"{where} has {what}: expected one of {', '.join(_STATES)}")
        if _whole(block, "address", where, address + at) != address + at or not length:
            apart = "blocks that do not lie one after another"
            raise TraceError(f"{where} has {apart}: {IMPOSSIBLE}")
        history = block.get("history")  # torch 2.0: the newest use first
        first: dict[Any, Any] = (
            history[0] if type(history) is list and history and type(history[0]) is dict else {}
        )
        requested = _whole(block, "requested_size", where, first.get("real_size", length))
        live = _STATES[state] != "I"
        blocks.append(StartBlock(at, length, requested if live else 0, _STATES[state], -1))
        at += length
    if at != size:
        sizes = f"{size:,} bytes and its blocks {at:,}"
        raise TraceError(f"{where} has {sizes}: the snapshot is damaged")
    stream = _whole(entry, "stream", where, 0)
    small = entry.get("segment_type") == "small"
    pool = _pool(entry, pools, "segment_pool_id")
    expandable = entry.get("is_expandable") is True
    return StartSegment(address, size, stream, small, pool, expandable, tuple(blocks))


def _divisions(settings: dict[Any, Any]) -> tuple[int, ...]:
    name = "roundup_power2_divisions"
    found = settings.get(name)
    table = found if type(found) is dict else {}
    return tuple(_whole(table, str(1 << power), name, 0) for power in range(16))


class _Events:
    """Reads entries one by one; keeps one copy of every stack."""

    def __init__(self, pools: dict[tuple[int, int], int]) -> None:
        self.pools = pools
        self.left_out: Counter[str] = Counter()
        self.frames: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {(): -1}
        self._lists: dict[int, int] = {}
        self._texts: dict[int, str] = {}

    def event(self, index: int, entry: Any) -> Event | None:
        if type(entry) is not dict or type(action := entry.get("action")) is not str:
            what = f"event {index} is a {type(entry).__name__} without an action"
            raise TraceError(f"{what}: expected a dict, as torch writes")
        if action not in ACTIONS:
            self.left_out[action[:40]] += 1
            return None
        where = f"event {index} ({action})"
        free = action == "oom" and "device_free" in entry
        frames = entry.get("frames")
        return Event(
            number=index,
            action=action,
            address=_whole(entry, "device_free" if free else "addr", where),
            size=_whole(entry, "size", where),
            stream=_whole(entry, "stream", where, 0),
            time_us=_whole(entry, "time_us", where) if "time_us" in entry else None,
            pool=_pool(entry, self.pools, "pool_id", "segment_pool_id"),
            frame=self._frame(frames) if type(frames) is list and frames else -1,
        )

    def _frame(self, frames: list[Any]) -> int:
        """The number of the Python frames that are kept; a stack is often one object in many
        entries.
        """
        if (known := self._lists.get(id(frames))) is not None:
            return known
        lines: list[str] = []
        for frame in frames[:FRAMES_SEEN]:
            if (text := self._texts.get(id(frame))) is None:
                text = self._texts[id(frame)] = _frame_text(frame)
            if text and (len(lines) < FRAMES_KEPT or own_line(text) or CALLS.search(text)):
                lines.append(text)
                if len(lines) == FRAMES_KEPT + MORE_KEPT:
                    break
        stack = tuple(lines)
        if stack not in self._numbers:
            self._numbers[stack] = len(self.frames)
            self.frames.append(stack)
        number = self._lists[id(frames)] = self._numbers[stack]
        return number


_PACKAGES = {
    "": r".*/(?:site|dist)-packages/(.+/.+)",
    "site-packages/": r".*/(?:site|dist)-packages/(.+)",
    "python/": r".*/lib(?:64)?/python\d[\d.]*t?/(.+)|.*/python\d+/lib/(.+)",
    "torch/": r".*/torch/((?:_\w+|amp|ao|autograd|backends|cuda|distributed|distributions|export|fft|func|functional|fx|jit|"
    r"linalg|masked|multiprocessing|nested|nn|optim|overrides|profiler|random|serialization|sparse|special|storage|utils)"
    r"(?:/.+|\.py))",
    "torchinductor/": r".*/torchinductor_[^/]+/(.+)",
    "casebook/": r".*/helpers/(?:torchside|\w+/under_torch)/(.+)",
}
"""Files that are not the program's own, and what stands for their folder: installed, the
standard library's, torch's from source, a compiler's, the recorder's.
"""
_REHEARSAL = re.compile(r".*/helpers/(?:torchside/values|rehearse/under_torch/\w+)\.py")
"""Files of a rehearsal, which stand between the program's line and torch."""
_PATTERNS = {start: re.compile(pattern, re.IGNORECASE) for start, pattern in _PACKAGES.items()}


def _frame_text(frame: Any) -> str:
    """``train.py:12 step``, without the folders of whoever recorded it; of a package's file
    with its place in the package, ``torch/nn/modules/linear.py:125 forward``; empty for C++.
    """
    if type(frame) is not dict:
        return ""
    file = frame.get("filename")
    line = frame.get("line")
    name = frame.get("name")
    if type(file) is not str or type(line) is not int or type(name) is not str:
        return ""
    if not file.endswith(".py") and file[:1] != "<":
        return ""
    path = file.replace("\\", "/")[-4096:]
    if _REHEARSAL.fullmatch(path):
        return ""
    places = ((start, pattern.match(path)) for start, pattern in _PATTERNS.items())
    inside = (start + "".join(filter(None, one.groups())) for start, one in places if one)
    shown = next(inside, path.rsplit("/", 1)[-1])
    return " ".join(f"{shown[-80:]}:{line if abs(line) < 1 << 40 else 0} {name[:120]}".split())


# A pickle read as data: dicts, lists, tuples, numbers, texts and nothing else. No code of the
# file runs, whatever it holds.
#
# Two walls. A scan of the whole file lets only the opcodes of plain data pass, checks every
# length and memo index against what is there, counts and measures nesting, and refuses anything
# but text as a dict's key (hashing tuples of tuples can take for ever or crash, and numbers can
# be chosen to collide). Then an Unpickler that has no way to find a class builds the objects.
# Real snapshots hold no other opcode (checked with pickletools on six public files). Nothing
# here walks what was read, so a list that holds itself does no harm. weights_only=True is no
# substitute (CVE-2026-24747).

MAX_DEPTH = 32
_LOOK_AHEAD_BYTES = 1 << 20
_CODES = {code.code.encode("latin-1")[0]: code for code in pickletools.opcodes}
_RUNS_CODE = frozenset(
    "GLOBAL STACK_GLOBAL REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX PERSID BINPERSID EXT1 EXT2 EXT4".split()
)
_REFUSED = "a memory snapshot holds plain data only, so it is refused"
_ACTIONS = {
    "scalar": "NONE 0 NEWTRUE 0 NEWFALSE 0 BININT 4 BININT1 1 BININT2 2 BINFLOAT 8 LONG1 -1 LONG4 -4 SHORT_BINBYTES -1 "
    "BINBYTES -4",
    "text": "SHORT_BINUNICODE -1 BINUNICODE -4 BINUNICODE8 -8 SHORT_BINSTRING -1",
    "container": "EMPTY_LIST 0 EMPTY_DICT 0 EMPTY_TUPLE 0",
    "tuple": "TUPLE1 0 TUPLE2 0 TUPLE3 0",
    "mark": "MARK 0",
    "marked tuple": "TUPLE 0",
    "append": "APPEND 0",
    "appends": "APPENDS 0",
    "set item": "SETITEM 0",
    "set items": "SETITEMS 0",
    "put": "BINPUT 1 LONG_BINPUT 4",
    "memoize": "MEMOIZE 0",
    "get": "BINGET 1 LONG_BINGET 4",
    "skip": "PROTO 1 FRAME 8",
    "stop": "STOP 0",
}
"""What an opcode does, and the bytes of its argument; below 0: those of the length before a
counted argument.
"""
_PLAIN = {
    name: (action, max(int(width), 0), max(-int(width), 0))
    for action, words in _ACTIONS.items()
    for name, width in zip(words.split()[::2], words.split()[1::2], strict=True)
}
_TABLE = [_PLAIN.get(_CODES[byte].name) if byte in _CODES else None for byte in range(256)]


_WRONG = (LookupError, ValueError, TypeError, AttributeError, OverflowError)
_BROKEN = (pickle.UnpicklingError, EOFError, MemoryError, *_WRONG)


def plain_pickle(
    path: Path, max_opcodes: int = MAX_OPCODES, max_bytes: int = MAX_FILE_BYTES
) -> Any:
    """The plain objects in the pickle file.

    Raises TraceError, naming what it asks for, where it holds anything else.
    """
    data = files.whole(path, max_bytes)
    if data[:1] == b"\x80" and data[1:2] not in (b"\x02", b"\x03", b"\x04", b"\x05"):
        protocol = data[1] if len(data) > 1 else "none"
        raise TraceError(f"{path.name} has pickle protocol {protocol}: expected 2 to 5")
    try:
        _scan(path.name, data, max_opcodes)
        return _Plain(io.BytesIO(data)).load()
    except TraceError:
        raise
    except _BROKEN as error:
        why = f"{type(error).__name__}: {str(error)[:80]}"
        raise TraceError(f"{path.name} is no whole pickle ({why}); copy it again") from None


class _Plain(pickle.Unpickler):
    """Builds objects and never finds a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        unsafe = "nothing of it was run; do not open this file with pickle.load"
        raise TraceError(f"the pickle asks for {module}.{name}: {_REFUSED} and {unsafe}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise TraceError(f"the pickle holds a persistent id: {_REFUSED}")


def _scan(name: str, data: bytes, max_opcodes: int) -> None:
    """Passes where every opcode is one of plain data and within the limits."""
    at = 0
    end = len(data)
    depths = (
        bytearray()
    )  # of the values on the stack: 0 a text, 1 a number, else 1 + the deepest value in it
    marks: list[int] = []
    memo = bytearray()
    for _ in range(max_opcodes):
        if at >= end:
            raise EOFError("it ends before its last opcode")
        rule = _TABLE[data[at]]
        if rule is None:
            _refuse(name, data, at)
        action, width, counted = rule
        at += 1
        if counted:
            width = counted + int.from_bytes(data[at : at + counted], "little")
        if at + width > end:
            claim = f"{name} claims a value of {width:,} bytes at byte {at:,}"
            raise TraceError(f"{claim} and {end - at:,} follow: cut or forged")
        if action == "get":
            depths.append(memo[int.from_bytes(data[at : at + width], "little")])
            at += width
            continue
        if action == "text" or action == "scalar":
            depths.append(action == "scalar")
            at += width
            continue
        if action == "memoize":
            memo.append(depths[-1])
        elif action == "put":
            if (index := int.from_bytes(data[at : at + width], "little")) > len(memo):
                value = f"numbers value {len(memo):,} as {index:,} at byte {at:,}"
                raise TraceError(f"{name} {value}: forged to fill the memory")
            memo[index : index + 1] = depths[-1:]
        elif action == "container":
            depths.append(1)
        elif action == "mark":
            marks.append(len(depths))
        elif action in ("appends", "set items", "marked tuple"):
            first = marks.pop()
            inner = depths[first:]
            del depths[first:]
            if action == "marked tuple":
                depths.append(1)
            elif action == "set items" and any(inner[::2]):
                raise _key(name, at)
            depths[-1] = max(depths[-1], 1 + max(inner, default=0))
        elif action == "tuple":
            size = data[at - 1] - 0x84
            inner = depths[-size:]
            del depths[-size:]
            depths.append(1 + max(inner))
        elif action in ("append", "set item"):
            deepest = depths.pop()
            if action == "set item" and depths.pop():
                raise _key(name, at)
            depths[-1] = max(depths[-1], 1 + deepest)
        elif action == "stop":
            return
        if len(marks) > MAX_DEPTH or depths and depths[-1] > MAX_DEPTH + 1:
            deep = f"nested deeper than {MAX_DEPTH} at byte {at:,}"
            raise TraceError(f"{name} is {deep}: no memory snapshot is")
        at += width
    raise TraceError(
        f"{name} has more than {max_opcodes:,} pickle opcodes; record fewer entries (max_entries=100000), or "
        "allow more with max_opcodes=N at about 80 bytes of memory each"
    )


def _key(name: str, at: int) -> TraceError:
    key = f"{name} has a key at byte {at:,} that is no text"
    return TraceError(f"{key}: no memory snapshot has one, and it can be made to take for ever")


def _refuse(name: str, data: bytes, at: int) -> NoReturn:
    """Raises, naming the opcode or, where it or a later one runs code, what it asks for."""
    code = _CODES.get(data[at])
    what = code.name if code else f"0x{data[at]:02x}"
    later: Any = None
    # Where what follows is no pickle, the opcode itself is named.
    with contextlib.suppress(ValueError, IndexError, OverflowError):
        ahead = pickletools.genops(data[at : at + _LOOK_AHEAD_BYTES])
        later = next((one for one in ahead if one[0].name in _RUNS_CODE), None)
    if later is None:
        expected = "expected a torch memory snapshot, a pickle (2 to 5) of plain data"
        raise TraceError(f"{name} holds {what} at byte {at:,}: {expected}")
    asks = later[0].name
    place = at + (later[2] or 0)
    texts = []
    if asks in ("GLOBAL", "INST"):
        texts = str(later[1]).split(" ")
    elif asks == "STACK_GLOBAL":
        before = pickletools.genops(data[:place] + b".")
        texts = [text for _, text, _ in before if isinstance(text, str)][-2:]
    asks += f" ({'.'.join(texts)[:200]})" if texts else ""
    raise TraceError(
        f"{name} asks for code to be run: {asks} at byte {place:,}; it is refused and nothing of it "
        "was run. A memory snapshot holds plain data only; do not open this file with pickle.load"
    )

"""From a trace to the memory of a compiled replay, to a larger one on the way, and from it to an Outcome."""

from __future__ import annotations

import numpy as np

from helpers.allocator import compiled_state as c
from helpers.allocator.compiled_release import FREE, LIVE, PENDING
from helpers.allocator.driver import POLICIES, Card, Driver, clear_of, event_turn
from helpers.allocator.model import Allocator
from helpers.allocator.outcome import CALL_COLUMNS, Outcome
from helpers.allocator.statistics import NAMES, POOLS
from helpers.allocator.trace import Op, Trace
from helpers.settings.text import Settings

LARGEST = 1 << 62
FREE_WORDS = 1 << 16
FEWEST_PLACES = 4
STATES = {"I": FREE, "A": LIVE, "P": PENDING}
ORDERS = ("address", "block", "segment")


def fixed(array: np.ndarray, kind: type) -> np.ndarray:
    """A column as compiled code takes it: one type of array, read only, so that there is one compilation."""
    column = np.require(array, kind, ("C", "A")).view()
    column.flags.writeable = False
    return column


def limit(allowed: int | None) -> int:
    return c.NO_LIMIT if allowed is None else max(-LARGEST, min(allowed, LARGEST))


def settings_row(settings: Settings, card: Card) -> list[int]:
    """The head of the memory under these settings; last the limit that throw_on_cudamalloc_oom sees, if they name one."""
    seen = None if settings.fraction is None else int(settings.fraction * float(card.capacity_bytes))
    return [settings.max_split_bytes, settings.non_split_rounding_bytes, settings.expandable, settings.large_segment_bytes,
            settings.throw_on_oom, settings.gc_threshold > 0, max(settings.roundup_divisions) > 1, *settings.roundup_divisions,
            limit(seen)]


def pairs_of(trace: Trace) -> list[tuple[int, int]]:
    """The pools and streams that the trace allocates from."""
    made = trace.op == Op.ALLOC
    stream, pool = trace.stream[made], trace.pool[made]
    turns = np.flatnonzero((stream[1:] != stream[:-1]) | (pool[1:] != pool[:-1])) + 1
    turns = np.append(turns, 0)[:len(stream)]
    named = {(0, 0), *zip(pool[turns].tolist(), stream[turns].tolist(), strict=True)}
    return sorted(named | {(segment.pool, segment.stream) for segment in trace.start})


def prepare(trace: Trace, stop: int, settings: Settings, card: Card, allocator: Allocator, shift: int, logs: bool,
            addresses: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The memory of an empty allocator, and the starting state as compiled_release.restore takes it."""
    op, driver = trace.op[:stop], Driver(card, addresses, clear_of(trace.start, card))
    pending = any(block.state == "P" for known in trace.start for block in known.blocks)
    pending = pending or bool(((op == Op.FREE_REQUESTED) | (op == Op.FREE_COMPLETED)).any())
    handles = np.unique(trace.stream[:stop][op == Op.RECORD_STREAM])
    queues = np.full((len(handles), 3), -1, np.int64)
    queues[:, c.HANDLE] = handles
    turns = sorted(range(len(handles)), key=lambda at: event_turn(int(handles[at])))
    head, pieces, top = np.zeros(c.HEAD_WORDS, np.int64), [], c.HEAD_WORDS
    waiting = np.full(3 * (trace.ids + shift) if pending else 0, -1, np.int64)
    extents = (np.array(arena.free[0], np.int64) for arena in (driver.memory, driver.reserved))
    # A start's segments, then each address, with room for its segment's size: in use are never more than have been passed.
    recorded = np.zeros((len(trace.start) + len(addresses) if addresses else 0, 2), np.int64)
    recorded[len(recorded) - len(addresses):, 0] = addresses
    for at, piece in zip((c.WAITING, c.QUEUES, c.IN_PLACE, c.EXTENTS, c.EXTENTS + 3), (
            waiting, np.append(queues.ravel(), np.array(turns, np.int64)), recorded.ravel(), *extents), strict=True):
        head[at] = top
        pieces.append(piece)
        top += len(piece)
    pairs = pairs_of(trace)
    place = {pair: top + c.PAIR_WORDS * at for at, pair in enumerate(pairs)}
    table = np.zeros((len(pairs), c.PAIR_WORDS), np.int64)
    places = top + table.size
    for row, pair in zip(table, pairs, strict=True):
        row[:3] = *pair, min(at for other, at in place.items() if other[0] == pair[0])
        for at in range(c.LISTS, c.PAIR_WORDS, c.UNMAPPED):
            row[at + c.ROOM], row[at + c.PLACES], row[at + c.PAIR] = FEWEST_PLACES, places, place[pair]
            row[at + c.IS_SMALL] = at >= c.LISTS + c.SMALL
            places += FEWEST_PLACES
    start: list[list[int]] = []
    parts: list[list[int]] = []
    for known in trace.start:
        home = place[known.pool, known.stream] + c.LISTS + c.SMALL * known.small
        start.append([known.address, known.size, home, known.expandable, len(parts), len(known.blocks)])
        parts += [[block.offset, block.size, block.requested, STATES[block.state], block.id + shift] for block in known.blocks]
    head[:c.SETTINGS] = settings_row(settings, card)[:c.SETTINGS]
    for at, value in {
            c.ALLOWED: limit(allocator.allowed), c.TOTAL: card.capacity_bytes, c.ORDER: ORDERS.index(allocator.behaviour.order),
            c.SKIPS: allocator.behaviour.oversize_release_skips_expandable, c.POLICY: POLICIES.index(card.policy),
            c.CONFIG_LIMIT: limit(int(allocator.config_fraction * float(card.capacity_bytes))), c.CAPACITY: card.capacity_bytes,
            c.GRANULE: card.granule_bytes, c.HELD: card.held_bytes, c.IN_PLACE_END: head[c.IN_PLACE],
            c.RECORDED: head[c.IN_PLACE] + recorded.size - 2 * len(addresses), c.RECORDED_END: head[c.IN_PLACE] + recorded.size,
            c.QUEUE_COUNT: len(handles), c.PAIRS: top, c.PAIR_COUNT: len(pairs), c.LAST_PAIR: top, c.WAIT_HEAD: -1,
            c.WAIT_TAIL: -1, c.EXTENTS + 1: 1, c.EXTENTS + 2: 1, c.EXTENTS + 4: 1, c.EXTENTS + 5: 1, c.LOGS: logs,
            c.FIRST_OOM: -1, c.TOP: places, c.SPARE: 8192 + 4 * len(pairs) * c.CHUNK_WORDS + 8 * len(start)}.items():
        head[at] = value
    m = np.zeros(places + FREE_WORDS + int(head[c.SPARE]) + 128 * (len(parts) + 3 * len(start)), np.int64)
    filled = np.concatenate([head, *pieces, table.ravel()])
    m[:len(filled)] = filled
    return m, np.array(start, np.int64).reshape(-1, 6), np.array(parts, np.int64).reshape(-1, 5)


def larger(m: np.ndarray) -> np.ndarray:
    """The same memory with twice the room, and an empty driver log."""
    top, blocks = int(m[c.TOP]), int(m[c.BLOCKS])
    room = 16 * blocks + 4096 if m[c.LOGS] else 0
    grown = np.zeros(2 * len(m) + 5 * room, np.int64)
    grown[:top] = m[:top]
    grown[c.CALLS], grown[c.CALL_ROOM], grown[c.CALL_COUNT] = top, room, 0
    grown[c.TOP] = top + 5 * room
    return grown


def calls_of(m: np.ndarray) -> np.ndarray:
    """The driver log since the memory was last made larger."""
    low = int(m[c.CALLS])
    return m[low:low + len(CALL_COLUMNS) * int(m[c.CALL_COUNT])].reshape(-1, len(CALL_COLUMNS)).copy()


def outcome_of(m: np.ndarray, stop: int, timeline: np.ndarray | None, calls: np.ndarray | None) -> Outcome:
    """The totals, and every block in order of kind, ordinal and offset."""
    low = len(m) - int(m[c.BLOCKS])
    blocks = m[m[low:low + int(m[c.FOUND])][:, None] + np.arange(c.BLOCK_WORDS)]
    segments, lists = blocks[:, c.SEGMENT], blocks[:, c.LIST]
    base, pairs = m[segments + c.BASE], m[lists + c.PAIR]
    state = np.where(blocks[:, c.ALLOCATED] > 0, 1, np.where(blocks[:, c.EVENT_COUNT] != 0, 2, 0))
    table = np.stack([blocks[:, c.EXPANDABLE], m[segments + c.ORDINAL], base, blocks[:, c.ADDRESS] - base, blocks[:, c.SIZE],
                      blocks[:, c.REQUESTED], state, m[pairs + c.STREAM], m[lists + c.IS_SMALL], m[pairs + c.POOL],
                      blocks[:, c.MAPPED]], axis=1)
    figures = m[c.STATS:c.HEAD_WORDS].copy().reshape(-1, 4)
    first = int(m[c.FIRST_OOM])
    return Outcome(stop, int(m[c.FAILURES]), None if first < 0 else first, int(m[c.FIRST_BYTES]),
                   figures[:3 * len(NAMES)].reshape(len(NAMES), len(POOLS), 4), figures[3 * len(NAMES):],
                   m[c.SETTINGS:c.COUNTERS_END].copy(), table[np.lexsort(table.T[::-1])], timeline, calls, engine="compiled")

"""Figures of memory that tools print: what they say of each other, torch's statistics, and one
figure that grows from reading to reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from helpers.ground.units import GIB, Quantity, printed_size, quantity, show_bytes
from helpers.judge import form
from helpers.judge.evidence import ON_TORCH, CaseEvidence, is_described
from helpers.judge.hardware import device_names, is_hip
from helpers.judge.holders import window_state
from helpers.judge.numbers import bytes_of
from helpers.judge.observation import Observation, make_observation
from helpers.look.figures import Figure, beside, figures_of_message
from helpers.look.message import of_device
from helpers.look.parts import APU, CARD, UNIFIED, card_sizes
from helpers.look.relations import Relation, relations

ROOM_SHARE = 4
FULL_PERCENT = 90
LEAST_RISES = 3
RAM_SHARE = 20
REFUSED = ("refused", "driver-refused", "workspace")
OBSERVATION_OF_KIND = {APU: "apu", UNIFIED: "unified-memory", CARD: "card"}


def figures_in(evidence: CaseEvidence) -> list[Figure]:
    """Every figure of memory that the texts and the messages print."""
    figures = list(evidence.figures)
    for message in evidence.messages:
        figures += figures_of_message(message)
    return figures


def size_observations(
    evidence: CaseEvidence, figures: list[Figure], kind: str
) -> Iterator[Observation]:
    """What the figures say of each other, what kind of GPU it is, and what does not fit.

    ``kind``: hardware.kind_of.
    """
    if kind in OBSERVATION_OF_KIND:
        name = OBSERVATION_OF_KIND[kind]
        yield make_observation(name, kind, "the GPU's own name", "environment")
    for relation in relations(figures, kind, is_hip(evidence)):
        yield _of_relation(relation, kind)
    if not any(message.numbers for message in evidence.messages):
        is_refused = any(map(of_device, evidence.messages))
        room: list[Observation] = []
        if is_refused:
            room += _room(figures)
        yield from room or _in_use(figures, kind)
        yield from _of_shares(evidence, is_refused)
    yield from _of_host(figures)
    yield from _of_windows(figures)
    yield from _above_the_named_card(evidence, figures, kind)


def _of_relation(relation: Relation, kind: str) -> Observation:
    """A relation as an observation; what kind of GPU it is decides what it is called."""
    name = relation.name
    if name == "runtime-below-driver" and kind == CARD:
        name = "runtime-below-card"
    if name == "totals-differ" and all(
        figure.pool == "runtime" for figure in relation.figures
    ):
        name = "runtime-totals-differ"
    first = relation.figures[0]
    value = first.text if first.bytes is None else first.bytes
    return make_observation(
        name, value, first.source, first.origin, relation.says, hard=relation.hard
    )


def _in_use(figures: list[Figure], kind: str) -> Iterator[Observation]:
    """The most that a tool shows in use of a card."""
    pools: tuple[str, ...] = ("vram", "runtime")
    if kind == APU:
        pools = (*pools, "gtt")
    most = _largest(figures, "used", pools)
    if most is not None and bytes_of(most) > GIB // 2:
        yield make_observation(
            "card-in-use", most.bytes, most.source, most.origin, hard=not most.hearsay
        )


def _of_shares(evidence: CaseEvidence, is_refused: bool) -> Iterator[Observation]:
    """Whether the fullest card of rocm-smi's short table, which prints shares, is full or has
    room.
    """
    for source, text in evidence.tools:
        shares = form("share in use").findall(text)
        if not shares or "VRAM%" not in text:
            continue
        most = max(map(int, shares))
        if most >= FULL_PERCENT:
            yield make_observation("card-in-use", f"{most} %", source, "tool")
        elif is_refused and most <= 100 - 100 // ROOM_SHARE:
            yield make_observation(
                "room-beside-refusal", f"{100 - most} % of the card", source, "tool"
            )


def _room(figures: list[Figure]) -> Iterator[Observation]:
    """What a tool or a report shows free beside a refusal that gives no number, on the card that
    has least.
    """
    rooms: list[tuple[int, Figure]] = []
    for total in figures:
        if total.measure == "total" and total.pool in ("vram", "runtime"):
            rooms += [
                (bytes_of(free), total) for free in beside(total, figures, "free")
            ]
            used = beside(total, figures, "used")
            rooms += [(bytes_of(total) - bytes_of(figure), total) for figure in used]
    if not rooms:
        return
    size, card = min(rooms, key=lambda room: room[0])
    if size < max(GIB, bytes_of(card) // ROOM_SHARE):
        return
    says = f"Free, of {show_bytes(card.bytes)}, when this was printed"
    for figure in figures:
        if (figure.measure, figure.pool) == ("reserved", "torch-later"):
            says += f", after the failure; PyTorch then had {show_bytes(figure.bytes)}"
    yield make_observation("room-beside-refusal", size, card.source, card.origin, says)


def _of_host(figures: list[Figure]) -> Iterator[Observation]:
    """Whether the host's memory is at its end, who holds most of it, and what the kernel holds."""
    total = bytes_of(_largest(figures, "total", ("ram",)))
    processes = _largest(figures, "used", ("process-ram", "process-rss"))
    kernel = _largest(figures, "used", ("slab",))
    available = [figure for figure in figures if figure.pool == "available"]
    if available and bytes_of(available[-1]) < total // RAM_SHARE:
        says = f"Available of {show_bytes(total)} of RAM"
        if processes is not None:
            holder = f"process {processes.pid} {processes.name}"
            says = f"{says}; {holder} holds {show_bytes(processes.bytes)}"
        yield make_observation(
            "ram-full", available[-1].bytes, available[-1].source, "tool", says
        )
    limit = _largest(figures, "limit", ("cgroup",))
    rest = bytes_of(limit) - bytes_of(_largest(figures, "used", ("cgroup",)))
    if limit is not None and rest < bytes_of(limit) // RAM_SHARE:
        says = f"Free of the {show_bytes(limit.bytes)} that the control group may use"
        yield make_observation("ram-full", rest, limit.source, limit.origin, says)
    if kernel is not None and bytes_of(kernel) > max(
        total // ROOM_SHARE, ROOM_SHARE * GIB
    ):
        says = (
            f"Held by the kernel itself {kernel.name}".rstrip() + ", and by no process"
        )
        observation = make_observation(
            "kernel-holds-ram", kernel.bytes, kernel.source, "tool", says
        )
        yield replace(observation, remedy="slab")


def _of_windows(figures: list[Figure]) -> Iterator[Observation]:
    """A window to a card's memory (BAR1) that a tool shows, nearly used up or with room."""
    memories = {
        (figure.source, figure.device): figure
        for figure in figures
        if (figure.measure, figure.pool) == ("total", "vram")
    }
    for total in figures:
        memory = memories.get((total.source, total.device))
        if (total.measure, total.pool) != ("total", "bar") or memory is None:
            continue
        for used in beside(total, figures, "used"):
            name = window_state(bytes_of(total), bytes_of(used), bytes_of(memory))
            if name:
                says = (
                    f"In use of the {show_bytes(total.bytes)} window (BAR1) to a card's "
                    f"{show_bytes(memory.bytes)}"
                )
                state = make_observation(
                    name, used.bytes, used.source, used.origin, says
                )
                yield replace(state, remedy="bar1")


def _largest(
    figures: list[Figure], measure: str, pools: tuple[str, ...]
) -> Figure | None:
    """The largest figure of a measure (total, used) in one of these pools."""
    fitting = [
        figure
        for figure in figures
        if figure.measure == measure and figure.pool in pools
    ]
    return max(fitting, key=bytes_of, default=None)


def _above_the_named_card(
    evidence: CaseEvidence, figures: list[Figure], kind: str
) -> Iterator[Observation]:
    """A request without a total beside it that is larger than the card which is named, or than
    every total posted; where the RAM is shared, such a total may be a limit, and does not count.
    """
    names = device_names(evidence)
    sizes = [size * GIB for size in card_sizes(names)]
    for name in names:
        sizes += [printed_size(size) for size in form("named size").findall(name)]
    if kind not in (APU, UNIFIED):
        sizes.append(bytes_of(_largest(figures, "total", ("vram", "runtime"))))
    largest = max(sizes, default=0)
    for message in evidence.messages:
        requested = message.requested
        if not largest or not requested or message.capacity or message.side != "device":
            continue
        if requested.bytes > largest:
            says = f"One request, above all of {show_bytes(largest)}"
            yield make_observation(
                "request-above-card", requested.bytes, "error text", "message", says
            )
            return


def series_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """That there is a figure at all, torch's statistics, and series of one figure over time."""
    for source, text in evidence.tools:
        names_a_tool = form("tool").search(f"{source} {text[:300]}")
        if names_a_tool and form("figure").search(text) and not is_described(text):
            yield make_observation("tool-figure", text[:80], source, "tool")
        yield from _series(source, text)
    yield from _of_steps(evidence.error_text)
    torch = {
        figure.measure: figure for figure in evidence.figures if figure.pool == "torch"
    }
    if "reserved" in torch and "used" in torch:
        yield from _of_statistics(torch["used"], torch["reserved"])
        yield from _of_idle_cache(
            evidence, bytes_of(torch["reserved"]), bytes_of(torch["used"])
        )


def _of_idle_cache(
    evidence: CaseEvidence, reserved: int, used: int
) -> Iterator[Observation]:
    """Whether what torch had reserved and not in use would have met what another library, or a
    child process beside it, was refused.
    """
    idle = reserved - used
    for account in evidence.accounts:
        message = account.message
        is_torch = message.program in ON_TORCH
        in_a_child = any(
            reserved <= size.bytes <= reserved + 2 * GIB for _, size in account.others
        )
        is_refusal = of_device(message) and message.event in REFUSED
        if not is_refusal or (is_torch and not in_a_child):
            continue
        request = "memory"
        least = max(GIB, reserved // 2)
        if message.requested:
            request = message.requested.text
            least = message.requested.bytes
        if idle >= least:
            says = "Reserved by PyTorch and not in use when this was printed; "
            says += f"{message.program} was refused {request}"
            yield make_observation(
                "cache-keeps-room", idle, "torch's statistics", "tool", says
            )
            return


def _of_statistics(allocated: Figure, reserved: Figure) -> Iterator[Observation]:
    if bytes_of(reserved) <= 1.5 * bytes_of(allocated):
        return
    name = "reserved-far-above-allocated"
    if not allocated.bytes:
        name = "reserved-and-nothing-live"
    words = f"allocated {allocated.text}, reserved {reserved.text}"
    yield make_observation(name, words, "torch's statistics", "tool")


def _of_steps(text: str) -> Iterator[Observation]:
    """What a loop printed of its memory at each step, where it rises to the end as fast as at
    the start: a warm-up, whose rise ends, is none.
    """
    sizes: list[Quantity] = []
    for line in text.splitlines():
        printed = form("held at a step").search(line)
        size = quantity(printed[1]) if printed and form("step").search(line) else None
        if size:
            sizes.append(size)
    rises = [later.bytes - earlier.bytes for earlier, later in zip(sizes, sizes[1:])]
    if len(rises) < LEAST_RISES or min(rises) <= 0:
        return
    half = len(rises) // 2
    if sum(rises[-half:]) >= sum(rises[:half]) / 2:
        words = ", ".join(size.text for size in sizes[:8])
        yield make_observation("series-grows", words, "error text", "message")


def _series(source: str, text: str) -> Iterator[Observation]:
    """At least three readings of one figure that only rise, a line each or in one line."""
    kinds = form("series").findall(source) or form("series").findall(text[:80])
    if not kinds or is_described(text) or len(text) > 4000:
        return
    lines = [form("counter").sub("", line) for line in text.splitlines()]
    sizes: list[float] = []
    for line in lines:
        sizes += [float(number) for number in form("number").findall(line)]
    if len(sizes) < 3 or (len(lines) > 1 and len(sizes) != len(lines)):
        return
    rises = all(earlier < later for earlier, later in zip(sizes, sizes[1:]))
    if rises and sizes[-1] > 1.2 * sizes[0]:
        words = ", ".join(f"{size:g}" for size in sizes[:8])
        name = "series-grows"
        if "reserved" in map(str.lower, kinds):
            name = "reserved-series-grows"
        yield make_observation(name, words, source, "tool")

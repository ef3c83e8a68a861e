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
from helpers.judge.message_account import Account
from helpers.judge.numbers import bytes_of
from helpers.judge.observation import Observation, make_observation
from helpers.look.figures import Figure, beside, figures_of_message
from helpers.look.message import of_device
from helpers.look.parts import APU, CARD, UNIFIED, card_sizes
from helpers.look.relations import Relation, relations

ROOM_PART = 4
"""A card has room where at least this part of it is free."""
FULL_PERCENT = 90
"""A card is full from this share on: the rest is what driver and contexts keep (an estimate)."""
RAM_PART = 20
"""The RAM, or a control group, is nearly full where less than this part of it is left."""
IN_USE_BYTES = GIB // 2
"""More in use than this is no desktop alone."""
KERNEL_BYTES = 4 * GIB
"""The kernel itself holds too much where it has more than this and than a quarter of the RAM:
caches of files and inodes are given back before.
"""
IDLE_TIMES = 1.5
"""torch's cache stands out where it has reserved so many times what is allocated."""
LEAST_READINGS = 3
LEAST_GROWTH = 1.2
"""A figure grows where so many readings all rise, and the last is so many times the first: below
that a cache may still be filling.
"""
LEAST_RISES = 3
LONGEST_SERIES = 4000
"""Characters of an output that may be a series of one figure; longer ones are logs."""
BESIDE_TORCH_BYTES = 2 * GIB
"""The most that a process has beside torch: its context and libraries (an estimate)."""
HEAD = 300
SHOWN = 80
"""Characters at the start of an output, in which its tool is named, and those that are quoted."""
MOST_SHOWN = 8
"""Readings of a series that are quoted."""
REFUSED = ("refused", "driver-refused", "workspace")
"""Events of messages in which a program was refused memory of the device."""
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
    """What the figures say of each other, what kind of GPU it is (``kind``: hardware.kind_of), and
    what does not fit.

    What a tool shows of a card counts only where no message gives numbers of its own.
    """
    if kind in OBSERVATION_OF_KIND:
        name = OBSERVATION_OF_KIND[kind]
        yield make_observation(name, kind, "the GPU's own name", "environment")
    for relation in relations(figures, kind, is_hip(evidence)):
        yield _of_relation(relation, kind)
    # A message's own numbers are of the moment of the failure, a tool's of another one.
    if not any(message.numbers for message in evidence.messages):
        is_refused = any(map(of_device, evidence.messages))
        room: list[Observation] = []
        if is_refused:
            room += _room(figures)
        yield from room
        if not room:
            yield from _in_use(figures, kind)
        yield from _of_shares(evidence, is_refused)
    yield from _of_host(figures)
    yield from _of_windows(figures)
    yield from _above_the_named_card(evidence, figures, kind)


def _of_relation(relation: Relation, kind: str) -> Observation:
    """A relation of look.relations as an observation, with its name. Two have names of their own:
    ``runtime-below-card``, since no limit of an APU's memory explains it on a card, and
    ``runtime-totals-differ`` where both totals are a runtime's.
    """
    name = relation.name
    pools = {figure.pool for figure in relation.figures}
    if name == "runtime-below-driver" and kind == CARD:
        name = "runtime-below-card"
    elif name == "totals-differ" and pools == {"runtime"}:
        name = "runtime-totals-differ"
    first = relation.figures[0]
    value: int | str = first.text
    if first.bytes is not None:
        value = first.bytes
    return make_observation(
        name, value, first.source, first.origin, relation.says, hard=relation.hard
    )


def _in_use(figures: list[Figure], kind: str) -> Iterator[Observation]:
    """The most that a tool shows in use on a card."""
    pools: tuple[str, ...] = ("vram", "runtime")
    if kind == APU:
        pools = (*pools, "gtt")
    most = _largest(figures, "used", pools)
    if most is not None and bytes_of(most) > IN_USE_BYTES:
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
        free = 100 - most
        if most >= FULL_PERCENT:
            yield make_observation("card-in-use", f"{most} %", source, "tool")
        elif is_refused and free >= 100 // ROOM_PART:
            words = f"{free} % of the card"
            yield make_observation("room-beside-refusal", words, source, "tool")


def _room(figures: list[Figure]) -> Iterator[Observation]:
    """The free memory that a tool or a report shows beside a refusal that gives no number, on the
    card that has least.
    """
    rooms: list[tuple[int, Figure]] = []  # free bytes, and the card's total
    for total in figures:
        if total.measure == "total" and total.pool in ("vram", "runtime"):
            for free in beside(total, figures, "free"):
                rooms.append((bytes_of(free), total))
            for used in beside(total, figures, "used"):
                rooms.append((bytes_of(total) - bytes_of(used), total))
    if not rooms:
        return
    free_bytes, card = min(rooms, key=lambda room: room[0])
    if free_bytes < max(GIB, bytes_of(card) // ROOM_PART):
        return  # a request may well be larger than so little
    says = f"Free, of {show_bytes(card.bytes)}, when this was printed"
    for figure in figures:
        if figure.measure == "reserved" and figure.pool == "torch-later":
            says += f", after the failure; PyTorch then had {show_bytes(figure.bytes)}"
    yield make_observation(
        "room-beside-refusal", free_bytes, card.source, card.origin, says
    )


def _of_host(figures: list[Figure]) -> Iterator[Observation]:
    """Whether the host's RAM or its control group is nearly full, who holds most of it, and
    whether the kernel itself holds too much of it.
    """
    total = bytes_of(_largest(figures, "total", ("ram",)))
    available = [figure for figure in figures if figure.pool == "available"]
    if available and bytes_of(available[-1]) < total // RAM_PART:
        latest = available[-1]  # of several readings the one that was printed last
        says = f"Available of {show_bytes(total)} of RAM"
        process = _largest(figures, "used", ("process-ram", "process-rss"))
        if process is not None:
            holder = f"process {process.pid} {process.name}"
            says = f"{says}; {holder} holds {show_bytes(process.bytes)}"
        yield make_observation("ram-full", latest.bytes, latest.source, "tool", says)
    limit = _largest(figures, "limit", ("cgroup",))
    rest = bytes_of(limit) - bytes_of(_largest(figures, "used", ("cgroup",)))
    if limit is not None and rest < bytes_of(limit) // RAM_PART:
        says = f"Free of the {show_bytes(limit.bytes)} that the control group may use"
        yield make_observation("ram-full", rest, limit.source, limit.origin, says)
    kernel = _largest(figures, "used", ("slab",))
    too_much = max(total // ROOM_PART, KERNEL_BYTES)
    if kernel is not None and bytes_of(kernel) > too_much:
        holder = f"Held by the kernel itself {kernel.name}".rstrip()
        says = f"{holder}, and by no process"
        observation = make_observation(
            "kernel-holds-ram", kernel.bytes, kernel.source, "tool", says
        )
        yield replace(observation, remedy="slab")


def _of_windows(figures: list[Figure]) -> Iterator[Observation]:
    """A window to a card's memory (BAR1) that a tool shows, nearly used up or with room."""
    memories: dict[tuple[str, object], Figure] = {}  # by tool and card
    for figure in figures:
        if figure.measure == "total" and figure.pool == "vram":
            memories[figure.source, figure.device] = figure
    for total in figures:
        memory = memories.get((total.source, total.device))
        if total.measure != "total" or total.pool != "bar" or memory is None:
            continue
        says = (
            f"In use of the {show_bytes(total.bytes)} window (BAR1) to a card's "
            f"{show_bytes(memory.bytes)}"
        )
        for used in beside(total, figures, "used"):
            name = window_state(bytes_of(total), bytes_of(used), bytes_of(memory))
            if name:
                observation = make_observation(
                    name, used.bytes, used.source, used.origin, says
                )
                yield replace(observation, remedy="bar1")


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
    """The first request that is larger than the card which is named, or than every total posted,
    of messages that print no total. Where the RAM is shared, a posted total may be a limit, and
    does not count.
    """
    names = device_names(evidence)
    sizes = [size * GIB for size in card_sizes(names)]
    for name in names:
        sizes += [printed_size(size) for size in form("named size").findall(name)]
    if kind not in (APU, UNIFIED):
        sizes.append(bytes_of(_largest(figures, "total", ("vram", "runtime"))))
    largest = max(sizes, default=0)
    if not largest:
        return
    for message in evidence.messages:
        requested = message.requested
        # A message with the card's total is compared with that (account_observations).
        if not requested or message.capacity or message.side != "device":
            continue
        if requested.bytes > largest:
            says = f"One request, above all of {show_bytes(largest)}"
            yield make_observation(
                "request-above-card", requested.bytes, "error text", "message", says
            )
            return


def series_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """That a tool shows a figure at all, torch's statistics, and series of one figure over time."""
    for source, text in evidence.tools:
        names_a_tool = form("tool").search(f"{source} {text[:HEAD]}")
        if names_a_tool and form("figure").search(text) and not is_described(text):
            yield make_observation("tool-figure", text[:SHOWN], source, "tool")
        yield from _series(source, text)
    yield from _of_steps(evidence.error_text)
    of_torch = [figure for figure in evidence.figures if figure.pool == "torch"]
    torch = {figure.measure: figure for figure in of_torch}
    if "reserved" in torch and "used" in torch:
        yield from _of_statistics(torch["used"], torch["reserved"])
        reserved_bytes = bytes_of(torch["reserved"])
        yield from _of_idle_cache(evidence, reserved_bytes, bytes_of(torch["used"]))


def _of_idle_cache(
    evidence: CaseEvidence, reserved_bytes: int, used_bytes: int
) -> Iterator[Observation]:
    """Whether the memory that torch had reserved and did not use would have met a request that
    another library, or a child process beside it, was refused.
    """
    idle_bytes = reserved_bytes - used_bytes
    for account in evidence.accounts:
        message = account.message
        is_refusal = of_device(message) and message.event in REFUSED
        is_another_program = message.program not in ON_TORCH
        if not is_refusal:
            continue
        # torch itself would have used its own cache; a child process with torch cannot.
        if not is_another_program and not _names_parent(account, reserved_bytes):
            continue
        request = "memory"
        least_bytes = max(GIB, reserved_bytes // 2)  # without a size, most of it idle
        if message.requested:
            request = message.requested.text
            least_bytes = message.requested.bytes
        if idle_bytes >= least_bytes:
            says = "Reserved by PyTorch and not in use when this was printed; "
            says += f"{message.program} was refused {request}"
            yield make_observation(
                "cache-keeps-room", idle_bytes, "torch's statistics", "tool", says
            )
            return


def _names_parent(account: Account, reserved_bytes: int) -> bool:
    """Whether a message names a process that has what torch's statistics show, with a context
    beside it: then it is of a child of that process.
    """
    return any(
        reserved_bytes <= size.bytes <= reserved_bytes + BESIDE_TORCH_BYTES
        for _, size in account.others
    )


def _of_statistics(allocated: Figure, reserved: Figure) -> Iterator[Observation]:
    """Whether torch's statistics show far more reserved than allocated."""
    if bytes_of(reserved) <= IDLE_TIMES * bytes_of(allocated):
        return
    name = "reserved-far-above-allocated"
    if not allocated.bytes:  # after a failure, as the tensors of the step are gone
        name = "reserved-and-nothing-live"
    words = f"allocated {allocated.text}, reserved {reserved.text}"
    yield make_observation(name, words, "torch's statistics", "tool")


def _of_steps(text: str) -> Iterator[Observation]:
    """Whether the memory that a loop printed at each step rises to its end, in the second half at
    least half as fast as in the first: the rise of a warm-up ends.
    """
    sizes: list[Quantity] = []
    for line in text.splitlines():
        printed = form("held at a step").search(line)
        if printed and form("step").search(line):
            size = quantity(printed[1])
            if size:
                sizes.append(size)
    rises = [later.bytes - earlier.bytes for earlier, later in zip(sizes, sizes[1:])]
    if len(rises) < LEAST_RISES or min(rises) <= 0:
        return
    half = len(rises) // 2  # of an odd number the rise in the middle is in neither half
    if sum(rises[-half:]) >= sum(rises[:half]) / 2:
        words = ", ".join(size.text for size in sizes[:MOST_SHOWN])
        yield make_observation("series-grows", words, "error text", "message")


def _series(source: str, text: str) -> Iterator[Observation]:
    """Whether readings of one figure only rise, printed a line each or all in one line."""
    kinds = form("series").findall(source)
    if not kinds:
        kinds = form("series").findall(text[:SHOWN])
    if not kinds or is_described(text) or len(text) > LONGEST_SERIES:
        return
    lines = [form("counter").sub("", line) for line in text.splitlines()]
    sizes: list[float] = []
    for line in lines:
        sizes += [float(number) for number in form("number").findall(line)]
    # Lines with several numbers, or none, are a table or a log.
    is_one_each = len(lines) <= 1 or len(sizes) == len(lines)
    if len(sizes) < LEAST_READINGS or not is_one_each:
        return
    rises = all(earlier < later for earlier, later in zip(sizes, sizes[1:]))
    if rises and sizes[-1] > LEAST_GROWTH * sizes[0]:
        words = ", ".join(f"{size:g}" for size in sizes[:MOST_SHOWN])
        name = "series-grows"
        if "reserved" in map(str.lower, kinds):
            name = "reserved-series-grows"
        yield make_observation(name, words, source, "tool")

"""What the messages of a text are evidence of: their events, and the account of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from helpers.ground.units import GIB, MIB, Quantity, show_bytes
from helpers.judge import form
from helpers.judge.evidence import CaseEvidence, is_described
from helpers.judge.fragmentation import LIKELY, POSSIBLE
from helpers.judge.holders import CONTEXT_BYTES
from helpers.judge.message_account import Account, account_of
from helpers.judge.message_sums import above, plus
from helpers.judge.observation import SILENT, Observation, make_observation, observation_name
from helpers.look.message import Message
from helpers.look.messages import read_message
from helpers.look.wordings import meaning

NEAR_END = 0.9
"""A process that holds this share of the card is what fills it; the rest is context and
granules (fragmentation.NEAR_FULL).
"""
OWN_SHARE = 3
"""A process that holds over three times what others do is the first to ask for less; below
that, ask who they are.
"""
SOURCE = "error text"
BROKEN = ("fault", "assert")
OWN_POOL = ("TensorFlow", "XLA", "JAX")
NEAR_CHARACTERS = 1500


def message_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the messages of the error text say, and those in posted tool output; in a description
    of it they are hearsay.
    """
    observations: list[Observation] = []
    for account in evidence.accounts:
        observations += _of_message(account, "message", SOURCE, evidence.error_text)
    events = {message.event for message in evidence.messages} - set(SILENT)
    if len(events) > 1 and events & set(BROKEN):
        first = next(m for m in evidence.messages if m.event in BROKEN)
        words = first.words or first.row
        observations.append(make_observation("fault-then-others", words, SOURCE, "message"))
    for origin, source, text in evidence.texts:
        if origin == "tool":
            observations += _of_tool_output(source, text)
    return _first_of_each(observations)


def _of_tool_output(source: str, text: str) -> Iterator[Observation]:
    """What messages in the output of a tool say."""
    hard = not is_described(text)
    for message in read_message(text).messages:
        for observation in _of_message(account_of(message), "tool", source, text):
            yield replace(observation, hard=hard, proof=observation.proof and hard)


def _first_of_each(observations: list[Observation]) -> list[Observation]:
    """The first observation of each name and origin."""
    first: dict[tuple[str, str], Observation] = {}
    for observation in observations:
        first.setdefault((observation.name, observation.origin), observation)
    return list(first.values())


def _of_message(account: Account, origin: str, source: str, text: str) -> Iterator[Observation]:
    """What one message is evidence of: its event, what follows from which program says it, and
    its account.
    """
    message = account.message
    words = message.words or message.row
    name = observation_name(message.side, message.event)
    says = meaning(message.row) or f"{message.program or 'A program'} says so"
    if name == "workspace-refused" and form("unsure handle").search(words):
        name = "handle-unsure"
    if name:
        proof = message.event in ("killed", "leak")
        yield make_observation(name, words, source, origin, says, proof=proof)
    for extra in _further_names(message, name, text):
        yield make_observation(extra, words, source, origin)
    if message.event == "missing-library" and message.program != "loader":
        yield make_observation("missing-runtime-library", words, source, origin, says)
    for family in _families(message):
        yield make_observation(family, words, source, origin, says)
    if (message.capacity or message.allowed) and message.side in ("device", "none"):
        yield from _AccountObservations(account, source, origin).all()
    elif _asks_for_more_than_free(message) and message.requested and message.free:
        says = f"More than the {message.free.text} that was free"
        yield make_observation("buffer-above-free", message.requested.bytes, source, origin, says)


def _asks_for_more_than_free(message: Message) -> bool:
    if message.side != "device" or message.event not in ("refused", "no-room-for-cache"):
        return False
    if message.requested is None or message.free is None:
        return False
    return above(message.requested, message.free)


def _families(message: Message) -> Iterator[str]:
    """The libraries whose own failures the catalogue knows."""
    if message.program.startswith("XLA") and message.event in ("workspace", "mismatch"):
        yield "row:jax"
    if message.program.startswith("MIOpen") and message.event == "workspace":
        yield "row:miopen"


def _further_names(message: Message, name: str, text: str) -> Iterator[str]:
    """What a refusal of device memory says beside itself, by its numbers and by who prints it."""
    if name != "device-refused":
        return
    if not (message.capacity or message.free or message.allocated or message.requested):
        yield from _of_bare_refusal(message, text)
    elif "from-device" in message.row:
        yield "reservation-refused"
    elif message.program.startswith(OWN_POOL):
        yield "own-pool-exhausted"


def _of_bare_refusal(message: Message, text: str) -> Iterator[str]:
    """A refusal without a number: of which call, by what stands around it."""
    near = text[max(0, message.start - NEAR_CHARACTERS) : message.start + NEAR_CHARACTERS]
    yield "device-refused-bare"
    if form("pinned").search(near):
        yield "pinned-refused"
    elif form("context").search(near):
        yield "context-refused"
    elif message.row.startswith("runtime-") and form("torch's error").search(near):
        # torch's own allocator prints what was asked for; this is a raw call of the runtime.
        yield "raw-call-refused"


class _AccountObservations:
    """What the account of one message decides."""

    def __init__(self, account: Account, source: str, origin: str) -> None:
        self.account = account
        self.message = account.message
        self.source = source
        self.origin = origin
        self.requested = _bytes(self.message.requested)
        self.capacity = _bytes(self.message.capacity)
        self.free = _bytes(self.message.free)
        self.held = _bytes(account.held)

    def observed(self, name: str, size: int, says: str = "") -> Observation:
        return make_observation(name, size, self.source, self.origin, says)

    def all(self) -> Iterator[Observation]:
        """Every observation, in the order in which a person would check them."""
        total = self.message.capacity
        free = self.message.free
        requested = self.message.requested
        if free and total and above(free, total):
            says = f"Free is above the total of {total.text}"
            yield self.observed("free-above-total", free.bytes, says)
            return
        if self.limit_binds() and self.message.allowed:
            yield self.observed("limit-binds", self.message.allowed.bytes)
            return
        if requested is None:
            return
        if total and above(requested, total):
            says = f"One request, above all of {total.text}"
            yield self.observed("request-above-card", requested.bytes, says)
        if self.account.beyond_limit and self.message.allocated and self.account.limit:
            need = self.message.allocated.bytes + requested.bytes
            says = f"Allocated and requested, above {self.account.limit.text}"
            yield self.observed("beyond-card", need, says)
        yield from self.of_stranded()
        if free and not self.message.allowed:
            if free.bytes - requested.bytes > 64 * MIB + requested.bytes // 20:
                says = f"Said to be free, and {requested.text} was refused"
                yield self.observed("refused-with-room", free.bytes, says)
        if total and self.account.held and above(self.account.held, total):
            says = (
                f"torch holds more than the {total.text} of the card: the driver spills to host "
                "memory"
            )
            yield self.observed("spilled", self.held, says)
        elif total and free:
            yield from self.of_shares()

    def limit_binds(self) -> bool:
        """Whether what this process is allowed refused the request, and not the device."""
        allowed = self.message.allowed
        if allowed is None:
            return False
        margin = max(self.account.tolerance_bytes, allowed.bytes // 50)
        if self.held + self.requested <= allowed.bytes - margin:
            return False
        requested = self.message.requested
        free = self.message.free
        return requested is None or free is None or not above(requested, free)

    def of_stranded(self) -> Iterator[Observation]:
        """What is reserved and unallocated, and whether it would have held the request."""
        stranded = self.account.stranded
        requested = self.message.requested
        if stranded is None or stranded.bytes <= 0 or requested is None:
            return
        unused = "Reserved and unallocated after the flush, at least the"
        if self.account.fragmentation == LIKELY:
            says = f"{unused} {requested.text} asked for, and the sum would fit"
            yield self.observed("stranded-decides", stranded.bytes, says)
        elif self.account.fragmentation == POSSIBLE:
            says = (
                f"{unused} {requested.text} asked for: whether one piece of it was large enough "
                "only a memory snapshot tells"
            )
            yield self.observed("stranded-possible", stranded.bytes, says)
        elif self.together_enough(stranded, requested) and self.message.free:
            says = (
                f"With the {self.message.free.text} free it would hold {requested.text}; "
                "neither does alone"
            )
            yield self.observed("free-and-stranded", stranded.bytes, says)
        held = self.account.held
        if held and stranded.bytes > max(held.bytes // 4, GIB // 2):
            says = f"A large part of the {held.text} reserved"
            yield self.observed("stranded-large", stranded.bytes, says)

    def together_enough(self, stranded: Quantity, requested: Quantity) -> bool:
        """Whether free and stranded hold the request together, and neither does alone."""
        free = self.message.free
        if free is None or not above(requested, free) or self.account.beyond_limit:
            return False
        if stranded.bytes <= requested.bytes // 4:
            return False
        return not above(requested, plus(free, stranded))

    def of_shares(self) -> Iterator[Observation]:
        """Whose the bytes in use are: this process's, others', or the message does not say."""
        account = self.account
        total = self.message.capacity
        free = self.message.free
        assert total and free
        if account.own is None and account.held is None:
            if self.free < max(self.requested, self.capacity // 50):
                says = f"In use of {total.text}, by whom the message does not say"
                yield self.observed("unexplained-full", self.capacity - self.free, says)
            return
        outside = _bytes(account.outside)
        process = self.process_bytes(outside)
        says = (
            f"Of {total.text} this process has {show_bytes(process)}, {free.text} is free, the "
            "rest is outside it"
        )
        if outside > max(self.capacity // 2, process):
            yield self.observed("outside-most", outside, says)
        others_are_small = (
            outside <= account.tolerance_bytes + 2 * MIB or OWN_SHARE * outside < process
        )
        if not others_are_small and self.outside_decides():
            together = (
                f"{says}; free and outside together would have held {_text(self.message.requested)}"
            )
            yield self.observed("outside-decides", outside, together)
        if outside > CONTEXT_BYTES // 2:
            yield self.observed("outside-some", outside, says)
        alike = [size for _, size in account.others if abs(size.bytes - process) <= process // 10]
        if len(alike) >= 2:
            says = f"{len(alike)} other processes of this one's size"
            yield self.observed("others-alike", len(alike) * process, says)
        if others_are_small and account.fragmentation != LIKELY:
            yield from self.of_own_memory(process)

    def process_bytes(self, outside: int) -> int:
        """What this process has; where the message does not give it, what is left with its
        context is its own.
        """
        if self.account.own:
            return self.account.own.bytes
        return max(self.held, self.capacity - self.free - outside)

    def outside_decides(self) -> bool:
        """Whether the request would have fitted without what is outside this process."""
        if self.account.fragmentation == LIKELY or self.account.beyond_limit:
            return False
        return self.free < self.requested and bool(self.account.fits_alone)

    def of_own_memory(self, process: int) -> Iterator[Observation]:
        """Whether this process fills the card."""
        stranded = max(0, _bytes(self.account.stranded))
        if stranded > max(self.requested, process // 4):
            return
        total = _text(self.message.capacity)
        if self.free + stranded < self.requested:
            end = "with what is free and what it has cached the request would not have been met"
        elif (
            # Most of it is cached: whether that could have served the request is open.
            2 * stranded <= process
            and max(process / NEAR_END, self.requested + process) > self.capacity
        ):
            end = "over nine tenths, so the card is at its end"
        else:
            return
        yield self.observed("ours-fills", process, f"This process holds it, of {total}: {end}")


def _bytes(quantity: Quantity | None) -> int:
    return 0 if quantity is None else quantity.bytes


def _text(quantity: Quantity | None) -> str:
    return "" if quantity is None else quantity.text

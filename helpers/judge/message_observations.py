"""What the messages of a text are evidence of: their events, and the account of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from helpers.ground.units import GIB
from helpers.judge import form
from helpers.judge.account_observations import account_observations
from helpers.judge.evidence import CaseEvidence, is_described
from helpers.judge.failing_program import last_error, of_another, went_on
from helpers.judge.holders import CONTEXT_BYTES, is_left_by
from helpers.judge.message_account import Account, account_of
from helpers.judge.message_sums import above
from helpers.judge.observation import (
    NEUTRAL_EVENTS,
    Observation,
    make_observation,
    observation_name,
)
from helpers.look.message import Message
from helpers.look.messages import read_message
from helpers.look.wordings import meaning, remedy_of_row

SOURCE = "error text"
BROKEN = ("fault", "assert")
XID = "kernel-xid"
PROVING = ("killed", "leak", "hang", "gpu-lost")
"""Events that the kernel, or who killed it, states as a fact."""
SLEEPS = "vllm-sleeps"
OWN_POOL = ("TensorFlow", "XLA", "JAX")
LEAST_OF_A_SLICE = 0.85
"""Of the size in its name, a MIG device has this much at least (9.5 GiB of 1g.10gb)."""
NEAR_CHARACTERS = 1500
LARGER_THAN_ANY_CARD = 1 << 39


def message_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the messages of the error text say, and those in posted tool output; in a description
    of it they are hearsay.
    """
    observations: list[Observation] = []
    accounts = list(_of_the_failing_program(evidence))
    for account in accounts:
        remedy = remedy_of_row(account.message.row)
        stated = _of_message(account, "message", SOURCE, evidence.error_text)
        observations += [replace(observation, remedy=remedy) for observation in stated]
    observations += _of_one_job(accounts, evidence.error_text)
    if evidence.bundle is None:
        observations += _of_slice(accounts, evidence)
    error = last_error(evidence.error_text)
    if error and not observations and form("error of its own").match(error[0]):
        observations.append(make_observation("own-error", error[0], SOURCE, "message"))
    caught = [message for message in evidence.messages if went_on(message, evidence)]
    if caught and not observations:
        observations.append(
            make_observation("went-on", caught[0].words, SOURCE, "message")
        )
    events = {account.message.event for account in accounts} - set(NEUTRAL_EVENTS)
    if len(events) > 1 and events & set(BROKEN):
        first = next(a.message for a in accounts if a.message.event in BROKEN)
        words = first.words or first.row
        observations.append(
            make_observation("fault-then-others", words, SOURCE, "message")
        )
    for origin, source, text in evidence.words:
        if origin == "tool":
            observations += _of_tool_output(source, text, evidence)
    return _first_of_each(observations)


def _of_the_failing_program(evidence: CaseEvidence) -> Iterator[Account]:
    """The accounts of the messages, without the kernel's lines about other processes, without
    the Xids after the first and without refusals that the program caught.
    """
    is_first_xid = True
    for account in evidence.accounts:
        message = account.message
        if message.row.startswith(XID):
            if not is_first_xid:
                continue
            is_first_xid = False
        if not of_another(message, evidence) and not went_on(message, evidence):
            yield account


def _of_one_job(accounts: list[Account], text: str) -> Iterator[Observation]:
    """What shows that others on the card are of this very job: its other ranks, or its engine
    that sleeps.
    """
    ranks: dict[int, set[str]] = {}
    left = [
        account.message.used for account in accounts if account.message.row == SLEEPS
    ]
    for account in accounts:
        message = account.message
        line = text[text.rfind("\n", 0, message.start) + 1 : message.start]
        rank = form("rank").search(line)
        program = account.program
        outside = account.outside
        if not (program and outside):
            continue
        if rank and message.device is not None and 2 * outside.bytes >= program.bytes:
            ranks.setdefault(message.device, set()).add(rank[1])
        for _, size in account.others:
            if any(kept and is_left_by(size, kept) for kept in left):
                yield make_observation("sleeping-engine", size.bytes, SOURCE, "message")
    for device, numbers in ranks.items():
        if len(numbers) > 1:
            words = f"ranks {', '.join(sorted(numbers))} on GPU {device}"
            yield make_observation("ranks-together", words, SOURCE, "message")


def _of_slice(accounts: list[Account], evidence: CaseEvidence) -> Iterator[Observation]:
    """The MIG device that the program runs in, where the text lists one of its capacity."""
    words = "\n".join(text for _, _, text in evidence.texts)
    named = {int(match[1]) * GIB for match in form("slice").finditer(words)}
    for account in accounts:
        capacity = account.message.capacity
        if capacity and any(
            LEAST_OF_A_SLICE * size <= capacity.bytes <= size for size in named
        ):
            says = "The program runs in a MIG device that has this much"
            yield make_observation("mig-slice", capacity.bytes, SOURCE, "message", says)


def _of_tool_output(
    source: str, text: str, evidence: CaseEvidence
) -> Iterator[Observation]:
    """What messages in the output of a tool say."""
    hard = not is_described(text)
    for message in read_message(text).messages:
        if of_another(message, evidence):
            continue
        remedy = remedy_of_row(message.row)
        for observation in _of_message(account_of(message), "tool", source, text):
            proof = observation.proof and hard
            yield replace(observation, hard=hard, proof=proof, remedy=remedy)


def _first_of_each(observations: list[Observation]) -> list[Observation]:
    """The first observation of each name and origin, before others that whose program asks for
    a remedy; of proofs, the first of each meaning.
    """
    first: dict[tuple[str, str, str], Observation] = {}
    for observation in observations:
        meaning_of_proof = observation.says if observation.proof else ""
        key = (observation.name, observation.origin, meaning_of_proof)
        if key not in first or (observation.remedy and not first[key].remedy):
            first[key] = observation
    return list(first.values())


def _of_message(
    account: Account, origin: str, source: str, text: str
) -> Iterator[Observation]:
    """What one message is evidence of: its event, what follows from which program says it, and
    its account.
    """
    message = account.message
    words = message.words or message.row
    name = observation_name(message.side, message.event)
    says = meaning(message.row)
    if name == "workspace-refused" and form("unsure handle").search(words):
        name = "handle-unsure"
    if name:
        proof = message.event in PROVING
        yield make_observation(name, words, source, origin, says, proof=proof)
    for extra in _further_names(message, name, text):
        yield make_observation(extra, words, source, origin)
    if message.event == "missing-library" and message.program != "loader":
        yield make_observation("missing-runtime-library", words, source, origin, says)
    for family in _families(message):
        yield make_observation(family, words, source, origin, says)
    yield from _of_size(message, source, origin)
    has_sums = (
        message.capacity
        or message.allowed
        or message.allocated
        or message.reserved_total
    )
    if has_sums and message.side in ("device", "none"):
        for decided, size, reason in account_observations(account):
            yield make_observation(decided, size, source, origin, reason)
    elif _asks_for_more_than_free(message) and message.requested and message.free:
        says = f"More than the {message.free.text} that was free"
        yield make_observation(
            "buffer-above-free", message.requested.bytes, source, origin, says
        )


def _of_size(message: Message, source: str, origin: str) -> Iterator[Observation]:
    """A request that no card can serve, and how near a server's share was to what is free."""
    requested = message.requested
    if requested is None or message.side != "device":
        return
    if requested.bytes >= LARGER_THAN_ANY_CARD:
        says = "One request, and no GPU has half a TiB"
        if message.allowed:
            times = requested.bytes / message.allowed.bytes
            says = f"{says}: {times:.0f} times what this program may use"
        yield make_observation(
            "request-above-any-card", requested.bytes, source, origin, says
        )
    if message.event != "no-room-at-start" or not (message.free and message.capacity):
        return
    missing = requested.bytes - message.free.bytes
    if missing <= requested.bytes // 10:
        says = f"Missing from the {requested.text} that the server wanted: less than a tenth of it"
        yield make_observation("share-just-above-free", missing, source, origin, says)
    in_use = message.capacity.bytes - message.free.bytes
    if in_use > CONTEXT_BYTES:
        yield make_observation("others-at-start", in_use, source, origin)


def _asks_for_more_than_free(message: Message) -> bool:
    if message.side != "device" or message.event not in (
        "refused",
        "no-room-for-cache",
    ):
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
    if name == "fault" and message.program == "kernel":
        yield "fault-by-kernel"
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
    near = text[
        max(0, message.start - NEAR_CHARACTERS) : message.start + NEAR_CHARACTERS
    ]
    yield "device-refused-bare"
    if form("pinned").search(near):
        yield "pinned-refused"
    elif form("context").search(near):
        yield "context-refused"
    elif message.row.startswith("runtime-") and form("torch's error").search(near):
        # torch's own allocator prints what was asked for; this is a raw call of the runtime.
        yield "raw-call-refused"

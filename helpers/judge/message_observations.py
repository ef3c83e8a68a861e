"""What the messages of a text are evidence of: their events, and the account of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from helpers.ground.units import GIB
from helpers.judge import form
from helpers.judge.account_observations import account_observations
from helpers.judge.evidence import CaseEvidence, is_described
from helpers.judge.failing_program import (
    last_error,
    line_before,
    of_another,
    went_on,
)
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
"""Events after which a GPU's context is lost, so that later errors follow from them."""
XID = "kernel-xid"
"""How the rows of NVIDIA's Xids in look/messages.json start."""
PROVING = ("killed", "leak", "hang", "gpu-lost")
"""Events that the kernel, or the program that killed another, states as a fact."""
SLEEPS = "vllm-sleeps"
OWN_POOL = ("TensorFlow", "XLA", "JAX")
"""Programs that reserve a pool of their own at the start and refuse requests from it."""
LEAST_OF_A_SLICE = 0.85
"""Of the size in its name, a MIG device has this much at least (9.5 GiB of 1g.10gb)."""
NEAR_CHARACTERS = 1500
"""Characters before and after a message that show which call it is about: a traceback."""
LARGER_THAN_ANY_CARD = 1 << 39
"""Bytes of a request, 512 GiB, that no card has: a wrong shape or an overflow asked for it."""
SHORT_PART = 10
"""A server's share is nearly free where less than this part of it is missing."""


def message_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the messages in the error text and in posted tool output say; in a description of an
    output they are hearsay.
    """
    observations: list[Observation] = []
    accounts = list(_of_the_failing_program(evidence))
    for account in accounts:
        remedy = remedy_of_row(account.message.row)
        stated = _of_message(account, "message", SOURCE, evidence.error_text)
        observations += [replace(observation, remedy=remedy) for observation in stated]
    observations += _of_one_job(accounts, evidence.error_text)
    if evidence.bundle is None:  # a captured box says itself which MIG device it is
        observations += _of_slice(accounts, evidence)
    # An error of another kind is the answer only where no message of memory was read.
    if not observations:
        observations += _without_failure(evidence)
    observations += _fault_then_others(accounts)
    for origin, source, text in evidence.words:
        if origin == "tool":
            observations += _of_tool_output(source, text, evidence)
    return _first_of_each(observations)


def _without_failure(evidence: CaseEvidence) -> Iterator[Observation]:
    """What a text without another failure shows: an error of the program's own, or a refusal that
    it caught.
    """
    error = last_error(evidence.error_text)
    if error and form("error of its own").match(error[0]):
        yield make_observation("own-error", error[0], SOURCE, "message")
        return
    for message in evidence.messages:
        if went_on(message, evidence):
            yield make_observation("went-on", message.words, SOURCE, "message")
            return


def _fault_then_others(accounts: list[Account]) -> Iterator[Observation]:
    """The first fault or assertion, where failures of another kind are in the text as well: they
    may follow from it.
    """
    messages = [account.message for account in accounts]
    events = {message.event for message in messages} - set(NEUTRAL_EVENTS)
    broken = [message for message in messages if message.event in BROKEN]
    if broken and len(events) > 1:
        words = _words_of(broken[0])
        yield make_observation("fault-then-others", words, SOURCE, "message")


def _words_of(message: Message) -> str:
    """The words of a message, or its row's name where it quotes none."""
    if not message.words:
        return message.row
    return message.words


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
    """Whether other processes on the card belong to the failing job: its other ranks, where
    messages of several ranks name one device, or its engine that sleeps, where vLLM said how much
    memory was still in use as it fell asleep and another process has about so much.
    """
    # The ranks of each device of which much is in use outside the rank.
    ranks: dict[int, set[str]] = {}
    used_asleep = [
        account.message.used for account in accounts if account.message.row == SLEEPS
    ]
    for account in accounts:
        message = account.message
        rank = form("rank").search(line_before(message, text))
        program = account.program
        outside = account.outside
        if not (program and outside):
            continue
        if rank and message.device is not None and 2 * outside.bytes >= program.bytes:
            ranks.setdefault(message.device, set()).add(rank[1])
        for _, size in account.others:
            if any(used and is_left_by(size, used) for used in used_asleep):
                yield make_observation("sleeping-engine", size.bytes, SOURCE, "message")
    for device, numbers in ranks.items():
        if len(numbers) > 1:
            words = f"ranks {', '.join(sorted(numbers))} on GPU {device}"
            yield make_observation("ranks-together", words, SOURCE, "message")


def _of_slice(accounts: list[Account], evidence: CaseEvidence) -> Iterator[Observation]:
    """The MIG device that the program runs in, where a text lists one of the capacity in its
    message.
    """
    words = "\n".join(text for _, _, text in evidence.texts)
    listed = {int(match[1]) * GIB for match in form("slice").finditer(words)}
    says = "The program runs in a MIG device that has this much"
    for account in accounts:
        capacity = account.message.capacity
        if capacity is None:
            continue
        size = capacity.bytes
        if any(LEAST_OF_A_SLICE * named <= size <= named for named in listed):
            yield make_observation("mig-slice", size, SOURCE, "message", says)


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
    """One observation of each name and origin: the first with a remedy of its own program, else
    the first. Of proofs, one of each sentence.
    """
    chosen: dict[tuple[str, str, str], Observation] = {}
    for observation in observations:
        sentence = ""
        if observation.proof:
            sentence = observation.says
        key = (observation.name, observation.origin, sentence)
        if key not in chosen or (observation.remedy and not chosen[key].remedy):
            chosen[key] = observation
    return list(chosen.values())


def _of_message(
    account: Account, origin: str, source: str, text: str
) -> Iterator[Observation]:
    """What one message is evidence of: its event, what the program that prints it adds to that,
    and its sums. ``text`` is what it stands in.
    """
    message = account.message
    words = _words_of(message)
    name = observation_name(message.side, message.event)
    says = meaning(message.row)
    # cuBLAS and its like print one error where a handle was refused for memory or otherwise.
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
    sums = (
        message.capacity,
        message.allowed,
        message.allocated,
        message.reserved_total,
    )
    # Sums need the card's total, the process's limit or torch's amounts; without these only the
    # request and what is free can be compared.
    if any(sums) and message.side in ("device", "none"):
        for decided, size, reason in account_observations(account):
            yield make_observation(decided, size, source, origin, reason)
    else:
        yield from _above_free(message, source, origin)


def _of_size(message: Message, source: str, origin: str) -> Iterator[Observation]:
    """A request that no card can serve; and of a server that wants a share of the card at its
    start, whether that share was nearly free, and whether others used the card then.
    """
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
    if missing <= requested.bytes // SHORT_PART:
        says = f"Missing from the {requested.text} that the server wanted: less than a tenth of it"
        yield make_observation("share-just-above-free", missing, source, origin, says)
    in_use = message.capacity.bytes - message.free.bytes
    if in_use > CONTEXT_BYTES:
        yield make_observation("others-at-start", in_use, source, origin)


def _above_free(message: Message, source: str, origin: str) -> Iterator[Observation]:
    """Whether a program asked for a buffer that is larger than the free memory."""
    is_refusal = message.event in ("refused", "no-room-for-cache")
    if not is_refusal or message.side != "device":
        return
    requested = message.requested
    free = message.free
    if requested and free and above(requested, free):
        says = f"More than the {free.text} that was free"
        yield make_observation(
            "buffer-above-free", requested.bytes, source, origin, says
        )


def _families(message: Message) -> Iterator[str]:
    """Names of observations that are of one library alone, XLA or MIOpen: failures.json has entries
    of their own for these, beside those for any library.
    """
    if message.program.startswith("XLA") and message.event in ("workspace", "mismatch"):
        yield "row:jax"
    if message.program.startswith("MIOpen") and message.event == "workspace":
        yield "row:miopen"


def _further_names(message: Message, name: str, text: str) -> Iterator[str]:
    """Names of further observations that a refusal of device memory is, by its numbers and by the
    program that prints it.
    """
    if name == "fault" and message.program == "kernel":
        yield "fault-by-kernel"
    if name != "device-refused":
        return
    if not (message.capacity or message.free or message.allocated or message.requested):
        yield from _of_bare_refusal(message, text)
    # The next two are programs that take a pool of their own from the card at their start: the
    # card refused that pool, or the pool refused a request.
    elif "from-device" in message.row:
        yield "reservation-refused"
    elif message.program.startswith(OWN_POOL):
        yield "own-pool-exhausted"


def _of_bare_refusal(message: Message, text: str) -> Iterator[str]:
    """Names of observations of a refusal without a number: which call was refused, by the text
    around it.
    """
    begin = max(0, message.start - NEAR_CHARACTERS)
    near = text[begin : message.start + NEAR_CHARACTERS]
    yield "device-refused-bare"
    if form("pinned").search(near):
        yield "pinned-refused"
    elif form("context").search(near):
        yield "context-refused"
    elif message.row.startswith("runtime-") and form("torch's error").search(near):
        # torch's own allocator prints what was asked for; this is a raw call of the runtime.
        yield "raw-call-refused"

"""The numbers and names of a case that a remedy may speak of: who holds the memory, what is
missing, which limit binds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from helpers.ground.shell import word
from helpers.ground.units import GIB, MIB, Quantity, show_bytes, typed_size
from helpers.judge import form, table
from helpers.judge.evidence import CaseEvidence
from helpers.judge.fragmentation import cache_may_help, has_expandable, has_split_size
from helpers.judge.holders import SLACK_BYTES
from helpers.judge.message_account import Account
from helpers.judge.message_sums import about, plus
from helpers.judge.observation import NEUTRAL_EVENTS, Observation
from helpers.judge.posted_processes import INIT, processes
from helpers.judge.settings_observations import recorded_torch, rocm_has_expandable
from helpers.judge.worlds import vendor

WITHOUT_SIGTERM = {"T": "stopped", "t": "stopped", "Z": "zombie"}
"""What a process is called in a remedy that SIGTERM does not end, by its state."""
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
CACHE: dict[str, str] = table("names")["cache"]
"""The step that makes PyTorch's cache usable, by what its release and build can do."""
LARGEST_SPLIT_MIB = 512
SMALLEST_SPLIT_MIB = 32
"""Bounds of the max_split_size_mb that is advised: torch takes more than 20 (2.9 and before), and
above the upper one hardly any block is kept whole.
"""
WORTH_JOINING_BYTES = 64 * MIB
"""Less cache than that is not worth a setting."""
LEAST_HOLDER_BYTES = GIB // 4
"""A smaller process is a context alone, and ending it gives a program nothing."""
RANK_PART = 10
"""A process that differs from the program by less than this part of it may be another rank of it.
"""
NAME_OF_READING = {
    "limit-binds": "limit",
    "stranded-decides": "pieces",
    "stranded-possible": "pieces",
    "free-and-stranded": "pieces",
    "weights-above-card": "weights",
    "device-open": "holder",
}
"""The placeholder that the reading of an observation fills, by the observation's name."""
NEARLY_ALL = 0.9
"""A process that holds this share of a card leaves no room for another."""
TOOLS: dict[str, dict[str, str]] = table("names")["tools"]
"""Of each vendor, the tool that lists who uses its GPUs, and the device nodes."""
UNKNOWN: dict[str, str] = table("names")["unknown"]
"""What stands in a command where the evidence has no such number or name; in a sentence its
[part] is left out.
"""


class _Holder(NamedTuple):
    """A process that holds memory, in the order in which the largest is found; ``state`` is ps's
    letter, empty where it is not known.
    """

    bytes: int
    pid: int
    name: str = ""
    state: str = ""


def names_of(
    evidence: CaseEvidence, observations: Sequence[Observation]
) -> dict[str, str]:
    """The words for the placeholders of a remedy, by the placeholder's name.

    Of several words for one name the first count: those of failures before those of messages
    that only inform, and messages before tools and the box.
    """
    rows: list[tuple[str, str]] = []
    failures_first = sorted(
        evidence.accounts, key=lambda account: account.message.event in NEUTRAL_EVENTS
    )
    for account in failures_first:
        rows += _of_account(account, evidence)
    rows += _of_holders(evidence)
    for observation in observations:
        rows += _of_observation(observation)
    tools = TOOLS.get(vendor(evidence), {})
    rows += [("chip", evidence.fact("gfx")), ("log", evidence.log), *tools.items()]
    # The command that lists processes, unless its output was handed over already.
    if not any("smi" in tool for tool, _ in evidence.tools):
        rows.append(("list", tools.get("smi", UNKNOWN["smi"])))
    rows += _in_texts(evidence)
    names: dict[str, str] = {}
    for name, words in rows:
        if words:
            names.setdefault(name, words)
    observed = {observation.name for observation in observations}
    # The setting that would make the cache usable is on, or the system has none.
    if observed & {"expandable-on", "windows"}:
        names.pop("cache", None)
    return names


def _in_texts(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """Names that stand in the texts: a GPU's address, first of one that is lost, a pod, and the
    versions of a driver that is loaded and of one that is installed.
    """
    for message in evidence.messages:
        if message.event in ("gpu-lost", "gpu-silent"):
            for match in form("address").finditer(message.words):
                yield "address", match[0]
    for name in ("address", "pod", "loaded", "installed"):
        for match in form(name).finditer(evidence.error_text):
            yield name, match[0].strip()


def fill(text: str, names: Mapping[str, str]) -> str:
    """The text with its {placeholders} filled in, and without each [part in brackets] whose
    placeholder is not known. A placeholder outside of brackets gets the words of UNKNOWN.
    """

    def part_if_known(part: re.Match[str]) -> str:
        words, placeholder = part.groups()
        if placeholder in names:
            return words
        return ""

    text = re.sub(r"\[([^\[\]]*\{([a-z]+)\}[^\[\]]*)\]", part_if_known, text)
    words = {**UNKNOWN, **names}
    return re.sub(r"\{([a-z]+)\}", lambda match: words.get(match[1], match[0]), text)


def _typed(size: Quantity) -> str:
    """A size of a message as a command's option takes it, no more exact than it was printed."""
    if size.bytes % GIB == 0:
        return typed_size(size.bytes)
    return size.text.replace(" ", "")


def _of_account(account: Account, evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """The names that the numbers of a message give, each with its words.

    ``share``, ``inuse`` and ``cost`` are of a server that wants a share of the card at its start:
    the share that is free, what is in use, and what the smaller share costs it.
    """
    message = account.message
    requested = message.requested
    if message.device is not None:
        yield "device", str(message.device)
    if message.capacity:
        yield "capacity", _typed(message.capacity)
    if message.allowed:
        yield "limit", message.allowed.text
    if message.free:
        yield "free", f"{message.free.text} was free"
    if requested and message.event not in NEUTRAL_EVENTS:
        yield "refused", show_bytes(requested.bytes)
    if message.share and message.free and message.capacity and requested:
        # Rounded down to hundredths; 0.1 % less, for digits that were not printed.
        percent = int(100 * message.free.bytes / message.capacity.bytes - 0.1)
        share = percent / 100
        yield "share", f"{share:.2f}"
        yield "inuse", show_bytes(message.capacity.bytes - message.free.bytes)
        yield "cost", show_bytes(requested.bytes - int(share * message.capacity.bytes))
    yield "missing", _missing(account)
    if requested:
        yield from _of_what_would_do(account, evidence)
    if message.tokens and message.fits_tokens:
        words = f"{message.tokens} tokens were requested, {message.fits_tokens} fit"
        yield "context", words
    elif requested and message.cache:
        words = f"{requested.text} is needed, {message.cache.text} is available"
        yield "context", words


def _missing(account: Account) -> str:
    """How much memory is missing, as a clause; where the free and the cached memory together would
    have met the request, how much of each there was. Empty where that is not known.
    """
    message = account.message
    lacking = account.lacking_with_cache
    if message.requested is None or lacking is None:
        return ""
    # More is missing than the printed digits leave open; else the cache would have been enough.
    if lacking.bytes > lacking.precision_bytes:
        joined = ""
        if message.free and plus(account.stranded).bytes > lacking.precision_bytes:
            joined = ", even if PyTorch could use all that it has cached"
        size = about(lacking)
        if message.free is None:  # others may leave less room than this
            size += " or more"
        return f"{size} is missing{joined}"
    sizes = (("free", message.free), ("cached", account.stranded))
    parts = [f"{size.text} {name}" for name, size in sizes if size and size.bytes > 0]
    if not parts:
        return ""
    return f"{message.requested.text} failed with {' and '.join(parts)}"


def _of_what_would_do(
    account: Account, evidence: CaseEvidence
) -> Iterator[tuple[str, str]]:
    """What could supply the missing memory: the cache, the program itself, other processes."""
    message = account.message
    if message.private_pools:
        yield "pools", message.private_pools.text
    cached_bytes = plus(account.stranded).bytes
    if cache_may_help(account):
        yield "cache", _cache_setting(account, evidence)
    elif has_expandable(account) and cached_bytes >= WORTH_JOINING_BYTES:
        yield "joining", EXPANDABLE
    if account.reserved and message.free:
        room = show_bytes(account.reserved.bytes + message.free.bytes)
        yield "room", room.replace(" ", "")  # as an option of a command takes it
    others = [
        (pid, size) for pid, size in account.others if pid and size.bytes >= SLACK_BYTES
    ]
    others_bytes = sum(size.bytes for _, size in others)
    lacking = account.lacking
    if lacking and 0 < lacking.bytes <= others_bytes:
        listed = [f"process {pid} with {size.text}" for pid, size in others]
        yield "others", " and ".join(listed)
        yield "pids", ",".join(str(pid) for pid, _ in others)


def _cache_setting(account: Account, evidence: CaseEvidence) -> str:
    """The step that makes PyTorch's cache usable on the release and build that failed; empty
    where there is none.
    """
    requested = account.message.requested
    assert requested, "asked only where a request was refused"
    # Of CACHE; a later one is better: expandable segments need no size that fits the request.
    kind = ""
    if has_split_size(account):
        kind = "whole"
    has_segments = has_expandable(account)
    if has_segments is None:  # a ROCm build: its version may tell
        version = str(recorded_torch(evidence)["version"])
        has_segments = rocm_has_expandable(version)
        if has_segments is None:
            kind = "perhaps"
    if has_segments:
        kind = "expandable"
    variable = "PYTORCH_CUDA_ALLOC_CONF"
    if account.message.backend == "hip":
        variable = "PYTORCH_HIP_ALLOC_CONF"
    # Blocks of the request's size stay whole if no larger size may be split: the largest power
    # of two in MiB that is not above the request.
    requested_mib = max(1, requested.bytes // MIB)
    split_mib = 1 << (requested_mib.bit_length() - 1)
    split_mib = min(LARGEST_SPLIT_MIB, max(SMALLEST_SPLIT_MIB, split_mib))
    return CACHE.get(kind, "").format(variable=variable, size=split_mib)


def _of_holders(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """Names of zombies with their parents, and of one process: of those whose end would help
    (_end_would_help) the one that holds most, whether a message, a tool or the box lists it.
    """
    holders: list[_Holder] = []
    for row in processes(evidence):
        if not row.pid:
            continue
        holders.append(_Holder(row.bytes or 0, row.pid, row.name, row.state))
        if row.state == "Z":
            yield "zombie", str(row.pid)
            if row.parent and row.parent != INIT:
                yield "parent", str(row.parent)
    for account in evidence.accounts:
        holders += [_Holder(size.bytes, pid) for pid, size in account.others if pid]
    captured, seen_here = _captured_holders(evidence)
    holders += captured
    # ps knows the state of a process, and another tool its size.
    states = {holder.pid: holder.state for holder in holders if holder.state}
    helping = [holder for holder in holders if _end_would_help(holder, evidence)]
    if helping:
        largest = max(helping)
        state = states.get(largest.pid, "")
        yield from _of_largest(largest._replace(state=state), evidence, seen_here)


def _captured_holders(evidence: CaseEvidence) -> tuple[list[_Holder], set[int]]:
    """Each holder of a captured box, and the pids that are numbers of this box, not of the host
    outside its container.
    """
    rows: list[_Holder] = []
    seen_here: set[int] = set()
    if evidence.bundle is None:
        return rows, seen_here
    # Only a captured box needs every layer's reader.
    from helpers.judge.failing_card import holders_beside
    from helpers.look.gpus import gpus
    from helpers.look.holders import HOST_PID

    cards = gpus(evidence.bundle)
    for card in cards:
        for holder in holders_beside(card, cards, evidence):
            memory = holder.memory
            if memory.ok:
                row = _Holder(memory.bytes, holder.pid, holder.name, holder.state)
                rows.append(row)
            if HOST_PID not in holder.note:
                seen_here.add(holder.pid)
    return rows, seen_here


def _of_largest(
    holder: _Holder, evidence: CaseEvidence, seen_here: set[int]
) -> Iterator[tuple[str, str]]:
    """The words for the process that holds most, by each placeholder that may name it."""
    pid = holder.pid
    size = show_bytes(holder.bytes)
    yield "holds", size
    if _is_of_the_host(pid, seen_here, evidence):
        yield "hostpid", str(pid)
        yield (
            "holder",
            f"process {pid} of the host, outside this container, with {size}",
        )
        yield "owner", f"A process outside this container (pid {pid} of the host)"
        return
    # A name may hold escapes that a terminal would obey.
    name = "".join(filter(str.isprintable, holder.name))
    # The name may be empty.
    yield "holder", f"process {pid} {name} with {size}".replace("  ", " ")
    yield WITHOUT_SIGTERM.get(holder.state, "pid"), str(pid)
    program = re.split(r"[/\\]", name)[-1]
    if not program:
        program = "A process"
    yield "owner", f"{program} (pid {pid})"
    total_bytes = card_bytes(evidence)  # 0 where it is not known
    if holder.bytes <= total_bytes:
        total = show_bytes(total_bytes)
        yield "holdercard", total
        is_nearly_all = holder.bytes >= NEARLY_ALL * total_bytes
        if is_nearly_all or _explains_a_refusal(holder.bytes, evidence):
            yield "filledcard", total


def card_bytes(evidence: CaseEvidence) -> int:
    """The size of the card, as a message, a tool or the box gives it; 0 where it is not known or
    cards differ.
    """
    sizes: set[int] = set()
    for account in evidence.accounts:
        if account.message.capacity:
            sizes.add(account.message.capacity.bytes)
    if not sizes:
        for figure in evidence.figures:
            is_total = figure.measure == "total" and figure.pool == "vram"
            if is_total and figure.bytes:
                sizes.add(figure.bytes)
    if not sizes and evidence.bundle is not None:
        # Only a captured box needs every layer's reader.
        from helpers.judge.contradictions import card_totals
        from helpers.look.gpus import gpus

        for card in gpus(evidence.bundle):
            sizes.update(total.bytes for total in card_totals(card))
    if len(sizes) != 1:
        return 0
    return sizes.pop()


def _explains_a_refusal(size: int, evidence: CaseEvidence) -> bool:
    """Whether a refused request did not fit beside a holder of this size, and would without it."""
    for account in evidence.accounts:
        requested = account.message.requested
        free = account.message.free
        if requested and free and free.bytes < requested.bytes <= free.bytes + size:
            return True
    return False


def _is_of_the_host(pid: int, seen_here: set[int], evidence: CaseEvidence) -> bool:
    """Whether a process number is the host's, and means another process or none here: the box is
    inside a container, and none of its own sources has the number.
    """
    if evidence.bundle is None or pid in seen_here:
        return False
    from helpers.look.holders import is_outside

    return is_outside(evidence.bundle)


def _end_would_help(holder: _Holder, evidence: CaseEvidence) -> bool:
    """Whether ending a holder would make the request fit.

    False for a holder that is no more than a context, for a display server, and for one of the
    failing program's size, which may be the program itself or another of its ranks.
    """
    size = holder.bytes
    if size <= LEAST_HOLDER_BYTES or form("display").search(holder.name):
        return False
    for account in evidence.accounts:
        program = account.program
        requested = account.message.requested
        if program and abs(size - program.bytes) <= program.bytes // RANK_PART:
            return False
        if requested and size + plus(account.message.free).bytes < requested.bytes:
            return False
    return True


def _of_observation(observation: Observation) -> Iterator[tuple[str, str]]:
    """The names that the reading of an observation fills: a limit that binds (``ceiling-...``), a
    setting and how to unset it (``setting-...``, where its value is an assignment), a corrected
    setting, and those of NAME_OF_READING.
    """
    words = observation.reading.show()
    value = str(observation.reading.value)
    kind = observation.name.split("-")[0]
    if kind == "ceiling":
        yield "binding", f"{words} ({observation.says.rstrip('.')})"
    if kind == "setting" and re.match(r"\w+=", value):
        yield "setting", value
        yield "unset", "unset " + value.split("=")[0]
    if observation.name == "setting-corrected":
        yield "corrected", word(value)
    # Of a box without a GPU: its kills by the kernel are worth a look beside that.
    if observation.name == "noted":
        yield "kills", UNKNOWN["kills"]
    if observation.name in NAME_OF_READING:
        yield NAME_OF_READING[observation.name], words

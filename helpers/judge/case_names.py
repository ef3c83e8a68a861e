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
from helpers.judge.observation import SILENT, Observation
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
WORTH_JOINING_BYTES = 64 * MIB
"""Less cache than that is not worth a setting."""
NAME_OF_READING = {
    "limit-binds": "limit",
    "stranded-decides": "pieces",
    "stranded-possible": "pieces",
    "free-and-stranded": "pieces",
    "weights-above-card": "weights",
    "device-open": "holder",
}
"""The names that readings of observations are, by the observation."""
NEARLY_ALL = 0.9
"""A process that holds this share of a card leaves no room for another."""
TOOLS: dict[str, dict[str, str]] = table("names")["tools"]
"""Of each vendor, the tool that lists who uses its GPUs, and the device nodes."""
UNKNOWN: dict[str, str] = table("names")["unknown"]
"""What stands in a command where the evidence has no such number or name; in a sentence its
[part] is left out.
"""


class _Holder(NamedTuple):
    """A process that holds memory; by its state it may not end on SIGTERM."""

    bytes: int
    pid: int
    name: str = ""
    state: str = ""


def names_of(
    evidence: CaseEvidence, observations: Sequence[Observation]
) -> dict[str, str]:
    """The words for the placeholders of a remedy, by their names; the first that gives a name
    counts.
    """
    rows: list[tuple[str, str]] = []
    by_event = sorted(
        evidence.accounts, key=lambda account: account.message.event in SILENT
    )
    for account in by_event:
        rows += _of_account(account, evidence)
    rows += _of_holders(evidence)
    for observation in observations:
        rows += _of_observation(observation)
    tools = TOOLS.get(vendor(evidence), {})
    rows += [("chip", evidence.fact("gfx")), ("log", evidence.log), *tools.items()]
    if not any("smi" in tool for tool, _ in evidence.tools):
        rows.append(("list", tools.get("smi", UNKNOWN["smi"])))
    rows += _in_texts(evidence)
    seen = {observation.name for observation in observations}
    names: dict[str, str] = {}
    for name, words in rows:
        if words:
            names.setdefault(name, words)
    if seen & {"expandable-on", "windows"}:
        names.pop("cache", None)
    return names


def _in_texts(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """What the texts name: a GPU's address, first that of one that is lost, a pod, and versions."""
    for message in evidence.messages:
        if message.event in ("gpu-lost", "gpu-silent"):
            for match in form("address").finditer(message.words):
                yield "address", match[0]
    for name in ("address", "pod", "loaded", "installed"):
        for match in form(name).finditer(evidence.error_text):
            yield name, match[0].strip()


def fill(text: str, names: Mapping[str, str]) -> str:
    """The text with its placeholders filled in, without the [parts] whose number or name is not
    known.
    """

    def part_if_known(part: re.Match[str]) -> str:
        if part[2] in names:
            return part[1]
        return ""

    text = re.sub(r"\[([^\[\]]*\{([a-z]+)\}[^\[\]]*)\]", part_if_known, text)
    words = {**UNKNOWN, **names}
    return re.sub(r"\{([a-z]+)\}", lambda match: words.get(match[1], match[0]), text)


def _typed(size: Quantity) -> str:
    """A size of a message as an option takes it, no more exact than it was printed."""
    if size.bytes % GIB == 0:
        return typed_size(size.bytes)
    return size.text.replace(" ", "")


def _of_account(account: Account, evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """What the numbers of a message give."""
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
    if requested and message.event not in SILENT:
        yield "refused", show_bytes(requested.bytes)
    if message.share and message.free and message.capacity and requested:
        share = int(100 * message.free.bytes / message.capacity.bytes - 0.1) / 100
        yield "share", f"{share:.2f}"
        yield "inuse", show_bytes(message.capacity.bytes - message.free.bytes)
        yield "cost", show_bytes(requested.bytes - int(share * message.capacity.bytes))
    yield "missing", _missing(account)
    if requested:
        yield from _of_what_would_do(account, evidence)
    if message.tokens and message.fits_tokens:
        yield (
            "context",
            f"{message.tokens} tokens were requested, {message.fits_tokens} fit",
        )
    elif requested and message.cache:
        yield (
            "context",
            f"{requested.text} is needed, {message.cache.text} is available",
        )


def _missing(account: Account) -> str:
    """How much is missing; where what is free and cached would have met the request, that is
    said instead, in numbers.
    """
    message = account.message
    lacking = account.lacking_with_cache
    if message.requested is None or lacking is None:
        return ""
    if lacking.bytes > lacking.precision_bytes:
        joined = ""
        if message.free and plus(account.stranded).bytes > lacking.precision_bytes:
            joined = ", even if PyTorch could use all that it has cached"
        size = about(lacking)
        if message.free is None:
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
    if cache_may_help(account):
        yield "cache", _cache_setting(account, evidence)
    elif (
        has_expandable(account) and plus(account.stranded).bytes >= WORTH_JOINING_BYTES
    ):
        yield "joining", EXPANDABLE
    if account.reserved and message.free:
        yield (
            "room",
            show_bytes(account.reserved.bytes + message.free.bytes).replace(" ", ""),
        )
    others = [
        (pid, size) for pid, size in account.others if pid and size.bytes >= SLACK_BYTES
    ]
    lacking = account.lacking
    if lacking and 0 < lacking.bytes <= plus(*(size for _, size in others)).bytes:
        yield (
            "others",
            " and ".join(f"process {pid} with {size.text}" for pid, size in others),
        )
        yield "pids", ",".join(str(pid) for pid, _ in others)


def _cache_setting(account: Account, evidence: CaseEvidence) -> str:
    """The step that makes PyTorch's cache usable on the release and build that failed."""
    requested = account.message.requested
    assert requested
    kind = ""
    if has_split_size(account):
        kind = "whole"
    support = has_expandable(account)
    if support is None:
        support = rocm_has_expandable(str(recorded_torch(evidence)["version"]))
        if support is None:
            kind = "perhaps"
    if support:
        kind = "expandable"
    variable = "PYTORCH_CUDA_ALLOC_CONF"
    if account.message.backend == "hip":
        variable = "PYTORCH_HIP_ALLOC_CONF"
    # Blocks of the request's size stay whole if no larger size may be split.
    size = 1 << max(0, (requested.bytes // MIB).bit_length() - 1)
    size = min(LARGEST_SPLIT_MIB, max(SMALLEST_SPLIT_MIB, size))
    return CACHE.get(kind, "").format(variable=variable, size=size)


def _of_holders(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """The process that holds most, as the message, a tool or the captured box lists it, and the
    number to end it by.

    One below 256 MiB, one that does not cover what is missing, a display server, the program
    itself and one of its size (a rank beside it) are none, nor is one without a figure.
    """
    listed = [row for row in processes(evidence) if row.pid]
    for zombie in [row for row in listed if row.state == "Z"]:
        yield "zombie", str(zombie.pid)
        if zombie.parent and zombie.parent != INIT:
            yield "parent", str(zombie.parent)
    holders = [
        _Holder(row.bytes or 0, row.pid, row.name, row.state)
        for row in listed
        if row.pid
    ]
    for account in evidence.accounts:
        holders += [_Holder(size.bytes, pid) for pid, size in account.others if pid]
    captured, seen_here = _captured_holders(evidence)
    holders += captured
    # ps knows the state of a process, and another tool its size.
    states = {holder.pid: holder.state for holder in holders if holder.state}
    large = [holder for holder in holders if _covers(holder, evidence)]
    if large:
        largest = max(large)
        state = states.get(largest.pid, "")
        yield from _of_largest(largest._replace(state=state), evidence, seen_here)


def _captured_holders(evidence: CaseEvidence) -> tuple[list[_Holder], set[int]]:
    """Each holder of a captured box, and the pids that are of its own name space."""
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
            if holder.memory.ok:
                rows.append(
                    _Holder(holder.memory.bytes, holder.pid, holder.name, holder.state)
                )
            if HOST_PID not in holder.note:
                seen_here.add(holder.pid)
    return rows, seen_here


def _of_largest(
    holder: _Holder, evidence: CaseEvidence, seen_here: set[int]
) -> Iterator[tuple[str, str]]:
    """The process that holds most, in the words of each place that names it."""
    pid = holder.pid
    size = holder.bytes
    yield "holds", show_bytes(size)
    if _is_of_the_host(pid, seen_here, evidence):
        yield "hostpid", str(pid)
        yield (
            "holder",
            f"process {pid} of the host, outside this container, with {show_bytes(size)}",
        )
        yield "owner", f"A process outside this container (pid {pid} of the host)"
        return
    # A name may hold escapes that a terminal would obey.
    name = "".join(filter(str.isprintable, holder.name))
    yield "holder", f"process {pid} {name} with {show_bytes(size)}".replace("  ", " ")
    yield WITHOUT_SIGTERM.get(holder.state, "pid"), str(pid)
    program = re.split(r"[/\\]", name)[-1]
    if not program:
        program = "A process"
    yield "owner", f"{program} (pid {pid})"
    total = card_bytes(evidence)
    if size <= total:
        yield "holdercard", show_bytes(total)
        if size >= NEARLY_ALL * total or _explains_a_refusal(size, evidence):
            yield "filledcard", show_bytes(total)


def card_bytes(evidence: CaseEvidence) -> int:
    """The size of the card, as a message, a tool or the box gives it; 0 where it is not known or
    cards differ.
    """
    sizes = {a.message.capacity.bytes for a in evidence.accounts if a.message.capacity}
    if not sizes:
        totals = [
            f for f in evidence.figures if (f.measure, f.pool) == ("total", "vram")
        ]
        sizes = {figure.bytes for figure in totals if figure.bytes}
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
    """Whether a number is the host's, and names another process or none here: no source that
    counts as this box does lists it.
    """
    if evidence.bundle is None or pid in seen_here:
        return False
    from helpers.look.holders import is_outside

    return is_outside(evidence.bundle)


def _covers(holder: _Holder, evidence: CaseEvidence) -> bool:
    """Whether ending a holder would give what is missing, and ends neither a display, nor the
    program itself or one of its ranks, which are of its size.
    """
    size = holder.bytes
    if size <= GIB // 4 or form("display").search(holder.name):
        return False
    for account in evidence.accounts:
        program = account.program
        requested = account.message.requested
        if program and abs(size - program.bytes) <= program.bytes // 10:
            return False
        if requested and size + plus(account.message.free).bytes < requested.bytes:
            return False
    return True


def _of_observation(observation: Observation) -> Iterator[tuple[str, str]]:
    """The names that an observation's reading is."""
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
    if observation.name == "noted":
        yield "kills", UNKNOWN["kills"]
    if observation.name in NAME_OF_READING:
        yield NAME_OF_READING[observation.name], words

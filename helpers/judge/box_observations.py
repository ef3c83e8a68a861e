"""What a captured box shows: access, the build, holders and the kernel's log; not ceilings, not
settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from helpers.ground.shapes import Reading, seen
from helpers.ground.units import show_bytes
from helpers.judge import capitalised, form
from helpers.judge import holders as ownership
from helpers.judge.contradictions import TOTALS, card_totals, pools_by_layer
from helpers.judge.evidence import CaseEvidence, vendor_of
from helpers.judge.failing_card import card_of, holders_beside, slices_of
from helpers.judge.figure_observations import RAM_PART
from helpers.judge.host_limit_observations import host_in_words, host_limit_observations
from helpers.judge.kernel_observations import kernel_observations
from helpers.judge.message_sums import plus
from helpers.judge.observation import Observation, constructed_items, make_observation
from helpers.judge.obstacles import obstacles
from helpers.look import framework
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Pool, gpus
from helpers.look.holders import Holder, numbered_by_host, one_each
from helpers.look.machine import machine
from helpers.look.pci import pci_devices
from helpers.look.processes import processes

OBSERVATION_OF_OBSTACLE = {
    "no_gpu": "no-gpu",
    "no_driver": "no-driver",
    "no_device": "no-driver",
    "variable": "gpus-hidden",
}
"""The observation by an obstacle's cause; others are ``access-refused``."""
STOPPED = ("T", "t")
"""States of a process that a signal or a debugger stopped (proc(5))."""
STALL_PERCENT = 10
"""A machine whose programs all wait for memory a tenth of the time does little else; one that
only reads files again stays near 0."""
LONGEST_LIST = 179
"""Characters of a sentence that lists targets: a build for every chip has more than a screen shows.
"""


def box_observations(evidence: CaseEvidence, bundle: Bundle) -> list[Observation]:
    """Every observation of a box; the messages show which holder is the failing program itself."""
    cards = gpus(bundle)
    observations = [
        *_access(bundle, cards, vendor_of(evidence.messages)),
        *_build(bundle, cards),
        *_holders(bundle, cards, evidence),
        *_of_ram(bundle),
        *host_limit_observations(evidence, bundle),
        *kernel_observations(evidence, bundle),
    ]
    # Without a text the question is what is wrong with this machine; where it has no GPU, that
    # is the answer, and whatever else was seen stands beside it.
    is_about_the_machine = not (evidence.error_text.strip() or evidence.messages)
    has_no_gpu = any(observation.name == "no-gpu" for observation in observations)
    if is_about_the_machine and has_no_gpu:
        observations = [_as_an_aside(observation) for observation in observations]
        observations += _without_gpu(bundle)
    constructed = constructed_items(bundle)
    marked = []
    for observation in observations:
        places = {observation.reading.item, observation.reading.source}
        is_filled = not places.isdisjoint(constructed)
        marked.append(replace(observation, filled=is_filled))
    return marked


def _observed(
    name: str, reading: Reading, says: str, proof: bool = False
) -> Observation:
    return Observation(name, reading, says, "bundle", proof=proof)


def _as_an_aside(observation: Observation) -> Observation:
    """A kill by the kernel as something noted, since it does not explain why there is no GPU;
    other observations as they are.
    """
    if observation.name == "killed":
        return replace(observation, name="noted", proof=False)
    return observation


def _without_gpu(bundle: Bundle) -> Iterator[Observation]:
    """What a machine without a supported GPU has: the display of another maker, and RAM."""
    for device in pci_devices(bundle):
        if device.is_gpu:
            # Without the 0x that sysfs prints before each number.
            place = f"PCI {device.vendor_id[-4:]}:{device.device_id[-4:]}"
            reading = seen(place, "text", "pci_devices")
            yield _observed(
                "other-display", reading, f"{place} is a display of another maker"
            )
    host = host_in_words(bundle)
    if host:
        reading = seen(
            host, "text", "/proc/meminfo", machine(bundle).ram_available.item
        )
        yield _observed("free-ram", reading, "Programs can use the RAM")


def _access(
    bundle: Bundle, cards: tuple[Gpu, ...], vendor: str
) -> Iterator[Observation]:
    """What keeps the program from a GPU, and whether the capture was taken in a container."""
    for obstacle in obstacles(bundle, vendor):
        if obstacle.cause == "no_gpu" and cards:
            continue  # the bus list is incomplete: another layer sees a GPU
        reading = seen("none", "text", "pci_devices", obstacle.item)
        if obstacle.path:
            reading = seen(obstacle.path, "text", obstacle.path, obstacle.item)
        name = OBSERVATION_OF_OBSTACLE.get(obstacle.cause, "access-refused")
        says = capitalised(obstacle.says)
        yield _observed(name, reading, says, proof=name in ("no-gpu", "no-driver"))
    who = identity(bundle)
    if who is not None and who.container != "none":
        reading = seen(who.container, "text", "identity", who.item)
        yield _observed(
            "in-container", reading, "The capture was taken inside a container"
        )


def _build(bundle: Bundle, cards: tuple[Gpu, ...]) -> Iterator[Observation]:
    """Whether torch is built for the GPUs of the box, by vendor and, on ROCm, by chip."""
    torch = framework.framework(bundle)
    vendors = {card.vendor for card in cards}
    made_for = {"rocm": "AMD", "cuda": "NVIDIA"}.get(torch.build, "the CPU alone")
    if torch.build and vendors and made_for not in vendors:
        present = " and ".join(sorted(vendors))
        says = f"torch is built for {made_for}; {present} is here"
        yield _observed("build-without-this-gpu", torch.version, says, proof=True)
    # A target may have features behind its chip: gfx90a:sramecc+:xnack-. Those of a CUDA build
    # (sm_90) are no chips' names.
    targets = {target.split(":")[0] for target in torch.archs}
    if torch.build != "rocm" or not targets:
        return
    for card in cards:
        gfx = card.indices.get("gfx", "")
        if gfx and targets.isdisjoint(_targets_that_run(gfx)):
            says = f"torch is built for {', '.join(sorted(targets))}"
            reading = seen(gfx, "text", "torch", torch.version.item)
            yield _observed("gfx-not-in-targets", reading, says[:LONGEST_LIST])


def _targets_that_run(gfx: str) -> set[str]:
    """The targets whose code runs on a chip: its own and LLVM's generic ones.

    Some generic targets are named for the major version alone (gfx11-generic of gfx1100), others
    for the minor one, too (gfx10-3-generic of gfx1030): both names are given for each chip, though
    LLVM has only one of them. gfx950 belongs to gfx9-4-generic (LLVM's AMDGPUUsage page).
    """
    if gfx == "gfx950":
        return {gfx, "gfx9-generic", "gfx9-4-generic"}
    major = gfx[:-2]
    minor = gfx[-2:-1]
    return {gfx, f"{major}-generic", f"{major}-{minor}-generic"}


def _holders(
    bundle: Bundle, cards: tuple[Gpu, ...], evidence: CaseEvidence
) -> Iterator[Observation]:
    """What is free on each card, who holds the rest, and what nobody holds."""
    failing = _sizes_of_the_failing_program(evidence)
    a_rank_failed = form("rank").search(evidence.error_text) is not None
    for card in cards:
        yield from _of_pools(bundle, card)
        yield from _of_window(card)
        total = next(iter(card_totals(card)), None)
        parts = slices_of(card, evidence)
        if parts:
            total = parts[0].total
            says = f"The program runs in a MIG device of {card.pci} that has this much"
            yield _observed("mig-slice", total, says)
        holders = holders_beside(card, cards, evidence)
        to_cover_bytes = _bytes_to_cover(card, cards, evidence)
        for holder in holders:
            is_python = form("python's process").match(holder.name) is not None
            is_rank = a_rank_failed and is_python
            # A holder that is too small for what the message counts outside proves nothing.
            is_certain = holder.memory.bytes >= ownership.NAMED_SHARE * to_cover_bytes
            for observation in _of_holder(holder, total, failing, is_rank):
                yield replace(observation, proof=observation.proof and is_certain)
        yield from _others_explained(holders, failing, evidence)
    yield from _zombies(bundle, cards)


def _sizes_of_the_failing_program(evidence: CaseEvidence) -> list[tuple[int, int]]:
    """The least and the most bytes that the failing program held, by each message that tells."""
    ranges = []
    for account in evidence.accounts:
        if account.this_process or account.message.allocated:
            expected = ownership.expected_range(account.this_process, account.reserved)
            if expected is not None:
                ranges.append(expected)
    return ranges


def _others_explained(
    holders: Sequence[Holder], failing: list[tuple[int, int]], evidence: CaseEvidence
) -> Iterator[Observation]:
    """Whether the holders beside the failing program have what a message counts outside it."""
    sizes = [holder.memory.bytes for holder in one_each(holders)]
    others_bytes = sum(size for size in sizes if not ownership.is_within(size, failing))
    for account in evidence.accounts:
        outside_bytes = plus(account.outside).bytes
        if others_bytes >= ownership.NAMED_SHARE * outside_bytes > 0:
            yield make_observation("outside-named", others_bytes, "holders", "bundle")


def _zombies(bundle: Bundle, cards: tuple[Gpu, ...]) -> Iterator[Observation]:
    """Processes that have ended and still have a device open."""
    holders: set[int] = set()
    for card in cards:
        holders.update(holder.pid for holder in card.holders)
    for process in processes(bundle):
        if process.state == "Z" and process.pid in holders:
            says = f"{process.name} is a zombie with the device open"
            reading = seen(process.pid, "count", "processes")
            yield _observed("zombie-listed", reading, says)


def _of_ram(bundle: Bundle) -> Iterator[Observation]:
    """Whether the RAM is nearly full, the page cache not counted, and programs wait for it."""
    box = machine(bundle)
    left = box.ram_available
    if left.ok and left.bytes < box.ram_total.bytes // RAM_PART:
        yield _observed("ram-full", left, f"Available of {box.ram_total.show()} of RAM")
    stall = box.memory_stall  # avg10 of the line "full" in /proc/pressure/memory
    if stall.ok and float(str(stall.value)) >= STALL_PERCENT:
        swapped = show_bytes(box.swap_total.bytes - box.swap_free.bytes)
        says = (
            f"For {stall.value} % of 10 s everything waited for memory, while {swapped} of "
            f"{box.swap_total.show()} of swap was in use"
        )
        yield _observed("memory-stall", stall, says)


def _bytes_to_cover(card: Gpu, cards: tuple[Gpu, ...], evidence: CaseEvidence) -> int:
    """How many bytes a holder on a card must account for before it proves anything.

    0 where every message is known to be about this card: a holder on it is in the way by being
    there. Else the most that a message, which may be about another card, counts outside the
    failing program: a holder that explains this is on the right card.
    """
    sizes = [
        account.outside.bytes
        for account in evidence.accounts
        if account.outside and card_of(account.message, cards) is not card
    ]
    return max(sizes, default=0)


def _of_window(card: Gpu) -> Iterator[Observation]:
    """Whether the window to the card's memory (BAR1) is nearly used up or has room."""
    window = card.window
    pool = pools_by_layer(card).get("nvidia-smi")
    if window is None or pool is None or not window.used.ok:
        return
    memory = pool.total
    name = ownership.window_state(window.total.bytes, window.used.bytes, memory.bytes)
    if name:
        says = (
            f"In use of the {window.total.show()} window (BAR1) to the {memory.show()} of "
            f"{card.pci}"
        )
        yield replace(_observed(name, window.used, says), remedy="bar1")


def _of_pools(bundle: Bundle, card: Gpu) -> Iterator[Observation]:
    """What is free in the largest pool or in each MIG device, and what no process holds. Of an
    APU every pool counts, of a card its own memory alone.
    """
    if card.slices:  # no program gets what is free of the whole card
        yield from _free_in_slices(card)
        return
    of_the_card = [pool for pool in card.pools if pool.layer in TOTALS]
    counted: Sequence[Pool] = of_the_card
    if card.integrated:
        counted = card.pools
    with_free = [pool for pool in counted if pool.free.ok]
    largest = max(with_free, key=lambda pool: pool.total.bytes, default=None)
    if largest is not None:
        says = f"Free on {card.pci} of {largest.total.show()}, according to {largest.layer}"
        yield _observed(f"free:{card.pci}", largest.free, says)
    used = next((pool.used for pool in of_the_card if pool.used.ok), None)
    if used is not None and card.unattributed.ok and not card.integrated:
        yield from _unattributed(bundle, card, used.bytes)


def _free_in_slices(card: Gpu) -> Iterator[Observation]:
    """What is free in each MIG device of a card."""
    for part in card.slices:
        if part.free.ok:
            place = f"MIG device {part.index}"
            says = f"Free in {place} of {card.pci}, of {part.total.show()}"
            yield _observed(f"free:{card.pci} {place}", part.free, says)


def _of_holder(
    holder: Holder, total: Reading | None, failing: list[tuple[int, int]], is_rank: bool
) -> Iterator[Observation]:
    """A zombie or a stopped process that holds memory, or one that is not the failing program and
    holds most of ``total``.

    ``failing``: the sizes that the failing program may have had (holders.expected_range).
    ``is_rank``: the holder may be another rank of the job that failed. A holder that is numbered
    by the host may be the failing program itself, which has another number in its container, so
    its size is not compared with the total.
    """
    size = holder.memory.bytes
    if holder.state == "Z" and size > ownership.UNEXPLAINED_BYTES:
        says = f"pid {holder.pid} is a zombie and keeps this much"
        yield _observed("zombie-holder", holder.memory, says, proof=True)
        return
    if holder.state in STOPPED and size > ownership.UNEXPLAINED_BYTES:
        says = f"pid {holder.pid} ({holder.name}) is stopped and keeps this much"
        yield _observed("stopped-holder", holder.memory, says)
        return
    if total is None or numbered_by_host(holder):
        return
    if ownership.is_another(size, total.bytes, failing):
        says = f"pid {holder.pid} ({holder.name}) uses this much of {total.show()}"
        name = "other-holder-measured"
        if is_rank:
            name = "ranks-together"
        yield _observed(name, holder.memory, says, proof=True)


def _unattributed(bundle: Bundle, card: Gpu, in_use: int) -> Iterator[Observation]:
    """What of the ``in_use`` bytes no visible process holds, and whether one may be hidden."""
    rest = card.unattributed
    place = "identity, device_files"
    says = f"In use on card {card.pci} without a visible owner"  # with the total, where known
    totals = card_totals(card)
    if totals:
        total = totals[0].show()
        says = f"In use on card {card.pci}, which has {total}, without a visible owner"
    if not ownership.is_unexplained(rest.bytes, in_use):
        yield _observed("explained", rest, f"{says}: too little to matter")
        return
    yield _observed("unattributed", rest, says)
    for spot in card.blind_spots:
        reading = seen(spot, "text", place)
        yield _observed(
            "blind-spot", reading, "The process that uses it may be hidden from here"
        )
    unlisted = _unlisted_openers(bundle, card)
    if unlisted:
        reading = seen(", ".join(unlisted), "text", "device_files")
        says = (
            "These processes have the device open, and no list says how much they use"
        )
        yield _observed("device-open", reading, says)
    elif not card.blind_spots:
        reading = seen("all", "text", place)
        yield _observed("all-processes-seen", reading, "Every process was looked at")


def _unlisted_openers(bundle: Bundle, card: Gpu) -> list[str]:
    """The programs that have a card of NVIDIA open and are in no list of holders; the driver's
    own daemons are not among them.
    """
    opened = {
        row.number("pid")
        for row in bundle.table("device_files")
        if form("card").match(row.text("target"))
    }
    opened -= {holder.pid for holder in card.holders}
    return [
        f"{process.pid} {process.name}"
        for process in processes(bundle)
        if process.pid in opened and not form("daemon").match(process.name)
    ]

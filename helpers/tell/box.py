"""A box in words: its machine, its software, the device nodes that this user may open, and
where the facts come from.

``columns`` takes headings with the rules by which cells may leave this machine: ``GPU:pci``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from helpers.ground.shapes import OK, Reading
from helpers.ground.units import plain, show_bytes
from helpers.judge.ceilings import ceilings
from helpers.judge.contradictions import TOTALS
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle
from helpers.judge.ledger_rows import GpuLedger
from helpers.judge.obstacles import obstacles
from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.access import Identity, access, identity
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus
from helpers.look.machine import machine
from helpers.settings.audit import audit_box
from helpers.settings.kernel_parameters import audit_kernel
from helpers.settings.presets import findings, load
from helpers.settings.table import Finding
from helpers.tell.resources import words
from helpers.tell.shown import Shown
from helpers.tell.values import columns

NO_LEDGER = "Nothing says how much memory of a GPU is in use."
ELSEWHERE = "NOT THIS MACHINE"
WIDEST_REASON = 110
WIDEST_HOLDER = 72
"""Columns of a terminal that the reason of a setting and the words of a holder may take before they
are cut; chosen so that most are shown whole.
"""


def machine_line(bundle: Bundle) -> str:
    """``box_line`` for a notebook. Above it stands a warning, with how to look at this machine,
    where the bundle is of another machine, or of this one before it was started again (kind live).
    """
    line = box_line(bundle)
    if is_this_box(bundle):
        return line
    warning = ELSEWHERE
    if bundle.kind == "live":
        # A live bundle without a boot id is taken for this machine: nothing speaks against it.
        if not any(row.get("boot_id") for row in bundle.table("host")):
            return line
        warning = f"{ELSEWHERE} AS IT RUNS NOW"
    return f'{warning}, but {bundle.box}. To look at this one: box = "live"\n{line}'


def box_line(bundle: Bundle) -> str:
    """One line of identity: the box, how it was taken, its system, RAM and GPUs.

    No host name, no user, no serial number.
    """
    box = machine(bundle)
    who = identity(bundle)
    taken = bundle.kind
    reconstructed = _reconstructed(bundle)
    if reconstructed:
        taken += f", {reconstructed}"
    line = [
        f"{bundle.box} ({taken})",
        _show_or(box.distribution, "unknown system"),
        "Linux " + _show_or(box.kernel, "unknown"),
        _show_or(box.ram_total, "unknown") + " RAM",
    ]
    if who is not None and who.container != "none":
        line.append(f"inside a container ({who.container})")
    names = _counted(_gpu_names(bundle))
    if not names:
        names = ["no GPU"]
    line.append(" and ".join(names))
    return ", ".join(line)


def _gpu_names(bundle: Bundle) -> list[str]:
    """The name of each GPU, or its vendor's where it has none."""
    return [_show_or(gpu.name, f"{gpu.vendor} GPU") for gpu in gpus(bundle)]


def _counted(names: Iterable[str]) -> list[str]:
    """Each name once, with how often it is there: ``2 x NVIDIA A100``."""
    listed = []
    for name, count in Counter(names).items():
        listed.append(name)
        if count > 1:
            listed[-1] = f"{count} x {name}"
    return listed


def facts(bundle: Bundle) -> list[tuple[str, str]]:
    """The facts of a box under the headline of a page, as pairs of a name and a value. A fact that
    is not known has no pair.
    """
    # A recorded box may say in parentheses why its name is not known; that is too long here.
    names = _counted(name.partition(" (")[0] for name in _gpu_names(bundle))
    if not names:
        names = ["none"]
    # A recorded box of which only the day is known has midnight as its time.
    looked_at = bundle.captured_at.replace("T00:00:00Z", "").replace("T", " ")
    rows = [
        ("GPU", ", ".join(names)),
        ("Driver", _driver(bundle)),
        ("torch", _show_or(framework.framework(bundle).version, "not found")),
        ("Limit", _limit(bundle)),
        ("Failed", _failed_at(bundle)),
        ("Looked at", looked_at[: len("2026-01-15 09:00")]),
    ]
    return [(name, plain(value)) for name, value in rows if value]


def _driver(bundle: Bundle) -> str:
    """The driver of each vendor with its release. An amdgpu driver that is part of the kernel
    has no release of its own: then the kernel's is named.
    """
    vendors = {gpu.vendor for gpu in gpus(bundle)}
    names = []
    if "NVIDIA" in vendors:
        release = _show_or(nvidia.driver(bundle), "")
        names.append(f"NVIDIA {release}".strip())
    if "AMD" in vendors:
        kernel = _show_or(machine(bundle).kernel, "unknown")
        release = _show_or(kfd.driver_version(bundle), f"in Linux {kernel}")
        names.append(f"amdgpu {release}")
    return ", ".join(names)


def _limit(bundle: Bundle) -> str:
    """How much memory a program can have, and in brackets what sets that limit: the layer that
    decides (judge/ceilings.py), else the cards, the control group, the RAM. Empty where nothing is
    known.
    """
    decision = ceilings(bundle)[0].decision
    if decision.binding and decision.binding_bytes:
        layer = words("layers")[decision.binding]
        return f"{show_bytes(decision.binding_bytes)} ({layer})"
    card_sizes: list[Reading] = []
    for gpu in gpus(bundle):
        card_sizes += [pool.total for pool in gpu.pools if pool.layer in TOTALS]
    sizes = _counted(size.show() for size in card_sizes if size.ok)
    if sizes:
        listed = ", ".join(sizes)
        # A message does not name its card, so it tells only where there is one.
        offered_bytes = _offered_bytes(bundle)
        if len(card_sizes) == 1 and 0 < offered_bytes < card_sizes[0].bytes:
            offered = show_bytes(offered_bytes)
            return f"{offered} for programs, of {listed} on the card"
        return f"{listed} (VRAM)"
    box = machine(bundle)
    if box.cgroup_limit.ok:
        return f"{box.cgroup_limit.show()} (control group)"
    if box.ram_total.ok:
        return f"{box.ram_total.show()} (RAM)"
    return ""


def _offered_bytes(bundle: Bundle) -> int:
    """The bytes of a card that its runtime offers to programs, as an error message says it; the
    driver keeps the rest. Of several messages the largest counts; 0 where none says it.
    """
    accounts = evidence_from_bundle(bundle).accounts
    capacities = [account.message.capacity for account in accounts]
    return max((size.bytes for size in capacities if size is not None), default=0)


def _failed_at(bundle: Bundle) -> str:
    """The time that the program's log gives the failure; empty where it gives none."""
    error = diagnose(evidence_from_bundle(bundle)).error
    match = re.search(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", error)
    if match is None:
        return ""
    return match[0].replace("T", " ")


def _show_or(reading: Reading, otherwise: str) -> str:
    """The value that was read; ``otherwise`` where there is none."""
    if not reading.ok:
        return otherwise
    return reading.show()


def stack_table(bundle: Bundle) -> Shown:
    """The software between a program and the card, top down: framework build, runtime, driver,
    kernel. Rows of one vendor are left out where all GPUs are the other's.
    """
    build = framework.framework(bundle)
    rows: list[tuple[str, Reading]] = [("torch", build.version)]
    vendors = {gpu.vendor for gpu in gpus(bundle)}
    if build.hip.ok or "NVIDIA" not in vendors:
        rows.append(("torch built for HIP", build.hip))
    if build.cuda.ok or "AMD" not in vendors:
        rows.append(("torch built for CUDA", build.cuda))
    rows.append(("its Python", build.python))
    if "AMD" in vendors:
        rows += [
            ("ROCm of the system", version) for version in rocm.rocm_versions(bundle)
        ]
        rows.append(("amdgpu out of tree", kfd.driver_version(bundle)))
    if "NVIDIA" in vendors:
        cards = nvidia.gpus(bundle)
        rows.append(("NVIDIA kernel driver", nvidia.driver(bundle)))
        if cards:
            # nvidia-smi prints one release for all cards: the driver's.
            rows.append(("highest CUDA it can run", cards[0].cuda))
    rows.append(("kernel", machine(bundle).kernel))
    cells = [[name, reading, reading.source] for name, reading in rows]
    releases = [f"{name} {reading.show()}" for name, reading in rows if reading.ok]
    return Shown(
        "Builds between a program and the card",
        columns("layer:word, release:version, source:source"),
        cells,
        result=", ".join(releases),
        label="Software",
    )


def settings_table(bundle: Bundle) -> Shown:
    """What each memory setting of the captured environment and of the kernel's modules does on
    this build and chip.
    """
    rows = _setting_rows(audit_box(bundle) + audit_kernel(bundle))
    result = "No memory setting"
    if rows:
        counts = Counter(verdict for _, _, verdict, _ in rows)
        result = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return Shown(
        "Memory settings and what they do here",
        columns("variable:setting, value:value, verdict:word, why", WIDEST_REASON),
        rows,
        none="No memory setting is made, neither in the captured environment nor as a kernel option.",
        result=result,
        label="Settings",
    )


def _setting_rows(findings: Iterable[Finding]) -> list[list[str]]:
    """For each setting: its name, its value, the verdict on it, and why."""
    rows = []
    for finding in findings:
        verdict = finding.verdict.replace("_", " ")
        rows.append([finding.name, finding.value, verdict, finding.says])
    return rows


def preset_table(name: str) -> Shown:
    """What each setting of a preset does, on the build and the chip that the preset names."""
    preset = load(name)
    build = ", ".join(word for word in preset.checked if word)
    return Shown(
        f"Settings on torch {build}",
        ["setting", "value", "verdict", "why"],
        _setting_rows(findings(preset)),
        widest=None,
    )


def access_table(bundle: Bundle) -> Shown:
    """Each device node and what open() says of it; below them each obstacle (what keeps this user
    from a GPU) with the command line that removes it, and the process that looked.
    """
    nodes = access(bundle)
    rows = [
        [node.path, node.opened, node.mode, node.group or node.gid] for node in nodes
    ]
    in_the_way = obstacles(bundle)
    notes = []
    for obstacle in in_the_way:
        notes.append(f"Obstacle: {obstacle.says}")
        if obstacle.fix:
            notes.append(f"    {obstacle.fix}")
    who = identity(bundle)
    if who is not None:
        notes.append(_process_line(who))
    none = "No device node of a GPU is there."
    result = "Every device node opens"
    if not rows:
        result = none
    elif in_the_way:
        result = in_the_way[0].says
    has_nodes = any(not node.missing for node in nodes)
    return Shown(
        "Device nodes",
        columns("device node:word, opens:word, mode:mode, group:group"),
        rows,
        notes,
        none=none,
        result=result,
        label="Permissions",
        applies=has_nodes or bool(gpus(bundle)),
    )


def _process_line(who: Identity) -> str:
    """The process that looked at the box: its user, groups, container and PID namespace."""
    groups = "none"
    if who.groups:
        groups = ", ".join(name or str(gid) for gid, name in who.groups)
    line = f"This process: uid {who.uid}, groups {groups}, container {who.container}"
    if who.init_pid_ns is False:  # None: it could not be read
        line += ", in a PID namespace of its own"
    return line


def provenance(bundle: Bundle) -> Shown:
    """Where the facts come from: which checks found no fault, when the facts were taken, how
    many sources answered, and how many readings were reconstructed.
    """
    passed = fine(bundle)
    rows = [["checked and fine", line] for line in passed]
    answers = Counter(item.status.replace("_", " ") for item in bundle.items)
    if OK in answers:
        answers["read"] = answers.pop(OK)
    sources = ", ".join(f"{count} {state}" for state, count in sorted(answers.items()))
    reconstructed = _reconstructed(bundle)
    summary = reconstructed
    if not reconstructed:
        summary = "every reading comes from the machine itself"
        reconstructed = f"none: {summary}"
    rows += [
        ["box", bundle.box],
        ["kind", bundle.kind],
        ["captured at", bundle.captured_at],
        ["captured by", f"VRAM Casebook {bundle.tool_version}"],
        ["sources", sources],
        ["reconstructed", reconstructed],
    ]
    checks = "1 check"
    if len(passed) != 1:
        checks = f"{len(passed)} checks"
    return Shown(
        "Where the facts come from",
        ["about", "what it is"],
        rows,
        widest=None,
        result=f"{checks} found no fault; {summary}",
        label="Sources",
    )


def _reconstructed(bundle: Bundle) -> str:
    """How many readings of a recorded box no machine printed; empty where it printed them all."""
    count = sum(item.constructed for item in bundle.items)
    if not count:
        return ""
    return f"{count} of {len(bundle.items)} readings reconstructed"


def fine(bundle: Bundle) -> list[str]:
    """The checks of a box that found no fault, each as a sentence without its full stop."""
    says = []
    nodes = access(bundle)
    if nodes and not obstacles(bundle):
        says.append(f"all {len(nodes)} device nodes are open to this user")
    harmless = {row["kind"] for row in words("rows")["events"] if row.get("harmless")}
    this_boot = [event for event in kernel_log.events(bundle) if event.boot == 0]
    has_errors = any(event.kind not in harmless for event in this_boot)
    if kernel_log.readable(bundle).ok and not has_errors:
        says.append(
            "the kernel log of this boot has no fault, reset or refused allocation"
        )
    kills = machine(bundle).cgroup_oom_kills
    if kills.ok and not kills.value:
        says.append(
            "the control group of this process killed nothing for want of memory"
        )
    audited = audit_box(bundle) + audit_kernel(bundle)
    verdicts = {finding.verdict for finding in audited}
    if audited and not verdicts & {"dangerous", "contradictory"}:
        says.append(
            f"none of {len(audited)} memory settings is dangerous or contradicts another"
        )
    cards = gpus(bundle)
    if cards and all(_holders_are_fine(gpu) for gpu in cards):
        says.append(
            "every process that uses GPU memory could be looked at, and none is a zombie"
        )
    return says


def _holders_are_fine(gpu: Gpu) -> bool:
    """Whether processes hold memory of a GPU, all of them could be seen, and none is a zombie."""
    # Z: a process that has ended, as /proc/PID/stat names its state (proc(5)).
    has_zombie = any(holder.state == "Z" for holder in gpu.holders)
    return bool(gpu.holders) and not gpu.blind_spots and not has_zombie


def ledger_table(ledgers: Iterable[GpuLedger]) -> Shown:
    """The rows of each ledger: who holds memory of a GPU by one source. After its rows comes their
    sum beside what the source says is in use; below all are the contradictions and the notes.
    """
    rows = []
    notes = []
    for book in ledgers:
        place = book.place
        if not place:
            place = "not known"
        for row in book.rows:
            kind = row.kind.replace("_", " ")
            rows.append([place, book.account, kind, row.words, row.bytes, row.source])
        total = f"the rows make {show_bytes(book.sum_bytes())}, give or take "
        total += show_bytes(book.tolerance_bytes)
        rows.append([place, book.account, "in use", total, book.used, book.used.source])
        lines = [f"contradiction: {line}" for line in book.contradictions]
        for line in [*lines, *book.notes]:
            notes.append(f"{place}, {book.account}: {plain(line)}")
    head = columns(
        "GPU:pci, account:word, kind:word, held by:holder, bytes:number, source:source",
        WIDEST_HOLDER,
    )
    return Shown(
        "The ledger of each source",
        head,
        rows,
        notes,
        none=NO_LEDGER,
        label="Memory by owner",
        applies=bool(rows),
    )

"""A box in words: what machine it is, which builds meet on it, what this user may open, and
where the facts come from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from helpers.ground.shapes import Reading
from helpers.ground.units import plain, show_bytes
from helpers.judge.ceilings import ceilings
from helpers.judge.contradictions import TOTALS
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle
from helpers.judge.ledger_rows import GpuLedger
from helpers.judge.obstacles import obstacles
from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.access import access, identity
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


def machine_line(bundle: Bundle) -> str:
    """``box_line`` for a notebook: above it, where that is not this machine as it runs now, how
    to look at this one.
    """
    boots = [row.get("boot_id") for row in bundle.table("host")]
    # What is live and names no boot is taken as of this machine: nothing speaks against it.
    if is_this_box(bundle) or (bundle.kind == "live" and not any(boots)):
        return box_line(bundle)
    warning = f"{ELSEWHERE} AS IT RUNS NOW" if bundle.kind == "live" else ELSEWHERE
    return f'{warning}, but {bundle.box}. To look at this one: box = "live"\n{box_line(bundle)}'


def box_line(bundle: Bundle) -> str:
    """One line of identity: the box, how it was taken, its system, RAM and GPUs.

    No host name, no user, no serial number.
    """
    box = machine(bundle)
    listed = gpus(bundle)
    who = identity(bundle)
    line = [
        f"{bundle.box} ({', '.join(filter(None, [bundle.kind, _filled(bundle)]))})",
        _short(box.distribution, "unknown system"),
        "Linux " + _short(box.kernel, "unknown"),
        _short(box.ram_total, "unknown") + " RAM",
    ]
    if who is not None and who.container != "none":
        line.append(f"inside a container ({who.container})")
    names = [gpu.name.show() if gpu.name.ok else gpu.vendor + " GPU" for gpu in listed]
    return ", ".join([*line, " and ".join(_counted(names)) or "no GPU"])


def _counted(names: Iterable[str]) -> list[str]:
    """Each name once, with how often it is there: ``2 x NVIDIA A100``."""
    return [
        f"{count} x {name}" if count > 1 else name
        for name, count in Counter(names).items()
    ]


def facts(bundle: Bundle) -> list[tuple[str, str]]:
    """What a page says of a box in one row: GPU, driver, torch, limit, and when it failed."""
    named = [
        _short(gpu.name, f"{gpu.vendor} GPU").split(" (")[0] for gpu in gpus(bundle)
    ]
    # A time of midnight is a day of which no time is known.
    looked_at = bundle.captured_at.replace("T00:00:00Z", "").replace("T", " ")[:16]
    rows = [
        ("GPU", ", ".join(_counted(named)) or "none"),
        ("Driver", _driver(bundle)),
        ("torch", _short(framework.framework(bundle).version, "not found")),
        ("Limit", _limit(bundle)),
        ("Failed", _failed_at(bundle)),
        ("Looked at", looked_at),
    ]
    return [(name, plain(value)) for name, value in rows if value]


def _driver(bundle: Bundle) -> str:
    """The driver of each vendor with its release; of AMD's in the kernel, the kernel's."""
    vendors = {gpu.vendor for gpu in gpus(bundle)}
    names = []
    if "NVIDIA" in vendors:
        names.append(f"NVIDIA {_short(nvidia.driver(bundle), '')}".strip())
    if "AMD" in vendors:
        kernel = _short(machine(bundle).kernel, "unknown")
        names.append(
            f"amdgpu {_short(kfd.driver_version(bundle), f'in Linux {kernel}')}"
        )
    return ", ".join(names)


def _limit(bundle: Bundle) -> str:
    """The memory that a program can have, and whose limit that is."""
    stack = ceilings(bundle)[0]
    box = machine(bundle)
    decision = stack.decision
    if decision.binding and decision.binding_bytes:
        layer = words("layers")[decision.binding]
        return f"{show_bytes(decision.binding_bytes)} ({layer})"
    cards = [
        pool.total for gpu in gpus(bundle) for pool in gpu.pools if pool.layer in TOTALS
    ]
    listed = _counted(total.show() for total in cards if total.ok)
    if listed:
        offered = _offered(bundle)
        if len(cards) == 1 and cards[0].ok and 0 < offered < cards[0].bytes:
            return f"{show_bytes(offered)} for programs, of {listed[0]} on the card"
        return f"{', '.join(listed)} (VRAM)"
    if box.cgroup_limit.ok:
        return f"{box.cgroup_limit.show()} (control group)"
    return f"{box.ram_total.show()} (RAM)" if box.ram_total.ok else ""


def _offered(bundle: Bundle) -> int:
    """What the runtime offers of a card in all, in bytes, as the program's own message says it: the
    driver keeps the rest of the card. 0 where no message does.
    """
    accounts = evidence_from_bundle(bundle).accounts
    return max(
        (a.message.capacity.bytes for a in accounts if a.message.capacity), default=0
    )


def _failed_at(bundle: Bundle) -> str:
    """The time that the program's log gives the failure; empty where it gives none."""
    error = diagnose(evidence_from_bundle(bundle)).error
    match = re.search(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", error)
    return match[0].replace("T", " ") if match else ""


def _short(reading: Reading, otherwise: str) -> str:
    """What was read, and where nothing was, ``otherwise`` in place of the reason."""
    return reading.show() if reading.ok else otherwise


def stack_table(bundle: Bundle) -> Shown:
    """The software between a program and the card, top down: framework build, runtime, driver,
    kernel.
    """
    build = framework.framework(bundle)
    box = machine(bundle)
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
        listed = nvidia.gpus(bundle)
        rows.append(("NVIDIA kernel driver", nvidia.driver(bundle)))
        if listed:
            rows.append(("highest CUDA it can run", listed[0].cuda))
    rows.append(("kernel", box.kernel))
    cells = [[name, reading, reading.source] for name, reading in rows]
    says = ", ".join(f"{name} {reading.show()}" for name, reading in rows if reading.ok)
    head = columns("layer:word, release:version, source:source")
    return Shown(
        "Builds between a program and the card",
        head,
        cells,
        result=says,
        label="Software",
    )


def settings_table(bundle: Bundle) -> Shown:
    """What each memory setting of the captured environment and of the kernel's modules does on
    this build and chip.
    """
    listed = audit_box(bundle) + audit_kernel(bundle)
    head = columns("variable:setting, value:value, verdict:word, why", widest=110)
    rows = _finding_rows(listed)
    none = "No memory setting is made, neither in the captured environment nor as a kernel option."
    counts = Counter(row[2] for row in rows)
    says = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return Shown(
        "Memory settings and what they do here",
        head,
        rows,
        none=none,
        result=says or "No memory setting",
        label="Settings",
    )


def _finding_rows(listed: Iterable[Finding]) -> list[list[str]]:
    """Of each finding its setting and value, the verdict on it, and why."""
    return [[f.name, f.value, f.verdict.replace("_", " "), f.says] for f in listed]


def preset_table(name: str) -> Shown:
    """What each setting of a preset does, on the build and the chip that the preset names."""
    preset = load(name)
    head = ["setting", "value", "verdict", "why"]
    return Shown(
        f"Settings on torch {', '.join(filter(None, preset.checked))}",
        head,
        _finding_rows(findings(preset)),
        widest=None,
    )


def access_table(bundle: Bundle) -> Shown:
    """Each device node, what open() says of it, and what stands in the way with the line that
    removes it.
    """
    rows = [
        [node.path, node.opened, node.mode, node.group or node.gid]
        for node in access(bundle)
    ]
    ways = obstacles(bundle)
    lines = []
    for way in ways:
        lines.append(f"Obstacle: {way.says}")
        if way.fix:
            lines.append(f"    {way.fix}")
    who = identity(bundle)
    if who is not None:
        groups = ", ".join(name or str(gid) for gid, name in who.groups) or "none"
        namespace = (
            ", in a PID namespace of its own" if who.init_pid_ns is False else ""
        )
        lines.append(
            f"This process: uid {who.uid}, groups {groups}, container {who.container}{namespace}"
        )
    head = columns("device node:word, opens:word, mode:mode, group:group")
    none = "No device node of a GPU is there."
    first = ways[0].says if ways else "Every device node opens"
    has_nodes = any(not node.missing for node in access(bundle))
    return Shown(
        "Device nodes",
        head,
        rows,
        lines,
        none=none,
        result=first if rows else none,
        label="Permissions",
        applies=has_nodes or bool(gpus(bundle)),
    )


def provenance(bundle: Bundle) -> Shown:
    """Where the facts come from: when they were taken, how many sources answered, which were
    filled in; and what is fine.
    """
    answers = (
        item.status.replace("_", " ").replace("ok", "read") for item in bundle.items
    )
    states = Counter(answers)
    checked: list[list[object]] = [["checked and fine", line] for line in fine(bundle)]
    rows: list[list[object]] = [
        *checked,
        ["box", bundle.box],
        ["kind", bundle.kind],
        ["captured at", bundle.captured_at],
        ["captured by", f"VRAM Casebook {bundle.tool_version}"],
        [
            "sources",
            ", ".join(f"{count} {state}" for state, count in sorted(states.items())),
        ],
        [
            "reconstructed",
            _filled(bundle) or "none: every reading comes from the machine itself",
        ],
    ]
    noun = "check" if len(checked) == 1 else "checks"
    checks = f"{len(checked)} {noun} found no fault"
    says = (
        f"{checks}; {_filled(bundle) or 'every reading comes from the machine itself'}"
    )
    return Shown(
        "Where the facts come from",
        ["about", "what it is"],
        rows,
        widest=None,
        result=says,
        label="Sources",
    )


def _filled(bundle: Bundle) -> str:
    """How much of a recorded box no machine printed; nothing where all of it was read."""
    count = sum(item.constructed for item in bundle.items)
    return f"{count} of {len(bundle.items)} readings reconstructed" if count else ""


def fine(bundle: Bundle) -> list[str]:
    """What was looked at on a box and is as it should be, a sentence each."""
    says = []
    nodes = access(bundle)
    if nodes and not obstacles(bundle):
        says.append(f"all {len(nodes)} device nodes are open to this user")
    harmless = {row["kind"] for row in words("rows")["events"] if row.get("harmless")}
    errors = [
        event
        for event in kernel_log.events(bundle)
        if event.boot == 0 and event.kind not in harmless
    ]
    if kernel_log.readable(bundle).ok and not errors:
        says.append(
            "the kernel log of this boot has no fault, reset or refused allocation"
        )
    kills = machine(bundle).cgroup_oom_kills
    if kills.ok and not kills.value:
        says.append(
            "the control group of this process killed nothing for want of memory"
        )
    audited = audit_box(bundle) + audit_kernel(bundle)
    if audited and all(
        row.verdict not in ("dangerous", "contradictory") for row in audited
    ):
        says.append(
            f"none of {len(audited)} memory settings is dangerous or contradicts another"
        )
    listed = gpus(bundle)
    if listed and all(_holders_are_fine(gpu) for gpu in listed):
        says.append(
            "every process that uses GPU memory could be looked at, and none is a zombie"
        )
    return says


def _holders_are_fine(gpu: Gpu) -> bool:
    """Whether somebody holds memory of a GPU, everybody could be seen, and nobody is a zombie."""
    zombies = [holder for holder in gpu.holders if holder.state == "Z"]
    return bool(gpu.holders) and not gpu.blind_spots and not zombies


def ledger_table(ledgers: Iterable[GpuLedger]) -> Shown:
    """Each ledger's rows, its sum beside what its source says, and below them what contradicts
    and what is to be noted.
    """
    rows = []
    below = []
    for book in ledgers:
        where = book.place or "not known"
        who = book.account
        rows += [
            [where, who, row.kind.replace("_", " "), row.words, row.bytes, row.source]
            for row in book.rows
        ]
        total = f"the rows make {show_bytes(book.sum_bytes())}, give or take "
        total += show_bytes(book.tolerance_bytes)
        rows.append([where, who, "in use", total, book.used, book.used.source])
        below += [
            f"{where}, {who}: contradiction: {plain(words)}"
            for words in book.contradictions
        ]
        below += [f"{where}, {who}: {plain(words)}" for words in book.notes]
    head = columns(
        "GPU:pci, account:word, kind:word, held by:holder, bytes:number, source:source",
        widest=72,
    )
    return Shown(
        "The ledger of each source",
        head,
        rows,
        below,
        none=NO_LEDGER,
        label="Memory by owner",
        applies=bool(rows),
    )

"""A box in words: what machine it is, which builds meet on it, what this user may open, and
where the facts come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from helpers.ground.shapes import Reading
from helpers.ground.units import plain, show_bytes
from helpers.judge.ledger import GpuLedger
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
    counted = [
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name
        for name in dict.fromkeys(names)
    ]
    return ", ".join([*line, " and ".join(counted) or "no GPU"])


def _short(reading: Reading, otherwise: str) -> str:
    return reading.show() if reading.ok else otherwise


def stack_table(bundle: Bundle) -> Shown:
    """The software between a program and the card, top down: framework build, runtime, driver,
    kernel.
    """
    build = framework.framework(bundle)
    box = machine(bundle)
    rows: list[tuple[str, Reading]] = [
        ("torch", build.version),
        ("torch built for HIP", build.hip),
        ("torch built for CUDA", build.cuda),
        ("its Python", build.python),
    ]
    vendors = {gpu.vendor for gpu in gpus(bundle)}
    if "AMD" in vendors:
        rows += [("ROCm of the system", version) for version in rocm.rocm_versions(bundle)]
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
    return Shown("Builds between a program and the card", head, cells, result=says)


def settings_table(bundle: Bundle) -> Shown:
    """What each memory setting of the captured environment and of the kernel's modules does on
    this build and chip.
    """
    listed = audit_box(bundle) + audit_kernel(bundle)
    head = columns("variable:setting, value:value, verdict:word, why", widest=110)
    rows = [[f.name, f.value, f.verdict.replace("_", " "), f.says] for f in listed]
    none = "No memory setting is made, neither in the captured environment nor as a kernel option."
    counts = Counter(row[2] for row in rows)
    says = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    title = "Memory settings and what they do here"
    return Shown(title, head, rows, none=none, result=says)


def preset_table(name: str) -> Shown:
    """What each setting of a preset does, on the build and the chip that the preset names."""
    preset = load(name)
    columns = ["setting", "value", "verdict", "why"]
    rows = [[f.name, f.value, f.verdict.replace("_", " "), f.says] for f in findings(preset)]
    title = f"Settings on torch {', '.join(filter(None, preset.checked))}"
    return Shown(title, columns, rows, widest=None)


def access_table(bundle: Bundle) -> Shown:
    """Each device node, what open() says of it, and what stands in the way with the line that
    removes it.
    """
    rows = [[node.path, node.opened, node.mode, node.group or node.gid] for node in access(bundle)]
    lines = []
    for way in obstacles(bundle):
        lines.append(f"Obstacle: {way.says}")
        if way.fix:
            lines.append(f"    {way.fix}")
    who = identity(bundle)
    if who is not None:
        groups = ", ".join(name or str(gid) for gid, name in who.groups) or "none"
        namespace = ", in a PID namespace of its own" if who.init_pid_ns is False else ""
        lines.append(
            f"This process: uid {who.uid}, groups {groups}, container {who.container}{namespace}"
        )
    head = columns("device node:word, opens:word, mode:mode, group:group")
    none = "No device node of a GPU is there."
    first = next((way.says for way in obstacles(bundle)), "Nothing is in the way")
    return Shown("Device nodes", head, rows, lines, none=none, result=first if rows else none)


def provenance(bundle: Bundle) -> Shown:
    """Where the facts come from: when they were taken, how many sources answered, which were
    filled in; and what is fine.
    """
    answers = (item.status.replace("_", " ").replace("ok", "read") for item in bundle.items)
    states = Counter(answers)
    checked: list[list[object]] = [["checked and fine", line] for line in fine(bundle)]
    rows: list[list[object]] = [
        *checked,
        ["box", bundle.box],
        ["kind", bundle.kind],
        ["captured at", bundle.captured_at],
        ["captured by", f"VRAM Casebook {bundle.tool_version}"],
        ["sources", ", ".join(f"{count} {state}" for state, count in sorted(states.items()))],
        ["reconstructed", _filled(bundle) or "none: every reading is this machine's"],
    ]
    noun = "check" if len(checked) == 1 else "checks"
    checks = f"{len(checked)} {noun} found nothing wrong"
    says = f"{checks}; {bundle.kind}, {_filled(bundle) or 'all read'}"
    head = ["about", "what it is"]
    return Shown("Where the facts come from", head, rows, widest=None, result=says)


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
    harmless = {row["kind"] for row in words("events") if row.get("harmless")}
    errors = [
        event
        for event in kernel_log.events(bundle)
        if event.boot == 0 and event.kind not in harmless
    ]
    if kernel_log.readable(bundle).ok and not errors:
        says.append("the kernel log of this boot has no fault, reset or refused allocation")
    kills = machine(bundle).cgroup_oom_kills
    if kills.ok and not kills.value:
        says.append("the control group killed nothing for want of memory")
    audited = audit_box(bundle) + audit_kernel(bundle)
    if audited and all(row.verdict not in ("dangerous", "contradictory") for row in audited):
        says.append(f"none of {len(audited)} memory settings is dangerous or contradicts another")
    listed = gpus(bundle)
    if listed and all(_holders_are_fine(gpu) for gpu in listed):
        says.append("every process that holds GPU memory could be looked at, and none is a zombie")
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
        where = book.place or "not told"
        who = book.account
        rows += [
            [where, who, row.kind.replace("_", " "), row.words, row.bytes, row.source]
            for row in book.rows
        ]
        total = f"the rows make {show_bytes(book.sum_bytes())}, give or take "
        total += show_bytes(book.tolerance_bytes)
        rows.append([where, who, "in use", total, book.used, book.used.source])
        below += [f"{where}, {who}: contradiction: {plain(words)}" for words in book.contradictions]
        below += [f"{where}, {who}: {plain(words)}" for words in book.notes]
    head = columns(
        "GPU:pci, account:word, kind:word, held by:holder, bytes:number, source:source", widest=72
    )
    title = "The ledger of each source"
    return Shown(title, head, rows, below, none=NO_LEDGER)

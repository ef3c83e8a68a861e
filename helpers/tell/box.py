"""A box in words: what machine it is, which builds meet on it, what this user may open, and where the facts come from."""

from __future__ import annotations

from collections.abc import Iterable

from helpers.judge.ledger import MESSAGE, GpuLedger
from helpers.judge.obstacles import obstacles
from helpers.look import framework, kfd, nvidia, rocm
from helpers.look.access import access, identity
from helpers.look.bundle import Bundle
from helpers.look.gpus import gpus
from helpers.look.machine import machine
from helpers.look.pci import pci_devices
from helpers.look.reading import Reading, seen, show_bytes
from helpers.settings.audit import audit_box
from helpers.settings.kernel import audit_kernel

from .tables import gib, plain, table


def machine_line(bundle: Bundle) -> str:
    """One line of identity: the box, how it was taken, its system, RAM and GPUs. No host name, no user, no serial number."""
    box, found, who = machine(bundle), gpus(bundle), identity(bundle)
    words = [
        f"{bundle.box} ({bundle.kind})",
        _short(box.distribution, "unknown system"),
        "Linux " + _short(box.kernel, "unknown"),
        _short(box.ram_total, "unknown") + " RAM",
    ]
    if who is not None and who.container != "none":
        words.append(f"inside a container ({who.container})")
    names = [gpu.name.show() if gpu.name.ok else gpu.vendor + " GPU" for gpu in found]
    counted = [
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name
        for name in dict.fromkeys(names)
    ]
    return ", ".join([*words, " and ".join(counted) or "no GPU"])


def _short(reading: Reading, otherwise: str) -> str:
    return reading.show() if reading.ok else otherwise


def stack_table(bundle: Bundle, sources: bool = True) -> str:
    """The software between a program and the card, top down: framework build, runtime, driver, kernel."""
    build, box = framework.framework(bundle), machine(bundle)
    rows: list[tuple[str, Reading]] = [
        ("torch", build.version),
        ("torch built for HIP", build.hip),
        ("torch built for CUDA", build.cuda),
        ("its Python", build.python),
    ]
    vendors = {gpu.vendor for gpu in gpus(bundle)}
    if "AMD" in vendors:
        rows += [("ROCm of the system", version) for version in rocm.rocm_versions(bundle)]
        rows += [
            ("amd-smi's ROCm", rocm.amd_smi_rocm(bundle)),
            ("amdgpu out of tree", kfd.driver_version(bundle)),
        ]
    if "NVIDIA" in vendors:
        listed = nvidia.gpus(bundle)
        rows += [
            ("CUDA toolkit of the system", nvidia.toolkit(bundle)),
            ("NVIDIA kernel driver", nvidia.driver(bundle)),
        ]
        rows += [("highest CUDA it can run", listed[0].cuda)] if listed else []
    rows.append(("kernel", box.kernel))
    return table(
        [[name, reading, *([reading.source] if sources else [])] for name, reading in rows],
        ["layer", "release", *(["source"] if sources else [])],
    )


def slot_table(bundle: Bundle) -> str:
    """How each GPU is attached: PCIe link now and at most, the largest BAR beside the VRAM, IOMMU, NUMA node."""
    found = {gpu.pci: gpu for gpu in gpus(bundle)}
    vram = {
        pci: pool.total
        for pci, gpu in found.items()
        for pool in gpu.pools
        if pool.layer in ("sysfs VRAM", "nvidia-smi")
    }
    rows = []
    for device in pci_devices(bundle):
        if device.pci not in found:
            continue
        link, size = device.link, vram.get(device.pci)
        now = f"{link.speed_gts:g} GT/s x{link.width}" if link else ""
        most = f"{link.max_speed_gts:g} GT/s x{link.max_width}" if link else ""
        whole = (
            device.large_bar(int(size.value or 0))
            if size is not None and size.ok and device.bars_bytes
            else None
        )
        bar = show_bytes(device.largest_bar_bytes) if device.largest_bar_bytes else ""
        rows.append([device.pci, now, most, bar, whole, device.iommu, device.numa_node])
    return table(
        rows, ["GPU", "link now", "at most", "largest BAR", "covers the VRAM", "IOMMU", "NUMA node"]
    )


def settings_table(bundle: Bundle) -> str:
    """What each memory setting of the captured environment and of the kernel's modules does on this build and chip."""
    found = audit_box(bundle) + audit_kernel(bundle)
    return table(
        [[f.name, f.value, f.verdict.replace("_", " "), f.says] for f in found],
        ["variable", "value", "verdict", "why"],
        widest=110,
    )


def access_table(bundle: Bundle) -> str:
    """Each device node, what open() says of it, and what stands in the way with the line that removes it."""
    rows = [[node.path, node.opened, node.mode, node.group or node.gid] for node in access(bundle)]
    lines = [table(rows, ["device node", "opens", "mode", "group"])]
    for way in obstacles(bundle):
        lines.append(f"In the way: {way.says}" + (f"\n    {way.fix}" if way.fix else ""))
    who = identity(bundle)
    if who is not None:
        groups = ", ".join(name or str(gid) for gid, name in who.groups)
        lines.append(
            f"This process: uid {who.uid}, groups {groups or 'none'}, container {who.container}"
            + (", in a PID namespace of its own" if who.init_pid_ns is False else "")
        )
    return "\n".join(lines)


def provenance(bundle: Bundle) -> str:
    """Where the facts come from: when they were taken, how many sources answered, which were filled in by hand."""
    states: dict[str, int] = {}
    for item in bundle.items:
        states[item.status] = states.get(item.status, 0) + 1
    made = sum(item.constructed for item in bundle.items)
    counted = ", ".join(
        f"{count} {state.replace('_', ' ')}" for state, count in sorted(states.items())
    )
    rows: list[list[object]] = [
        ["box", bundle.box],
        ["kind", bundle.kind],
        ["captured at", bundle.captured_at],
        ["captured by", bundle.tool_version],
        ["sources", counted],
        ["constructed", seen(made, "count", "manifest.json") if made else "none"],
    ]
    return table(rows, ["provenance", ""], widest=None)


def ledger_table(ledgers: Iterable[GpuLedger]) -> str:
    """Each ledger's rows, its sum beside what its source says, and below them what contradicts and what is to be noted."""
    rows, below = [], []
    for book in ledgers:
        where, who = book.pci or "not told", "message" if book.account == MESSAGE else "driver"
        rows += [
            [where, who, row.kind.replace("_", " "), row.words, row.bytes, row.source]
            for row in book.rows
        ]
        rows.append(
            [
                where,
                who,
                "in use",
                f"the rows make {gib(book.sum_bytes())}, give or take "
                + show_bytes(book.tolerance_bytes),
                book.used,
                book.used.source,
            ]
        )
        below += [f"{where}, {who}: contradiction: {plain(words)}" for words in book.contradictions]
        below += [f"{where}, {who}: {plain(words)}" for words in book.notes]
    return "\n".join(
        [table(rows, ["GPU", "account", "kind", "held by", "bytes", "source"], widest=72), *below]
    )

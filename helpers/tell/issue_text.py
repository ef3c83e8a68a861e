"""A report in the form that a tracker asks for (issue.yaml), filled from a bundle and a verdict; what is not known says why.

Every value from the box stands in code, so none can format, link or call anybody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.bundle import Bundle
from helpers.look.gpus import gpus, host_pools
from helpers.look.machine import machine
from helpers.look.reading import Reading
from helpers.shapes import Verdict

from .tables import cut, one_source, plain, pools_table
from .verdict import alternatives, headline, label, rows, summary, sums

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("issue.yaml").read_text("utf-8"))
"""The trackers, their forms, and the words for each cause."""
TRACKERS = tuple(TABLE["trackers"])
MOST_LINES, WIDE = 120, 160
MOST_EVENTS, MOST_POOLS = 8, 24
QUIET_EVENTS = ("boot", "vram_ready", "gtt_ready")
UNTOLD = "Out of GPU memory, cause not told by the evidence"
NO_STEPS = "not available because no program was recorded; put the smallest one that shows it here"


@dataclass(frozen=True)
class Case:
    """What a report is about. ``evidence`` names the file that goes with it and its digest; ``steps`` how it was seen."""

    verdict: Verdict | None
    bundle: Bundle | None
    no_bundle: str = ""
    steps: tuple[str, ...] = ()
    evidence: str = ""


def issue_text(tracker: str, case: Case) -> str:
    """The report for one of TRACKERS, at most 120 lines. Raises ValueError for another."""
    if tracker not in TRACKERS:
        raise ValueError(f"tracker {tracker!r}: expected one of {', '.join(TRACKERS)}")
    where, form = TABLE["trackers"][tracker].values()
    body = TABLE["forms"][form].format_map({**_of_verdict(case), **_of_bundle(case)})
    title = plain(headline(case.verdict) if case.verdict else UNTOLD)
    lines = [
        f"<!-- For {where}. Title: {re.sub('[-<>]{2,}|[<>]', '-', title)}",
        "Read it before you send it. -->",
        "",
        *re.sub("\n{3,}", "\n\n", body).splitlines(),
    ]
    if len(lines) > MOST_LINES:
        left_out = len(lines) - MOST_LINES + 4
        lines = lines[:-left_out]
        if sum(line.startswith("```") for line in lines) % 2:
            lines.append("```")
        lines += ["", f"[{left_out} lines left out; {case.evidence}]"]
    return "\n".join(lines) + "\n"


def _of_verdict(case: Case) -> dict[str, str]:
    """The fields that a verdict fills."""
    verdict = case.verdict
    cause = verdict.cause if verdict else ""
    steps = [NO_STEPS, *(f"It was seen with VRAM Casebook: {_short(step)}" for step in case.steps)]
    fields = {
        "seen": f"Seen: {_missing('no run came to a verdict')}",
        "expected": f"**Expected:** {TABLE['expected'].get(cause, TABLE['expected'][''])}",
        "component": TABLE["components"].get(cause, TABLE["components"][""]),
        "steps": "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1)),
        "evidence": "",
        "attached": case.evidence or f"Evidence bundle: {_missing(case.no_bundle)}",
    }
    if verdict:
        words = headline(verdict)
        words = _code(words) if cause == "other" else words
        seen = f"**Seen:** {words} (`{cause}`, {label(verdict)})."
        fields["seen"] = "\n".join(filter(None, [seen, _code(cut(summary(verdict), 600), "")]))
        fields["evidence"] = "\n".join(["Evidence:", *(f"- {line}" for line in _evidence(verdict))])
    return fields


def _evidence(verdict: Verdict) -> list[str]:
    lines = []
    for title, items in (("", rows(verdict)[:10]), ("against it: ", verdict.against[:4])):
        for e in items:
            source = _short(one_source([e.reading]))
            lines.append(f"{title}{_short(e.says)} {_short(e.reading.show())} from {source}")
    lines += [f"by the message's numbers: {_short(row.says)}" for row in sums(verdict)]
    lines += [f"not read: {_short(missing.reading)}" for missing in verdict.missing[:4]]
    lines += [f"still open: {line}" for line in alternatives(verdict)[:3]]
    return [*lines, f"next step here: {_short(verdict.next_step.what)}"]


def _of_bundle(case: Case) -> dict[str, str]:
    """The fields that a bundle fills; without one each says why it is empty."""
    bundle = case.bundle
    no_log = _missing("no such line was captured")
    if bundle is None:
        names = "os cpu gpus ram kernel cmdline".split()
        why = _missing(case.no_bundle)
        fields = dict.fromkeys(names, why)
        fields |= {"gpu_items": f" - GPU: {why}", "rocm": _code(why), "versions": _fence([why])}
        fields |= {"driver": f"N/A (in-tree driver), {why}", "memory": "", "log": ""}
        return {**fields, "no_log": no_log, "rocminfo": _missing("it was not run")}
    box, torch, driver = machine(bundle), framework.framework(bundle), kfd.driver_version(bundle)
    releases = rocm.rocm_versions(bundle)
    named = _gpus(bundle)
    agents = [agent for agent in rocm.agents(bundle) if agent.kind == "gpu"]
    kinds = ", ".join(f"{a.name.show()} {a.marketing_name.show()}" for a in agents)
    versions = [
        ("PyTorch version", torch.version),
        ("ROCM used to build PyTorch", torch.hip),
        ("CUDA used to build PyTorch", torch.cuda),
        ("OS", box.distribution),
        ("Kernel", box.kernel),
        ("Python version", torch.python),
        ("CPU", box.cpu),
        ("RAM", box.ram_total),
        ("amdgpu out of tree", driver),
        ("NVIDIA driver", nvidia.driver(bundle)),
        ("Allocator settings", torch.settings),
        *(("ROCm of the system", reading) for reading in releases),
    ]
    pools = str(pools_table([*gpus(bundle), *host_pools(bundle)], sources=False)).splitlines()
    events = [e for e in kernel_log.events(bundle) if e.kind not in QUIET_EVENTS][-MOST_EVENTS:]
    log = [f"{e.text} ({e.count} lines)" if e.count > 1 else e.text for e in events]
    built = f"torch built for HIP: {_value(torch.hip)}"
    return {
        "os": _shown(box.distribution),
        "cpu": _shown(box.cpu),
        "ram": _shown(box.ram_total),
        "kernel": _shown(box.kernel),
        "cmdline": _shown(box.cmdline),
        "gpus": "\n".join(named),
        "gpu_items": "\n".join(f" - GPU: {line}" for line in named),
        "driver": ("" if driver.ok else "N/A (in-tree driver), ") + _shown(driver),
        "rocm": _code("; ".join([*map(_value, releases), built])),
        "rocminfo": _missing("it was not run") + (f"; rocminfo names {_code(kinds)}" * bool(kinds)),
        "versions": _fence(
            [f"{name}: {_value(value) or '(defaults)'}" for name, value in versions]
        ),
        "memory": f"Memory as each layer reports it:\n{_fence(pools[:MOST_POOLS])}",
        "log": f"Kernel log:\n{_fence(log)}" if log else "",
        "no_log": "" if log else no_log,
    }


def _gpus(bundle: Bundle) -> list[str]:
    names = []
    for gpu in gpus(bundle):
        names.append(f"{gpu.vendor} {_value(gpu.name).removeprefix(gpu.vendor + ' ')}")
    counts = {name: names.count(name) for name in names}
    shown = [_code(f"{count} x {name}" if count > 1 else name) for name, count in counts.items()]
    return shown or [_missing("the bundle shows no GPU")]


def _shown(reading: Reading) -> str:
    return _code(_value(reading)) if reading.ok else _value(reading)


def _value(reading: Reading) -> str:
    """The reading, or not available because."""
    why = f"{reading.status.replace('_', ' ')} because {reading.why}"
    return cut(reading.show() if reading.ok else why, WIDE)


def _missing(why: str) -> str:
    return f"not available because {why}"


def _short(text: str) -> str:
    return _code(cut(text, WIDE))


def _code(text: str, none: str = "`-`") -> str:
    """A code span that holds any text: its fence is longer than any run of backticks inside."""
    text = plain(" ".join(text.split()))
    fence = "`" * (1 + _backticks(text))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`" if text else none


def _fence(lines: list[str]) -> str:
    inside = [plain(cut(line, WIDE), keep="\t") for line in lines]
    mark = "`" * max(3, 1 + max(map(_backticks, inside), default=0))
    return "\n".join([f"{mark}text", *inside, mark])


def _backticks(text: str) -> int:
    """The longest run of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)

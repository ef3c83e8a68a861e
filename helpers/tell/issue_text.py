"""A report in the form that a tracker asks for, filled from a bundle and a verdict; what is not known says why.

Forms as they stood in 2026: ROCm's "Issue Report" (issue_report.yml of ROCm/.github, which holds for every repository of ROCm
without its own), PyTorch's "Bug Report" (bug-report.yml), and the bug template of drm/amd on
gitlab.freedesktop.org. Every value from the box stands in code, so none can format, link or call anybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from helpers.look import framework, kernel_log, kfd, nvidia, rocm, rocminfo
from helpers.look.bundle import Bundle
from helpers.look.gpus import gpus, host_pools
from helpers.look.machine import machine
from helpers.look.reading import Reading
from helpers.shapes import Verdict

from .tables import cut, one_source, plain, pools_table
from .verdict import alternatives, headline, label, rows, summary, sums

MOST_LINES = 120
WIDE = 160
COMPONENTS = {
    "ttm-gtt-cap": "ROCK-Kernel-Driver",
    "driver-leak": "ROCK-Kernel-Driver",
    "hsa-pool-cap": "ROCR-Runtime",
    "metric-misreport": "rocm_smi_lib or amdsmi",
    "library-workspace": "hipBLAS",
    "unsupported-gfx": "HIP",
}
EXPECTED = {
    "ttm-gtt-cap": "The GPU of an APU may use the RAM that its owner sets aside for it; every layer reports that limit.",
    "hsa-pool-cap": "The runtime offers as much memory as the driver reports.",
    "driver-leak": "When the last process that held memory has ended, the driver reports it as free.",
    "stale-holder": "A process that has ended holds no GPU memory.",
    "metric-misreport": "Tools report the same use of the same memory.",
    "config-ineffective": "A documented setting takes effect, or is refused with a message.",
    "expandable-segments-unsupported": "expandable_segments either works on this build or is refused with a message.",
    "unsupported-gfx": "The build names the GPUs that it supports and refuses others with a message.",
    "allocator-fragmentation": "A request that fits the memory which the allocator holds free is served.",
    "version-mismatch": "Releases that do not fit each other are refused with a message that names them.",
}
TYPICAL = "A request that is smaller than the memory which every layer reports as free is served."


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
    where, form = TRACKERS[tracker]
    title = (
        headline(case.verdict)
        if case.verdict
        else "Out of GPU memory, cause not told by the evidence"
    )
    lines = [
        f"<!-- For {where}. Title: {re.sub('[-<>]{2,}|[<>]', '-', plain(title))}",
        "Read it before you send it. -->",
        "",
        *form(case),
    ]
    if len(lines) > MOST_LINES:
        cut_off = len(lines) - MOST_LINES + 4
        fenced = sum(line.startswith("```") for line in lines[:-cut_off]) % 2
        lines = [
            *lines[:-cut_off],
            *(["```"] if fenced else []),
            "",
            f"[{cut_off} lines left out; {case.evidence}]",
        ]
    return "\n".join(lines) + "\n"


def _rocm(case: Case) -> list[str]:
    component = COMPONENTS.get(case.verdict.cause, "") if case.verdict else ""
    agents = (
        [
            f"{a.name.show()} {a.marketing_name.show()}"
            for a in rocminfo.agents(case.bundle)
            if a.kind == "gpu"
        ]
        if case.bundle
        else []
    )
    parts = [
        ("Problem Description", [*_seen(case), "", *_expected(case)]),
        ("Operating System", [_os(case)]),
        ("CPU", [_cpu(case)]),
        ("GPU", _gpus(case)),
        ("ROCm Version", [_code("; ".join(_rocm_releases(case)))]),
        (
            "ROCm Component",
            [component or "not available because the evidence does not point to one component"],
        ),
        ("Steps to Reproduce", _steps(case)),
        (
            "(Optional for Linux users) Output of /opt/rocm/bin/rocminfo --support",
            [
                _missing("it was not run")
                + (f"; rocminfo names {_code(', '.join(agents))}" if agents else "")
            ],
        ),
        (
            "Additional Information",
            [
                *_evidence(case),
                "",
                "Versions:",
                *_fence(_versions(case)),
                *_memory(case),
                *_log(case),
                "",
                _attached(case),
            ],
        ),
    ]
    return [line for title, body in parts for line in (f"### {title}", "", *body, "")]


def _pytorch(case: Case) -> list[str]:
    return [
        "### \N{BUG} Describe the bug",
        "",
        *_seen(case),
        "",
        *_expected(case),
        "",
        "Steps:",
        "",
        *_steps(case),
        "",
        *_evidence(case),
        *_memory(case),
        *_log(case),
        "",
        _attached(case),
        "",
        "### Versions",
        "",
        "Read from the box by VRAM Casebook, with the names of `collect_env.py`:",
        *_fence(_versions(case)),
    ]


def _amdgpu(case: Case) -> list[str]:
    driver = _shown(case, kfd.driver_version)
    return [
        "## Brief summary of the problem:",
        "",
        *_seen(case),
        "",
        *_expected(case),
        "",
        "## Hardware description:",
        "",
        f" - CPU: {_cpu(case)}",
        *(f" - GPU: {line}" for line in _gpus(case)),
        f" - System Memory: {_shown(case, lambda b: machine(b).ram_total)}",
        f" - Display(s): {_missing('the bundle holds no displays')}",
        f" - Type of Display Connection: {_missing('the bundle holds no displays')}",
        "",
        "## System information:",
        "",
        f" - Distro name and Version: {_os(case)}",
        f" - Kernel version: {_shown(case, lambda b: machine(b).kernel)}",
        f" - Kernel parameters: {_shown(case, lambda b: machine(b).cmdline)}",
        f" - Custom kernel: {_missing('a release does not tell it; see the kernel version')}",
        f" - AMD official driver version: {driver if driver.startswith('`') else 'N/A (in-tree driver), ' + driver}",
        "",
        "## How to reproduce the issue:",
        "",
        *_steps(case),
        "",
        *_evidence(case),
        *_memory(case),
        "",
        "## Attached files:",
        "",
        "### Log files (for system lockups / game freezes / crashes)",
        "",
        *(_log(case) or [_missing("no such line was captured")]),
        "",
        _attached(case),
    ]


TRACKERS: dict[str, tuple[str, Callable[[Case], list[str]]]] = {
    "rocm": ("github.com/ROCm/ROCm/issues", _rocm),
    "rocm-systems": ("github.com/ROCm/rocm-systems/issues", _rocm),
    "pytorch": ("github.com/pytorch/pytorch/issues", _pytorch),
    "linux-amdgpu": ("gitlab.freedesktop.org/drm/amd/-/issues", _amdgpu),
}


def _seen(case: Case) -> list[str]:
    if case.verdict is None:
        return ["Seen: " + _missing("no run came to a verdict")]
    verdict = case.verdict
    words = _code(headline(verdict)) if verdict.cause == "other" else headline(verdict)
    return [
        f"**Seen:** {words} (`{verdict.cause}`, {label(verdict)}).",
        *([_code(cut(summary(verdict), 600))] if summary(verdict) else []),
    ]


def _expected(case: Case) -> list[str]:
    return [
        f"**Expected:** {EXPECTED.get(case.verdict.cause, TYPICAL) if case.verdict else TYPICAL}"
    ]


def _steps(case: Case) -> list[str]:
    own = _missing("no program was recorded; put the smallest one that shows it here")
    return [
        f"1. {own}",
        *(
            f"{number}. It was seen with VRAM Casebook: {_code(cut(step, WIDE))}"
            for number, step in enumerate(case.steps, 2)
        ),
    ]


def _evidence(case: Case) -> list[str]:
    if case.verdict is None:
        return []
    out = ["Evidence:"]
    for title, items in (("", rows(case.verdict)[:10]), ("against it: ", case.verdict.against[:4])):
        out += [
            f"- {title}{_code(cut(e.says, WIDE))} {_code(cut(e.reading.show(), WIDE))} from "
            f"{_code(cut(one_source([e.reading]), WIDE))}"
            for e in items
        ]
    out += [
        f"- by the message's numbers: {_code(cut(row.says, WIDE))}" for row in sums(case.verdict)
    ]
    out += [f"- not read: {_code(cut(m.reading, WIDE))}" for m in case.verdict.missing[:4]]
    out += [f"- still open: {line}" for line in alternatives(case.verdict)[:3]]
    return [*out, f"- next step here: {_code(cut(case.verdict.next_step.what, WIDE))}"]


def _versions(case: Case) -> list[str]:
    if case.bundle is None:
        return [_missing(case.no_bundle)]
    torch, box = framework.framework(case.bundle), machine(case.bundle)
    rows = [
        ("PyTorch version", torch.version),
        ("ROCM used to build PyTorch", torch.hip),
        ("CUDA used to build PyTorch", torch.cuda),
        ("OS", box.distribution),
        ("Kernel", box.kernel),
        ("Python version", torch.python),
        ("CPU", box.cpu),
        ("RAM", box.ram_total),
        ("amdgpu out of tree", kfd.driver_version(case.bundle)),
        ("NVIDIA driver", nvidia.driver(case.bundle)),
        ("Allocator settings", torch.settings),
    ]
    rows += [("ROCm of the system", reading) for reading in rocm.rocm_versions(case.bundle)]
    return [f"{name}: {_said(reading) or '(defaults)'}" for name, reading in rows]


def _memory(case: Case) -> list[str]:
    if case.bundle is None:
        return []
    rows = pools_table([*gpus(case.bundle), *host_pools(case.bundle)], sources=False).splitlines()
    return ["", "Memory as each layer reports it:", *_fence(rows[:24])]


def _log(case: Case) -> list[str]:
    if case.bundle is None:
        return []
    kept = [
        e
        for e in kernel_log.events(case.bundle)
        if e.kind not in ("boot", "vram_ready", "gtt_ready")
    ][-8:]
    told = [f"{e.text} ({e.count} lines)" if e.count > 1 else e.text for e in kept]
    return ["", "Kernel log:", *_fence(told)] if told else []


def _attached(case: Case) -> str:
    return case.evidence or "Evidence bundle: " + _missing(case.no_bundle)


def _os(case: Case) -> str:
    return _shown(case, lambda bundle: machine(bundle).distribution)


def _cpu(case: Case) -> str:
    return _shown(case, lambda bundle: machine(bundle).cpu)


def _gpus(case: Case) -> list[str]:
    if case.bundle is None:
        return [_missing(case.no_bundle)]
    names = [
        f"{gpu.vendor} {_said(gpu.name).removeprefix(gpu.vendor + ' ')}"
        for gpu in gpus(case.bundle)
    ]
    return [
        _code(f"{names.count(name)} x {name}" if names.count(name) > 1 else name)
        for name in dict.fromkeys(names)
    ] or [_missing("the bundle shows no GPU")]


def _rocm_releases(case: Case) -> list[str]:
    if case.bundle is None:
        return [_missing(case.no_bundle)]
    found = [_said(reading) for reading in rocm.rocm_versions(case.bundle)]
    return [*found, f"torch built for HIP: {_said(framework.framework(case.bundle).hip)}"]


def _shown(case: Case, take: Callable[[Bundle], Reading]) -> str:
    if case.bundle is None:
        return _missing(case.no_bundle)
    reading = take(case.bundle)
    return _code(_said(reading)) if reading.ok else _said(reading)


def _said(reading: Reading) -> str:
    """The reading, or not available because."""
    return cut(
        reading.show()
        if reading.ok
        else f"{reading.status.replace('_', ' ')} because {reading.why}",
        WIDE,
    )


def _missing(why: str) -> str:
    return f"not available because {why}"


def _code(text: str) -> str:
    """A code span that holds any text: its fence is longer than any run of backticks inside."""
    text = plain(" ".join(text.split())) or "-"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _fence(lines: list[str]) -> list[str]:
    inside = [plain(cut(line, WIDE), keep="\t") for line in lines]
    mark = "`" * max(
        3, 1 + max((len(run) for line in inside for run in re.findall("`+", line)), default=0)
    )
    return [f"{mark}text", *inside, mark]

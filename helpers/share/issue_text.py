"""A report in the form that a tracker asks for (issue.yaml), filled from a bundle and a
verdict; what is not known says why.

It begins with the error text and the GPU, then says who should be asked where the tracker's
project is not at fault. Words stand as words; values, names and whatever in them could format,
link or call anybody stand in code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from helpers.ground.shapes import Evidence, Reading, Verdict
from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Pool, gpus, host_pools
from helpers.look.machine import machine
from helpers.tell.shown import cut, plain
from helpers.tell.tables import one_source, pools_table
from helpers.tell.verdict import alternatives, backticks, code, label, rows, summary, sums

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("issue.yaml").read_text("utf-8"))
"""The trackers, their forms, and each cause in words for those who were not there."""
TRACKERS = tuple(TABLE["trackers"])
MOST_LINES = 120
WIDE = 160
MOST_EVENTS = 8
MOST_POOLS = 24
MOST_ERROR = 24
QUIET_EVENTS = ("boot", "vram_ready", "gtt_ready")
UNTOLD = "Out of GPU memory, cause not told by the evidence"
NO_STEPS = "No program was recorded, so put the smallest one that shows it here"
FILLED = "(filled in)"
WORD = re.compile(
    r"[(\"']*(?!www\.|gh-\d|(?=\D*\d)[0-9a-f]{7,40}\b)[^\W_]+(?:[-'./,][^\W_]+)*%?[)\"'.,;:?…]*"
    r"|\(?[-+=]{1,2}",
    re.IGNORECASE,
)
"""What no renderer acts on within a line: a word, which is no address, number of an issue or
digest of a commit; a sign of sums.
"""


@dataclass(frozen=True)
class Case:
    """What a report is about.

    ``evidence`` names the file that goes with it and its digest; ``steps`` how it was seen;
    ``error`` is the text of the failure, where the bundle holds none.
    """

    verdict: Verdict | None
    bundle: Bundle | None
    no_bundle: str = ""
    steps: tuple[str, ...] = ()
    evidence: str = ""
    error: str = ""


def about_cause(verdict: Verdict | None) -> dict[str, Any]:
    """The row of issue.yaml for a verdict's cause; ``none`` where there is no verdict."""
    if verdict and verdict.state == "aside" and verdict.cause == "other":
        return TABLE["causes"]["aside"]
    return TABLE["causes"][verdict.label if verdict else "none"]


def filled_in(verdict: Verdict, bundle: Bundle | None) -> list[Evidence]:
    """The evidence whose reading no machine printed: it was filled in for a recorded box."""
    items = bundle.items if bundle else ()
    made = {word for item in items if item.constructed for word in (item.id, item.source)}
    every = [*verdict.evidence, *verdict.against]
    return [e for e in every if made & {e.reading.item, *re.split(r"; | [-+] ", e.reading.source)}]


def issue_text(tracker: str, case: Case) -> str:
    """The report for one of TRACKERS, at most 120 lines. Raises ValueError for another."""
    if tracker not in TRACKERS:
        raise ValueError(f"tracker {tracker!r}: expected one of {', '.join(TRACKERS)}")
    where, form = TABLE["trackers"][tracker].values()
    fields = {**_of_verdict(case), **_of_bundle(case), "error": _error(tracker, case)}
    title = plain(case.verdict.headline if case.verdict else UNTOLD)
    lines = [
        f"<!-- For {where}. Title: {re.sub('[-<>]{2,}|[<>]', '-', title)}",
        "Read it before you send it. -->",
        "",
        *re.sub("\n{3,}", "\n\n", TABLE["forms"][form].format_map(fields)).splitlines(),
    ]
    if len(lines) > MOST_LINES:
        left_out = len(lines) - MOST_LINES + 4
        lines = lines[:-left_out]
        if sum(line.startswith("```") for line in lines) % 2:
            lines.append("```")
        lines += ["", f"[{left_out} lines left out; {case.evidence}]"]
    return "\n".join(lines) + "\n"


def _error(tracker: str, case: Case) -> str:
    """What a report begins with: the error text, the GPUs, whose fault it is not."""
    cause = about_cause(case.verdict)
    text = case.bundle.read("message").text if case.bundle else ""
    lines = (text or case.error).strip().splitlines()[-MOST_ERROR:]
    error = f"**Error:** {_missing('no error text was handed over')}"
    names = "; ".join(_gpus(case.bundle)) if case.bundle else _missing(case.no_bundle)
    parts = [f"**Error:**\n{_fence(lines)}" if lines else error, f"**GPU:** {names}"]
    if tracker not in cause["to"]:
        parts.append(f"**Not a fault of this tracker's project:** ask {cause['instead']}.")
    if case.bundle and case.bundle.kind != "live":
        made = sum(item.constructed for item in case.bundle.items)
        box = (
            f"The box is a {case.bundle.kind} one: {made} of its {len(case.bundle.items)} readings"
        )
        parts.append(
            f"{box} were printed by no machine; the evidence from them is marked {FILLED}."
        )
    return "\n\n".join(parts)


def _of_verdict(case: Case) -> dict[str, str]:
    """The fields that a verdict fills."""
    verdict = case.verdict
    cause = about_cause(case.verdict)
    taken = ", ".join(map(_short, case.steps))
    steps = f"{NO_STEPS}; seen with VRAM Casebook in {taken}." if taken else f"{NO_STEPS}."
    nowhere = _missing("the evidence does not point to one component")
    fields = {
        "seen": f"Seen: {_missing('no run came to a verdict')}",
        "expected": f"**Expected:** {cause['expected']}",
        "component": cause.get("component", nowhere),
        "steps": steps,
        "evidence": "",
        "attached": case.evidence or f"Evidence bundle: {_missing(case.no_bundle)}",
    }
    if verdict:
        seen = f"**Seen:** {_prose(verdict.headline)} ({label(verdict)})."
        fields["seen"] = "\n".join(filter(None, [seen, _prose(summary(verdict), 600)]))
        lines = [f"- {line}" for line in _evidence(verdict, case.bundle)]
        fields["evidence"] = "\n".join(["Evidence:", *lines])
    return fields


def _evidence(verdict: Verdict, bundle: Bundle | None) -> list[str]:
    lines = []
    made = filled_in(verdict, bundle)
    names = {item.source for item in bundle.items} if bundle else set()
    for title, items in (("", rows(verdict)[:10]), ("against it: ", verdict.against[:4])):
        for e in items:
            mark = f" {FILLED}" if e in made and FILLED not in e.says else ""
            words = _prose(e.says).rstrip(".")
            source = one_source([e.reading])
            named = source.startswith("/") or source in names
            source = (_short if named else _prose)(source) + mark
            lines.append(f"{title}{words}: {_short(e.reading.show())} from {source}")
    lines += [f"by the message's numbers: {_prose(row.says)}" for row in sums(verdict)]
    lines += [f"not read: {_prose(missing.reading)}" for missing in verdict.missing[:4]]
    lines += [f"still open: {line}" for line in alternatives(verdict)[:3]]
    return [*lines, f"next step here: {_prose(verdict.next_step.what)}"]


def _of_bundle(case: Case) -> dict[str, str]:
    """The fields that a bundle fills; without one each says why it is empty."""
    bundle = case.bundle
    no_log = _missing("no such line was captured")
    fields = {"memory": "", "log": "", "no_log": no_log, "rocminfo": _missing("it was not run")}
    if bundle is None:
        why = _missing(case.no_bundle)
        fields |= dict.fromkeys("os cpu gpus ram kernel cmdline rocm".split(), why)
        fields |= {"gpu_items": f" - GPU: {why}", "versions": why}
        return {**fields, "driver": f"N/A (in-tree driver), {why}"}
    box = machine(bundle)
    torch = framework.framework(bundle)
    driver = kfd.driver_version(bundle)
    releases = rocm.rocm_versions(bundle)
    listed = _gpus(bundle)
    agents = (agent for agent in rocm.agents(bundle) if agent.kind == "gpu")
    kinds = ", ".join(f"{a.name.show()} {a.marketing_name.show()}" for a in agents)
    read = {"os": box.distribution, "cpu": box.cpu, "ram": box.ram_total}
    read |= {"kernel": box.kernel, "cmdline": box.cmdline, "nvidia": nvidia.driver(bundle)}
    read |= {name: getattr(torch, name) for name in ("version", "hip", "cuda", "python")}
    read |= {"driver": driver, "settings": torch.settings}
    versions = {words: read[name] for words, name in TABLE["versions"].items()}
    made = {item.id for item in bundle.items if item.constructed}
    shown = [
        f"{name}: {_value(one) or '(defaults)'}"
        for name, one in [*versions.items(), *(("ROCm of the system", one) for one in releases)]
    ]
    models = f"GPU models and configuration: {'; '.join(line.strip('`') for line in listed)}"
    items: list[Gpu | Pool] = [*gpus(bundle), *host_pools(bundle)]
    pools = str(pools_table(items).without("source")).splitlines()
    layers = [pool for item in items for pool in getattr(item, "pools", [item])]
    mark = " " + FILLED if {pool.total.item for pool in layers} & made else ""
    events = [e for e in kernel_log.events(bundle) if e.kind not in QUIET_EVENTS][-MOST_EVENTS:]
    log = [f"{e.text} ({e.count} lines)" if e.count > 1 else e.text for e in events]
    return {
        **fields,
        **{name: _shown(read[name]) for name in ("os", "cpu", "ram", "kernel", "cmdline")},
        "gpus": "\n".join(listed),
        "gpu_items": "\n".join(f" - GPU: {line}" for line in listed),
        "driver": ("" if driver.ok else "N/A (in-tree driver), ") + _shown(driver),
        "rocm": "; ".join([*map(_shown, releases), f"torch for HIP {_shown(torch.hip)}"]),
        "rocminfo": fields["rocminfo"] + (f"; rocminfo names {code(kinds)}" if kinds else ""),
        "versions": _fence([*shown, models]),
        "memory": f"Memory as each layer reports it{mark}:\n{_fence(pools[:MOST_POOLS])}",
        "log": f"Kernel log:\n{_fence(log)}" if log else "",
        "no_log": "" if log else no_log,
    }


def _gpus(bundle: Bundle) -> list[str]:
    vendors = [(gpu.vendor, _value(gpu.name)) for gpu in gpus(bundle)]
    names = [f"{vendor} {name.removeprefix(vendor + ' ')}" for vendor, name in vendors]
    counts = {name: names.count(name) for name in names}
    shown = [code(f"{count} x {name}" if count > 1 else name) for name, count in counts.items()]
    return shown or [_missing("the bundle shows no GPU")]


def _shown(reading: Reading) -> str:
    return (_short if reading.ok else _prose)(_value(reading))


def _value(reading: Reading) -> str:
    """The reading, or not available because."""
    why = f"{reading.status.replace('_', ' ')} because {reading.why}"
    return cut(reading.show() if reading.ok else why, WIDE)


def _missing(why: str) -> str:
    return f"not available because {_prose(why)}"


def _prose(text: str, longest: int = WIDE) -> str:
    """The text with all that is not plain words in code; so is a number at its start, which
    could begin a list.
    """
    parts = []
    said = enumerate(plain(cut(" ".join(text.split()), longest)).split())
    for words, found in groupby(
        said, lambda w: bool(WORD.fullmatch(w[1])) and (w[0] > 0 or any(map(str.isalpha, w[1])))
    ):
        run = " ".join(word for _, word in found)
        inside = run if words else run.rstrip(",.;:") or run
        parts.append(run if words else code(inside) + run[len(inside) :])
    return " ".join(parts)


def _short(text: str) -> str:
    return code(cut(text, WIDE), "`-`")


def _fence(lines: list[str]) -> str:
    inside = [plain(cut(line, WIDE), keep="\t") for line in lines]
    mark = "`" * max(3, 1 + max(map(backticks, inside), default=0))
    return "\n".join([f"{mark}text", *inside, mark])

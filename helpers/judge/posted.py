"""What is evidence in what was posted or captured: processes, figures, settings, versions,
chips and containers.

Of a tool's list of processes (nvidia-smi's table and CSV, gpustat, rocm-smi --showpids, ps,
fuser, lsof) only rows in the tool's own form are read; a description of an output gives none.
The forms are data: posted.json, whose ``lists`` are of processes (``of``: what their text or
its source must have), and forms.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from helpers.ground.units import GIB, MIB, printed_size, show_bytes
from helpers.judge import form, table
from helpers.judge.binding import decide, numbers_of
from helpers.judge.evidence import (
    LONGEST_TEXT,
    CaseEvidence,
    Observation,
    is_described,
    note,
    texts,
    vendor_of,
)
from helpers.look.bundle import Text
from helpers.look.figures import Figure, figures_of, figures_of_message
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, card_sizes, gpu_kind, is_unified_size
from helpers.look.relations import relations

if TYPE_CHECKING:
    from helpers.settings.table import Finding

NAMES = ("gpu", "gfx", "card", "device", "chip")
KINDS = {APU: "apu", UNIFIED: "unified-memory", CARD: "card"}
LAYERS = {
    "ttm-gtt-cap": "ttm",
    "carveout-only": "carveout",
    "hsa-pool-cap": "hsa",
    "metric-misreport": "metric",
}
SETTINGS = {"misspelt": "setting-misspelt", "too_late": "setting-late"}
SETTINGS.update(dict.fromkeys(("ineffective", "shadowed", "unsupported"), "setting-inert"))
SETTINGS.update(dict.fromkeys(("contradictory", "dangerous"), "setting-cause"))
"""The observation that a verdict of the settings' audit is."""
EXPANDABLE = "expandable-segments-unsupported"
STATES = {"zombie-listed": ("Z",), "stopped-listed": ("T", "t"), "orphan-listed": ("orphan",)}


def posted_observations(evidence: CaseEvidence) -> list[Observation]:
    """Processes, figures, settings with their own verdicts, versions that do not fit, chips
    without code, containers.
    """
    readers = (process_observations, size_observations, _settings, _wheels, _chips, _container)
    return [one for reader in readers for one in reader(evidence)]


def _settings(evidence: CaseEvidence) -> Iterator[Observation]:
    """Variables and kernel parameters that are misspelt, inert, too late or dangerous, and two
    that other causes ask for.
    """
    bundle = evidence.bundle
    given = evidence.variables
    found = []
    code = [text for _, _, text in texts(evidence) if form("in code").search(text)]
    posted = [text for _, text in evidence.tools if form("kernel parameter").search(text)]
    if bundle is not None or given or code:
        # Their tables are for settings alone.
        from helpers.settings import assignments, audit

        if bundle is not None:
            from helpers.look.access import variables

            given = tuple((v.name, v.value) for v in variables(bundle))
            found += [(one, "bundle") for one in audit.audit_box(bundle)]
        else:
            build = "rocm" if is_hip(evidence) else "cuda"  # where nothing of AMD's is spoken of
            facts = (evidence.fact("torch"), build, evidence.fact("gfx"))
            # "True (second attempt)" is a person's words, and those are not read.
            plain = {name: value for name, value in given if "(" not in value}
            found += [(one, "environment") for one in audit.audit(plain, *facts)]
        late = [one for text in code for one in assignments.late_assignments(text)]
        found += [(one, "environment" if bundle is None else "bundle") for one in late]
    if bundle is not None or posted:
        from helpers.settings.kernel_parameters import audit_cmdline, audit_kernel

        found += [(one, "bundle") for one in audit_kernel(bundle)] if bundle else []
        found += [(one, "tool") for text in posted for one in audit_cmdline(text)]
    for one, origin in found:
        yield from _of_setting(one, origin)
    for name, value in given:
        origin = "environment" if bundle is None else "bundle"
        if "ALLOC_CONF" in name and re.search(r"expandable_segments:\s?True", value):
            yield note("expandable-on", f"{name}={value}", "variables", origin)
        if name == "HSA_OVERRIDE_GFX_VERSION":
            yield note("gfx-override", value, name, origin)


def _of_setting(one: Finding, origin: str) -> Iterator[Observation]:
    name = SETTINGS.get(one.verdict)
    if name is None or not one.carries_cause:
        return
    if one.cause == EXPANDABLE:
        name = "setting-expandable" + ("-danger" if one.verdict == "dangerous" else "")
    words = f"{one.name}={one.value}" if one.value else one.name
    says = one.says + (f" ({one.why})" if one.why else "")
    yield note(name, words, one.source or "the table of settings", origin, says)


def _wheels(evidence: CaseEvidence) -> Iterator[Observation]:
    """torchaudio has torch's number; torchvision 0.(N+15) goes with torch 2.N, 0.(N+1) with 1.N
    (release tables).
    """
    got: dict[str, tuple[int, int]] = {}
    source = ""
    for _, name, text in texts(evidence):
        for package, major, minor in form("wheel").findall(f"{name}: {text}"):
            if package.lower() not in got:
                got[package.lower()] = (int(major), int(minor))
                source = name
    if "torch" not in got:
        return
    major, minor = got["torch"]
    right = {"torchvision": (0, minor + 15), "torchaudio": (major, minor)}
    if major != 2:
        right = {"torchvision": (0, minor + 1), "torchaudio": (0, minor)}
    for package, version in right.items():
        if got.get(package, version) != version:
            words = f"{package} {got[package][0]}.{got[package][1]}"
            yield note("wheels-differ", words, source, "tool", torch=f"{major}.{minor}")


def _chips(evidence: CaseEvidence) -> Iterator[Observation]:
    """A chip that is not in a list of targets, or that is newer than the CUDA release."""
    chip = form("chip").search(re.split(r" (?:as|presented)\b", evidence.fact("gfx"))[0])
    for origin, source, text in texts(evidence):
        about = form("targets").search(f"{source} {text[:200]}")
        if chip and about and origin in ("tool", "message"):
            listed = set(form("chip").findall(" ".join(form("chips").findall(text))))
            if listed and chip[1] not in listed:
                names = "gfx" + ", gfx".join(sorted(listed)[:12])
                yield note("gfx-not-in-targets", chip.group(), source, "tool", targets=names)
                break
    torch, cuda, gpu = (evidence.fact(name) for name in ("torch", "cuda", "gpu"))
    said = form("CUDA build").search(torch) or form("CUDA").match(cuda)
    rows = (row["cuda"] for row in table("toolkits") if re.search(row["names"], gpu, re.IGNORECASE))
    needed = next(rows, None)  # the newer chips stand first
    if said and needed and not is_hip(evidence):
        version = [int(part) for part in said.groups() if part]
        if version < [int(part) for part in needed.split(".")]:
            words = f"CUDA {version[0]}.{version[1]}"
            yield note("toolkit-older-than-chip", words, "cuda", "environment", needed=needed)


def _container(evidence: CaseEvidence) -> Iterator[Observation]:
    """How a container was started: devices passed without the group that owns them, or not passed."""
    for origin, source, text in texts(evidence):
        if origin not in ("tool", "message") or not form("container").search(f"{source} {text}"):
            continue
        kfd = "/dev/kfd" in text
        dri = "/dev/dri" in text
        if re.search(r"--privileged|privileged: true", text) or not (kfd or dri):
            continue
        groups = re.findall(r"--group-add[= ]+(\S{1,40})", text)
        render = any(g in ("render", "keep-groups") or g.isdigit() for g in groups)
        if kfd and groups and not render:
            yield note("group-missing-in-run", " ".join(groups), source, origin)
        if kfd != dri:
            yield note("device-missing-in-run", text[:120], source, origin)
    container = evidence.fact("container")
    if container and container.lower() not in ("none", "no"):
        yield note("in-container", container[:80], "container", "environment")


def is_hip(evidence: CaseEvidence) -> bool:
    """Whether the program runs on ROCm: by its message, or by what is said of the stack."""
    said = " ".join(evidence.fact(name) for name in ("torch", "rocm", "gpu", "gfx"))
    named = re.search(r"rocm|hip|amd|radeon|instinct|gfx\d", said, re.IGNORECASE)
    return any(m.backend == "hip" for m in evidence.messages) or bool(named)


def kind_of(evidence: CaseEvidence) -> str:
    """apu, card, nvidia-unified or unknown: by the GPU's own names first, then by what the
    texts name.
    """
    total = next((m.capacity.bytes for m in evidence.messages if m.capacity), None)
    # "gfx1035 as gfx1030": the chip is the first, the second is what it is passed off as.
    facts = [value for name, value in evidence.facts if name in NAMES]
    own = [re.split(r" (?:as|presented|seen)\b", value)[0] for value in facts]
    kind = gpu_kind(own, (), evidence.bundle, total)
    if kind != UNKNOWN:
        return kind
    said = [text for _, text in evidence.tools] + [evidence.error_text]
    kind = gpu_kind(facts + said, (), evidence.bundle, total)
    if kind == UNKNOWN and total and vendor_of(evidence.messages) == "NVIDIA":
        return UNIFIED if is_unified_size(total) else kind
    return kind


def size_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the figures say of each other, what kind of GPU it is, and which ceiling binds."""
    kind = kind_of(evidence)
    found = []
    figures = list(figures_of(texts(evidence)))
    for message in evidence.messages:
        figures += figures_of_message(message)
    if kind in KINDS:
        found.append(note(KINDS[kind], kind, "the GPU's own name", "environment"))
    names = [value for name, value in evidence.facts if name in NAMES]
    cards = len({f.bytes for f in figures if f.what == "total" and f.pool == "vram"})
    for relation in relations(figures, kind, card_sizes(names), is_hip(evidence)):
        first = relation.figures[0]
        name = relation.name
        if name == "above-hardware" and kind == CARD and cards > 1:
            continue  # which of several cards it is, is not known
        if name == "runtime-below-driver" and kind == CARD:
            name = "runtime-below-card"
        if name == "totals-differ" and all(f.pool == "runtime" for f in relation.figures):
            name = "runtime-totals-differ"
        value = first.text if first.bytes is None else first.bytes
        made = note(name, value, first.source, first.origin, relation.says, relation.hard)
        found.append(made)
    pools = ("vram", "runtime", "gtt") if kind == APU else ("vram", "runtime")
    used = [f for f in figures if f.what == "used" and f.pool in pools]
    most = max(used, key=lambda f: f.bytes or 0, default=None)
    if most is not None and (most.bytes or 0) > GIB // 2 and not evidence.messages:
        found.append(
            note("card-in-use", most.bytes, most.source, most.origin, hard=not most.hearsay)
        )
    ram = max((f.bytes or 0 for f in figures if f.what == "total" and f.pool == "ram"), default=0)
    needs = [f for f in figures if f.what == "wanted" and f.pool in ("runtime", "weights")]
    for f in [need for need in needs if ram and (need.bytes or 0) > ram][:1]:
        name = "needs-more-than-ram"
        whole = show_bytes(ram)
        found.append(note(name, f.bytes, f.source, f.origin, hard=not f.hearsay, ram=whole))
    # Where RAM is shared, a total may be a limit.
    found += _above_the_named_card(evidence, names, [] if kind in (APU, UNIFIED) else figures)
    return [*found, *_ceilings(evidence, figures, kind)]


def _above_the_named_card(
    evidence: CaseEvidence, names: list[str], figures: list[Figure]
) -> Iterator[Observation]:
    """A request without a total beside it that is larger than the card which is named, or than
    every total posted.
    """
    said = [printed_size(size) for text in names for size in form("named size").findall(text)]
    said += [f.bytes or 0 for f in figures if f.what == "total" and f.pool in ("vram", "runtime")]
    largest = max([*(size * GIB for size in card_sizes(names)), *said], default=0)
    for message in evidence.messages:
        if largest and message.requested and not message.capacity and message.side == "device":
            if message.requested.bytes > largest:
                words = message.requested.text
                total = show_bytes(largest)
                yield note("request-above-card", words, "error text", "message", total=total)
                return


def _ceilings(evidence: CaseEvidence, figures: list[Figure], kind: str) -> Iterator[Observation]:
    """The one decision about ceilings, of the box or of the figures that were posted."""
    total = next((m.capacity.bytes for m in evidence.messages if m.capacity), None)
    if evidence.bundle is not None:
        from helpers.judge.ceilings import ceiling_answer

        answers = ceiling_answer(evidence.bundle, total)
        hearsay = set()
        origin = "bundle"
    else:
        kernel = evidence.fact("kernel")
        failed = bool(evidence.messages)
        given = numbers_of(figures, kind, kernel, is_hip(evidence), failed)
        answers = [decide(given)]
        hearsay = set(given.hearsay)
        origin = "tool"
    for answer in answers:
        layer = LAYERS.get(answer.cause)
        if layer is None:
            continue
        name = f"ceiling-{layer}" + ("-hint" if answer.confidence == "weak" else "")
        size = answer.pattern if answer.binding_bytes is None else answer.binding_bytes
        hard = not set(answer.rests) & hearsay
        proof = answer.confidence == "confirmed"
        found = note(name, size, "the layers' totals", origin, answer.says, hard, proof)
        yield replace(found, filled=answer.filled)
        if evidence.bundle is not None:
            from helpers.judge.box import layer_observations

            yield from layer_observations(evidence.bundle, name)


@dataclass(frozen=True)
class PostedProcess:
    """One process as a tool listed it; ``state`` is ps's letter, ``gpu`` the tool's index
    (None: it names none).
    """

    pid: int | None
    name: str
    bytes: int | None
    gpu: int | None
    state: str
    source: str


def processes(evidence: CaseEvidence) -> tuple[PostedProcess, ...]:
    """Every process row of the posted tools."""
    return tuple(r for source, text in evidence.tools for r in _rows(source, text[:LONGEST_TEXT]))


def _rows(source: str, text: str) -> Iterator[PostedProcess]:
    for data in table("posted")["lists"].values():
        if not re.search(data.get("of", ""), f"{source}\n{text[:200]}"):
            continue
        for match in re.finditer(data["form"], text):
            got = match.groupdict()
            mib = got.get("mib")
            gpu = got.get("gpu")
            name = (got.get("name") or "").strip()
            size = int(mib) * MIB if mib else None
            index = int(gpu) if gpu else None
            state = data.get("state") or (got.get("state") or "")[:1]
            pids = re.findall(r"\d{2,9}", got["pids"]) if "pids" in got else [got.get("pid")]
            for pid in pids:
                yield PostedProcess(int(pid) if pid else None, name, size, index, state, source)
    if "PID" in text and "KFD" in text or "showpids" in source:
        from helpers.look import rocm

        for row in rocm.parse_pids(Text(text, "ok", "", source, "")):
            size = row.vram.bytes if row.vram.ok else None
            yield PostedProcess(row.pid, row.name, size, None, "", source)


def process_observations(evidence: CaseEvidence) -> list[Observation]:
    """What the rows say of who holds the memory."""
    rows = processes(evidence)
    holders = [row for row in rows if row.bytes is not None]
    found = [*_of_holders(holders), *_of_states(rows), *_membership(evidence)]
    for source, text in evidence.tools:
        if form("openers").search(source) and form("nothing").search(text):
            found.append(note("no-openers", "(no output)", source, "tool"))
        node = form("node").search(text)
        if node and "rw" not in node["mode"][3:]:
            found.append(note("node-root-only", node.group()[:80], source, "tool"))
        match = form("empty").search(text)
        if match and not holders:
            hard = not is_described(text)
            found.append(note("list-empty", match.group(), source, "tool", hard=hard))
    return found


def _membership(evidence: CaseEvidence) -> Iterator[Observation]:
    """A node that is for a group alone, beside an ``id`` that does not name that group.

    Root needs none.
    """
    users = [m for _, text in evidence.tools for m in form("id").finditer(text)]
    if len(users) != 1 or users[0].group().startswith("uid=0"):
        return
    theirs = users[0]["groups"]
    node_form = form("group's node")
    nodes = ((m, source) for source, text in evidence.tools for m in node_form.finditer(text))
    for node, source in nodes:
        group = node["group"]
        if group not in re.findall(r"[\w.-]+", theirs):
            yield note("not-in-group", node["node"], source, "tool", group=group, groups=theirs)
            return


def _of_holders(holders: list[PostedProcess]) -> Iterator[Observation]:
    big = [(row.bytes, row) for row in holders if row.bytes and row.bytes > GIB]
    if big:
        size, most = max(big, key=lambda one: one[0])
        yield note("process-listed", size, most.source, "tool", who=most.name or most.pid)
    nameless = next((row for row in holders if form("nameless").search(row.name)), None)
    if nameless is not None:
        yield note("nameless-listed", f"{nameless.pid} {nameless.name}", nameless.source, "tool")
    pids = sorted({row.pid for _, row in big if row.pid})
    sizes = [size for size, _ in big]
    if len(pids) >= 3 and max(sizes) <= 1.1 * min(sizes):
        yield note("equal-processes", str(pids[:8]), big[0][1].source, "tool")
    where: dict[int, set[int]] = {}
    for row in holders:
        if row.gpu is not None and row.pid:
            where.setdefault(row.pid, set()).add(row.gpu)
    spread = [pid for pid, gpus in where.items() if len(gpus) > 1]
    shared = set.intersection(*(where[pid] for pid in spread)) if spread else set()
    if shared and (len(spread) > 1 or 0 in shared):
        yield note("rank-on-two-gpus", str(spread[:8]), holders[0].source, "tool")
    if holders and not any(row.bytes for row in holders):
        words = holders[0].name or str(holders[0].pid)
        yield note("listed-with-nothing", words, holders[0].source, "tool")


def _of_states(rows: tuple[PostedProcess, ...]) -> Iterator[Observation]:
    for name, states in STATES.items():
        row = next((row for row in rows if row.state in states), None)
        if row is not None:
            yield note(name, f"{row.pid} {row.name}", row.source, "tool")
    opened = [row for row in rows if row.state == "open"]
    if opened:
        pids = ", ".join(str(row.pid) for row in opened[:8])
        yield note("device-open", pids, opened[0].source, "tool")


def figure_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """That there is a figure at all, torch's statistics, series of one figure over time."""
    statistics: dict[str, int] = {}
    for source, text in evidence.tools:
        for name, number, unit in form("statistic").findall(text):
            statistics.setdefault(name.lower(), printed_size(number, unit))
        names_a_tool = form("tool").search(f"{source} {text[:300]}")
        if names_a_tool and form("figure").search(text) and not is_described(text):
            yield note("tool-figure", text[:80], source, "tool")
        yield from _series(source, text)
    if statistics.get("reserved", 0) > 1.5 * statistics.get("allocated", 1e15):
        words = ", ".join(f"{name} {show_bytes(n)}" for name, n in statistics.items())
        live = statistics["allocated"] > 0
        name = "reserved-far-above-allocated" if live else "reserved-and-nothing-live"
        yield note(name, words, "torch's statistics", "tool")


def _series(source: str, text: str) -> Iterator[Observation]:
    """At least three readings of one figure that only rise, a line each or in one line."""
    kinds = form("series").findall(source) or form("series").findall(text[:80])
    if not kinds or is_described(text) or len(text) > 4000:
        return
    lines = [form("counter").sub("", line) for line in text.splitlines()]
    sizes = [float(number) for line in lines for number in form("number").findall(line)]
    if len(sizes) < 3 or (len(lines) > 1 and len(sizes) != len(lines)):
        return
    if all(a < b for a, b in zip(sizes, sizes[1:])) and sizes[-1] > 1.2 * sizes[0]:
        words = ", ".join(f"{size:g}" for size in sizes[:8])
        reserved = "reserved" in [kind.lower() for kind in kinds]
        yield note("reserved-series-grows" if reserved else "series-grows", words, source, "tool")

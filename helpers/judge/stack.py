"""What figures, settings, versions, chips and containers are evidence of, as they were posted or captured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.judge import form, table
from helpers.judge.binding import decide, numbers_of
from helpers.judge.evidence import CaseEvidence, Observation, note, texts, vendor_of
from helpers.look.figures import Figure, figures_of, figures_of_message
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, card_sizes, gpu_kind, is_unified_size
from helpers.look.reading import GIB, show_bytes
from helpers.look.relations import relations
from helpers.units import printed_size

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
SETTINGS = {
    "misspelt": "setting-misspelt",
    "too_late": "setting-late",
    "ineffective": "setting-inert",
    "shadowed": "setting-inert",
    "unsupported": "setting-inert",
    "contradictory": "setting-cause",
    "dangerous": "setting-cause",
}
EXPANDABLE = "expandable-segments-unsupported"


def stack_observations(evidence: CaseEvidence) -> list[Observation]:
    """Figures, settings with their own verdicts, versions that do not fit, chips without code, and how a container was started."""
    readers = (size_observations, _settings, _wheels, _chips, _container)
    return [one for reader in readers for one in reader(evidence)]


def _settings(evidence: CaseEvidence) -> Iterator[Observation]:
    """Variables and kernel parameters that are misspelt, inert, too late or dangerous, and two that other causes ask for."""
    bundle, given, found = evidence.bundle, evidence.variables, []
    code = [text for _, _, text in texts(evidence) if form("in code").search(text)]
    posted = [text for _, text in evidence.tools if form("kernel parameter").search(text)]
    if bundle is not None or given or code:
        from helpers.settings import audit  # its tables are for settings alone

        if bundle is not None:
            from helpers.look.environment import variables

            given = tuple((v.name, v.value) for v in variables(bundle))
            found += [(one, "bundle") for one in audit.audit_box(bundle)]
        else:
            build = "rocm" if is_hip(evidence) else "cuda"  # where nothing of AMD's is spoken of
            facts = (evidence.fact("torch"), build, evidence.fact("gfx"))
            found += [(one, "environment") for one in audit.audit(dict(given), *facts, True)]
        late = [one for text in code for one in audit.late_assignments(text)]
        found += [(one, "environment" if bundle is None else "bundle") for one in late]
    if bundle is not None or posted:
        from helpers.settings import kernel

        found += [(one, "bundle") for one in kernel.audit_kernel(bundle)] if bundle else []
        found += [(one, "tool") for text in posted for one in kernel.audit_cmdline(text)]
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
    yield note(name, words, one.source or "the table of settings", origin, says, not one.hearsay)


def _wheels(evidence: CaseEvidence) -> Iterator[Observation]:
    """torchaudio has torch's number; torchvision 0.(N+15) goes with torch 2.N, 0.(N+1) with 1.N (release tables)."""
    got: dict[str, tuple[int, int]] = {}
    source = ""
    for origin, name, text in texts(evidence):
        for package, major, minor in form("wheel").findall(f"{name}: {text}"):
            if origin != "narrative" and package.lower() not in got:
                got[package.lower()], source = (int(major), int(minor)), name
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
        if (
            chip
            and origin in ("tool", "message")
            and form("targets").search(f"{source} {text[:200]}")
        ):
            listed = set(form("chip").findall(" ".join(form("chips").findall(text))))
            if listed and chip[1] not in listed:
                names = "gfx" + ", gfx".join(sorted(listed)[:12])
                yield note("gfx-not-in-targets", chip.group(), source, "tool", targets=names)
                break
    said = form("CUDA build").search(evidence.fact("torch")) or form("CUDA").match(
        evidence.fact("cuda")
    )
    gpu = evidence.fact("gpu")
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
        kfd, dri = "/dev/kfd" in text, "/dev/dri" in text
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
    """apu, card, nvidia-unified or unknown: by the GPU's own names first, then by what the texts name."""
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
    kind, found = kind_of(evidence), []
    figures = list(figures_of(texts(evidence)))
    for message in evidence.messages:
        figures += figures_of_message(message)
    if kind in KINDS:
        found.append(note(KINDS[kind], kind, "the GPU's own name", "environment"))
    names = [value for name, value in evidence.facts if name in NAMES]
    cards = len({f.bytes for f in figures if f.what == "total" and f.pool == "vram"})
    for relation in relations(figures, kind, card_sizes(names), is_hip(evidence)):
        first, name = relation.figures[0], relation.name
        if name == "above-hardware" and kind == CARD and cards > 1:
            continue  # which of several cards it is, is not known
        if name == "runtime-below-driver" and kind == CARD:
            name = "runtime-below-card"
        if name == "totals-differ" and all(f.pool == "runtime" for f in relation.figures):
            name = "runtime-totals-differ"
        value = first.text if first.bytes is None else first.bytes
        made = note(name, value, first.source, first.origin, relation.says, relation.hard)
        found.append(replace(made, filled=any(f.filled for f in relation.figures)))
    pools = ("vram", "runtime", "gtt") if kind == APU else ("vram", "runtime")
    used = [f for f in figures if f.what == "used" and f.pool in pools]
    most = max(used, key=lambda f: f.bytes or 0, default=None)
    if most is not None and (most.bytes or 0) > GIB // 2 and not evidence.messages:
        found.append(note("card-in-use", most.bytes, most.source, most.origin, hard=most.read))
    ram = max((f.bytes or 0 for f in figures if f.what == "total" and f.pool == "ram"), default=0)
    needs = [f for f in figures if f.what == "wanted" and f.pool in ("runtime", "weights")]
    for f in [need for need in needs if ram and (need.bytes or 0) > ram][:1]:
        name, whole = "needs-more-than-ram", show_bytes(ram)
        found.append(note(name, f.bytes, f.source, f.origin, hard=f.read, ram=whole))
    # Where RAM is shared, a total may be a limit.
    found += _above_the_named_card(evidence, names, [] if kind in (APU, UNIFIED) else figures)
    return [*found, *_ceilings(evidence, figures, kind)]


def _above_the_named_card(
    evidence: CaseEvidence, names: list[str], figures: list[Figure]
) -> Iterator[Observation]:
    """A request without a total beside it that is larger than the card which is named, or than every total posted."""
    said = [printed_size(size) for text in names for size in form("named size").findall(text)]
    said += [f.bytes or 0 for f in figures if f.what == "total" and f.pool in ("vram", "runtime")]
    largest = max([*(size * GIB for size in card_sizes(names)), *said], default=0)
    for message in evidence.messages:
        if largest and message.requested and not message.capacity and message.side == "device":
            if message.requested.bytes > largest:
                words, total = message.requested.text, show_bytes(largest)
                yield note("request-above-card", words, "error text", "message", total=total)
                return


def _ceilings(evidence: CaseEvidence, figures: list[Figure], kind: str) -> Iterator[Observation]:
    """The one decision about ceilings, of the box or of the figures that were posted."""
    total = next((m.capacity.bytes for m in evidence.messages if m.capacity), None)
    if evidence.bundle is not None:
        from helpers.judge.ceilings import ceiling_answer

        answers, hearsay, origin = ceiling_answer(evidence.bundle, total), set(), "bundle"
    else:
        kernel, failed = evidence.fact("kernel"), bool(evidence.messages)
        given = numbers_of(figures, kind, kernel, is_hip(evidence), failed)
        answers, hearsay, origin = [decide(given)], set(given.hearsay), "tool"
    for answer in answers:
        layer = LAYERS.get(answer.cause)
        if layer is None:
            continue
        name = f"ceiling-{layer}" + ("-hint" if answer.confidence == "weak" else "")
        size = answer.pattern if answer.binding_bytes is None else answer.binding_bytes
        hard, proof = not set(answer.rests) & hearsay, answer.confidence == "confirmed"
        source = f"the layers' totals ({answer.pattern})"
        yield note(name, size, source, origin, answer.says, hard, proof)
        if evidence.bundle is not None:
            from helpers.judge.box import layer_observations

            yield from layer_observations(evidence.bundle, name)

"""The case studies told again: what each got wrong, what its advice is worth, and the sums of
the two that left no box.

What becomes of a claim is the ledger's word (env/claims.yaml). A case without a box gets what
its own few figures give. The words stand in cases.yaml.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from helpers.allocator.driver import Card
from helpers.allocator.engine import replay
from helpers.allocator.patterns import generate
from helpers.allocator.whatif import whatif
from helpers.ground.shapes import Evidence, Verdict, from_json, seen
from helpers.ground.units import KIB, MIB, show_bytes
from helpers.judge.owner import CONTEXT_BYTES
from helpers.settings.presets import findings, load
from helpers.settings.text import MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES
from helpers.tell.shown import Column, Shown
from helpers.trials.claims import Claim, claims
from helpers.vpoc.answer import case_arithmetic
from helpers.vpoc.reading import FOLDER, WHEEL, choose, real
from helpers.vpoc.trades import Trades

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text("utf-8"))
"""Which claims advise, what they are worth, and the words of verdicts (cases.yaml)."""
CARD_BYTES = 20464 * MIB  # an RX 7900 XT, as amdgpu counts it


def advice(which: str, *claim_ids: str) -> Shown:
    """Each remedy of a case, or of the claims that are named: harmful, folk (false, without a
    source, or tried in vain), depends or right, and why; harmful ones first.
    """
    ids = claim_ids or [f"{which}-{at}" for at in TABLE["advice"][which].split()]
    order = list(TABLE["worth"].values())
    in_vain = TABLE["in_vain"].split()
    rows = [
        ("folk" if claim.id in in_vain else TABLE["worth"][claim.verdict], claim)
        for claim in claims()
        if claim.id in ids
    ]
    return _claims("remedies", "worth", sorted(rows, key=lambda row: order.index(row[0])))


def wrong(case: str) -> Shown:
    """What else a case says that is not so, or not shown, with the reason."""
    advised = TABLE["advice"][case].split()
    mine = [claim for claim in claims() if claim.case == case and claim.id[4:] not in advised]
    return _claims("statements", "verdict", [(c.verdict, c) for c in mine if c.verdict != "true"])


def _claims(what: str, kind: str, rows: Sequence[tuple[str, Claim]]) -> Shown:
    counts = Counter(word for word, _ in rows)
    title = f"{len(rows)} {what}: {', '.join(f'{count} {word}' for word, count in counts.items())}"
    cells = [[claim.id, word, claim.claim, claim.reason] for word, claim in rows]
    return Shown(title, ["claim", kind, "it says", "what is known"], cells, widest=None)


def preset_table(name: str) -> Shown:
    """What the settings of a case do, on the build and the chip that its preset names."""
    preset = load(name)
    rows = [[f.name, f.value, f.verdict.replace("_", " "), f.says] for f in findings(preset)]
    title = f"Settings on torch {', '.join(filter(None, preset.checked))}"
    return Shown(title, ["setting", "value", "verdict", "why"], rows, widest=None)


def outside_sums(share: float = 0.99, tensors_bytes: int = 203 * KIB) -> list[tuple[str, int, str]]:
    """Whose the memory of a full card can be, beside one process with next to no tensors, when
    a request of it has failed.

    Before that, every segment with nothing in use was given back. Small tensors lie in segments
    of 2 MiB.
    """
    used = int(share * CARD_BYTES)
    cache = -(-tensors_bytes // MIN_BLOCK_BYTES) * SMALL_SEGMENT_BYTES
    sizes = (used, tensors_bytes, cache, CONTEXT_BYTES, used - cache - CONTEXT_BYTES)
    whole = f"{share:.0%} of the {show_bytes(CARD_BYTES)}"
    rows = zip(TABLE["sums"].items(), sizes, strict=True)
    return [(name, size, why.format(whole=whole)) for (name, why), size in rows]


def rows_table(title: str, rows: Sequence[Sequence[Any]], *columns: str) -> Shown:
    """Rows of this module as a table; their whole numbers are bytes."""
    heads = [
        Column(name, "bytes") if isinstance(value, int) else name
        for name, value in zip(columns, rows[0], strict=True)
    ]
    return Shown(title, heads, rows, widest=None)


def _verdict(
    name: str, evidence: Sequence[Evidence], against: Sequence[Evidence] = (), **figures: str
) -> Verdict:
    words = TABLE["verdicts"][name]
    words = {**words, "summary": words["summary"].format(**figures)}
    return replace(from_json(Verdict, words), evidence=list(evidence), against=list(against))


def outside_verdict(rows: Sequence[tuple[str, int, str]], step_bytes: int) -> Verdict:
    """Who fills a card beside a process with next to no tensors; step_bytes: what the model's
    step reserves at most.
    """
    step = ("the step, in chunks of 50 sessions, reserves at most", step_bytes)
    figures = [*((name, size) for name, size, _ in rows), step]
    source = "the case's two figures, the allocator's rules"
    evidence = [
        Evidence(id=f"figure-{at}", reading=seen(size, "bytes", source), says=name)
        for at, (name, size) in enumerate(figures, 1)
    ]
    one_hot = int(float(case_arithmetic()[3]["value"]) * 1e9)
    against = Evidence(
        id="one-hot",
        reading=seen(one_hot, "bytes", "the case's own numbers"),
        says="One-hot over one-minute bars fills most of a card alone; torch would count it",
    )
    return _verdict("outside", evidence, [against], outside=show_bytes(rows[-1][1]))


def forty_rows() -> list[list[str]]:
    """Programs that from outside are alike, replayed: when each ends, what it holds then, and
    what would have saved it.
    """
    rows = []
    build: dict[str, Any] = {"torch": "2.4.1", "build": "rocm6.3"}
    for words, changed in TABLE["programs"].items():
        trace = generate("growing_batches", **changed)
        card = Card(CARD_BYTES)
        run = replay(trace, "", card, timeline=True, **build)
        best = whatif(trace, card, confs=["", "max_split_size_mb:128"], **build)
        end = len(trace) - 1
        ends = "does not"
        if run.first_oom is not None:
            end = run.first_oom
            frame = -1 if trace.frame is None else int(trace.frame[end])  # "growing_batches:41 qkv"
            ends = f"in batch {trace.frames[frame][0].split(':')[1].split()[0]}"
        saves = best.use or "not needed"
        if best.needs_bytes:
            saves = f"no setting: {show_bytes(best.needs_bytes)} are missing"
        held = [show_bytes(int(run.column(name)[end - 1])) for name in ("reserved", "allocated")]
        rows.append([words, ends, *held, saves])
    return rows


def forty_verdict(rows: Sequence[Sequence[str]]) -> Verdict:
    """Why training ends after some forty batches, where nothing was noted but their number."""
    source = "replay of the allocator model"
    evidence = [
        Evidence(
            id=f"program-{at}",
            says=f"{words[0].upper()}{words[1:]}: what would save it: {saves}",
            reading=seen(ends, "text", source),
        )
        for at, (words, ends, _, _, saves) in enumerate(rows, 1)
    ]
    return _verdict("forty", evidence)


def trades(name: str) -> Trades:
    """Trades by name or file (``choose``); "" takes the real ones where they are at hand and
    never fetches them, and where they are not as many generated ones, which say so. Raises
    TradesError.
    """
    wheel = FOLDER / WHEEL
    if not name and wheel.is_file():
        return real(wheel)
    made = choose(name or "generated", sessions=2, trades=250_000)
    stand_in = "generated trades stand in: the real ones are not at hand"
    return made if name else replace(made, notes=(stand_in,))

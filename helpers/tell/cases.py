"""The case studies told again: what each got wrong, what its advice is worth, and the sums of the two that left no box.

What becomes of a claim is the ledger's word (env/claims.yaml). A case without a box gets what its own few figures give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.replay import replay
from helpers.allocator.whatif import whatif
from helpers.judge.account import CONTEXT_BYTES
from helpers.load.claims import Claim, claims
from helpers.load.patterns import generate
from helpers.load.vpoc import sample
from helpers.load.vpoc.memory import case_arithmetic
from helpers.load.vpoc.trades import Trades
from helpers.look.reading import KIB, MIB, seen, show_bytes
from helpers.settings.presets import findings, load
from helpers.settings.text import MIN_BLOCK_BYTES, SMALL_SEGMENT_BYTES
from helpers.shapes import Alternative, Cause, Evidence, Missing, NextStep, Verdict

from .tables import table
from .verdict import WIDE

ADVICE = {  # the claims of each case that advise something; the others say how things are
    "000": "06 07 13 16 17 18",
    "001": "03 06 07 08 09 10 11 12 13 14 16 17 18 19 20 21 23 24 25 30",
    "002": "03 07 08 09 10 11 12 15 16 19",
    "003": "02 03 04 05 06 07 11 12 13 14",
    "004": "04 05 06 07 08",
}
IN_VAIN = (
    "000-06",
    "000-13",
)  # tried by the case itself: its claim, that they did nothing, is true
WORTH = {
    "harmful": "harmful",
    "false": "folk",
    "unsupported": "folk",
    "depends": "depends",
    "true": "right",
}
CARD_BYTES = 20464 * MIB  # an RX 7900 XT, as amdgpu counts it
FORTY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lengths grow, every output is kept", {}),
    ("lengths grow faster, every output is kept", {"growth": 30}),
    ("lengths grow, nothing is kept", {"kept_share": 0.0}),
)
OPEN: tuple[Cause, ...] = ("user-leak", "true-capacity", "allocator-fragmentation")
MESSAGE = Missing(
    reading="The error message with its numbers", how="keep the text from 'out of memory' on"
)


def advice_text(which: str) -> str:
    """Each remedy of a case, or of claims named with blanks between: harmful, folk (false, without a source, or tried in vain),
    depends or right, and why; harmful ones first."""
    ids = [f"{which}-{at}" for at in ADVICE[which].split()] if which in ADVICE else which.split()
    rows = [
        ("folk" if claim.id in IN_VAIN else WORTH[claim.verdict], claim)
        for claim in claims()
        if claim.id in ids
    ]
    return _claims("remedies", sorted(rows, key=lambda row: list(WORTH.values()).index(row[0])))


def wrong_text(case: str) -> str:
    """What else a case says that is not so, or not shown, with the reason."""
    return _claims(
        "statements",
        [
            (claim.verdict, claim)
            for claim in claims()
            if claim.case == case
            and claim.verdict != "true"
            and claim.id[4:] not in ADVICE[case].split()
        ],
    )


def _claims(what: str, rows: Sequence[tuple[str, Claim]]) -> str:
    counts = ", ".join(
        f"{count} {word}" for word, count in Counter(word for word, _ in rows).items()
    )
    return _told(
        f"{len(rows)} {what}: {counts}",
        [(f"{c.id} {word}: {c.claim}", c.reason) for word, c in rows],
    )


def _told(head: str, rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(
        [
            head,
            *(
                line
                for says, why in rows
                for line in (
                    "",
                    *wrap(says, WIDE),
                    *wrap(why, WIDE, initial_indent="    ", subsequent_indent="    "),
                )
            ),
        ]
    )


def preset_text(name: str) -> str:
    """What the settings of a case do, on the build and the chip that its preset names."""
    preset = load(name)
    return _told(
        f"On torch {', '.join(filter(None, preset.checked))}",
        [
            (f"{one.verdict.replace('_', ' ')}: {one.name}={one.value}", one.says)
            for one in findings(preset)
        ],
    )


def outside_sums(share: float = 0.99, tensors_bytes: int = 203 * KIB) -> list[tuple[str, int, str]]:
    """Whose the memory of a full card can be, beside one process with next to no tensors, when a request of it has failed.

    Before that, every segment with nothing in use was given back. Small tensors lie in segments of 2 MiB."""
    used, cache = (
        int(share * CARD_BYTES),
        -(-tensors_bytes // MIN_BLOCK_BYTES) * SMALL_SEGMENT_BYTES,
    )
    return [
        (
            "in use, says the driver",
            used,
            f"{share:.0%} of the {show_bytes(CARD_BYTES)} of the card",
        ),
        ("tensors, says torch", tensors_bytes, "memory_allocated of this process"),
        (
            "cache that they can pin, at most",
            cache,
            "one block of 512 bytes in each segment of 2 MiB",
        ),
        ("context and libraries, at most", CONTEXT_BYTES, "more was not met"),
        ("not this process's, at least", used - cache - CONTEXT_BYTES, "what is left over"),
    ]


def rows_table(rows: Sequence[Sequence[Any]], columns: str) -> str:
    """Rows of this module as a table, bytes as people read them; the names of its columns with "; " between."""
    shown = ([show_bytes(cell) if isinstance(cell, int) else cell for cell in row] for row in rows)
    return table(shown, columns.split("; "), widest=None)


def outside_verdict(rows: Sequence[tuple[str, int, str]], step_bytes: int) -> Verdict:
    """Who fills a card beside a process with next to no tensors; step_bytes: what the model's step reserves at most."""
    sums = [
        *((name, size) for name, size, _ in rows),
        ("the step, in chunks of 50 sessions, reserves at most", step_bytes),
    ]
    return Verdict(
        cause="external-holder",
        confidence="likely",
        evidence=[
            Evidence(
                id=f"figure-{at}",
                reading=seen(size, "bytes", "the case's two figures, the allocator's rules"),
                says=name,
            )
            for at, (name, size) in enumerate(sums, 1)
        ],
        summary=f"If both figures are of the moment of the failed request, {show_bytes(rows[-1][1])} or more belong neither to "
        "this process's tensors nor to its cache. The case does not say when they were read, nor who else ran.",
        against=[
            Evidence(
                id="one-hot",
                says="One-hot over one-minute bars fills most of a card alone; torch would count it",
                reading=seen(
                    int(float(case_arithmetic()[3]["value"]) * 1e9),
                    "bytes",
                    "the case's own numbers",
                ),
            )
        ],
        alternatives=[Alternative(cause="allocator-cache-not-returned", confidence="weak")],
        missing=[
            MESSAGE,
            Missing(reading="What torch reserves", how="print(torch.cuda.memory_reserved())"),
            Missing(reading="The holders, seen from the host", how="ls /sys/class/kfd/kfd/proc"),
        ],
        next_step=NextStep(
            what="Capture the box on the host, outside any container, while it hangs",
            command="python3 -m helpers capture --out box.tar.gz",
        ),
    )


def forty_rows() -> list[list[str]]:
    """Programs that from outside are alike, replayed: when each ends, what it holds then, and what would have saved it."""
    rows = []
    for words, changed in FORTY:
        trace, card = generate("growing_batches", **changed), Card(CARD_BYTES)
        run = replay(trace, "", card, torch="2.4.1", build="rocm6.3", timeline=True)
        best = whatif(
            trace, card, torch="2.4.1", build="rocm6.3", confs=["", "max_split_size_mb:128"]
        )
        end = len(trace) - 1 if run.first_oom is None else run.first_oom
        frame = -1 if trace.frame is None else int(trace.frame[end])  # "growing_batches:41 qkv"
        batch = trace.frames[frame][0].split(":")[1].split()[0]
        saves = (
            f"no setting: {show_bytes(best.needs_bytes)} are missing"
            if best.needs_bytes
            else best.use or "not needed"
        )
        held = [show_bytes(int(run.column(name)[end - 1])) for name in ("reserved", "allocated")]
        rows.append(
            [words, "does not" if run.first_oom is None else f"in batch {batch}", *held, saves]
        )
    return rows


def forty_verdict(rows: Sequence[Sequence[str]]) -> Verdict:
    """Why training ends after some forty batches, where nothing was noted but their number."""
    evidence = [
        Evidence(
            id=f"program-{at}",
            says=f"{words[0].upper()}{words[1:]}: what would save it: {saves}",
            reading=seen(ends, "text", "replay of the allocator model"),
        )
        for at, (words, ends, _, _, saves) in enumerate(rows, 1)
    ]
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        evidence=evidence,
        summary="Programs that run out within a few batches of each other do so by fragmentation or by capacity. The case "
        "noted no message, and neither what was allocated nor what was reserved.",
        alternatives=[Alternative(cause=cause, confidence="weak") for cause in OPEN],
        missing=[
            MESSAGE,
            Missing(
                reading="Allocated and reserved after each batch",
                how="print(torch.cuda.memory_stats())",
            ),
        ],
        next_step=NextStep(
            what="Record one run until it ends, then ask which setting would have saved it",
            command="python -m helpers record --out run.pickle -- python train.py",
        ),
    )


def trades(name: str) -> Trades:
    """Trades by name or file (``sample.choose``); "" takes the real ones where they are at hand and never fetches them, and
    where they are not as many generated ones, which say so. Raises TradesError."""
    wheel = sample.FOLDER / sample.WHEEL
    if not name and wheel.is_file():
        return sample.real(wheel)
    made = sample.choose(name or "generated", sessions=2, trades=250_000)
    return (
        made
        if name
        else replace(made, notes=("generated trades stand in: the real ones are not at hand",))
    )

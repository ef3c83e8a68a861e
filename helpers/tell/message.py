"""An error text in words: what it says, the sums of its numbers, and which notebook comes next."""

from __future__ import annotations

from dataclasses import replace

from helpers.judge.ledger import GpuLedger, ledger
from helpers.judge.oom_arithmetic import arithmetic
from helpers.judge.signals import CaseEvidence, evidence_from_bundle, evidence_from_message
from helpers.look.boxes import open_box
from helpers.run.shapes import Verdict

from .tables import plain, table

NEXT = {
    **dict.fromkeys(("allocator-fragmentation", "allocator-cache-not-returned", "true-capacity"), "02_allocator_stress"),
    "ttm-gtt-cap": "03_ttm_gtt_analysis", "carveout-only": "03_ttm_gtt_analysis", "hsa-pool-cap": "03_ttm_gtt_analysis",
}
QUANTITIES = ("requested", "capacity", "allowed", "free", "process", "allocated", "reserved_unallocated", "reserved_total",
              "private_pools", "non_torch")


def gathered(message: str, box: str) -> tuple[CaseEvidence, tuple[GpuLedger, ...]]:
    """The evidence of a text, of a box, or of both, and its ledgers. A text given takes the place of the box's own."""
    bundle = open_box(box) if box else None
    evidence = evidence_from_bundle(bundle) if bundle else evidence_from_message(message)
    if message and bundle:
        evidence = replace(evidence_from_message(message), bundle=bundle)
    return evidence, ledger(bundle, next((m for m in evidence.messages if m.kind == "oom"), None))


def message_table(evidence: CaseEvidence) -> str:
    """Every number that the messages of a text name, in bytes, with what its printed digits leave open."""
    rows = []
    for number, message in enumerate(evidence.messages, 1):
        named = [(field.replace("_", " "), getattr(message, field)) for field in QUANTITIES]
        named += [("another process", other) for other in message.others]
        found = [(name, quantity) for name, quantity in named if quantity is not None]
        rows += [[number, message.kind, name, quantity.text, quantity.bytes, f"+- {quantity.precision_bytes}"]
                 for name, quantity in found] or [[number, message.kind, "no number", "", "", ""]]
    unused = [f"Not used: {evidence.unused}"] if evidence.unused else []
    return "\n".join([table(rows, ["message", "kind", "number", "as printed", "bytes", "precision"]), *unused])


def sums(evidence: CaseEvidence) -> str:
    """The arithmetic of each message with numbers, line by line."""
    blocks = []
    for number, message in enumerate(evidence.messages, 1):
        done = arithmetic(message)
        if done.lines:
            blocks.append("\n".join([f"message {number}", *(f"  {plain(line)}" for line in done.lines)]))
    return "\n".join(blocks) or "No message here has numbers to add up."


def next_notebook(verdict: Verdict) -> str:
    """The notebook that looks further into a cause, with its parameters filled in."""
    name = NEXT.get(verdict.cause, "01_hardware_probe")
    if name == "02_allocator_stress":
        return (f"notebooks/{name}.ipynb with trace = the file that this wrote on the failing box:\n"
                "  python -m helpers record --out run.pickle -- python your_program.py")
    return f"notebooks/{name}.ipynb with box = \"live\" on the failing box, or the path of its captured bundle"

"""What the panels' tests look at: a small trace, a fix table, a folder of batches, and the cell of each notebook's panel."""

import json

from helpers.allocator.driver import Card
from helpers.allocator.trace import from_oracle
from helpers.load.effect import Effect
from helpers.load.remedies import FixRow, FixStudy
from helpers.load.study import Study
from helpers.run.shapes import Run
from helpers.shapes import NextStep, Verdict

MIB, GIB = 1 << 20, 1 << 30
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 1.50 GiB is free. Including non-PyTorch memory, this process has 6.25 GiB memory in use. Of the allocated "
    "memory 4.50 GiB is allocated by PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated."
)
CELLS = {
    "Message reader": ("00_start_here", "reader_panel.show(message, box)"),
    "Live monitor": ("01_hardware_probe", "monitor.show(bundle)"),
    "Ledger browser": ("01_hardware_probe", "ledger_panel.show(books)"),
    "Allocator what-if": ("02_allocator_stress", "allocator.show(case)"),
    "Ceilings and the reserve": ("03_ttm_gtt_analysis", "ceilings_panel.show(stacks[0], what_if)"),
    "Chunk planner": ("04_vpoc_chunking", "chunks_panel.show(shape, free)"),
    "Fix table": ("05_fix_validation", "remedies_panel.show(results)"),
    "Run browser": ("09_case_report", "runs_panel.show(batch)"),
}
"""The notebook that each panel belongs to, and the cell that opens it there."""

PRELUDE = """import functools, os, sys
sys.path.insert(0, os.environ["CASEBOOK_TESTS"])
from pathlib import Path
import panel_examples
from helpers.allocator.replay import replay
from helpers.judge import ceilings as layers, ttm_plan
from helpers.load.vpoc.planner import Free, Shape
from helpers.look.boxes import open_box
from helpers.tell import message as told, ttm
from helpers.tell.panels import allocator, monitor
from helpers.tell.panels.questions import ceilings as ceilings_panel, chunks as chunks_panel, reader as reader_panel
from helpers.tell.panels.tables import ledger as ledger_panel, remedies as remedies_panel, runs as runs_panel
monitor.is_this_box = lambda bundle: True
allocator.replay = functools.partial(replay, engine="plain")  # the compiled one takes long to begin
message, box, bundle = "", "", open_box("strix-halo-1-found")
books, stacks = told.gathered("", "cuda-24gb-tuning")[1], layers.ceilings(bundle)
what_if = ttm.what_if(stacks[0], ttm_plan.room(bundle, stacks[0]))
case, results = panel_examples.small_study(), panel_examples.fix_study()
shape, free = Shape(2_560_000, 128, 30_000, 1000), Free(20 << 30, "free on a card", 0, True)
batch = str(panel_examples.batches(Path("outputs")) / "20260102T030405Z-quick")
"""
"""What a notebook holds before its panel, made small. It runs in a kernel of its own, in a folder of its own."""


def small_study(capacity_bytes: int = 100 * MIB) -> Study:
    """Three blocks of 30 MiB, the middle one freed, then one of 40 MiB that the card has no room for."""
    ops = [{"op": "alloc", "id": n, "size": 30 * MIB} for n in range(3)]
    ops += [{"op": "free", "id": 1}, {"op": "alloc", "id": 3, "size": 1000}]
    ops += [{"op": "alloc", "id": 4, "size": 40 * MIB}]
    trace = from_oracle(map(json.dumps, ops), {"label": "made for a test"})
    return Study("small", trace, Card(capacity_bytes), "2.14.1", "cuda", "", None, False, ())


def fix_row(remedy, says, verdict, predicted="not predicted", argued="", ratio=None):
    """A row of the fix table; with a ratio one whose memory was measured."""
    effect, measured = None, "not measured"
    if ratio is not None:
        effect = Effect("memory", ratio, ratio - 0.05, ratio + 0.05, 5, "less")
        measured = f"memory x {ratio}"
    words = (predicted, measured, argued, verdict)
    guess, why = predicted.split(": ")[0], predicted.split(": ")[-1]
    return FixRow(remedy, says, ("T-1",), *words, memory=effect, guess=guess, why=argued or why)


def fix_study() -> FixStudy:
    """Four remedies: one measured to help much, one less, one predicted to harm, one argued."""
    fails = "harmful: it fails there"
    rows = (
        fix_row(
            "argued-one", "Update the driver", "not_enough_evidence", argued="no trial decides it"
        ),
        fix_row("small-help", "Fewer loader workers", "helps", ratio=0.9),
        fix_row("big-help", "Halve the batch", "helps", ratio=0.5),
        fix_row("harm", "expandable_segments on that build", "harmful", predicted=fails),
    )
    return FixStudy(rows, 8 * GIB, "2.14.1", "cuda", True, None, None, "recorded")


def batches(folder):
    """A folder with two batches: one of an answered and a failed run, one with a torn record beside a good one."""
    verdict = Verdict("true-capacity", "likely", NextStep("Ask for less"))
    answered = {"state": "answered", "verdict": verdict}
    first, second = folder / "20260102T030405Z-quick", folder / "20260103T030405Z-night"
    for batch, name, about in (
        (first, "000-probe", {**answered, "seconds": 4.5}),
        (first, "001-stress", {"state": "failed", "cause": "cell 3 raised <ValueError>"}),
        (second, "000-probe", answered),
    ):
        names = {"run_id": name, "batch_id": batch.name, "notebook": f"{name[4:]}.ipynb"}
        run = Run(box="made-up", **names, **about)
        (batch / name).mkdir(parents=True, exist_ok=True)
        (batch / name / "run.json").write_text(run.model_dump_json())
        (batch / name / "notebook.ipynb").write_text("{}")
    (second / "001-torn").mkdir(exist_ok=True)
    (second / "001-torn" / "run.json").write_text('{"schema_version": 1, "run_')
    return folder

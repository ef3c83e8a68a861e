"""What the panels' tests look at: a small trace, and the cell of each notebook's panel."""

import json

from helpers.allocator.driver import Card
from helpers.allocator.oracle_lines import from_oracle
from helpers.allocator.study import Study

MIB = 1 << 20
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 1.50 GiB is free. Including non-PyTorch memory, this process has 6.25 GiB memory in use. Of the allocated "
    "memory 4.50 GiB is allocated by PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated."
)
CELLS = {
    "Message reader": ("00_start_here", "this_box.reader()"),
    "Live monitor": ("01_hardware_probe", "this_box.monitor()"),
    "Allocator what-if": ("02_allocator_stress", "program.panel()"),
    "Ceilings and the reserve": ("03_ttm_gtt_analysis", "limits.panel()"),
    "What fits": ("07_what_fits", "fit.panel()"),
    "Chunk planner": ("04_vpoc_chunking", "profiles.panel()"),
}
"""The notebook that each panel belongs to, and the cell that opens it there."""

PRELUDE = """import functools, os, sys, types
sys.path.insert(0, os.environ["CASEBOOK_TESTS"])
import panel_examples
from helpers.allocator.replay import replay
from helpers.fits.panel import PANEL as fits_panel
from helpers.fits.sheet import ServerFacts
from helpers.judge import ceilings as layers, ttm_limit
from helpers.vpoc.free import Free
from helpers.vpoc.panel import PANEL as chunks_panel
from helpers.vpoc.planner import ProfileShape
from helpers.look.boxes import open_box
from helpers.allocator import panel as allocator, study
from helpers.tell.panels import monitor
from helpers.tell.panels.questions import ceilings as ceilings_panel, reader as reader_panel
from helpers.tell.shown import Column, Shown
monitor.is_this_box = lambda bundle: True
study.replay = functools.partial(replay, engine="plain")  # the compiled one takes long to begin
message, box, bundle = "", "", open_box("strix-halo-1-found")
stacks, case = layers.ceilings(bundle), panel_examples.small_study()
room = ttm_limit.room(bundle, stacks[0])
this_box = types.SimpleNamespace(monitor=functools.partial(monitor.show, bundle), reader=reader_panel.show)
program = types.SimpleNamespace(panel=functools.partial(allocator.show, case))
limits = types.SimpleNamespace(panel=functools.partial(ceilings_panel.show, stacks[0], room))
given = ServerFacts("llama.cpp", {"n_layer": 4, "n_head_kv": 2, "head_dim_k": 64, "n_ctx": 4096, "weights_bytes": 1 << 30,
                            "card_total_bytes": 8 << 30, "n_ctx_train": 8192})
fit = types.SimpleNamespace(panel=functools.partial(fits_panel.show, given))
shape, free = ProfileShape(2_560_000, 128, 1000), Free(20 << 30, "free on a card", 0, True)
profiles = types.SimpleNamespace(panel=functools.partial(chunks_panel.show, shape, free))
"""
"""What a notebook holds before its panel, made small. It runs in a kernel of its own, in a folder of its own."""


def small_study(capacity_bytes: int = 100 * MIB) -> Study:
    """Three blocks of 30 MiB, the middle one freed, then one of 40 MiB that the card has no room for."""
    ops = [{"op": "alloc", "id": n, "size": 30 * MIB} for n in range(3)]
    ops += [{"op": "free", "id": 1}, {"op": "alloc", "id": 3, "size": 1000}]
    ops += [{"op": "alloc", "id": 4, "size": 40 * MIB}]
    trace = from_oracle(map(json.dumps, ops))
    return Study(trace, Card(capacity_bytes), "small")

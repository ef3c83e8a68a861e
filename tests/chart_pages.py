"""Pages of a run whose notebook shows figures that answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from tell_boxes import VERDICT, code, markdown, run_record

from helpers.batch import report
from helpers.tell import sheet
from helpers.tell.chart import Chart
from helpers.tell.shown import Shown

SMALL = Chart(
    kind="map",
    title="Two blocks",
    length=30 << 20,
    start=f"0 {10 << 20}",
    size=f"{10 << 20} {20 << 20}",
    state="0 3",
    stack="0 -1",
    stacks=["0 1"],
    own="1",
    frames=["torch/nn/functional.py:2 linear", "train.py:4 step"],
    segment="0 0",
    operation="7 -1",
)


def shown(chart: Chart) -> Shown:
    """A view with a chart, and a picture of nothing for where it cannot be pointed at."""
    draw = partial(sheet.drawn, lambda figure: figure.subplots(), 1.0)
    return Shown(chart.title, ["block"], [[1]], draw=draw, chart=lambda: chart)


def output(view: Shown) -> Any:
    """What a notebook keeps of a view."""
    data, about = view._repr_mimebundle_()
    return nbformat.v4.new_output("display_data", data=data, metadata=about)


def page(folder: Path, *views: Shown) -> str:
    """The page of a batch of one run whose notebook ends its cells with these views."""
    cells = []
    for number, view in enumerate(views, 1):
        cells += [markdown(f"## Part {number}\n\nFigure {number}."), code("memory", output(view))]
    place = folder / "01-memory"
    place.mkdir(parents=True)
    notebook = "notebooks/02_allocator_stress.ipynb"
    run = run_record("01-memory", notebook, "answered", verdict=VERDICT)
    (place / "run.json").write_text(run.model_dump_json())
    nbformat.write(nbformat.v4.new_notebook(cells=cells), place / "notebook.ipynb")
    return report.page(folder)

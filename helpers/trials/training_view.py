"""Shows the ways to train: which ran here, what each took, which are the same training, and the one
to choose. A way is called a training path where it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.tell.figure_style import PALETTE
from helpers.tell.shown import Shown
from helpers.tell.values import columns
from helpers.trials.training import WAYS, PathResult

if TYPE_CHECKING:
    from helpers.tell.sheet import Bar, Drawing

SOURCE = "measured here"
MOST_MISSING = 4
"""Lines of the verdict about ways that did not run: more would hide the answer."""
SAME = {
    "bitwise": "the same losses to the bit",
    "within tolerance": "the same losses within tolerance",
    "no": "other losses",
}
"""How the losses compare with those on a single device, in words."""


def above_start(path: PathResult) -> int | None:
    """Bytes that the training took at its peak, without what was there before; None if not
    known.
    """
    if path.peak_bytes is None or path.start_bytes is None:
        return None
    return max(0, path.peak_bytes - path.start_bytes)


def same_table(results: Sequence[PathResult]) -> Shown:
    """Each way, whether it ran, and whether it is the same training as on a single device. It has
    no measured figures, so it is the same on every run.
    """
    rows = [
        [path.name, path.state.replace("_", " "), SAME.get(path.equal_to_single, "")]
        for path in results
    ]
    return Shown(
        "Training paths",
        columns("path:word, state:word, beside a single device:word"),
        rows,
    )


def cost_table(results: Sequence[PathResult]) -> Shown:
    """The time and the memory of each way here, and what it says of itself; with a figure."""
    rows: list[list[object]] = []
    ran = []
    for path in results:
        took = above_start(path)
        seconds = None
        if path.state == "ran" and took is not None:
            seconds = path.seconds
            ran.append((took, path.name))
        rows.append([path.name, seconds, took, path.says or path.why])
    title = "No training path ran here"
    if ran:
        least, name = min(ran)
        title = f"Least memory: {name}, {show_bytes(least)} above its start"
    head = columns(
        "path:word, time:number:0.1 s, memory above start:number:bytes, says", widest=90
    )
    return Shown(title, head, rows, draw=partial(_draw_paths, results, title))


def _draw_paths(results: Sequence[PathResult], title: str) -> Drawing:
    """A bar for the memory of each way, and a hatched stub for one that did not run."""
    from helpers.tell.sheet import FigurePage  # here: a table needs no matplotlib

    sheet = FigurePage(title)
    top = max([1, *filter(None, map(above_start, results))])
    sheet.heading("Memory of the training itself", "above the process's start")
    sheet.bars(map(_path_bar, results), top)
    if any(path.state != "ran" for path in results):
        sheet.footnote("Hatched stub: it did not run here.")
    return sheet.done()


def _path_bar(path: PathResult) -> Bar:
    """The bar of a way, with what it says of itself in small letters."""
    from helpers.tell.sheet import Bar

    took = above_start(path)
    small = list(filter(None, [path.says or path.why]))
    if took is None or path.state != "ran":
        state = path.state.replace("_", " ")
        return Bar(path.name, state, [(None, PALETTE["not known"])], small, "bold")
    value = f"{show_bytes(took)} in {path.seconds:.1f} s"
    return Bar(path.name, value, [(took, PALETTE["in use"])], small, "bold")


def verdict_on_training(results: Sequence[PathResult]) -> Verdict:
    """The way to choose: among those that are the same training and are there to save memory, the
    one that took least. If none of them ran, or the single device did not, which is the first of
    the results, the verdict only asks to run them.
    """
    evidence = []
    against = []
    missing = []
    same = []
    for path in results:
        took = above_start(path)
        if path.state == "ran" and took is not None:
            size = seen(took, "bytes", SOURCE)
            evidence.append(
                Evidence(_slug(path), size, f"{path.name} in {path.seconds:.1f} s")
            )
        elif path.state == "failed":
            why = seen(path.why or path.says or path.state, "text", SOURCE)
            against.append(Evidence(_slug(path), why, f"{path.name} failed"))
        else:
            missing.append(
                Missing(f"{path.name}: {path.why}", "a box or a torch that has it")
            )
        is_same = path.equal_to_single in ("bitwise", "within tolerance")
        saves = path.state == "ran" and WAYS[path.name].get("saves")
        if saves and is_same and took is not None:
            same.append((took, path))
    answer = Verdict(
        cause="other",
        state="aside",
        confidence="weak",
        evidence=evidence,
        against=against,
        missing=missing[:MOST_MISSING],
        summary="No path that saves memory ran beside the single device.",
        next_step=NextStep(
            "Run the paths that save memory: accumulation and checkpointing first"
        ),
    )
    single = above_start(results[0])
    if not same or single is None or results[0].state != "ran":
        return answer
    least, best = min(same, key=itemgetter(0))
    sizes = f"{show_bytes(least)} instead of {show_bytes(single)}"
    title = f"Use {best.name}: {sizes}, with {SAME[best.equal_to_single]}"
    step = NextStep(
        f"Train with {best.name}, and checkpoint so that a kill loses nothing"
    )
    return replace(
        answer, confidence="confirmed", title=title, summary=f"{title}.", next_step=step
    )


def _slug(path: PathResult) -> str:
    """The name of a way as the id of its evidence."""
    return path.name.replace(" ", "-")

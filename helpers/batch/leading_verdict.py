"""Which verdict of a batch leads its page, and which folder has the evidence of a box."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from helpers.ground.shapes import Verdict
from helpers.ground.units import plain
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED
from helpers.look.bundle import Bundle, open_bundle

CONFIDENCES = ("confirmed", "likely", "weak")  # the surest first


def leading(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The verdict that leads a box's page, report and issue; None if there is no verdict.

    ``verdicts`` are those of the box's runs, None for a run without one. The order is: a named
    cause; ``cannot-tell``; ``healthy``; the answer to another question than the box's state (state
    ``aside``). Among equals the surest leads, then the first.
    """
    return min(filter(None, verdicts), key=_rank, default=None)


def _rank(verdict: Verdict) -> tuple[bool, int, int]:
    """(whether it answers another question, how much it decides, how sure it is), each the lower
    the better.
    """
    decides = 0  # it names a cause
    if verdict.state == "healthy":
        decides = 2
    elif verdict.cause == "cannot-tell":
        decides = 1
    sure = CONFIDENCES.index(verdict.confidence)
    return verdict.state == "aside", decides, sure


def about_box(bundle: Bundle) -> set[str]:
    """The names that runs about this box have in their records as ``box``."""
    names = {bundle.box}
    if bundle.kind == "live":
        names.add("live")
    return names


def of_batch(batch: str, bundle: Bundle) -> Verdict | None:
    """The verdict that leads among the answered runs on this box of the batch in folder ``batch``.

    None if ``batch`` is empty, or if no run has a verdict about the box itself.
    """
    if not batch:
        return None
    from .record import read_batch  # here: pydantic takes long to load

    names = about_box(bundle)
    runs = [run for run in read_batch(Path(batch)).runs if run.state == "answered"]
    verdict = leading(run.verdict for run in runs if run.box in names)
    if verdict is not None and verdict.state == "aside":
        return None
    return verdict


def bundle_of(boxes: Iterable[str], folder: Path | None) -> tuple[Path | None, str]:
    """(folder or archive with the evidence of a box, or None; why there is none, else empty).

    The bundle that the batch captured last into its ``folder`` comes first, then those of
    ``boxes``, each the name of a recorded box or a path. The first that can be opened is returned.
    """
    places: list[Path] = []
    if folder:
        manifests = folder.glob("box*/manifest.json")
        # Oldest first; the last is that of the last time the batch was resumed.
        by_age = sorted(manifests, key=lambda path: path.stat().st_mtime)
        places = [manifest.parent for manifest in by_age[-1:]]
    for box in boxes:
        if box not in ("", "live"):  # these name no place
            places += [RECORDED / box, Path(box)]
    why = "no evidence bundle of this box lies beside it"
    for place in places:
        if not place.exists():
            continue
        try:
            open_bundle(place)
            return place, ""
        except BundleError as error:
            why = f"the bundle cannot be read: {plain(error)}"
    return None, why

"""Which of a batch's verdicts leads its page, and where the evidence of its box lies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from helpers.ground.shapes import Verdict
from helpers.ground.units import plain
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED
from helpers.look.bundle import Bundle, open_bundle


def leading(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The verdict of one box's runs that leads its page, its report and its shared issue.

    First come named causes, then ``cannot-tell``, then ``healthy`` (whose cause is ``cannot-tell``,
    too: nothing failed), and last answers to a notebook's own question (state ``aside``). Of equal
    rank the surest leads, then the first.
    """

    def rank(verdict: Verdict) -> tuple[bool, bool, bool, int]:
        return (
            verdict.state == "aside",
            verdict.cause == "cannot-tell",
            verdict.state == "healthy",
            ("confirmed", "likely", "weak").index(verdict.confidence),
        )

    return min(filter(None, verdicts), key=rank, default=None)


def about_box(bundle: Bundle) -> set[str]:
    """The names under which a batch's runs are about this box."""
    return {bundle.box, "live"} if bundle.kind == "live" else {bundle.box}


def of_batch(batch: str, bundle: Bundle) -> Verdict | None:
    """The verdict that leads among a batch's answered runs on this box.

    None without a batch, and where no run is about the box itself.
    """
    if not batch:
        return None
    from .record import read_batch  # here: pydantic takes long to load

    names = about_box(bundle)
    runs = [run for run in read_batch(Path(batch)).runs if run.state == "answered"]
    verdict = leading(run.verdict for run in runs if run.box in names)
    return None if verdict is None or verdict.state == "aside" else verdict


def bundle_of(boxes: Iterable[str], folder: Path | None) -> tuple[Path | None, str]:
    """(where the evidence of a box lies, or None; why there is none).

    It was captured by the batch into its ``folder``, or ``boxes`` name a recorded box or a path.
    """
    captured = (
        [path.parent for path in folder.glob("box*/manifest.json")] if folder else []
    )
    captured.sort(key=lambda path: (path / "manifest.json").stat().st_mtime)
    places = captured[-1:]
    for box in boxes:
        if box not in ("", "live"):
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

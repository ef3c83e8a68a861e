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

    The firmest leads; of equals the first. An answer to a notebook's own question (state
    ``aside``) never leads where another says why the box fails, or that it cannot tell. A named
    cause comes before ``cannot-tell``, and that before it where nothing was handed over that
    failed.
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
    """Where the evidence of the box lies: captured by the batch, recorded, or a path that a
    parameter names; or why nowhere.
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

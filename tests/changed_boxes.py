"""Copies of recorded boxes in which some sources say something else."""

from helpers.look.boxes import open_box
from helpers.look.bundle import BundleWriter


def changed(box, **replaced):
    """A copy of a recorded box with some sources replaced, and those it lacks added."""
    bundle, writer = open_box(box), BundleWriter("changed", "constructed", "0", "")
    for item in bundle.items:
        text = bundle.contents[item.path].decode() if item.path else None
        writer.add(item.kind, item.source, replaced.pop(item.source, text), status=item.status, why=item.why)
    for source, text in replaced.items():
        writer.add("file", source, text)
    return writer.bundle()

"""The sentences and tables of each answer, as cards that a cell shows."""

from __future__ import annotations

from collections.abc import Mapping

from ..ground.units import show_bytes
from .devices import DeviceUse, OtherProcess
from .failure import CellFailure
from .holder import Holder, Holdings
from .ledger import Ledger
from .letting_go import LetGo
from .names import in_a_sentence
from .next_steps import how_to_empty, next_steps
from .view import Notice, Row, Table

MOST_ROWS = 12
"""Holders that have a row of their own, so that a card fits on a screen."""
SHARE_WORTH_SAYING = 0.02
"""A share of the card; a smaller difference can come from torch's message, which has
two decimals.
"""
MOST_OWNERS = 3
"""Names in a sentence."""
MOST_PARTS = 2
"""Variables of a failed call that a description names."""
MOST_LINES = 12
"""Lines of a cell that have a row of their own."""
LEAST_WORTH_SAYING = 4096
"""Bytes at the peak. A device with fewer, beside one with more, has only counters of steps and
single numbers.
"""
DESCRIPTIONS = {
    "thread": "a function that runs",
    "widgets": "widgets that are not closed, with their callbacks",
}
"""By the kind of a holder; others are described by their value (kinds.described)."""
OFF = "%vram off turns these cards off."


def of_failure(failure: CellFailure) -> Notice:
    """The card under an out-of-memory."""
    request = "memory"
    if failure.requested:
        request = show_bytes(failure.requested)
    title = f"Out of memory: {failure.place} asked for {request}{_on(failure.device)}"
    sentences = []
    use = failure.use
    if use is not None:
        title += (
            f", of which {show_bytes(use.free)} of {show_bytes(use.total)} was free"
        )
        sentences.append(_use(use))
        released = failure.allocated - use.allocated
        if released > SHARE_WORTH_SAYING * use.total:
            sentences.append(
                f"At that moment tensors took {show_bytes(failure.allocated)}: the failed "
                f"line had {show_bytes(released)} of its own, and has let go of it since."
            )
    growth = failure.growth
    if growth.bytes_each:
        sentences.append(
            f"Each of the last {growth.runs} runs of this cell left at least "
            f"{show_bytes(growth.bytes_each)} more."
        )
    return Notice(
        title=title + ".",
        code=failure.code,
        sentences=sentences,
        table=_table(failure.holdings, failure.device),
        steps=list(next_steps(failure)),
        foot=_foot(failure.holdings, OFF),
        is_failure=True,
    )


def of_holdings(
    holdings: Holdings, uses: list[DeviceUse], others: list[OtherProcess]
) -> Notice:
    """The answer of ``%vram``."""
    totals = holdings.totals()
    title = "No tensor of this notebook is on a GPU, and none in host memory is large."
    if totals:
        title = f"Tensors of this notebook take {_by_device(totals)}."
    sentences = [_use(use) for use in uses]
    sentences += [_process(process) for process in others]
    return Notice(
        title=title,
        sentences=sentences,
        table=_table(holdings),
        foot=_foot(holdings, "%vram free lets go of what no variable holds."),
    )


def of_letting_go(result: LetGo) -> Notice:
    """The answer of ``%vram free``."""
    returned = {device: size for device, size in result.tensors.items() if size}
    title = "Nothing came back."
    if returned:
        title = f"{_by_device(returned)} came back."
    sentences = []
    if result.names:
        sentences.append(f"Let go: {', '.join(result.names)}.")
    if result.returned_bytes:
        sentences.append(
            f"torch gave {show_bytes(result.returned_bytes)} back to the driver."
        )
    if result.left.holders:
        sentences.append("The rest is held by:")
    return Notice(
        title=title,
        sentences=sentences,
        table=_table(result.left, lets_go=True),
        foot=_foot(result.left),
    )


def of_cell(ledgers: Mapping[str, Ledger]) -> Notice:
    """The answer of ``%%vram``: what the cell asked for, by device."""
    largest = max(ledger.peak for ledger in ledgers.values())
    if not largest:
        return Notice("This cell made no tensors.")
    # the device with the largest peak always shows
    least = min(largest, LEAST_WORTH_SAYING)
    used = {
        device: ledger for device, ledger in ledgers.items() if ledger.peak >= least
    }
    peaks = _by_device({device: ledger.peak for device, ledger in used.items()})
    still_held = _by_device({device: ledger.total for device, ledger in used.items()})
    rows: list[Row] = []
    for device, ledger in used.items():
        for line, at_peak, now in ledger.lines()[:MOST_LINES]:
            rows.append((device, show_bytes(at_peak), show_bytes(now), line))
    heads = ("on", "at the peak", "kept", "line")
    return Notice(
        title=f"At its peak this cell had {peaks} more than before.",
        sentences=[f"Of that it keeps {still_held}."],
        table=Table(heads, rows, numbers=frozenset([1, 2])),
    )


def _on(device: str) -> str:
    """Where memory was asked for, to append to a sentence; empty where that is not known."""
    if device == "cpu":
        return " of host memory"
    if device:
        return f" on {device}"
    return ""


def _use(use: DeviceUse) -> str:
    """How the memory of a GPU is used, as a sentence."""
    return (
        f"{use.name}: tensors {show_bytes(use.allocated)}, kept by torch for later "
        f"{show_bytes(use.cached)}, free {show_bytes(use.free)} of {show_bytes(use.total)}."
    )


def _process(process: OtherProcess) -> str:
    """What another process holds, as a sentence."""
    size = "memory of unknown size"
    if process.bytes is not None:
        size = show_bytes(process.bytes)
    return f"Process {process.pid} ({process.name}) holds {size}."


def _by_device(sizes: Mapping[str, int]) -> str:
    """Bytes by device in words, such as "1.00 GiB on cuda:0 and 2.00 MiB on cpu"."""
    return " and ".join(
        f"{show_bytes(size)} on {device}" for device, size in sizes.items()
    )


def _table(holdings: Holdings, device: str = "", lets_go: bool = False) -> Table:
    """The holders, on one device or on all; ``lets_go``: with what lets go of each."""
    sizes = [(holder, holder.total) for holder in holdings.holders]
    if device:
        # A counter: a holder without bytes on the device has 0 there.
        on_device = [(holder, holder.bytes[device]) for holder in holdings.holders]
        sizes = [(holder, size) for holder, size in on_device if size]
    rows: list[Row] = []
    for holder, size in sizes[:MOST_ROWS]:
        about = [_description(holder, holdings, after_free=lets_go)]
        if holder.other_names:
            about.append(f"also reached from {', '.join(holder.other_names)}")
        if lets_go:
            about += _let_go_with(holder, holdings)
        devices = " and ".join(sorted(holder.bytes))
        rows.append((holder.name, show_bytes(size), devices, "\n".join(about)))
    rest = sizes[MOST_ROWS:]
    if rest:
        rest_bytes = sum(size for _, size in rest)
        rows.append((f"{len(rest)} more", show_bytes(rest_bytes), "", ""))
    return Table(("name", "size", "on", "what"), rows, numbers=frozenset([1]))


def _description(holder: Holder, holdings: Holdings, after_free: bool) -> str:
    """What a holder is, its part with most of the memory, and the line that put that part there;
    for an error the largest variables of its calls, and for tensors without a name why they have
    none.

    ``after_free``: `%vram free` has just let go of what it could.
    """
    if holder.kind == "error":
        largest = holder.parts[:MOST_PARTS]
        parts = [f"{part.name} in {in_a_sentence(part.where)}" for part in largest]
        return "; ".join([*parts, *_graph(holder)])
    if holder.kind in ("circle", "library", "graph"):
        return _nameless(holder, holdings, after_free)
    words = DESCRIPTIONS.get(holder.kind, holder.description)
    if holder.lacks_model:
        return f"{words}; no model has its parameters"
    if not holder.parts:
        return words
    part = holder.main_part
    # A weight of a model, or a state of an optimizer, is not named: all of them are needed.
    names_the_part = holder.may_grow
    if part.collection:  # a collection with one tensor is as good as the tensor itself
        names_the_part = part.tensors > 1
    if names_the_part and part.name != holder.name:
        words += f"; {_tensors(part.tensors)} in {part.name}"
    parts = [words, *_graph(holder)]
    lines = holder.joining_lines + part.lines
    if lines:
        parts.append(f"put there by {in_a_sentence(lines[0])}")
    return "; ".join(parts)


def _nameless(holder: Holder, holdings: Holdings, after_free: bool) -> str:
    """What tensors are that no name leads to, by the kind of their holder: library, graph or
    circle.

    ``after_free``: `%vram free` has just collected all circles, so those that are left have a
    library's reference.
    """
    tensors = _tensors(holder.tensors)
    if holder.kind == "library":
        return f"{tensors} that no known object refers to"
    if holder.kind == "graph":
        owners = _owners_of_graphs(holdings)
        return f"{tensors} that a backward pass of {owners} would need"
    words = f"{tensors} that no name leads to"
    if after_free:
        words += ", yet a library keeps"
    return words


def _graph(holder: Holder) -> list[str]:
    """What the graphs of a holder keep, as one phrase, without the size where torch does not show
    which graph keeps a tensor (before 2.13); none where it has no graph.
    """
    size = sum(holder.graph_bytes.values())
    if size:
        return [f"graphs of autograd keep {show_bytes(size)} of that"]
    if holder.has_graph:
        return ["with graph"]
    return []


def _tensors(count: int) -> str:
    if count == 1:
        return "1 tensor"
    return f"{count:,} tensors"


def _owners_of_graphs(holdings: Holdings) -> str:
    """The names of the holders with a graph, at most MOST_OWNERS: one of them has the graphs
    without an owner, and torch before 2.13 does not show which. A variable, where no holder has a
    graph.
    """
    owners = [holder.name for holder in holdings.holders if holder.has_graph]
    if not owners:
        return "a variable"
    return " or ".join(owners[:MOST_OWNERS])


def _let_go_with(holder: Holder, holdings: Holdings) -> list[str]:
    """The command or statement that lets go of what a holder has, as one phrase; none where none is
    known.
    """
    if holder.kind == "variable":
        way = f"%vram free {' '.join([holder.name, *holder.other_variables])}"
    elif holder.kind == "module":
        way = how_to_empty(holder)
    elif holder.kind == "widgets":
        way = "ipywidgets.Widget.close_all()"
    elif holder.kind == "graph":
        way = f"deleting what has the graph: {_owners_of_graphs(holdings)}"
    elif holder.kind in ("output", "error", "unknown"):
        way = "%vram free"
    else:
        return []
    return [f"let go with: {way}"]


def _foot(holdings: Holdings, last: str = "") -> str:
    """The last line of a card: what was not looked at or not counted, and then ``last``."""
    sentences = [holdings.stopped]
    if holdings.other_libraries:
        names = ", ".join(holdings.other_libraries)
        sentences.append(f"Arrays of other libraries are not counted: {names}.")
    return " ".join(filter(None, [*sentences, last]))

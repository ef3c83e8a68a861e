"""The sentences and tables of each answer."""

from __future__ import annotations

from ..ground.units import show_bytes
from .devices import DeviceUse, OtherProcess
from .failure import CellFailure, how_to_empty
from .holdings import Holdings, NamedTensors
from .letting_go import LetGo
from .names import said
from .view import Notice, Table

MOST_ROWS = 12
SHARE_WORTH_SAYING = 0.02
"""Of a card, what a sentence is for; less than that is rounding in torch's own text."""
MOST_OWNERS = 3
OFF = "%vram off turns these cards off."


def of_failure(failure: CellFailure) -> Notice:
    """The card under an out-of-memory."""
    request = "asked for memory"
    if failure.requested is not None:
        request = f"asked for {show_bytes(failure.requested)}"
    title = f"Out of memory: {failure.place or 'the cell'} {request} {_on(failure.device)}".rstrip()
    use = failure.use
    if use is not None:
        title += (
            f", of which {show_bytes(use.free)} of {show_bytes(use.total)} was free"
        )
    sentences = []
    if use is not None:
        sentences.append(_use(use))
        gone = (failure.allocated or 0) - use.allocated
        if gone > SHARE_WORTH_SAYING * use.total:
            sentences.append(
                f"At that moment tensors took {show_bytes(failure.allocated or 0)}: the failed "
                f"line had {show_bytes(gone)} of its own, and has let go of it since."
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
        steps=failure.steps,
        foot=_foot(failure.holdings, OFF),
        is_failure=True,
    )


def of_holdings(
    holdings: Holdings, uses: list[DeviceUse], others: list[OtherProcess]
) -> Notice:
    """The answer of ``%vram``."""
    total = sum(holder.total for holder in holdings.holders)
    title = "No tensor of this notebook is on a GPU, and none in host memory is large."
    if total:
        title = f"Tensors of this notebook take {_by_device(holdings)}."
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
    came = [
        f"{show_bytes(size)} on {device}"
        for device, size in result.tensors.items()
        if size
    ]
    title = "Nothing came back."
    if came:
        title = f"{' and '.join(came)} came back."
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
        foot=_foot(result.left, ""),
    )


def _on(device: str) -> str:
    if device == "cpu":
        return "of host memory"
    return f"on {device}" if device else ""


def _use(use: DeviceUse) -> str:
    return (
        f"{use.name}: tensors {show_bytes(use.allocated)}, kept by torch for later "
        f"{show_bytes(use.cached)}, free {show_bytes(use.free)} of {show_bytes(use.total)}."
    )


def _process(process: OtherProcess) -> str:
    size = (
        show_bytes(process.bytes)
        if process.bytes is not None
        else "memory of unknown size"
    )
    return f"Process {process.pid} ({process.name}) holds {size}."


def _by_device(holdings: Holdings) -> str:
    devices = sorted({device for holder in holdings.holders for device in holder.bytes})
    return " and ".join(
        f"{show_bytes(holdings.total(device))} on {device}" for device in devices
    )


def _table(holdings: Holdings, device: str = "", lets_go: bool = False) -> Table:
    rows: list[tuple[str, ...]] = []
    holders = [
        holder for holder in holdings.holders if not device or holder.bytes.get(device)
    ]
    for holder in holders[:MOST_ROWS]:
        size = holder.bytes.get(device, 0) if device else holder.total
        about = [_description(holder, holdings, after_free=lets_go)]
        if holder.also:
            about.append(f"also reached from {', '.join(holder.also)}")
        line = _let_go_with(holder, holdings) if lets_go else ""
        if line:
            about.append(f"let go with: {line}")
        devices = " and ".join(sorted(holder.bytes))
        rows.append((holder.name, show_bytes(size), devices, "\n".join(about)))
    rest = holders[MOST_ROWS:]
    if rest:
        size = sum(holder.total for holder in rest)
        rows.append((f"{len(rest)} more", show_bytes(size), "", ""))
    return Table(("name", "size", "on", "what"), rows, numbers=frozenset([1]))


def _description(holder: NamedTensors, holdings: Holdings, after_free: bool) -> str:
    if holder.kind == "error":
        parts = [f"{part.name} in {said(part.where)}" for part in holder.parts[:2]]
        return "; ".join([*parts, *_graph(holder)])
    if holder.kind == "circle":
        still = ", yet a library keeps" if after_free else ""
        return f"{_tensors(holder.tensors)} that no name leads to{still}"
    if holder.kind == "library":
        return f"{_tensors(holder.tensors)} that no known object refers to"
    if holder.kind == "graph":
        owners = _owners_of_graphs(holdings)
        return f"{_tensors(holder.tensors)} that a backward pass of {owners} would need"
    words = holder.what
    if holder.kind == "thread":
        words = "a function that runs"
    if holder.kind == "widgets":
        words = "widgets that are not closed, with their callbacks"
    if holder.lacks_model:
        return f"{words}; no model has its parameters"
    if not holder.parts:
        return words
    part = holder.main_part
    leads_on = part.tensors > 1 if part.collection else holder.grows
    if leads_on and part.name != holder.name:
        words += f"; {_tensors(part.tensors)} in {part.name}"
    lines = [f"put there by {said(line)}" for line in (holder.joins or part.lines)[:1]]
    return "; ".join([words, *_graph(holder), *lines])


def _graph(holder: NamedTensors) -> list[str]:
    """What the graph of a holder keeps, where it has one."""
    size = sum(holder.graph_bytes.values())
    if size:
        return [f"graphs of autograd keep {show_bytes(size)} of that"]
    return ["with graph"] if holder.has_graph else []


def _tensors(count: int) -> str:
    return f"{count:,} tensor" if count == 1 else f"{count:,} tensors"


def _owners_of_graphs(holdings: Holdings) -> str:
    owners = holdings.owners_of_graphs() or ["a variable"]
    return " or ".join(owners[:MOST_OWNERS])


def _let_go_with(holder: NamedTensors, holdings: Holdings) -> str:
    if holder.kind == "variable":
        return f"%vram free {' '.join([holder.name, *holder.other_variables])}"
    if holder.kind == "module":
        return how_to_empty(holder)
    if holder.kind == "widgets":
        return "ipywidgets.Widget.close_all()"
    if holder.kind == "graph":
        return f"deleting what has the graph: {_owners_of_graphs(holdings)}"
    return "%vram free" if holder.kind in ("output", "error", "unknown") else ""


def _foot(holdings: Holdings, last: str) -> str:
    sentences = [holdings.stopped] if holdings.stopped else []
    if holdings.other_libraries:
        names = ", ".join(holdings.other_libraries)
        sentences.append(f"Arrays of other libraries are not counted: {names}.")
    if last:
        sentences.append(last)
    return " ".join(sentences)

"""A box, live or recorded, and what was read of it."""

from __future__ import annotations

from functools import cached_property
from html import escape

from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger_rows import GpuLedger
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, host_pools
from helpers.look.gpus import gpus as read_gpus
from helpers.look.kernel_log import events, readable
from helpers.look.pcie import asleep, pcie_links
from helpers.tell import box as box_views
from helpers.tell import figures, message, tables
from helpers.tell.shown import Shown


class Box:
    """A machine as it was captured, an error text, or both.

    ``evidence`` is the input of a diagnosis; ``bundle`` has the facts of the machine, and is None
    for a text alone.
    """

    def __init__(self, evidence: CaseEvidence) -> None:
        self.evidence = evidence

    @property
    def bundle(self) -> Bundle | None:
        return self.evidence.bundle

    @property
    def facts(self) -> Bundle:
        """The bundle. Raises ValueError where there is only a text."""
        if self.bundle is None:
            raise ValueError(
                "a text alone has no box; expected open_box(NAME), such as live"
            )
        return self.bundle

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as they were read, in the order of their PCI addresses."""
        return read_gpus(self.facts)

    @cached_property
    def ledgers(self) -> tuple[GpuLedger, ...]:
        """Who holds the memory, for each GPU, and as an out-of-memory message says it."""
        return message.books(self.evidence)

    @property
    def machine(self) -> str:
        """The machine in one line, and a warning where it is not the one that runs this."""
        if self.bundle is None:
            return "a message alone, no box"
        return box_views.machine_line(self.bundle)

    @property
    def stack(self) -> Shown:
        """The releases between a program and the card: torch, runtime, driver, kernel."""
        return box_views.stack_table(self.facts)

    @property
    def pcie(self) -> Shown:
        """The PCIe link of each GPU: its speed and lanes now, and the most that it can have."""
        return tables.pcie_table(pcie_links(self.facts), asleep(self.facts))

    @property
    def access(self) -> Shown:
        """Each device node, whether this user may open it, and what removes an obstacle."""
        return box_views.access_table(self.facts)

    @property
    def numbers(self) -> Shown:
        """Every number that the error text names, in bytes."""
        return message.message_table(self.evidence)

    @property
    def sums(self) -> Shown:
        """The arithmetic of each error message, line by line."""
        return message.sums(self.evidence)

    @property
    def provenance(self) -> Shown | str:
        """When and how the facts were taken, and what was checked and is fine."""
        if self.bundle is None:
            return "the text given as a parameter"
        return box_views.provenance(self.bundle)

    @property
    def claims(self) -> Shown | None:
        """What the case study of a recorded box claims, each with what became of it; else None."""
        # Imported here, because it needs PyYAML, which is missing where nothing is installed.
        from helpers.tell.claims import claims_table

        table = claims_table(self.facts.box)
        if not table.cells:
            return None
        return table

    def reader(self) -> None:
        """Show a field that takes another error text and adds up its numbers.

        Where no widget can be shown, a sentence says so.
        """
        from helpers.tell.panels import questions

        questions.reader.show()

    def monitor(self) -> None:
        """Show the live monitor; where no widget can be shown, a sentence says so."""
        from helpers.tell.panels import monitor

        monitor.show(self.bundle)

    def __repr__(self) -> str:
        return self.machine

    def _repr_html_(self) -> str:
        return f"<div class=casebook>{escape(self.machine)}</div>"


def open_box(name: str = "live", message_text: str = "") -> Box:
    """A box by its name, with an error text in place of the box's own where one is given.

    ``name`` is ``live`` (captures this machine), the path of a bundle, a name from env/boxes, or
    empty for a text alone. Raises BundleError (a ValueError) in one line.
    """
    return Box(message.gathered(message_text, name))


def as_box(box: Box | str) -> Box:
    """The box itself, or the one of that name."""
    if isinstance(box, str):
        return open_box(box)
    return box


def gpus(box: Box | str = "live") -> Shown:
    """The GPUs of a box with their number in every index space, because these numbers differ."""
    return tables.gpus_table(as_box(box).gpus)


def processes(box: Box | str = "live") -> Shown:
    """Each process that holds GPU memory, in bytes, and what no visible process accounts for."""
    return tables.holders_table(as_box(box).gpus)


def pools(box: Box | str = "live") -> Shown:
    """The size and use of each pool of memory as each layer reports them, on one scale,
    in bytes.
    """
    box = as_box(box)
    return figures.pools([*box.gpus, *host_pools(box.facts)])


def ledger(box: Box | str = "live") -> Shown:
    """Every byte in use by who holds it, and the remainder that nothing accounts for."""
    return figures.ledger(as_box(box).ledgers)


def memory_settings(box: Box | str = "live") -> Shown:
    """What each memory setting of the environment and the kernel does on this build and chip."""
    return box_views.settings_table(as_box(box).facts)


def kernel_events(box: Box | str = "live") -> Shown:
    """What the kernel log says about GPUs and memory, a line for each event or storm of events."""
    bundle = as_box(box).facts
    return tables.events_table(events(bundle), log=readable(bundle))

"""The extension: ``%vram``, ``%%vram``, and a look after each cell.

While nothing fails a cell costs less than a millisecond, and torch is never imported from here.
No error of this extension reaches the person's cell: it is said in one line instead.

A cell that begins with ``%%vram`` is an ordinary cell for IPython: ``without_its_magic`` takes that
line away, and ``before_cell`` and ``after_cell`` measure. Only inside another cell, such as
below ``%%time``, that line stays: IPython calls ``vram`` with the rest, which ``_measure`` runs.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from .runs import CellRuns

if TYPE_CHECKING:
    from IPython.core.interactiveshell import (
        ExecutionInfo,
        ExecutionResult,
        InteractiveShell,
    )

    from .cell_memory import Following
    from .ledger import Ledger

NO_TORCH = "%vram: torch has not been imported in this notebook"
MEASURED = re.compile(r"%%vram\b")
"""The first line of a cell that is to be measured."""
USAGE = "expected %vram, %vram free [NAME ...], %vram on or %vram off"
LONGEST_ERROR = 200
"""Characters: an error of torch may have a page of text."""
_loaded: dict[str, Extension] = {}
"""The extension, under "extension", while it is loaded."""


class Extension:
    """The extension in one IPython. ``explains``: whether an out-of-memory gets a card."""

    def __init__(self, shell: InteractiveShell):
        self.shell = shell
        self.runs = CellRuns()
        self.explains = True
        self._following: Following | None = None
        """The measurement of the running cell, if it begins with %%vram."""
        self._running: ExecutionInfo | None = None
        """The outermost running cell."""

    def before_cell(self, info: ExecutionInfo) -> None:
        """Follow a cell that begins with ``%%vram``. IPython runs it as it runs any other."""
        if self._running is not None:
            return  # a cell inside the running one, such as by run_cell
        self._running = info
        cell = getattr(info, "raw_cell", None)
        if not isinstance(cell, str) or not cell.lstrip().startswith("%%vram"):
            return
        torch = sys.modules.get("torch")
        if torch is None:
            print(NO_TORCH)
            return
        try:
            from . import cell_memory

            self._following = cell_memory.Following(torch)
        except Exception as error:  # noqa: BLE001 - the cell runs, measured or not
            print(f"%vram: no answer, because of {_short(error)}")

    def after_cell(self, result: ExecutionResult) -> None:
        """Note how much memory is in use after the cell, and explain an out-of-memory under its
        traceback.
        """
        following = None
        # Of a cell inside the running one, such as by run_cell, the outer cell's is not ended.
        if result.info is self._running:
            self._running = None
            following = self._following
            self._following = None
        torch = sys.modules.get("torch")
        cell = getattr(result.info, "raw_cell", None)
        if torch is None or not isinstance(cell, str):
            return
        try:
            ledgers = {}
            if following is not None:
                ledgers = following.end()
            self.runs.add(cell, torch, self.shell)
            if result.error_in_exec is not None and self.explains:
                self._explain(result.error_in_exec, cell, torch)
            if ledgers:
                self._show_peaks(ledgers)
        except Exception as error:  # noqa: BLE001 - the person's cell must not suffer
            print(f"vram_casebook: no answer, because of {_short(error)}")

    def _explain(self, error: BaseException, cell: str, torch: ModuleType) -> None:
        """Show a card if the error is an out-of-memory."""
        # Imported here and below, so that a notebook in which nothing fails loads none of it.
        from . import failure

        out_of_memory = failure.out_of_memory(error)
        if out_of_memory is None:
            return
        from . import cards

        answer = failure.explained(out_of_memory, cell, torch, self.shell, self.runs)
        cards.of_failure(answer).show()

    def without_its_magic(self, lines: list[str]) -> list[str]:
        """Transform a cell for IPython: an empty line replaces its first line ``%%vram``, so that
        other lines keep their numbers. Before another magic, which has to be first, the line is
        removed.
        """
        is_inner = self._running is not None
        if is_inner or not lines or not MEASURED.match(lines[0]):
            return lines
        rest = lines[1:]
        first = next((line for line in rest if line.strip()), "")  # that is not blank
        if first.startswith("%%"):
            return rest
        return ["\n", *rest]

    def vram(self, line: str, cell: str | None = None) -> None:
        """GPU memory of this notebook, by the names of its variables.

        %vram               what holds GPU memory, and large tensors in host memory
        %vram free          let go of what no variable holds: errors, outputs, cached blocks
        %vram free NAME...  delete these variables as well
        %vram off, on       no card under an out-of-memory; the card again
        %%vram              the peak of a cell, and what it keeps, by line
        """
        torch = sys.modules.get("torch")
        words = re.findall(r"[^\s,;]+", line)
        if words in (["on"], ["off"]):
            self.explains = words == ["on"]
            return
        if torch is None:
            print(NO_TORCH)
            if cell is not None:  # the cell below %%vram runs, unmeasured
                self.shell.run_cell(cell, store_history=False)
            return
        try:
            self._answer(torch, words, cell)
        except Exception as error:  # noqa: BLE001 - a lost card, objects of any kind
            print(f"%vram: no answer, because of {_short(error)}")

    def _answer(self, torch: ModuleType, words: list[str], cell: str | None) -> None:
        """Do what the words after ``%vram`` say, or measure a cell."""
        if cell is not None:
            self._measure(cell, torch)
        elif not words:
            self._list(torch)
        elif words[0] == "free":
            self._free(torch, words[1:])
        else:
            print(f"%vram: seen {' '.join(words)!r}; {USAGE}")

    def _list(self, torch: ModuleType) -> None:
        """Show who holds memory now."""
        from . import cards, devices
        from .holdings import add_lines, find_holdings
        from .unnamed import add_unnamed

        question = devices.question_of_others()
        holdings = find_holdings(torch, self.shell)
        add_lines(holdings.holders)
        add_unnamed(torch, holdings)
        uses = devices.devices_in_use(torch)
        others = devices.other_processes(question)
        cards.of_holdings(holdings, uses, others).show()

    def _free(self, torch: ModuleType, names: list[str]) -> None:
        """Let go of what no variable holds, and of the named variables; show what came back."""
        from . import cards, letting_go

        try:
            result = letting_go.let_go(torch, self.shell, names)
        except letting_go.NoSuchVariable as error:
            print(
                f"%vram free: seen {error}; expected the name of a variable of this notebook"
            )
            return
        cards.of_letting_go(result).show()

    def _measure(self, cell: str, torch: ModuleType) -> None:
        """Run a cell inside another magic, and show its peak, and what it keeps, by line."""
        from .cell_memory import Following

        following = Following(torch)
        try:
            self.shell.run_cell(cell, store_history=False)
        finally:
            self._show_peaks(following.end())

    def _show_peaks(self, ledgers: dict[str, Ledger]) -> None:
        from . import cards

        cards.of_cell(ledgers).show()


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """``%load_ext vram_casebook`` (or ``helpers``)."""
    if "extension" in _loaded:
        return
    extension = Extension(shell)
    _loaded["extension"] = extension
    shell.events.register("pre_run_cell", extension.before_cell)
    shell.events.register("post_run_cell", extension.after_cell)
    shell.input_transformers_cleanup.append(extension.without_its_magic)
    shell.magics_manager.register_function(extension.vram, "line_cell", "vram")


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """``%unload_ext vram_casebook``."""
    extension = _loaded.pop("extension", None)
    if extension is not None:
        shell.events.unregister("pre_run_cell", extension.before_cell)
        shell.events.unregister("post_run_cell", extension.after_cell)
        shell.input_transformers_cleanup.remove(extension.without_its_magic)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("vram", None)

"""The notebook that looks further, with its parameters filled in: a link and a command line."""

from __future__ import annotations

import hashlib
import json
import re
from html import escape
from pathlib import Path

from helpers.ground.places import CHECKOUT, OUTPUTS
from helpers.ground.shapes import Verdict
from helpers.ground.shell import word
from helpers.look.files import write_atomic
from helpers.tell.front_end import is_interactive
from helpers.tell.html_table import text_html
from helpers.tell.notebook_cells import PARAMETERS

NOTEBOOKS = CHECKOUT / "notebooks"
LAB = OUTPUTS / "lab"
"""Where `make lab` keeps its copies of the notebooks."""
PROBE = "01_hardware_probe"
REPORT = "09_case_report"
BY_CAUSE = {
    "allocator-fragmentation": "02_allocator_stress",
    "allocator-cache-not-returned": "02_allocator_stress",
    "true-capacity": "02_allocator_stress",
    "ttm-gtt-cap": "03_ttm_gtt_analysis",
    "carveout-only": "03_ttm_gtt_analysis",
    "hsa-pool-cap": "03_ttm_gtt_analysis",
}
"""The notebook that looks further into a cause; PROBE does for any other cause, and REPORT where
the notebook that asks is the one of the cause.
"""
RECORDING = "run.pickle"
RECORD = f"casebook record --out {RECORDING} -- python train.py"


class NextNotebook:
    """A notebook with the parameters for its run. ``first`` is a command that is typed before the
    notebook is run, such as one that records a trace; empty where none is needed.
    """

    def __init__(self, name: str, parameters: dict[str, str], first: str = "") -> None:
        self.name = name
        self.parameters = parameters
        self.first = first

    @property
    def lines(self) -> list[str]:
        """The command lines that are typed."""
        if not self.first:
            return [self.command]
        return [self.first, self.command]

    @property
    def command(self) -> str:
        """The command line that runs it with these parameters."""
        line = f"papermill notebooks/{self.name}.ipynb out.ipynb"
        for name, value in self.parameters.items():
            line += f" -p {name} {word(value)}"
        return line

    def link(self) -> str:
        """The name of the file to open, which is in the folder of the notebook that asks.

        Elsewhere it is the notebook itself. Where a person sits in the folder of `make lab`, it is
        a copy with the parameters filled in. The copy is written only where it does not exist yet:
        from then on it is the user's, who may have changed it.
        """
        if not is_interactive() or Path.cwd() != LAB:
            return f"{self.name}.ipynb"
        about = "-".join(Path(value).stem for value in self.parameters.values())
        # File names may have 255 bytes; 60 letters are enough to tell boxes apart.
        words = re.sub(r"[^\w.]+", "-", about).strip("-")[:60]
        # Two folders may have bundles of the same name.
        digest = hashlib.sha256(json.dumps(self.parameters).encode()).hexdigest()
        path = LAB / f"{self.name}-{words}-{digest[:8]}.ipynb"
        if not path.exists():
            write_atomic(path, self._text_with_parameters())
        return path.name

    def _text_with_parameters(self) -> str:
        """The notebook's file with the parameters filled in, without outputs."""
        path = NOTEBOOKS / f"{self.name}.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = []
                cell["execution_count"] = None
            if PARAMETERS in cell["metadata"].get("tags", []):
                cell["source"] = filled("".join(cell["source"]), self.parameters)
        return json.dumps(notebook, indent=1) + "\n"

    def __str__(self) -> str:
        return "\n".join(["Look further:", *(f"  {line}" for line in self.lines)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The link with its parameters, and the commands below it."""
        values = [
            f"{name} = {json.dumps(self.parameters[name])}" for name in self.parameters
        ]
        link = f"<a href='{escape(self.link())}'>{self.name}</a>"
        commands = text_html("\n".join(self.lines))
        return f"Look further: {link} with {escape(', '.join(values))}{commands}"


def filled(source: str, parameters: dict[str, str]) -> str:
    """The source of a cell of parameters with other values; the comment of each line stays, and so
    does a line whose name is not among the ``parameters``.
    """
    lines = []
    for line in source.split("\n"):
        name = line.partition(":")[0]
        # name: type = value  # comment
        assigned = re.match(r"(\w+: [^=]+ = ).*?((?:  # .*)?)$", line)
        if assigned and name in parameters:
            line = f"{assigned[1]}{parameters[name]!r}{assigned[2]}"
        lines.append(line)
    return "\n".join(lines)


def after(verdict: Verdict, box: str, here: str = "") -> NextNotebook:
    """The notebook that looks further into the cause of a verdict about a box.

    ``box`` is empty for this machine; ``here`` is the name of the notebook that asks, empty where
    a command asks.
    """
    if not box:
        box = "live"
    name = BY_CAUSE.get(verdict.cause, PROBE)
    if name == here:
        name = REPORT
    # That notebook reads a recording of the program, which has to be made first.
    if name == "02_allocator_stress":
        return NextNotebook(name, {"box": box, "trace": RECORDING}, RECORD)
    return NextNotebook(name, {"box": box})

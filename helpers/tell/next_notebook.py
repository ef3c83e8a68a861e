"""The notebook that looks further, with its parameters filled in: a link and a command line."""

from __future__ import annotations

import hashlib
import json
import re
from html import escape
from pathlib import Path
from typing import Any

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
"""The notebook that looks further into a cause; into any other PROBE, and from there REPORT."""
RECORDING = "run.pickle"
RECORD = f"casebook record --out {RECORDING} -- python train.py"


class NextNotebook:
    """A notebook and the parameters that it is to be run with; ``first`` is typed before."""

    def __init__(self, name: str, parameters: dict[str, str], first: str = "") -> None:
        self.name = name
        self.parameters = parameters
        self.first = first

    @property
    def lines(self) -> list[str]:
        """What is typed, line by line."""
        return [line for line in (self.first, self.command) if line]

    @property
    def command(self) -> str:
        """The command line that runs it with these parameters."""
        options = [
            f"-p {name} {word(value)}" for name, value in self.parameters.items()
        ]
        return " ".join(
            ["papermill", f"notebooks/{self.name}.ipynb", "out.ipynb", *options]
        )

    def link(self) -> str:
        """The file to open, beside the notebook that asks.

        In the folder of the lab it is a copy with the parameters filled in, made when it is first
        asked for; it is yours from then on.
        """
        if not is_interactive() or Path.cwd() != LAB:
            return f"{self.name}.ipynb"
        about = "-".join(Path(value).stem for value in self.parameters.values())
        words = re.sub(r"[^\w.]+", "-", about).strip("-")[:60]
        # Two bundles may have one name in two folders.
        digest = hashlib.sha256(json.dumps(self.parameters).encode()).hexdigest()
        path = LAB / f"{self.name}-{words}-{digest[:8]}.ipynb"
        if not path.exists():
            write_atomic(path, json.dumps(self._filled(), indent=1) + "\n")
        return path.name

    def _filled(self) -> dict[str, Any]:
        """The notebook with its parameters, without outputs."""
        path = NOTEBOOKS / f"{self.name}.ipynb"
        notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = []
                cell["execution_count"] = None
            if PARAMETERS in cell["metadata"].get("tags", []):
                cell["source"] = filled("".join(cell["source"]), self.parameters)
        return notebook

    def __str__(self) -> str:
        return "\n".join(["Look further:", *(f"  {line}" for line in self.lines)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        values = ", ".join(
            f"{name} = {json.dumps(value)}" for name, value in self.parameters.items()
        )
        link = f"<a href='{escape(self.link())}'>{self.name}</a>"
        return f"Look further: {link} with {escape(values)}" + text_html(
            "\n".join(self.lines)
        )


def filled(source: str, parameters: dict[str, str]) -> str:
    """The cell of parameters with other values; the comment of each line stays."""
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
    """The notebook that looks further into the cause of a verdict about a box than ``here``, the
    one that asks. Without a box it looks at this machine.
    """
    parameters = {"box": box or "live"}
    name = BY_CAUSE.get(verdict.cause, PROBE)
    if name == here:
        name = REPORT
    if name == "02_allocator_stress":
        return NextNotebook(name, {**parameters, "trace": RECORDING}, RECORD)
    return NextNotebook(name, parameters)

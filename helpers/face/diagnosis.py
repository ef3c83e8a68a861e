"""The verdict over a box or an error text."""

from __future__ import annotations

from helpers.face.box import Box, as_box
from helpers.ground.contract import as_dict
from helpers.ground.shapes import VERDICT_MIME, Verdict
from helpers.judge import diagnosis
from helpers.tell import verdict
from helpers.tell.next_notebook import NextNotebook, after
from helpers.tell.shown import Shown


class Answer:
    """A verdict: its cause, how sure it is, the evidence for and against it, and one next step.

    ``verdict`` has them as data. ``sources``: whether the table ``against`` says where each reading
    comes from. As the last line of a cell it shows the whole verdict.
    """

    def __init__(self, verdict: Verdict, sources: bool = True) -> None:
        self.verdict = verdict
        self.sources = sources

    @property
    def against(self) -> Shown:
        """What speaks against the verdict, and the causes that stay open."""
        return verdict.against(self.verdict, sources=self.sources)

    def next_notebook(self, name: str = "", **parameters: str) -> NextNotebook:
        """A link to the notebook that looks further, and the command that runs it.

        It is the notebook of that name with these parameters. Without a name it is the one for the
        cause; its parameters are ``box``, and ``here``, the name of the current notebook.
        """
        if name:
            return NextNotebook(name, parameters)
        return after(self.verdict, **parameters)

    def show(self) -> None:
        """Show the verdict: its words, and its data for programs that read the notebook."""
        verdict.show(self.verdict)

    def next_step(self) -> None:
        """Show the one next step: what to do, how to check it, how to undo it."""
        verdict.next_step(self.verdict)

    def __repr__(self) -> str:
        return verdict.as_text(self.verdict)

    def _repr_mimebundle_(self, **_options: object) -> dict[str, object]:
        return {
            VERDICT_MIME: as_dict(self.verdict),
            "text/markdown": verdict.as_markdown(self.verdict),
            "text/plain": verdict.as_text(self.verdict),
        }


def diagnose(box: Box | str = "live") -> Answer:
    """Why a box is out of memory, with evidence, or *cannot tell* and what would decide.

    ``box`` is a Box, or a name as ``open_box`` takes it. Raises BundleError (a ValueError) in one
    line for a box that is not there.
    """
    return Answer(diagnosis.diagnose(as_box(box).evidence))

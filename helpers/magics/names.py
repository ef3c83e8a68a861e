"""The variables of the notebook that the person named, and the cells that have their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

OF_IPYTHON = re.compile(
    r"_{1,3}|_i{1,3}|_i?\d+|_oh|_ih|_dh|In|Out|exit|quit|get_ipython|open"
)
"""Names that IPython gives: outputs and inputs of cells, their lists, the history of folders, and
its functions (IPython/core/displayhook.py, history.py and interactiveshell.py).
"""
UNDERSCORES = ("_", "__", "___")
"""IPython's names of the last three outputs."""


def names_of_the_person(shell: InteractiveShell) -> dict[str, Any]:
    """The variables of the notebook that the person named."""
    hidden = shell.user_ns_hidden
    variables = {}
    for name, value in list(shell.user_ns.items()):
        is_ipythons = OF_IPYTHON.fullmatch(name) or name.startswith("__")
        # IPython lists what it put there itself; a variable of that name may have replaced it.
        is_hidden = name in hidden and hidden[name] is value
        if not is_ipythons and not is_hidden:
            variables[name] = value
    return variables


def last_cell_naming(name: str, shell: InteractiveShell) -> int:
    """The number of the last cell whose text has that name; 0 where none has."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    sources = shell.user_ns.get("In", ())
    naming = (number for number, source in enumerate(sources) if word.search(source))
    return max(naming, default=0)


def in_a_sentence(line: str) -> str:
    """A line with its function, such as "cell 2, line 7 step", in the form of a sentence: "cell 2,
    line 7, in step()", or without the function for code outside of any.
    """
    place, _, function = line.rpartition(" ")
    if function == "<module>":
        return place
    return f"{place}, in {function}()"

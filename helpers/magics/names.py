"""The variables of the notebook that the person named, and the cells that have their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

OF_IPYTHON = re.compile(
    r"_{1,3}|_i{1,3}|_i?\d+|_oh|_ih|_dh|In|Out|exit|quit|get_ipython|open"
)
"""Names that IPython gives (IPython/core/displayhook.py and history.py)."""
UNDERSCORES = ("_", "__", "___")
"""Those of the last three outputs."""


def names_of_the_person(shell: InteractiveShell) -> dict[str, Any]:
    """The variables of the notebook that the person named."""
    hidden = shell.user_ns_hidden
    return {
        name: value
        for name, value in list(shell.user_ns.items())
        if not OF_IPYTHON.fullmatch(name)
        and not name.startswith("__")
        and not (name in hidden and hidden[name] is value)
    }


def last_cell_naming(name: str, shell: InteractiveShell) -> int:
    """The number of the last cell whose text has that name; 0 where none has."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    sources = shell.user_ns.get("In", ())
    naming = (number for number, source in enumerate(sources) if word.search(source))
    return max(naming, default=0)


def in_a_sentence(line: str) -> str:
    """A line with its function, such as "cell 2, line 7 step", as a sentence has it."""
    place, _, function = line.rpartition(" ")
    return place if function == "<module>" else f"{place}, in {function}()"

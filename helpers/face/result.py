"""The base of what the functions for notebooks return: objects that show themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from helpers.tell.shown import Shown

if TYPE_CHECKING:
    import pyarrow


class Result(ABC):
    """An answer that is shown as its main view, when printed or as the last line of a cell."""

    @property
    @abstractmethod
    def view(self) -> Shown:
        """The table or figure that answers the question first."""

    def __repr__(self) -> str:
        return str(self.view)

    def _repr_html_(self) -> str | None:
        return self.view._repr_html_()

    def _repr_mimebundle_(
        self, **options: object
    ) -> tuple[dict[str, str], dict[str, Any]]:
        return self.view._repr_mimebundle_(**options)

    def table(self) -> pyarrow.Table:
        """The rows of the main view as a ``pyarrow.Table``; sizes are bytes."""
        return self.view.table()

    def frame(self) -> object:
        """The rows of the main view as a ``pandas.DataFrame``.

        Raises ValueError in one line where pandas is not installed.
        """
        return self.view.frame()

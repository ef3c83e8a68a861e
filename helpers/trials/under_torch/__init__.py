"""Programs that run under the user's own torch: standard library and torch only, each started
as a child by its text.

A program that knows this project records a part of itself with ``helpers.trials.under_torch.recording``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.trials.under_torch.recorder import Recording


def recording(
    out: str | os.PathLike[str], *, max_events: int = 200_000, hang_after_s: float | None = None
) -> Recording:
    """``with recording(out) as r:`` what the block asks of torch's allocator; afterwards
    ``r.trace`` is the file.

    Raises ImportError where there is no torch. Nothing of torch is imported before the call.
    """
    from helpers.trials.under_torch.recorder import Recording

    return Recording(out, max_events, hang_after_s)

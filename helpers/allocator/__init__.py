"""PyTorch's caching allocator: traces of what was asked of it, a model that replays them, and
what the replays answer.

A program that knows this project records a part of itself with ``recording``. Each public name
is loaded when it is first asked for.
"""

from ..ground.lazy_names import load_name

_HOMES = {
    "Card": "driver",
    "Trace": "trace",
    "compare_peaks": "peaks",
    "edited": "edits.edited",
    "generate": "patterns",
    "growth_of_recording": "growers",
    "open_study": "study",
    "ranked": "edits.ranking",
    "read_trace": "trace_file",
    "recording": "under_torch.recording",
    "shrink": "shrinking.shrink",
}
"""Each public name, and the module of this package that holds it.

A name that is also a module's (``replay``, ``whatif``, ``exhaustion``) is imported from that
module.
"""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)

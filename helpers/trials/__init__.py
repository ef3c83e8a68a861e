"""Finds out whether a change helps on this box: workloads with it and without it, and remedies.

Each public name is loaded when it is first asked for.
"""

from helpers.ground.lazy_names import load_name

_HOMES = {
    "TrialLimits": "record",
    "TrialRecord": "record",
    "Workload": "workload",
    "check_rows": "checks",
    "chosen": "catalogue",
    "command": "workload",
    "fix_study": "box_study",
    "preset_trials": "measurement",
    "remedies": "catalogue",
    "torch_interpreter": "interpreter",
}
"""Each public name, and the module of this package that holds it.

A name that is also a module's (``trial``, ``workload``) is imported from that module.
"""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)

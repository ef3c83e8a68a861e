"""A batch: every notebook of a plan, each run in a process of its own, with its record and a page.

Each public name is loaded when it is first asked for.
"""

from helpers.ground.lazy_names import load_name

_HOMES = {
    "load_plan": "plan",
    "run_plan": "supervisor",
    "Cluster": "cluster",
    "read_run": "record",
    "read_batch": "record",
    "write_index": "report",
    "runs_table": "batch_table",
    "of_batch": "leading_verdict",
    "leading": "leading_verdict",
}
"""Each public name, and the module of this package that holds it."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)

"""Child processes: started, bounded, sampled, held in a cgroup, and what /proc says of them.

Standard library alone, on Python 3.8 too.
"""

from helpers.ground.child.bounded import (
    Ended,
    Transcript,
    json_row,
    last_line,
    signal_group,
    signal_name,
    transcript,
    watch,
)
from helpers.ground.child.cgroup import Group, memory_groups, oom_kills
from helpers.ground.child.launch import environment, program, start
from helpers.ground.child.proc import (
    carrying,
    field,
    process_of,
    session_pids,
)
from helpers.ground.child.sampler import Sampler, stacks_of
from helpers.ground.child.sweep import ProcessMark, sweep
from helpers.ground.child.terminal import run_here
from helpers.ground.places import CHECKOUT, OUTPUTS

__all__ = [
    "CHECKOUT",
    "OUTPUTS",
    "Ended",
    "Group",
    "ProcessMark",
    "Sampler",
    "Transcript",
    "carrying",
    "environment",
    "field",
    "json_row",
    "last_line",
    "memory_groups",
    "oom_kills",
    "process_of",
    "program",
    "run_here",
    "session_pids",
    "signal_group",
    "signal_name",
    "start",
    "stacks_of",
    "sweep",
    "transcript",
    "watch",
]

"""Records of trials as they would be kept, without making any."""

from helpers.trials.record import TrialRecord

NOT_ON_A_CPU = ("peak_allocated_bytes", "peak_reserved_bytes", "driver_used_bytes")
PLAIN = {
    **dict.fromkeys(NOT_ON_A_CPU),
    **{"preset": "none", "build": "cpu", "outcome": "ok", "rss_anon_bytes": 1 << 20},
    **{"seconds": 1.0, "steps": 4, "seed": 0, "step_s": [1.0, 0.1, 0.1, 0.1], "loss": [1.0]},
}


def record(arm, repeat, **more):
    """One trial that ended well on a CPU, but for ``more``."""
    of = {"workload": arm, "key": f"{arm}-{repeat}", "repeat": repeat}
    return TrialRecord(**{**PLAIN, **of, **more})

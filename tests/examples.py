"""How many examples hypothesis tries of a property: `make test` a third of what `make test-all` tries.

Properties that cost seconds ask `examples`; the others name a number of their own.
"""

from __future__ import annotations

import os

# HYPOTHESIS_PROFILE, which env/run_tests.py sets, as the share of that number.
SHARES = {"few": 1 / 3, "all": 1, "searching": 20}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "few")


def examples(count: int) -> int:
    """The share of ``count`` that this run tries; `make test-all` tries all of them."""
    return max(1, round(count * SHARES[PROFILE]))

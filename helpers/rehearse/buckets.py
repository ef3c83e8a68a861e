"""The two peaks of a rank with DistributedDataParallel: by chance it holds the buckets of its first
step for another one, or not (FirstBuckets in under_torch/ranks.py).
"""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.units import show_bytes
from helpers.rehearse.rehearsal import Rehearsal
from helpers.rehearse.words import WORDS


def between_buckets(first: Rehearsal, holding: Rehearsal) -> Rehearsal:
    """The ``first`` run, with the difference to the run ``holding`` the old buckets as memory that
    it may need more (``more_bytes``). The first run as it is where the run ``holding`` them did not
    fit, so that its peak is no measure, or reserved no more.
    """
    least_bytes = first.reserved_bytes
    most_bytes = holding.reserved_bytes
    if not holding.fits or not least_bytes or most_bytes <= least_bytes:
        return first
    says = WORDS["says"]["buckets"]
    line = says.format(least=show_bytes(least_bytes), most=show_bytes(most_bytes))
    more_bytes = first.more_bytes + most_bytes - least_bytes
    return replace(first, more_bytes=more_bytes, trust=(line, *first.trust))

"""The peak of a rank whose gradients go in DistributedDataParallel's buckets: one of two, by chance
(FirstBuckets in under_torch/ranks.py).
"""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.units import show_bytes
from helpers.rehearse.rehearsal import Rehearsal
from helpers.rehearse.words import WORDS


def between_buckets(first: Rehearsal, holding: Rehearsal) -> Rehearsal:
    """The first run, with how much higher its peak may be: as high as that of the run ``holding``
    the old buckets.
    """
    least_bytes = first.peak_reserved_bytes or 0
    most_bytes = holding.peak_reserved_bytes or 0
    if not holding.fits or not least_bytes or most_bytes <= least_bytes:
        return first
    says = WORDS["says"]["buckets"]
    line = says.format(least=show_bytes(least_bytes), most=show_bytes(most_bytes))
    more_bytes = first.more_bytes + most_bytes - least_bytes
    return replace(first, more_bytes=more_bytes, trust=(line, *first.trust))

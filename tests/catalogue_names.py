"""The names of observations that the entries of the catalogue speak of."""

from helpers.judge.catalogue import Failure


def names_in(failure: Failure) -> tuple[str, ...]:
    """Every observation that an entry speaks of, in its order."""
    groups = (*failure.needs, failure.sufficient, failure.proof, failure.strong, failure.weak)
    more = (failure.refuted_by, failure.strong_against, failure.weak_against)
    return tuple(dict.fromkeys(name for group in (*groups, *more) for name in group))

"""Every entry of the catalogue is weighed by what is measured, what is said, what proves it and what refutes it."""

import pytest

from helpers.ground.shapes import CAUSES, seen
from helpers.judge.catalogue import failures
from helpers.judge.observation import Observation
from helpers.judge.weights import weigh_failures


def observed(names, **more):
    """Observations of these names, each from a source of its own."""
    return [
        Observation(name, seen("x", "text", f"source of {name}"), "seen", "tool", **more)
        for name in names
    ]


def needed(failure):
    return list(dict.fromkeys(name for group in failure.needs for name in group))


def speaking(failure):
    names = [*needed(failure), *failure.strong, *failure.weak, *failure.sufficient, *failure.proof]
    return [name for name in dict.fromkeys(names) if name not in failure.refuted_by]


def confidence(failure, found):
    """How sure the entry is by these observations, in a list; empty where it does not count."""
    return [row.confidence for row in weigh_failures(found) if row.failure.id == failure.id]


def each(*conditions):
    """The entries that have all of these."""
    rows = [one for one in failures() if all(getattr(one, name) for name in conditions)]
    return pytest.mark.parametrize("failure", rows, ids=lambda failure: failure.id)


def test_every_label_but_cannot_tell_has_an_entry_and_every_entry_a_label():
    assert {failure.cause for failure in failures()} == set(CAUSES) - {"cannot-tell"}


@each()
def test_what_an_entry_needs_reaches_it_and_one_missing_need_does_not(failure):
    assert confidence(failure, observed(needed(failure)))
    for left_out in failure.needs:
        rest = [name for name in needed(failure) if name not in left_out]
        assert not confidence(failure, observed(rest))


@each()
def test_hearsay_alone_is_weak_and_nothing_is_confirmed_without_a_proof(failure):
    said = observed(speaking(failure), hard=False, proof=True)
    assert confidence(failure, said) in (["weak"], [])
    assert all(row.confidence != "confirmed" for row in weigh_failures(observed(speaking(failure))))


@each("strong")
def test_what_supports_an_entry_raises_its_weight_and_stands_in_its_evidence(failure):
    def row(names):
        (found,) = [row for row in weigh_failures(observed(names)) if row.failure.id == failure.id]
        return found

    bare = row(needed(failure))
    for name in set(failure.strong) - set(needed(failure)):
        supported = row([*needed(failure), name])
        assert supported.weight > bare.weight
        assert {one.name for one in supported.speaks_for} == {*needed(failure), name}


@each("proof")
def test_a_proof_confirms_but_not_where_it_was_filled_in(failure):
    names = list(dict.fromkeys([*needed(failure), *failure.proof]))
    assert confidence(failure, observed(names, proof=True)) == ["confirmed"]
    (filled,) = confidence(failure, observed(names, proof=True, filled=True))
    assert filled in ("likely", "weak")


@each("refuted_by")
def test_what_refutes_an_entry_ends_it_where_measured_and_weighs_on_it_where_said(failure):
    found = observed(needed(failure))
    bare = {row.failure.id: row.weight for row in weigh_failures(found)}
    for name in failure.refuted_by:
        assert not confidence(failure, [*found, *observed([name])])
        beside = weigh_failures([*found, *observed([name], hard=False)])
        said = {row.failure.id: row.weight for row in beside}
        assert failure.id not in bare or said[failure.id] < bare[failure.id]

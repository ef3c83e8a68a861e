"""Every entry of the catalogue is weighed by what is measured, what is said, what proves it and what refutes it."""

import pytest

from helpers.ground.shapes import CAUSES, seen
from helpers.judge import table
from helpers.judge.catalogue import failures
from helpers.judge.confidence import weigh_failures
from helpers.judge.observation import Observation
from helpers.settings.releases import behaviour


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


def entries(*conditions):
    """The entries that have all of these."""
    rows = [row for row in failures() if all(getattr(row, name) for name in conditions)]
    assert rows
    return rows


def test_every_label_but_cannot_tell_has_an_entry_and_every_entry_a_label():
    assert {failure.cause for failure in failures()} == set(CAUSES) - {"cannot-tell"}


def test_what_an_entry_needs_reaches_it_and_one_missing_need_does_not():
    for failure in entries():
        assert confidence(failure, observed(needed(failure))), failure.id
        for left_out in failure.needs:
            rest = [name for name in needed(failure) if name not in left_out]
            assert not confidence(failure, observed(rest)), failure.id


def test_hearsay_alone_is_weak_and_nothing_is_confirmed_without_a_proof():
    for failure in entries():
        said = observed(speaking(failure), hard=False, proof=True)
        assert confidence(failure, said) in (["weak"], []), failure.id
        weighed = weigh_failures(observed(speaking(failure)))
        assert all(row.confidence != "confirmed" for row in weighed), failure.id


def weighed_row(failure, names):
    (row,) = [row for row in weigh_failures(observed(names)) if row.failure.id == failure.id]
    return row


def test_what_supports_an_entry_raises_its_weight_and_stands_in_its_evidence():
    for failure in entries("strong"):
        bare = weighed_row(failure, needed(failure))
        for name in set(failure.strong) - set(needed(failure)):
            supported = weighed_row(failure, [*needed(failure), name])
            names = {observation.name for observation in supported.speaks_for}
            assert supported.weight > bare.weight, (failure.id, name)
            assert names == {*needed(failure), name}, (failure.id, name)


def test_a_proof_confirms_but_not_where_it_was_filled_in():
    for failure in entries("proof"):
        names = list(dict.fromkeys([*needed(failure), *failure.proof]))
        assert confidence(failure, observed(names, proof=True)) == ["confirmed"], failure.id
        (filled,) = confidence(failure, observed(names, proof=True, filled=True))
        assert filled in ("likely", "weak"), failure.id


def test_what_refutes_an_entry_ends_it_where_measured_and_weighs_on_it_where_said():
    for failure in entries("refuted_by"):
        found = observed(needed(failure))
        bare = {row.failure.id: row.weight for row in weigh_failures(found)}
        for name in failure.refuted_by:
            assert not confidence(failure, [*found, *observed([name])]), failure.id
            beside = weigh_failures([*found, *observed([name], hard=False)])
            said = {row.failure.id: row.weight for row in beside}
            if failure.id in bare:
                assert said[failure.id] < bare[failure.id], (failure.id, name)


@pytest.mark.parametrize("build", ["cuda", "rocm"])
@pytest.mark.parametrize("torch", ["2.5.0", "2.6.0", "2.7.0", "2.9.0", "2.10.0", "2.14.1"])
def test_expandable_segments_are_turned_off_by_a_name_that_each_torch_reads(torch, build):
    command = table("failures")["readings"]["without"]["how"]
    names = behaviour(torch, build).own_conf_names
    assert any(f"{name}=expandable_segments:False" in command for name in names)

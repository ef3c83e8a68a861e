"""Gradient checkpointing that is on without effect is seen in the objects of the program."""

import linecache
import textwrap
from dataclasses import replace

import pytest
from test_program_verdict import FAILED, OVER, expandable

from helpers.allocator.under_torch import idle_checkpointing as look
from helpers.allocator.under_torch import own_files
from helpers.judge.program_facts import IdleCheckpointing
from helpers.judge.program_verdict import program_verdict

torch = pytest.importorskip("torch")


class Layer(torch.nn.Linear):
    """A layer as transformers makes them: a switch, and a module of that library."""

    gradient_checkpointing = False


Layer.__module__ = "transformers.modeling_layers"


def model(*, checkpointing=True, training=False):
    layers = torch.nn.Sequential(Layer(2, 2), Layer(2, 2))
    for layer in layers:
        layer.gradient_checkpointing = checkpointing
    return layers.train(training)


def test_a_model_in_evaluation_mode_whose_gradients_are_recorded_is_named():
    kept = model()
    assert look.idle_checkpointing(torch)["model"] == "Layer"
    assert not kept.training


def test_it_is_seen_in_the_backward_pass():
    kept = model()
    during = []
    loss = kept(torch.ones(1, 2)).sum()
    loss.register_hook(lambda _: during.append(look.idle_checkpointing(torch)))
    with torch.no_grad():
        loss.backward()
    assert during[0]["model"] == "Layer"


@pytest.mark.parametrize(
    "made",
    [
        pytest.param({"training": True}, id="the model trains"),
        pytest.param({"checkpointing": False}, id="the switch is off"),
    ],
)
def test_a_model_whose_checkpointing_works_or_is_off_is_not_named(made):
    kept = model(**made)
    assert look.idle_checkpointing(torch) == {}
    assert len(kept) == 2


def test_an_evaluation_without_gradients_is_not_named():
    kept = model()
    with torch.no_grad():
        assert look.idle_checkpointing(torch) == {}
    assert len(kept) == 2


def test_a_frozen_model_is_not_named():
    kept = model().requires_grad_(False)
    assert look.idle_checkpointing(torch) == {}
    assert len(kept) == 2


def test_a_frozen_model_beside_one_that_trains_is_not_named():
    kept = [model(), model(training=True)]
    assert look.idle_checkpointing(torch) == {}
    assert len(kept) == 2


def test_the_same_switch_of_another_library_is_not_named():
    kept = torch.nn.Linear(2, 2).eval()
    kept.gradient_checkpointing = True
    assert look.idle_checkpointing(torch) == {}


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("model.train()\nmodel.eval()\n", "own.py:2 <module>"),
        ("model.train(False)\n", "own.py:1 <module>"),
        ("model.eval()\nmodel.eval()\n", ""),
        ("# model.eval()\n", ""),
    ],
)
def test_the_line_that_switches_to_evaluation_is_named_if_there_is_only_one(
    tmp_path, monkeypatch, source, where
):
    path = tmp_path / "own.py"
    path.write_text(textwrap.dedent(source))
    linecache.checkcache(str(path))
    monkeypatch.setattr(own_files, "files_of_the_program", lambda: {str(path)})
    kept = model()
    assert look.idle_checkpointing(torch)["where"] == where
    assert len(kept) == 2


def test_the_answer_names_the_model_and_is_never_certain():
    facts = replace(
        FAILED,
        without_limit=OVER,
        expandable=expandable(fits=False),
        idle_checkpointing=IdleCheckpointing("BertModel", "fit.py:40"),
    )
    verdict = program_verdict(facts)
    assert verdict.cause == "config-ineffective"
    assert verdict.confidence == "likely"
    assert verdict.title == (
        "Gradient checkpointing is on but has no effect: BertModel is in evaluation mode (fit.py:40)"
    )
    assert "model.train()" in verdict.next_step.what

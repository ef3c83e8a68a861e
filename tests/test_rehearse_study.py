"""Presets and searches by rehearsals: which card, which settings, and what is said where nothing can be tried."""

from types import SimpleNamespace

import pytest
from test_rehearse import ran

from helpers import cli
from helpers.commands import rehearse as command
from helpers.load.rehearse import rehearse


def test_searches_and_presets_hold_the_card_and_the_settings_of_the_box(monkeypatch, tmp_path):
    seen = []

    def rehearsed(words, card, out, *, conf, extra, **_):
        seen.append((card.held_bytes, conf))
        return ran(card.total_bytes)

    monkeypatch.setattr(rehearse, "rehearse", rehearsed)
    parser, _ = cli.parsers("rehearse")
    for more in (["--find-batch", "batch"], ["--against", "cuda-no-cache", "cuda-roundup-4"]):
        words = ["rehearse", "--box", "rx7900xt-container", *more, "--", "python", "--batch=1"]
        given = parser.parse_args(words)
        command._answer(given, given.command[1:], tmp_path, SimpleNamespace(), command._card(given))
    held, confs = {one[0] for one in seen}, [one[1] for one in seen]
    assert len(held) == 1 and held.pop() > 0 and "expandable" in confs[0]
    assert set(confs[:-1]) == {confs[0]} and confs[-1] == "roundup_power2_divisions:4"


@pytest.mark.parametrize(
    "more",
    (["--against", "cuda-no-cache", "cuda-roundup-4"], ["--find-batch", "n"], ["--find-capacity"]),
)
def test_what_sigterm_ended_is_told_as_far_as_it_came_and_ends_so(
    more, monkeypatch, tmp_path, capsys
):
    done = iter([ran(), ran(exit_code=143, ooms=1)])
    monkeypatch.setattr(rehearse, "rehearse", lambda *_, **__: next(done))
    parser, _ = cli.parsers("rehearse")
    given = parser.parse_args(["rehearse", "--gpu", "4090", *more, "--", "python", "--n=1"])
    rest = given.command[1:], tmp_path, SimpleNamespace(), command._card(given)
    assert command._answer(given, *rest) == 143
    out = capsys.readouterr().out
    assert "ended by SIGTERM" in out and out.count("fits") == 1 and "runs out" in out


def test_a_preset_that_is_not_there_is_said_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(rehearse, "rehearse", lambda *_, **__: pytest.fail("it ran"))
    parser, _ = cli.parsers("rehearse")
    given = parser.parse_args("rehearse --gpu 4090 --against cuda-magic -- python x.py".split())
    rest = given.command[1:], tmp_path, SimpleNamespace(), command._card(given)
    with pytest.raises(ValueError, match="cuda-magic"):
        command._answer(given, *rest)


def test_presets_named_by_an_option_that_stands_there_twice_are_all_tried():
    parser, _ = cli.parsers("rehearse")
    words = "rehearse --against cuda-no-cache cuda-gc --against cuda-roundup-4 -- python x.py"
    assert (
        parser.parse_args(words.split()).against == "cuda-no-cache cuda-gc cuda-roundup-4".split()
    )
    assert parser.parse_args(["rehearse", "--", "python"]).against == []

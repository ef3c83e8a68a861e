"""An old verb or option answers in one line with what replaces it."""

import pytest
from command_line import verb as run

from helpers.commands import gone


@pytest.mark.parametrize("verb", gone.VERBS)
def test_a_verb_that_is_gone_names_its_replacement(verb):
    code, out, error = run(verb, "anything")
    assert (code, out) == (2, "")
    assert gone.VERBS[verb] in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("verb, option", gone.OPTIONS)
def test_an_option_that_is_gone_names_its_replacement(verb, option):
    code, out, error = run(verb, option, "value")
    assert (code, out) == (2, "")
    assert gone.OPTIONS[verb, option] in error
    assert len(error.splitlines()) == 1


def test_an_option_of_the_users_own_program_is_left_alone():
    assert gone.instead(["record", "--", "python", "train.py", "--cpu-profile"]) == ""

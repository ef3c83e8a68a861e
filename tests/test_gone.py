"""An old verb or option answers in one line with what replaces it."""

import pytest
from command_line import verb as run

from helpers.commands import gone


@pytest.mark.parametrize("name", gone.GONE)
def test_a_verb_or_an_option_that_is_gone_names_its_replacement(name):
    code, out, error = run(*name.split(), "value")
    assert (code, out) == (2, "")
    assert gone.GONE[name] in error
    assert len(error.splitlines()) == 1


def test_an_option_of_the_users_own_program_is_left_alone():
    assert gone.instead(["record", "--", "python", "train.py", "--cpu-profile"]) == ""

"""What each class of column lets through of a cell that a stranger filled in."""

import pytest

from helpers.judge.evidence import CaseEvidence
from helpers.share.public_copy import PublicCopy


def passes(rule, cell):
    return PublicCopy(CaseEvidence()).rules[rule](cell)


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        ("group", "render"),
        ("group", "video"),
        ("group", "vboxsf"),
        ("mode", "0660"),
        ("mode", "crw-rw----"),
        ("state", "D"),
    ],
)
def test_what_every_box_has_passes(rule, cell):
    assert passes(rule, cell) == cell


@pytest.mark.parametrize("group", ["harbour.team.example", "sigma-pool-4", "render-31009", 30517])
def test_a_group_that_its_owner_made_is_numbered(group):
    assert passes("group", group) == "group-1"


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        ("mode", "0660+40512290"),
        ("mode", "40512290"),
        ("mode", "sigma"),
        ("state", "sigma-31009"),
        ("state", "SD"),
    ],
)
def test_what_no_kernel_prints_stays(rule, cell):
    assert passes(rule, cell) == ""

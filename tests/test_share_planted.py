"""What was planted into notebooks, records and bundles is on no page that nobody ticked."""

import json

import pytest
from planted import KINDS, WAYS, Garden, copied, survivors

from helpers import share
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED

CHECKOUT = RECORDED.parents[1]
BOXES = ("strix-halo-3-gttsize", "rx7900xt-container", "cuda-24gb-tuning", "cuda-healthy")
OWN = ("01_hardware_probe", "02_allocator_stress", "05_fix_validation")
MANY = 600


def grown(kind, seed, example_batch, tmp_path):
    """A subject of a kind with values planted into it, and what was planted."""
    garden = Garden(seed)
    rate = garden.random.choice((0.03, 0.1, 0.4))
    if kind == "bundle":
        box = BOXES[seed % len(BOXES)]
        return garden, garden.into_bundle(RECORDED / box, tmp_path / f"box-{seed}", rate)
    if kind == "notebook":
        source = CHECKOUT / "notebooks" / f"{OWN[seed % len(OWN)]}.ipynb"
        path = tmp_path / f"own-{seed}.ipynb"
        path.write_text(json.dumps(garden.into_notebook(json.loads(source.read_text()), rate)))
        return garden, path
    batch = garden.into_run(copied(example_batch, tmp_path / f"20260301T210000Z-{seed}"), rate)
    if kind == "run":
        return garden, batch / "01-probe"
    return garden, batch


def pages(target, tick=False):
    """Everything that leaves of a target; all that can be ticked is, where ``tick`` is given."""
    about = share.subject_of(target, with_notebooks=tick)
    choices = frozenset()
    if tick:
        choices = frozenset(row.digest for row in share.review_of(about).rows)
    page = share.page_of(about, choices)
    reports = [share.issue_text(tracker, about) for tracker in share.TRACKERS]
    return [page.html, page.name, page.left_out, *reports]


def test_the_garden_has_sixty_kinds_and_forty_ways():
    assert len(KINDS) >= 60
    assert len(WAYS) >= 40


@pytest.mark.parametrize("kind", ["bundle", "notebook", "run", "batch"])
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_planted_is_on_a_page_without_ticks(kind, seed, example_batch, tmp_path):
    garden, target = grown(kind, seed, example_batch, tmp_path)
    try:
        texts = pages(target)
    except (share.ShareError, BundleError) as refused:
        texts = []
        assert "\n" not in str(refused)
    assert len(garden.planted) > 5
    assert survivors(garden, *texts) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bundle", "notebook", "run", "batch"])
def test_of_six_hundred_planted_values_none_is_on_a_page_without_ticks(
    kind, example_batch, tmp_path
):
    planted = 0
    for seed in range(100, 400):
        garden, target = grown(kind, seed, example_batch, tmp_path)
        try:
            texts = pages(target)
        except (share.ShareError, BundleError):
            continue
        planted += len(garden.planted)
        assert survivors(garden, *texts) == []
        if planted >= MANY:
            break
    assert planted >= MANY


SECRET_KINDS = (
    "token, GitHub",
    "token, Hugging Face",
    "token, AWS",
    "token, Slack",
    "token, JWT",
    "token, none's",
    "link, login",
    "key",
    "mail",
    "address, 4",
    "address, 6",
    "MAC",
    "UUID",
)


@pytest.mark.parametrize("kind", ["bundle", "notebook", "run"])
@pytest.mark.parametrize("seed", [1, 2])
def test_with_all_ticked_no_token_key_mail_or_address_survives(kind, seed, example_batch, tmp_path):
    garden, target = grown(kind, seed, example_batch, tmp_path)
    try:
        texts = pages(target, tick=True)
    except (share.ShareError, BundleError):
        return
    left = survivors(garden, *texts)
    assert [row for row in left if row[0] in SECRET_KINDS] == []

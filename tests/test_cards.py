"""Cards by name: the table, a size, a box's own."""

import pytest

from helpers.look import cards
from helpers.look.boxes import open_box
from helpers.rehearse.run import WORDS

GIB = 1 << 30


def test_every_card_has_a_source_and_figures_that_can_be():
    for key, card in cards.cards().items():
        assert card.source
        assert key == key.lower() and 8 * GIB < card.total_bytes < 300 * GIB
        assert 70 <= card.capability <= 120 and card.multiprocessors > 20 and card.l2_mib > 0


def test_every_field_of_a_card_that_a_rehearsal_sets_is_there():
    card = cards.find_card("t4")
    assert [name for name in WORDS["card"].values() if not hasattr(card, name)] == []
    assert card.threads == 1024


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("5000",), "expected one of t4"),
        (("", ""), "no card"),
        (("", "much"), "size 'much'"),
        (("t4", "", "20GiB"), "nothing is left"),
        (("", "8GiB", "-1"), "size '-1'"),
    ],
)
def test_a_card_that_cannot_be_is_refused_in_one_line(arguments, says):
    with pytest.raises(cards.CardError, match=says):
        cards.find_card(*arguments)


def test_a_size_alone_is_a_card_and_what_others_hold_comes_off_it():
    card = cards.find_card("", "20GiB", "1GiB")
    assert (card.total_bytes, card.held_bytes, card.capability) == (20 * GIB, GIB, 90)
    assert "held by others" in card.words


def test_the_card_of_a_box_has_the_boxs_size_and_what_is_in_use():
    card = cards.find_card(bundle=open_box("cuda-24gb-tuning"))
    assert 20 * GIB < card.total_bytes < 26 * GIB and card.vendor == "cuda" and "box" in card.source
    assert cards.find_card(bundle=open_box("strix-halo-1-found")).vendor == "rocm"
    with pytest.raises(cards.CardError, match="no GPU memory"):
        cards.find_card(bundle=open_box("cpu-only"))
    sized = cards.find_card(capacity="20GiB", bundle=open_box("cpu-only"))
    assert sized.total_bytes == 20 * GIB and not sized.held_bytes

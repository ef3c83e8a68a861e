"""Cards by name: the table, a size, a box's own."""

from pathlib import Path

import pytest
from command_line import verb

from helpers.look import cards
from helpers.look.boxes import open_box
from helpers.rehearse.words import WORDS

ROOT = Path(__file__).resolve().parents[1]
GIB = 1 << 30


def test_every_card_has_a_source_and_figures_that_can_be():
    assert len(cards.cards()) >= 60
    for key, card in cards.cards().items():
        assert card.source
        assert key == key.lower() and 60 <= card.capability <= 130
        assert 6 * GIB < card.total_bytes < 300 * GIB or (card.is_shared and not card.total_bytes)
        assert 4 < card.multiprocessors < 400 and 0 <= card.l2_mib <= 128
        assert card.threads in (1024, 1536, 2048) and card.blocks in (16, 24, 32)


def test_every_kind_of_card_is_in_the_table():
    table = cards.cards()
    architectures = {card.arch for card in table.values()}
    assert {"7.5", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1"} <= architectures
    assert {"gfx1030", "gfx1100", "gfx1151", "gfx1201", "gfx942"} <= architectures
    assert table["gb10"].is_shared and table["8060s"].is_shared and not table["4090"].is_shared


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA GeForce RTX 4070 Ti", "4070ti"),
        ("RTX 4070 Ti SUPER", "4070tis"),
        ("rtx4090", "4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-80-sxm"),
        ("NVIDIA H100 PCIe", "h100"),
        ("Radeon RX 7900 XTX", "7900xtx"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "pro6000"),
    ],
)
def test_a_card_goes_by_the_name_that_tools_print(name, key):
    assert cards.find_card(name) == cards.cards()[key]


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 3060 Laptop GPU", "NVIDIA RTX 5000 Ada", "L40"]
)
def test_a_card_that_is_like_another_is_not_taken_for_it(name):
    with pytest.raises(cards.CardError, match="not in the table"):
        cards.find_card(name)


def test_a_card_whose_memory_firmware_decides_asks_for_it():
    with pytest.raises(cards.CardError, match="expected --capacity SIZE"):
        cards.find_card("8060s")
    card = cards.find_card("8060s", "60GiB")
    assert (card.total_bytes, card.arch, card.multiprocessors) == (60 * GIB, "gfx1151", 20)


def test_every_field_of_a_card_that_a_rehearsal_sets_is_there():
    card = cards.find_card("t4")
    assert [name for name in WORDS["card"].values() if not hasattr(card, name)] == []
    assert card.threads == 1024


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("5000",), "expected a name that --gpu list shows"),
        (("4091",), "near it: 4090"),
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
    assert "of which others use 1.00 GiB" in card.words


def test_the_card_of_a_box_has_the_boxs_size_and_what_is_in_use():
    card = cards.find_card(bundle=open_box("cuda-24gb-tuning"))
    assert 20 * GIB < card.total_bytes < 26 * GIB and card.vendor == "cuda" and "box" in card.source
    assert cards.find_card(bundle=open_box("strix-halo-1-found")).vendor == "rocm"
    with pytest.raises(cards.CardError, match="no GPU memory"):
        cards.find_card(bundle=open_box("cpu-only"))
    sized = cards.find_card(capacity="20GiB", bundle=open_box("cpu-only"))
    assert sized.total_bytes == 20 * GIB and not sized.held_bytes


def test_the_list_of_cards_has_one_line_a_card_and_sources_only_where_asked_for():
    lines = verb("rehearse", "--gpu", "list").out.splitlines()
    assert len(lines) < len(cards.cards()) + 8 and max(map(len, lines)) <= 80
    assert "whitepaper" not in "".join(lines)
    assert "whitepaper" in verb("rehearse", "--gpu", "list", "--wide").out


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("a100", ["a100-80"]),
        ("v100", ["v100-32"]),
        ("a100-40", []),
        ("4090", []),
        ("NVIDIA A100-SXM4-40GB", []),
        ("", []),
    ],
)
def test_a_name_of_cards_of_several_sizes_names_the_others(name, others):
    assert list(cards.other_sizes(name)) == others


def test_the_card_that_a_name_was_taken_for_is_said_where_another_size_has_it(tmp_path):
    model = tmp_path / "config.json"
    model.write_text("{}")
    said = verb("fits", model, "--gpu", "a100").err
    assert "--gpu a100 is NVIDIA A100-SXM4-40GB here; also: a100-80" in said
    assert "also" not in verb("fits", model, "--gpu", "a100-80").err


def test_the_readme_says_how_many_cards_there_are():
    vendors = [card.vendor for card in cards.cards().values()]
    counts = f"{len(vendors)}: {vendors.count('cuda')} of NVIDIA"
    readme = (ROOT / "README.md").read_text()
    assert f"| {counts}" in readme
    assert f"and {vendors.count('rocm')} of AMD" in readme

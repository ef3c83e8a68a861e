"""Sizes as typed and as printed, PCI addresses, and when two figures are one."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.ground.units import (
    GIB,
    MIB,
    halved,
    near,
    parse_count,
    parse_size,
    pci_address,
    printed_size,
    quantity,
    show_bytes,
)


@pytest.mark.parametrize(
    ("words", "typed", "printed"),
    [
        ("8 GB", 8 * 10**9, 8 * GIB),
        ("8GiB", 8 * GIB, 8 * GIB),
        ("512M", 512 * MIB, 512 * MIB),
        ("3 kB", 3000, 3072),
        ("2TB", 2 * 10**12, 2 << 40),
        ("7", 7, 7),
        ("1.5GiB", 3 << 29, 3 << 29),
        ("8 gib", 8 * GIB, 8 * GIB),
    ],
)
def test_a_typed_size_is_decimal_and_a_printed_one_binary(words, typed, printed):
    assert (parse_size(words), printed_size(words)) == (typed, printed)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("5 k", "5 K"),
        ("2M", "2 M"),
        ("3 gi", "3 Gi"),
        ("3 gib", "3 GiB"),
        ("3 kb", "3 KB"),
        ("7", "7 bytes"),
    ],
)
def test_a_unit_is_shown_in_its_usual_letters(words, shown):
    assert quantity(words).text == shown


def test_a_printed_size_may_leave_its_unit_to_a_column_and_part_thousands():
    assert printed_size("18760", "MiB") == 18760 * MIB and printed_size("8,589,934,592") == 8 * GIB
    assert printed_size("46.75 GB") == int(46.75 * GIB)


@pytest.mark.parametrize(
    ("words", "size", "hidden"),
    [
        ("1.41 GiB", 1513975971, 5368710),
        ("1,41 GiB", 1513975971, 5368710),
        ("0 bytes", 0, 0),
        ("0.00 GiB", 0, 5368710),
        ("512 bytes", 512, 0),
        ("1,073,741,824 bytes", 1073741824, 0),
        ("1.073.741.824 bytes", 1073741824, 0),
        ("1.234,50 MiB", 1294467072, 5243),
        ("1,234.50 MiB", 1294467072, 5243),
        ("896.00 KiB", 917504, 6),
        ("2.5 TiB", 2748779069440, 54975581389),
        ("730857472", 730857472, 0),
        ("3 Gio", 3 * GIB, GIB // 2 + 1),
        ("20.00 МиБ", 20 * MIB, 5243),
    ],
)
def test_a_printed_size_knows_what_its_last_digit_hides(words, size, hidden):
    read = quantity(words)
    assert read and (read.bytes, read.precision_bytes) == (size, hidden)


@given(st.integers(1, 512 * 1024), st.sampled_from([1, 2]))
def test_a_size_printed_in_other_digits_is_the_same_size(mib, decimals):
    printed = quantity(f"{mib / 1024:.{decimals}f}", "GiB")
    assert near(printed, mib * MIB, 0) and not near(printed, mib * MIB * 2 + GIB, 0)


def test_a_size_of_a_program_that_counts_in_decimals_or_of_a_person_who_may():
    assert quantity("2 GB", decimal=True).bytes == 2 * 10**9
    typed = quantity("2.00 GB", retyped=True)
    assert typed.bytes == 2 * GIB and typed.bytes - typed.precision_bytes <= 2 * 10**9


@pytest.mark.parametrize(
    "words", ["", "GiB", "-5 MiB", "1e9", "12 parsecs", "9" * 5000, "1.2.3 GiB", "1.5 bytes"]
)
def test_what_is_no_size_is_refused(words):
    with pytest.raises(ValueError, match="is no size"):
        printed_size(words)
    assert quantity(words) is None


def test_a_size_may_be_typed_with_its_unit_written_out():
    """As ``diagnose`` and ``replay`` print it: to be copied into --capacity."""
    assert parse_size("42949672960 bytes") == parse_size("40GiB") == 42949672960
    assert (parse_size("1 byte"), parse_size("2 kbytes"), parse_size("2 kibytes")) == (
        1,
        2000,
        2048,
    )


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "8 pages", "1e9", "8GiBs", "0x10", "nan", "9" * 5000]
)
def test_what_is_no_typed_size_is_refused_with_what_was_seen(text):
    with pytest.raises(ValueError, match="expected bytes or a number with a unit"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["", "-5", "1.5", "1e99", "many", "1,23", "0", "9" * 16, "9" * 5000]
)
def test_what_is_no_whole_number_is_refused_with_what_was_seen(text):
    with pytest.raises(ValueError, match="expected a whole number of 1 or more") as refused:
        parse_count(text)
    assert len(str(refused.value)) < 120


def test_a_whole_number_may_be_typed_with_commas():
    assert parse_count("8,112,000") == parse_count(" 8112000 ") == 8_112_000
    assert parse_count("0", least=0) == 0


@pytest.mark.parametrize("words", ["1,234 GiB", "1,23,456 bytes", "1,2.3,4 MiB"])
def test_a_size_that_can_mean_two_things_is_none(words):
    assert quantity(words) is None


@given(st.text(max_size=60), st.text(max_size=8))
def test_no_text_breaks_a_reader(words, unit):
    for read in (parse_size, lambda text: printed_size(text, unit)):
        try:
            assert read(words) >= 0
        except ValueError:
            pass
    assert pci_address(pci_address(words)) == pci_address(words)


@given(st.integers(0, 1 << 50))
def test_a_shown_size_reads_back_as_a_printed_and_as_a_typed_one(size):
    for read in (printed_size, parse_size):
        assert abs(read(show_bytes(size)) - size) <= size / 150


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:03:00.0", "0000:03:00.0"),
        ("03:00.0", "0000:03:00.0"),
        ("3:0.0", "0000:03:00.0"),
        ("00000000:03:00.0", "0000:03:00.0"),
        ("PCI:0000:03:00", "0000:03:00.0"),
        (" 0000:03:00.0 ", "0000:03:00.0"),
        ("0000000F:C4:1f.7", "000f:c4:1f.7"),
        ("10000:E1:00.1", "10000:e1:00.1"),
        *((text, "") for text in (None, "", "N/A", "card0", "12:34:56.0", "10:00:30.5", "12:10")),
        *((text, "") for text in ("10:00:10.5", "bus 0000:03:00.0 here", "[0000:03:00.0]")),
        *((text, "") for text in ("0000:03:00.9", "0000:03:20.0", "x" * 9999)),
    ],
)
def test_one_address_however_it_is_written_and_empty_for_what_is_none(text, address):
    assert pci_address(text) == address


class Printed(NamedTuple):
    bytes: int
    precision_bytes: int


def test_sizes_are_one_within_what_both_printed_figures_hide():
    left = Printed(8 * GIB, 5 * MIB)
    right = Printed(8 * GIB + 9 * MIB, 5 * MIB)
    assert near(left, right, share=0) and not near(left, right.bytes, share=0)
    assert near(1000, 1014) and not near(1000, 1020) and near(0, 0)
    assert not near(None, 5) and not near(None, None)


@given(edge=st.integers(0, 10**6), gap=st.integers(1, 10**6), step=st.integers(1, 100))
def test_halving_ends_one_step_around_the_edge_from_either_side(edge, gap, step):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= edge

    low = edge - gap // 2
    high = edge + gap
    passes, fails = halved(fits, low, high, step)
    assert low <= passes <= edge < fails <= high and fails - passes <= step
    passes, fails = halved(lambda size: not fits(size), high, low, step)
    assert fails <= edge < passes and passes - fails <= step
    assert len(tried) <= 2 * (gap.bit_length() + 2)
    assert all((size - low) % step == 0 for size in tried)

"""Sizes as typed and as printed, PCI addresses, and when two figures are one."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.units import (
    GIB,
    MIB,
    near,
    parse_size,
    pci_address,
    printed_size,
    printed_unit,
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
    ],
)
def test_a_typed_size_is_decimal_and_a_printed_one_binary(words, typed, printed):
    assert (parse_size(words), printed_size(words)) == (typed, printed)


def test_a_printed_size_may_leave_its_unit_to_a_column_and_part_thousands():
    assert printed_size("18760", "MiB") == 18760 * MIB and printed_size("8,589,934,592") == 8 * GIB
    assert printed_size("46.75 GB") == int(46.75 * GIB)
    assert printed_unit("parsecs") is None and printed_unit("") == 1


@pytest.mark.parametrize(
    "words", ["", "MiB", "-5 MiB", "1e9", "12 parsecs", "9" * 5000, "1.2.3 GiB"]
)
def test_what_is_no_printed_size_is_refused(words):
    with pytest.raises(ValueError, match="is no size|is unknown"):
        printed_size(words)


@given(st.text(max_size=60), st.text(max_size=8))
def test_no_text_breaks_a_reader(words, unit):
    for read in (parse_size, lambda text: printed_size(text, unit)):
        try:
            assert read(words) >= 0
        except ValueError:
            pass
    assert pci_address(pci_address(words)) == pci_address(words)


@given(st.integers(0, 1 << 50))
def test_a_shown_size_reads_back_as_a_printed_one(size):
    assert abs(printed_size(show_bytes(size)) - size) <= size / 150


@pytest.mark.parametrize(
    "text",
    ["0000:03:00.0", "03:00.0", "3:0.0", "00000000:03:00.0", "PCI:0000:03:00", " 0000:03:00.0 "],
)
def test_one_address_however_it_is_written(text):
    assert pci_address(text) == "0000:03:00.0"
    assert (
        pci_address("0000000F:C4:1f.7") == "000f:c4:1f.7"
        and pci_address("10000:E1:00.1") == "10000:e1:00.1"
    )


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "N/A",
        "card0",
        "12:34:56.0",
        "10:00:30.5",
        "10:00:10.5",
        "12:10",
        "bus 0000:03:00.0 here",
        "[0000:03:00.0]",
        "0000:03:00.9",
        "0000:03:20.0",
        "x" * 9999,
    ],
)
def test_what_is_no_address_is_empty(text):
    assert pci_address(text) == ""


class Printed(NamedTuple):
    bytes: int
    precision_bytes: int


def test_sizes_are_one_within_what_both_printed_figures_hide():
    left, right = Printed(8 * GIB, 5 * MIB), Printed(8 * GIB + 9 * MIB, 5 * MIB)
    assert near(left, right, share=0) and not near(left, right.bytes, share=0)
    assert near(left, right.bytes, share=0, slack_bytes=9 * MIB)
    assert near(1000, 1014) and not near(1000, 1020) and near(0, 0)
    assert not near(None, 5) and not near(None, None)

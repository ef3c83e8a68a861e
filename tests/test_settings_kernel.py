"""Module parameters on a kernel command line: spelt right, in the right module, in the right unit."""

import pytest
from data_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look.ttm import MODULES, UNITS
from helpers.settings.kernel_parameters import audit_cmdline
from helpers.settings.table import OTHER_PARAMETERS, PARAMETERS, VERDICTS

GIB = 1 << 30


def found(word, ram=None):
    return audit_cmdline(f"BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet {word} splash", ram)


@pytest.mark.parametrize(
    "word, meant",
    read_rows("a misspelt parameter or a size in another unit is told with"),
)
def test_a_misspelt_parameter_or_a_size_in_another_unit_is_told_with_what_was_meant(word, meant):
    (one,) = found(word, 125 * GIB)
    assert (one.verdict, bool(one.cause)) == ("misspelt", True) and meant in one.says


@pytest.mark.parametrize(
    "word, verdict", read_rows("a parameter that is written well is judged by what it does")
)
def test_a_parameter_that_is_written_well_is_judged_by_what_it_does(word, verdict):
    (one,) = found(word, 125 * GIB)
    assert one.verdict == verdict and "meant" not in one.says


@pytest.mark.parametrize(
    "word",
    ["", "iommu=pt", "amd_iommu=off", "amdgpu.ppfeaturemask=0xffffffff", "amdgpu.dc=1"]
    + ["nvme.io_timeout=1", "-- ttm.pages_limit=1", "amdgpu.user_partt_mode=0"],
)
def test_parameters_that_are_no_concern_of_memory_are_passed_over(word):
    assert found(word) == ()


@pytest.mark.parametrize("name", ["partition_mode", "hsa_hang_debug", "jpeg_fw_log"])
def test_a_name_that_amdgpu_does_not_have_is_not_passed_over(name):
    assert [one.name for one in found(f"amdgpu.{name}=1")] == [f"amdgpu.{name}"]


def test_lines_of_modprobe_d_are_read_as_well():
    text = "# mine\noptions ttm pages_limit=128849018880\noptions amdgpu gtt_size=120\n"
    assert [f.name for f in audit_cmdline(text, 125 * GIB)] == [
        "amdgpu.gtt_size",
        "ttm.pages_limit",
    ]


def test_a_size_above_the_ram_is_only_a_mistake_where_another_unit_makes_sense():
    assert [f.verdict for f in audit_cmdline("ttm.pages_limit=33554432", 64 * GIB)] == ["effective"]
    assert audit_cmdline("ttm.pages_limit=31457280")[0].verdict == "effective"


def test_every_row_is_whole_and_its_unit_is_the_one_that_a_capture_uses():
    for row in PARAMETERS:
        assert row.module in MODULES and row.verdict in VERDICTS and row.says and row.source
        assert row.unit == UNITS.get((row.module, row.name), ""), row
    assert not {row.name for row in PARAMETERS} & set(OTHER_PARAMETERS["amdgpu"])


PIECES = read_rows("settings_kernel pieces")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=20), st.none() | st.integers(1, 1 << 44))
def test_no_command_line_makes_it_fail(pieces, ram):
    assert {f.verdict for f in audit_cmdline("".join(pieces), ram)} <= set(VERDICTS)

"""Module parameters on a kernel command line: spelt right, in the right module, in the right unit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.look.ttm import MODULES, UNITS
from helpers.settings.kernel import audit_cmdline
from helpers.settings.table import OTHER_PARAMETERS, PARAMETERS, VERDICTS

GIB = 1 << 30


def found(word, ram=None):
    return [
        (f.verdict, f.right)
        for f in audit_cmdline(f"BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet {word} splash", ram)
    ]


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("amdgpu.gtt_size=122880", "amdgpu.gttsize"),
        ("ttm.page_limit=31457280", "ttm.pages_limit"),
        ("amdgpu.pages_limit=31457280", "ttm.pages_limit"),
        ("ttm.gttsize=122880", "amdgpu.gttsize"),
        ("amdgpu.vmsize=8", "amdgpu.vm_size"),
        ("ttm.page-pool-sizes=31457280", "ttm.page_pool_size"),
        ("amdttm.pages_limits=31457280", "amdttm.pages_limit"),
        ("ttm.page_limits=31457280", "ttm.pages_limit"),
    ],
)
def test_a_misspelt_parameter_or_one_of_another_module_is_named_with_the_right_one(word, right):
    assert found(word) == [("misspelt", right)]


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("ttm.pages_limit=128849018880", "ttm.pages_limit=31457280"),
        ("ttm.pages_limit=122880", "ttm.pages_limit=31457280"),
        ("ttm.pages_limit=120", "ttm.pages_limit=31457280"),
        ("amdgpu.gttsize=128849018880", "amdgpu.gttsize=122880"),
        ("amdgpu.gttsize=120", "amdgpu.gttsize=122880"),
        ("ttm.pages_limit=120G", ""),
    ],
)
def test_a_size_in_another_unit_is_found_by_its_magnitude(word, right):
    (one,) = audit_cmdline(word, 125 * GIB)
    assert (one.verdict, one.right, one.carries_cause) == ("misspelt", right, True)
    assert "pages" in one.says or "MiB" in one.says


@pytest.mark.parametrize(
    ("word", "verdict"),
    [
        ("ttm.pages_limit=31457280", "effective"),
        ("ttm.pages_limit=0x1e00000", "effective"),
        ("amdgpu.gttsize=122880", "ineffective"),
        ("amdgpu.gttsize=-1", "ineffective"),
        ("amdgpu.vm_size=128", "ineffective"),
        ("ttm.page_pool_size=31457280", "ineffective"),
        ("amdgpu.no_system_mem_limit=1", "dangerous"),
        ("amdgpu.no_system_mem_limit=0", "ineffective"),
        ("amdgpu.brand_new_thing=1", "unknown"),
    ],
)
def test_a_parameter_that_is_written_well_is_judged_by_what_it_does(word, verdict):
    assert found(word, 125 * GIB) == [(verdict, "")]


@pytest.mark.parametrize(
    "word",
    [
        "",
        "iommu=pt",
        "amd_iommu=off",
        "amdgpu.ppfeaturemask=0xffffffff",
        "amdgpu.dc=1",
        "nvme.io_timeout=1",
        "-- ttm.pages_limit=1",
    ],
)
def test_parameters_that_are_no_concern_of_memory_are_passed_over(word):
    assert found(word) == []


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


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "ttm.",
                "amdgpu.",
                "pages_limit",
                "gttsize",
                "=",
                "0x",
                "99",
                "-",
                " ",
                "\n",
                "options ",
                '"',
                "G",
            ]
        ),
        max_size=20,
    ).map("".join),
    st.one_of(st.none(), st.integers(1, 1 << 44)),
)
def test_no_command_line_makes_it_fail(text, ram):
    assert {f.verdict for f in audit_cmdline(text, ram)} <= set(VERDICTS)

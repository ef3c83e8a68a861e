"""How releases and builds of torch differ."""

import json
from pathlib import Path

import pytest

from helpers.allocator.blocks import round_size
from helpers.settings.audit import audit
from helpers.settings.in_force import parse
from helpers.settings.releases import CHANGES, PROVED, Behaviour, VersionError, behaviour
from helpers.settings.rules import release
from tests.oracle import compare

SEEN = json.loads((Path(__file__).parent / "samples" / "allocator_settings.json").read_text())
RELEASES = [f"2.{minor}" for minor in range(5, 16)]
HIP = "PYTORCH_HIP_ALLOC_CONF"
CUDA = "PYTORCH_CUDA_ALLOC_CONF"
PLAIN = "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("torch", "release", "build"),
    [
        ("2.14.1+cu130", (2, 14), "cuda"),
        ("2.9.0+rocm6.4", (2, 9), "rocm6.4"),
        ("2.8.0a0+git1a2b3c", (2, 8), "cuda"),
        ("2.6", (2, 6), "cuda"),
        ("2.13.0+cpu", (2, 13), "cuda"),
        ("2.12.0.dev20260401+rocm7.2", (2, 12), "rocm7.2"),
        ("2.10.0+rocm7.1.lw.git9", (2, 10), "rocm7.1"),
    ],
)
def test_a_version_string_says_release_and_build(torch, release, build):
    found = behaviour(torch)
    assert (found.release, found.build, found.torch) == (release, build, torch)


@pytest.mark.parametrize("torch", ["", "nightly"])
def test_what_cannot_be_replayed_is_refused_in_one_line(torch):
    with pytest.raises(VersionError) as error:
        behaviour(torch)
    assert "\n" not in str(error.value)


def test_an_unknown_build_is_refused():
    with pytest.raises(VersionError, match="expected cuda, or rocm"):
        behaviour("2.14.1", "xpu")


def test_a_newer_torch_runs_as_the_newest_known_and_says_so():
    newer = behaviour("3.0.1")
    newest = behaviour("2.15.0")
    assert newer.keys == newest.keys and newer.order == newest.order and newer.release == (2, 15)
    assert "newer than 2.15" in newer.note and newer.proved == "source" and newest.note == ""


@pytest.mark.parametrize("torch", ["1.13.0", "2.1.2", "2.4.1"])
def test_an_older_torch_runs_as_the_oldest_known_and_says_so(torch):
    older = behaviour(torch)
    oldest = behaviour("2.5.1")
    assert older.order == oldest.order
    assert older.release == (2, 5)
    assert older.proved == "source"
    assert f"torch {torch} is older than 2.5" in older.note
    assert "run as 2.5" in older.proved_on
    assert oldest.note == ""


@pytest.mark.parametrize("build", ["cuda", "rocm6.4", "rocm7.2"])
@pytest.mark.parametrize("torch", RELEASES)
def test_every_fact_of_every_release_has_a_source(torch, build):
    found = behaviour(torch, build)
    for field in Behaviour.__dataclass_fields__:
        if field not in ("torch", "release", "build", "proved", "proved_on", "note", "sources"):
            assert found.source(field), field
    assert found.source("torch") == ""


def test_no_row_repeats_what_holds_already():
    for build in ("cuda", "rocm"):
        held = {}
        for change in CHANGES:
            if change.build in ("", build):
                assert held.get(change.field) != change.value, change
                held[change.field] = change.value


def test_rows_of_a_field_stand_in_the_order_of_their_releases():
    for build in ("cuda", "rocm"):
        for field in sorted({change.field for change in CHANGES}):
            rows = [row for row in CHANGES if row.field == field and row.build in ("", build)]
            since = [release(row.since) for row in rows]
            assert since == sorted(set(since)), field
            assert since[0] == (2, 5), field


def test_the_order_of_free_blocks_changes_twice():
    orders = [behaviour(torch).order for torch in RELEASES]
    assert orders == ["address"] * 7 + ["block"] + ["segment"] * 3


def test_a_single_division_rounds_to_512_bytes():
    lists = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", behaviour("2.5.1"))
    assert round_size(549380, lists.roundup_divisions) == 549888


def test_what_is_proved_and_what_is_not():
    for build in ("cuda", "rocm"):
        compared = {release(row.torch) for row in PROVED if row.build == build}
        for torch in RELEASES:
            found = behaviour(torch, build)
            assert (found.proved == "oracle") is (release(torch) in compared)
            assert (f"no {build} build of it was compared" in found.proved_on) is (
                found.proved == "source"
            )
    assert behaviour("2.6.1", "rocm6.4").proved == behaviour("2.14.1").proved == "oracle"
    assert behaviour("2.8.0", "rocm6.4").proved == "source" == behaviour("2.7.1").proved
    shipped = behaviour("2.12.1+rocm10.0").proved_on
    assert "torch 2.12.1, rocm build (as Ubuntu 26.10 ships it, ROCm 10.0): " in shipped


def test_every_row_of_what_was_proved_says_how_and_none_differs():
    for row in PROVED:
        assert row.build in ("cuda", "rocm") and row.differing == 0, row
        assert row.traces >= 100 and row.events > 50_000 and "make oracle" in row.source


def test_private_pools_have_expandable_segments():
    job = {"conf": "expandable_segments:True", "vram": 1 << 30}
    ops = [{"op": "alloc", "id": 1, "size": 512, "stream": 1, "pool": 1, "mempool": True}]
    assert compare.model(job, ops, "2.5.1")[1]["seg"] == "x0"


def test_expandable_segments_by_build():
    cuda = [behaviour(torch) for torch in RELEASES]
    assert all(one.expandable_available and one.expandable_safe for one in cuda)
    rocm = (("2.10", "rocm7.2"), ("2.12", "rocm7.2"), ("2.14", "rocm7.0"), ("2.14", "rocm6.4"))
    has = [behaviour(torch, build).expandable_available for torch, build in rocm]
    assert has == [False, True, True, False]
    assert not any(behaviour(torch, "rocm7.2").expandable_safe for torch in RELEASES)
    assert "legacy-rocm-build#6603" in behaviour("2.14", "rocm7.2").source("expandable_safe")
    notes = [behaviour(torch, "rocm7.2").note for torch in ("2.11", "2.12")]
    assert "look for the warning" in notes[0] and "look for" not in notes[1]
    assert "7.0 or later is assumed" in behaviour("2.14", "rocm").note


@pytest.mark.parametrize(
    ("torch", "build", "names"),
    [
        ("2.6", "cuda", (CUDA,)),
        ("2.9", "cuda", (CUDA,)),
        ("2.10", "cuda", (CUDA, HIP, PLAIN)),
        ("2.6", "rocm6.2", (HIP,)),
        ("2.8", "rocm6.4", (CUDA, HIP)),
        ("2.14", "rocm7.2", (CUDA, HIP, PLAIN)),
    ],
)
def test_which_variables_a_build_reads(torch, build, names):
    assert behaviour(torch, build).conf_names == names


def contradicted(environ, torch):
    """Whether the audit says of a text that the cache which it tunes is switched off beside it."""
    found = audit({CUDA: "max_split_size_mb:64", **environ}, torch, "cuda")
    return (CUDA, "contradictory") in {(one.name, one.verdict) for one in found}


@pytest.mark.parametrize(("release", "seen"), SEEN["PYTORCH_NO_CUDA_MEMORY_CACHING"])
def test_the_cache_is_switched_off_as_on_the_real_allocator(release, seen):
    for value, state in seen.items():
        off = contradicted({"PYTORCH_NO_CUDA_MEMORY_CACHING": value}, release)
        assert off == (state == "off"), value


def test_the_cache_can_be_switched_off_by_the_hip_name_too():
    assert contradicted({"PYTORCH_NO_HIP_MEMORY_CACHING": "1"}, "2.14")
    assert contradicted({"PYTORCH_NO_HIP_MEMORY_CACHING": ""}, "2.6")
    assert not contradicted({"PYTORCH_NO_HIP_MEMORY_CACHING": ""}, "2.14")
    assert not contradicted({}, "2.14")

"""Every claim of the case studies has its verdict, its reason and its place; those a machine can test are tested here."""

import re
from pathlib import Path

import pytest
from data_rows import read_rows

from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger import ledgers_of
from helpers.look.boxes import open_box, recorded_names
from helpers.look.environment import variables
from helpers.look.framework import framework
from helpers.look.gpus import gpus
from helpers.look.machine import machine
from helpers.look.messages import read_message
from helpers.look.ttm import parameters
from helpers.settings.audit import audit
from helpers.settings.presets import load
from helpers.tell.box import preset_table
from helpers.tell.claims import (
    claims,
    claims_table,
    content,
    remedies_of,
    worth_of,
    wrong_statements,
)

ROOT = Path(__file__).resolve().parents[1]
SEEDS = ROOT / ".." / "shared" / "seeds"
MIB = 1 << 20
GIB = 1 << 30
CASES = content()["cases"]
HIP = "PYTORCH_HIP_ALLOC_CONF"
CUDA = "PYTORCH_CUDA_ALLOC_CONF"

EXPANDABLE = "expandable_segments:True"
SPLIT = "max_split_size_mb:"
NO_CACHE = {"PYTORCH_NO_HIP_MEMORY_CACHING": "1"}
# What decides each claim about a setting: its variables, the release, the chip, the piece judged, and the verdict on it.
SETTINGS = read_rows("claims settings")
ON_CUDA = ("000-17", "004-04")


def pools(name):
    (gpu,) = gpus(open_box(name))
    return {pool.layer: pool.total.value for pool in gpu.pools if pool.total.ok}


def amounts(name):
    return next(m for m in read_message(open_box(name).read("message").text).messages if m.capacity)


def test_every_claim_has_a_verdict_a_reason_and_a_place():
    assert len({claim.id for claim in claims()}) == len(claims()) >= 90
    verdicts = {"true", "false", "unsupported", "depends", "harmful"}
    assert {claim.verdict for claim in claims()} == verdicts
    for row, claim in zip(content()["claims"], claims(), strict=True):
        assert claim.reason and re.match("lines? [0-9]", row["place"]), claim
        assert row["check"] or row["test"] or claim.verdict not in ("false", "harmful"), claim
    assert {claim.case for claim in claims()} == set(CASES) == {"000", "001", "002", "003", "004"}


def test_every_test_that_a_claim_names_exists_and_names_it_where_it_is_a_table():
    table = "test_a_claim_about_a_setting_is_what_the_audit_says"
    by_table = set()
    for row in content()["claims"]:
        path, _, name = row["test"].partition("::")
        assert not name or f"def {name}(" in (ROOT / path).read_text(), row["id"]
        if name == table:
            by_table.add(row["id"])
    assert by_table == set(SETTINGS)


def test_a_box_shows_the_claims_of_its_case():
    assert {box for case in CASES.values() for box in case["boxes"]} < set(recorded_names())
    shown = {row["claim"][:3] for row in claims_table("strix-halo-2-vm-size").rows}
    assert shown == {"002"}
    for name in ("cpu-only", "no-such-box"):
        assert not claims_table(name).cells
        assert "comes from no case study" in str(claims_table(name))


@pytest.mark.parametrize("number", CASES)
def test_every_claim_of_a_case_is_told_once_unless_it_is_a_plain_truth(number):
    of_case = [claim for claim in claims() if claim.case == number]
    advised = [claim.id for claim in of_case if claim.advises]
    assert advised
    assert sorted(row["claim"] for row in remedies_of(number).rows) == sorted(advised)
    untrue = [one.id for one in of_case if one.id not in advised and one.verdict != "true"]
    assert [row["claim"] for row in wrong_statements(number).rows] == untrue


def test_a_remedy_is_worth_what_the_table_says_and_harm_stands_first():
    named = worth_of("004-04 001-03 000-06 001-20 001-08".split())
    assert [f"{row['claim']} {row['worth']}" for row in named.rows] == [
        "001-03 harmful",
        "000-06 folk",
        "001-20 folk",
        "001-08 depends",
        "004-04 right",
    ]
    assert named.title == "5 remedies: 1 harmful, 2 folk, 1 depends, 1 right"


def test_the_settings_of_a_case_are_told_with_the_build_they_are_judged_for():
    view = preset_table("case-003")
    assert view.title.endswith("on torch " + ", ".join(load("case-003").checked))
    verdicts = {(row["setting"], row["value"]): row["verdict"] for row in view.rows}
    assert verdicts["AMD_SERIALIZE_KERNEL", "3"] == "debug only"
    assert ("PYTORCH_HIP_ALLOC_CONF", "contradictory") in {
        (name, verdict) for (name, _), verdict in verdicts.items()
    }


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the case studies are not beside this checkout")
def test_every_place_is_in_its_file():
    for row in content()["claims"]:
        lines = (SEEDS / CASES[row["id"][:3]]["file"]).read_text().count("\n") + 1
        assert max(map(int, re.findall("[0-9]+", row["place"]))) <= lines, row["id"]


@pytest.mark.parametrize("ident", SETTINGS)
def test_a_claim_about_a_setting_is_what_the_audit_says(ident):
    environ, torch, gfx, piece, verdict = SETTINGS[ident]
    build = "cuda" if ident in ON_CUDA else "rocm"
    findings = audit(environ, torch, build, gfx)
    said = {finding.verdict for finding in findings if finding.value == piece}
    assert verdict in said and (verdict == "dangerous" or said <= {verdict, "effective"})


def test_the_release_from_which_a_0_keeps_the_cache_is_the_one_that_the_audit_says():
    (claim,) = (claim for claim in claims() if claim.id == "001-09")
    release = re.search(r"before torch ([0-9]+)\.([0-9]+) a 0 disables", claim.reason)
    major, minor = map(int, release.groups())
    for name, build in (("HIP", "rocm"), ("CUDA", "cuda")):
        variable = {f"PYTORCH_NO_{name}_MEMORY_CACHING": "0"}
        before, since = (
            audit(variable, f"{major}.{at}.1", build)[0].verdict for at in (minor - 1, minor)
        )
        assert (before, since) == ("contradictory", "ineffective")


def test_the_settings_of_a_recorded_box_are_judged_for_its_torch():
    box = open_box("rx7900xt-container")
    built = framework(box)
    environ = {variable.name: variable.value for variable in variables(box)}
    found = audit(environ, str(built.version.value), built.build, "gfx1100")
    verdicts = {(f.name, f.value): f.verdict for f in found}
    assert verdicts[HIP, "expandable_segments:True"] == "unsupported"
    assert verdicts["PYTORCH_ROCM_ARCH", "gfx1100"] == "ineffective"


def books_of(name):
    """The driver's ledger of each GPU of a recorded box."""
    return ledgers_of(CaseEvidence(bundle=open_box(name)))


def test_memory_that_nobody_here_holds_is_no_cache_of_this_process():
    for book in books_of("rx7900xt-container"):
        assert book.sum_bytes("process", "other_process") == 0
        outside = book.sum_bytes("outside", "unattributed")
        assert outside == book.used.value > 0.98 * book.total.value


def test_a_full_card_reads_the_same_in_gb_and_gib():
    total = books_of("rx7900xt-container")[0].total.value
    assert f"{total / 1e9:.2f} {total // (GIB // 100) / 100:.2f}" == "21.46 19.98"


def test_the_free_memory_that_was_noted_does_not_fit_what_is_in_use():
    first, second = books_of("rx7900xt-container")
    assert first.total.value - first.used.value < 22e6 < 166e6
    assert abs(second.total.value - second.used.value - 250e6) < 1e6


def test_the_ttm_default_is_half_the_ram_to_the_page():
    box = open_box("strix-halo-1-found")
    limit = next(p for p in parameters(box) if p.name == "pages_limit").live_bytes.value
    assert limit == pools("strix-halo-1-found")["KFD bank"] == 16393924 * 4096
    assert abs(limit - machine(box).ram_total.value / 2) <= 4096


def test_vm_size_changes_no_pool():
    assert pools("strix-halo-1-found")["KFD bank"] == pools("strix-halo-2-vm-size")["KFD bank"]


def test_gttsize_moves_the_drivers_pool_and_not_the_compute_pool():
    before = pools("strix-halo-2-vm-size")
    after = pools("strix-halo-3-gttsize")
    assert before["sysfs GTT"] < after["sysfs GTT"] == 122880 * MIB
    assert before["KFD bank"] == after["KFD bank"]


def test_a_raised_ttm_limit_moves_the_compute_pool():
    raised = pools("strix-halo-4-ttm")
    assert raised["HSA pool"] == raised["KFD bank"] == 125829120 * 1024 == 120 * GIB


@pytest.mark.parametrize("name", [name for name in recorded_names() if name[:5] == "strix"])
def test_the_runtime_agrees_with_the_kernel_at_every_stage(name):
    assert all(book.contradictions == () for book in books_of(name))


def test_120_gib_leave_the_system_five():
    total = machine(open_box("strix-halo-4-ttm")).ram_total.value
    assert round((total - 120 * GIB) / GIB, 2) == 5.08


def test_what_was_asked_did_not_fit_the_apus_total():
    message = amounts("strix-halo-1-found")
    allocated = message.allocated
    requested = message.requested
    capacity = message.capacity
    off = sum(one.precision_bytes for one in (allocated, requested, capacity))
    assert allocated.bytes + requested.bytes > capacity.bytes + off


def test_the_tuning_message_is_near_capacity_with_memory_stranded():
    message = amounts("cuda-24gb-tuning")
    assert message.capacity.bytes - message.process.bytes < 0.7 * GIB
    assert message.reserved_unallocated.bytes > 80 * message.requested.bytes
    assert message.free.bytes > 2 * message.requested.bytes

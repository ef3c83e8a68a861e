"""Verdicts: order that decides nothing, ties, long and odd evidence, footers, and what the command line gives of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from changed_boxes import oom
from data_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.ground.shapes import seen
from helpers.judge.diagnosis import diagnose, verdict_of
from helpers.judge.evidence import (
    CaseEvidence,
    case_evidence,
    evidence_from_case,
    evidence_from_message,
)
from helpers.judge.observation import Observation
from helpers.settings.audit import audit
from helpers.tell.verdict import as_text

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT / ".." / "shared" / "cases"
FULL = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.50 GiB", "100.00 MiB")


def judged(error):
    return diagnose(evidence_from_message(error))


def answer(verdict):
    return verdict.cause, verdict.confidence, verdict.alternatives


def test_two_causes_that_weigh_alike_are_cannot_tell_with_both_named():
    one, other = (
        Observation(name, seen("x", "text", "tool"), "seen", "tool")
        for name in ("mismatch", "no-access")
    )
    verdict = verdict_of((one, other))
    assert verdict.cause == "cannot-tell"
    assert {"version-mismatch", "permission"} <= {o.cause for o in verdict.alternatives}


def test_a_failure_in_the_middle_of_a_long_text_counts():
    lines = ["step 1 done, all well\n"] * 6000 + [FULL + "\n"] + ["waiting\n"] * 6000
    evidence = evidence_from_message("".join(lines))
    assert diagnose(evidence).cause == "true-capacity" and len(evidence.error_text) < 70_000


def test_nothing_at_all_is_cannot_tell_and_asks_for_the_message():
    verdict = diagnose(CaseEvidence())
    assert verdict.cause == "cannot-tell" and "error message" in verdict.missing[0].reading


def test_docker_saying_that_it_was_not_the_oom_killer_speaks_against_host_memory():
    verdict = judged('"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 137}')
    assert verdict.cause != "host-oom"
    assert [row.id for row in verdict.against] == ["against-not-killed"]


def test_the_sums_are_shown_without_their_source_in_every_line():
    shown = as_text(judged(FULL))
    assert shown.count("the numbers of the error text") <= 2 and shown.count("from error text") <= 2


# -- what is no text, and odd files ---------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400))
def test_binary_garbage_gets_a_verdict(raw):
    assert judged(raw.decode("utf-8", "replace")).next_step.what
    no_word = bytes(byte | 0x80 for byte in raw).decode("utf-8", "replace")
    assert judged(no_word).cause == "cannot-tell"


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"evidence": 3}', "{" * 4000, '{"evidence"'])
def test_a_file_that_is_no_case_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "case.json"
    path.write_text(content)
    with pytest.raises(ValueError) as caught:
        evidence_from_case(path)
    assert "\n" not in str(caught.value) and "expected" in str(caught.value)


def test_truth_in_a_case_is_not_looked_at(tmp_path):
    path = tmp_path / "case.json"
    truth = {"root_cause": "host-oom"}
    posted = {"truth": truth, "title": "OOMKilled", "evidence": {"error_text": "it broke"}}
    path.write_text(json.dumps(posted))
    assert diagnose(evidence_from_case(path)).cause == "cannot-tell"


# -- frameworks' own footers ----------------------------------------------------------------------
FOOTER = (
    "{0} kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing {1}\nCompile with `TORCH_USE_{0}_DSA` to enable device-side assertions.\n"
)
SERIAL = {"CUDA": "CUDA_LAUNCH_BLOCKING=1", "HIP": "AMD_SERIALIZE_KERNEL=3"}


@pytest.mark.parametrize("backend", SERIAL)
@pytest.mark.parametrize(
    "error", read_rows("a footer about device side assertions changes no verdict")
)
def test_a_footer_about_device_side_assertions_changes_no_verdict(backend, error):
    text = f"RuntimeError: {backend} error: {error}"
    footed = judged(f"{text}\n{FOOTER.format(backend, SERIAL[backend])}")
    assert answer(footed) == answer(judged(text))
    if "ECC" not in error:
        assert "context-corruption" not in str(answer(footed))


# -- one number everywhere, and posted cases ------------------------------------------------------
def test_the_release_in_which_a_zero_disables_caching_is_one_number_everywhere():
    groups = yaml.safe_load((ROOT / "env" / "claims.yaml").read_text()).values()
    rows = [row for group in groups if isinstance(group, list) for row in group]
    (reason,) = [row["reason"] for row in rows if row.get("id") == "001-09"]
    assert "2.7" in reason and "before torch 2.5" not in reason
    zero = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}
    old, new = ({row.verdict for row in audit(zero, t, "cuda")} for t in ("2.6.0", "2.7.0"))
    assert old != new and "contradictory" in old


@pytest.mark.skipif(not SHARED.is_dir(), reason="the posted cases are not beside this checkout")
def test_posted_cases_are_mostly_right_or_left_open_and_never_wrong_and_confirmed():
    import cases  # beside this file

    rows = cases.score(cases.load(SHARED))
    got = [row[4] for row in rows]
    assert got.count("right") >= 0.5 * len(rows)
    assert got.count("wrong") <= 0.04 * len(rows)
    assert not [row for row in rows if row[4] == "wrong" and row[3] == "confirmed"]


def test_the_command_line_gives_what_the_library_gives(tmp_path):
    text = "command terminated with exit code 137\n"
    path = tmp_path / "m.txt"
    path.write_text(text)
    command = [sys.executable, str(ROOT / "helpers/__main__.py"), "diagnose", "--json"]
    done = subprocess.run(
        [*command, "--message", str(path)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    given = json.loads(done.stdout)
    verdict = diagnose(case_evidence({"error_text": text}))
    assert (given["cause"], given["confidence"]) == (verdict.cause, verdict.confidence)
    assert verdict.confidence == "weak"

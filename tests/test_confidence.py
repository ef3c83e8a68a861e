"""How sure a verdict may be: confirmed by proof alone, likely by measurement alone, the same twice, and never an error."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from changed_boxes import oom
from examples import examples
from fuzz_bundles import mutated as mutated_bundle
from fuzz_messages import mutated as mutated_message
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.ground.contract import from_json, to_json
from helpers.ground.shapes import Verdict as Verdicts
from helpers.ground.shapes import seen
from helpers.judge.catalogue import failures
from helpers.judge.confidence import weigh_failures
from helpers.judge.diagnosis import diagnose, verdict_of
from helpers.judge.evidence import (
    CaseEvidence,
    case_evidence,
    evidence_from_bundle,
    evidence_from_message,
)
from helpers.judge.next_step import recovery
from helpers.judge.observation import Observation
from helpers.judge.posted_processes import process_observations, processes
from helpers.look.boxes import open_box, recorded_names

SPOKEN = "sufficient proof strong weak refuted_by strong_against weak_against".split()
GROUPS = [group for one in failures() for group in (*one.needs, *(getattr(one, k) for k in SPOKEN))]
NAMES = sorted({name for group in GROUPS for name in group})
ROOT = Path(__file__).resolve().parents[1]
ORIGINS = ("message", "tool", "bundle", "snapshot", "environment")


def observations(**fixed):
    def made(name, origin, hard, proof, filled):
        flags = {"hard": hard, "proof": proof, "filled": filled, **fixed}
        return Observation(name, seen("x", "text", f"{origin} of {name}"), "seen", origin, **flags)

    flag = st.booleans()
    one = st.builds(made, st.sampled_from(NAMES), st.sampled_from(ORIGINS), flag, flag, flag)
    return st.lists(one, max_size=8)


@settings(max_examples=examples(120))
@given(observations(proof=False))
def test_nothing_is_confirmed_without_a_proof(found):
    assert verdict_of(tuple(found)).confidence != "confirmed"


@settings(max_examples=examples(120))
@given(observations(hard=False))
def test_hearsay_alone_is_never_more_than_weak(found):
    verdict = verdict_of(tuple(found))
    assert verdict.confidence == "weak" and {o.confidence for o in verdict.alternatives} <= {"weak"}


@settings(max_examples=examples(120))
@given(observations(filled=True))
def test_what_was_filled_in_for_a_recorded_box_confirms_nothing(found):
    assert verdict_of(tuple(found)).confidence != "confirmed"


@settings(max_examples=examples(120))
@given(observations())
def test_what_is_confirmed_has_a_hard_proof_of_its_own_cause(found):
    for row in weigh_failures(found):
        if row.confidence == "confirmed":
            hard = [one for one in found if one.proof and one.hard]
            assert {one.name for one in hard} & set(row.failure.proof)
            assert not any(one.hard for one in row.against)
        if row.confidence == "likely":
            assert any(one.hard for one in row.speaks_for)


@settings(max_examples=examples(80))
@given(observations(), st.randoms(use_true_random=False))
def test_the_order_of_observations_decides_nothing(found, dice):
    before = verdict_of(tuple(found))
    shuffled = list(found)
    dice.shuffle(shuffled)
    after = verdict_of(tuple(shuffled))
    assert (after.cause, after.confidence) == (before.cause, before.confidence)
    assert after.alternatives == before.alternatives


@settings(max_examples=examples(80))
@given(observations(), observations(hard=False))
def test_hearsay_beside_measurements_raises_no_confidence_to_confirmed(found, said):
    bare = {row.failure.id: row.confidence for row in weigh_failures(found)}
    for row in weigh_failures([*found, *said]):
        if row.confidence == "confirmed":
            assert bare.get(row.failure.id) == "confirmed"


@settings(max_examples=examples(80))
@given(observations())
def test_any_observations_give_a_whole_verdict_that_reads_back(found):
    verdict = verdict_of(tuple(found))
    assert verdict.evidence and verdict.next_step.what and verdict.summary
    ids = [row.id for row in [*verdict.evidence, *verdict.against]]
    assert len(set(ids)) == len(ids)
    assert verdict.confidence == "confirmed" or verdict.missing
    assert from_json(Verdicts, to_json(verdict)) == verdict


# -- odd evidence ---------------------------------------------------------------------------------
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3)
    ),
    max_leaves=10,
)
KEYS = ["error_text", "tool_outputs", "environment", "narrative", "other"]


@settings(max_examples=examples(80))
@given(st.dictionaries(st.sampled_from(KEYS), ODD, max_size=5))
def test_evidence_of_any_shape_gets_the_same_verdict_twice(raw):
    evidence = case_evidence(raw)
    verdict = diagnose(evidence)
    recovery(verdict, evidence)
    assert diagnose(case_evidence(raw)) == verdict and verdict.next_step.what


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32), st.sampled_from(recorded_names()))
def test_a_mutated_message_beside_any_box_gets_a_verdict(seed, box):
    text = mutated_message(random.Random(seed))
    evidence = CaseEvidence(
        messages=evidence_from_message(text).messages, error_text=text, bundle=open_box(box),
        narrative=text[::-1], tools=(("nvidia-smi", text), (text[:20], text)), facts=(("gpu", text[:40]), ("torch", text[:9])),
        variables=(("PYTORCH_CUDA_ALLOC_CONF", text[:60]),),
    )  # fmt: skip
    verdict = diagnose(evidence)
    recovery(verdict, evidence)
    assert verdict.evidence and to_json(verdict)


@pytest.mark.parametrize("seed", range(16))
def test_a_mutated_bundle_gets_a_verdict(seed):
    dice = random.Random(seed)
    bundle = mutated_bundle(open_box(dice.choice(recorded_names())), dice)
    verdict = diagnose(evidence_from_bundle(bundle))
    assert to_json(verdict) == to_json(diagnose(evidence_from_bundle(bundle)))


# -- bounded --------------------------------------------------------------------------------------
OOM = oom("2.00 GiB", "23.56 GiB", "512.00 MiB", "22.50 GiB", "300.00 MiB") + "\n"


CHUNKS = {
    "zeros without the end of a line": ('"\\x00" * 65536', "cannot-tell"),
    "one line without an end": ('"a" * 65536', "cannot-tell"),
    "lines of a log": ('"step 11 of 90, loss 0.31, all well\\n" * 1800', "cannot-tell"),
    "the same failure again and again": ("OOM * 40", "true-capacity"),
    "words of failures": ('"out of memory killed oom hip cuda \\n" * 300', "cannot-tell"),
}
CHILD = """import resource
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message
OOM = {oom!r}
for count in (8, 60):
    print(diagnose(evidence_from_message({chunk} * count)).cause)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize("name", CHUNKS)
def test_a_text_of_any_length_is_judged_in_bounded_memory(name):
    chunk, cause = CHUNKS[name]
    command = [sys.executable, "-c", CHILD.format(oom=OOM, chunk=chunk)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    _, short_kib, got, long_kib = done.stdout.split()
    assert got == cause and int(long_kib) < int(short_kib) + 48 * 1024


def test_a_failure_in_the_middle_of_a_long_log_counts():
    middle = "well\n" * 180_000 + OOM + "well\n" * 180_000
    assert diagnose(evidence_from_message(middle)).cause == "true-capacity"


HOSTILE = {text[:14].strip(): text for text in (
    "\x00" * 400_000, "9" * 200_000, "GiB " * 40_000, "| 0 N/A N/A 1 C x 1MiB |\n" * 4_000, "(" * 100_000,
    "Tried to allocate " * 10_000, "Killed process " * 10_000, "/dev/nvidia0: " + " 12345m" * 20_000,
    "a(1M)" * 20_000, "-" * 100_000, "reserved but unallocated " * 6_000, "gfx1100 " * 10_000,
)}  # fmt: skip
PLACES = ("error_text", "tool", "narrative", "environment")
QUICK = [(PLACES[at % 4], name) for at, name in enumerate(HOSTILE)]
QUICK += [(PLACES[(at + 2) % 4], name) for at, name in enumerate(HOSTILE)]
REST = [(place, name) for place in PLACES for name in HOSTILE if (place, name) not in QUICK]


@pytest.mark.parametrize(
    ("place", "name"), QUICK + [pytest.param(*one, marks=pytest.mark.slow) for one in REST]
)
def test_hostile_text_in_any_place_gets_a_verdict(place, name):
    text = HOSTILE[name]
    tools = {"nvidia-smi": text, "fuser -v": text}
    facts = {"gpu": text, "env_vars": {"PYTORCH_CUDA_ALLOC_CONF": text}}
    places = {"tool": {"tool_outputs": tools}, "environment": {"environment": facts}}
    raw = places.get(place, {place: text})
    verdict = diagnose(case_evidence(raw))
    assert verdict.confidence != "confirmed" and len(to_json(verdict)) < 60_000


PROCESS = "|    0   N/A  N/A    {:7d}      C   python   100MiB |"
TABLES = {
    "ten thousand processes": "\n".join(map(PROCESS.format, range(10_000))),
    "sizes beyond any card": "|    0   N/A  N/A     70411      C   python   99999999MiB |",
    "numbers of forty digits": f"|  0  N/A  N/A  {'7' * 40}  C   python   {'9' * 40}MiB |",
    "names with escapes": "|    0   N/A  N/A     70411      C   \x1b[31m$(reboot)`id`;   2000MiB |",
    "digits of other scripts": "|    0   N/A  N/A     ٧٠٤١١      C   python   ٢٠٠٠MiB |",
    "half a table": "|    0   N/A  N/A     70411      C   py",
    "csv of everything": "pid, name, used\n"
    + "1,,,,,,\n-1, x, 5 MiB\n9999999999, y, 99 MiB\n" * 300,
    "ps without columns": "USER PID STAT\n" + "Z Z Z Z Z\n" * 1000,
}


TOOLS = ["nvidia-smi", "rocm-smi --showpids", "ps aux", "fuser -v /dev/kfd", "lsof /dev/nvidia0"]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("tool", [*TOOLS, "gpustat"])
def test_a_hostile_table_is_no_proof_and_no_error(name, tool):
    refused = {"error_text": "RuntimeError: CUDA error: out of memory"}
    evidence = case_evidence({**refused, "tool_outputs": {tool: TABLES[name]}})
    verdict = diagnose(evidence)
    assert verdict.confidence != "confirmed" and len(to_json(verdict)) < 60_000
    assert all(row.pid is None or 0 <= row.pid < 2**31 for row in processes(evidence))
    assert all(not one.proof for one in process_observations(evidence))
    for step in (verdict.next_step, *recovery(verdict, evidence)):
        assert "$(reboot)" not in step.command and "\x1b" not in step.command + step.what

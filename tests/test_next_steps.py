"""What to do next follows the evidence, in the world of the program that failed.

The texts are written by us from the format strings of the programs that print them.
"""

import json
import re
from pathlib import Path

import pytest
from changed_boxes import oom
from data_rows import read_lines

from helpers.judge import table
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message
from helpers.judge.next_step import recovery
from helpers.judge.worlds import worlds_of

ROWS = json.loads((Path(__file__).parent / "data" / "next_steps.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["of"])
def test_a_failure_leads_to_the_step_of_its_own_program(row):
    evidence = evidence_from_message(row["text"])
    verdict = diagnose(evidence)
    assert (verdict.cause, verdict.confidence) == (row["cause"], row["confidence"]), verdict.title
    step = f"{verdict.next_step.what}\n{verdict.next_step.command}"
    assert [words for words in row["step"] if words not in step] == [], step
    assert [words for words in row.get("never", ()) if words in step] == [], step
    ladder = " ".join(rung.command for rung in recovery(verdict, evidence))
    assert not any(words in ladder for words in row.get("never", ())), ladder


@pytest.mark.parametrize(
    ("backend", "tools"),
    [("CUDA", ("rocm", "/dev/kfd", "amdgpu")), ("HIP", ("nvidia",)), ("XPU", ("nvidia", "rocm"))],
)
def test_a_message_of_torch_is_answered_with_the_tools_of_its_own_vendor(backend, tools):
    texts = {row["text"] for row in (*ROWS, *read_lines("messages"), *read_lines("sums"))}
    texts = {text for text in texts if f"Error: {backend} out of memory. Tried" in text}
    assert texts
    for text in texts:
        evidence = evidence_from_message(text)
        verdict = diagnose(evidence)
        step = verdict.next_step
        missing = [row.how for row in verdict.missing]
        ladder = [rung.command for rung in recovery(verdict, evidence)]
        words = " ".join([step.what, step.command, *missing, *ladder])
        assert [tool for tool in tools if tool in words] == [], text


@pytest.mark.parametrize(
    ("outside", "own", "first"),
    [("7.20 GiB", "16.10 GiB", "rehearse"), ("19.30 GiB", "4.00 GiB", "nvidia-smi")],
)
def test_what_is_ones_own_to_change_comes_first_unless_others_have_most(outside, own, first):
    allocated = f"{float(own[:-4]) - 1:.2f} GiB"
    named = f" Process 31 has {outside} memory in use. Including"
    text = oom("900.00 MiB", "23.64 GiB", "350.50 MiB", allocated, "120.25 MiB", f"{named} "
               f"non-PyTorch memory, this process has {own} memory in use.")  # fmt: skip
    verdict = diagnose(evidence_from_message(text))
    assert verdict.cause == "external-holder"
    assert first in verdict.next_step.command.split("ps -o")[0].split("# Or")[0]
    order = [verdict.next_step.command.index(words) for words in ("rehearse", "ps -o")]
    assert (order == sorted(order)) == (first == "rehearse")


def test_a_step_that_ends_or_resets_something_needs_nothing_that_its_own_look_would_show():
    for name, remedy in table("failures")["remedies"].items():
        ends = re.search(r"kill -TERM|-reset|gpureset|rmmod|taskkill", remedy["command"])
        looks = re.search(r"fuser|ps -", remedy["command"])
        if ends and looks and looks.start() < ends.start():
            needed = remedy["precondition"]
            assert not re.search("yours|nobody|no process|no program", needed), name


@pytest.mark.parametrize("world", table("worlds"), ids=lambda world: world["name"])
def test_a_world_has_a_source_and_costs_no_more_than_a_text_is_long(world):
    assert world["source"]
    for text in ("x" * 50_000, "vllm " * 10_000, "C:\\" * 10_000, "oom_memcg=" * 5_000):
        evidence = evidence_from_message(text)
        assert isinstance(worlds_of(evidence), tuple)


def test_no_reset_is_offered_for_a_card_whose_vendor_no_text_names():
    text = (
        "ValueError: Free memory on device cuda:0 (3.10/15.60 GiB) on startup is less than "
        "desired GPU memory utilization (0.85, 13.26 GiB)."
    )
    evidence = evidence_from_message(text)
    commands = [step.command for step in recovery(diagnose(evidence), evidence)]
    assert not [command for command in commands if "reset" in command or "reboot" in command]


@pytest.mark.parametrize("path", [r"C:\new\torch\lib\nvrtc64_120_0.dll", r"D:\rt\tensor\n.dll"])
def test_a_windows_path_is_quoted_with_its_backslashes(path):
    text = f'OSError: [WinError 1455] The paging file is too small. Error loading "{path}"'
    evidence = evidence_from_message(text)
    assert path in evidence.messages[0].words

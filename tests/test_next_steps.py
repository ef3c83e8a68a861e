"""What to do next follows the evidence, in the world of the program that failed.

The texts are written by us from the format strings of the programs that print them.
"""

import json
from pathlib import Path

import pytest

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

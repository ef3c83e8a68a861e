"""The judge's tables are whole: each form reads its own example, each sentence is said somewhere, each name leads to a row."""

import re
from pathlib import Path

import pytest

from helpers import judge
from helpers.judge.evidence import case_evidence
from helpers.judge.posted import processes
from helpers.judge.ttm_commands import SYSTEMS

FOLDER = Path(judge.__file__).parent
CODE = "".join(path.read_text() for path in FOLDER.glob("*.py"))
LISTS = judge.table("posted")["lists"]
COMPOSED = re.compile(r"(?:small|bounded) (?:reserve|target)")
SENTENCES = [
    (name, group, key)
    for name, groups in (
        ("ttm", ("plan", "refused", "warnings", "verify")),
        ("ledger", ("says",)),
        ("ceilings", ("notes",)),
    )
    for group in groups
    for key in judge.table(name)[group]
]


@pytest.mark.parametrize("tool", LISTS)
def test_each_form_of_a_process_list_reads_its_own_example(tool):
    row = LISTS[tool]
    assert row["source"]
    found = processes(case_evidence({"tool_outputs": {tool: row["example"]}}))
    assert [(one.pid in (70411, None), bool(one.pid or one.name)) for one in found] == [
        (True, True)
    ]


@pytest.mark.parametrize(
    "row", judge.table("posted")["lines"].values(), ids=lambda row: row["form"][:20]
)
def test_each_form_of_a_line_compiles_and_has_its_source(row):
    assert re.compile(row["form"]) and row["source"]


@pytest.mark.parametrize(("name", "group", "key"), SENTENCES)
def test_each_sentence_is_said_somewhere(name, group, key):
    assert judge.table(name)[group][key]
    assert f'"{key}"' in CODE or COMPOSED.fullmatch(key), key


def test_each_distribution_leads_to_systems_and_each_system_to_its_lines():
    data = judge.table("ttm")
    assert {name for row in data["distributions"] for name in row["systems"]} <= set(SYSTEMS)
    for name, system in SYSTEMS.items():
        assert "run" in system or system["like"] in data["kinds"], name


def test_each_layer_of_a_stack_has_its_number_and_each_pool_its_layers():
    data = judge.table("ceilings")
    numbers = {layer["number"] for layer in data["layers"].values()} - {""}
    assert numbers <= set(data["numbers"])
    assert all(pool["layers"] and pool["without"] for pool in data["pools"].values())
    assert {name for row in data["decisions"].values() for name in row["rests"]} <= {
        *data["numbers"],
        *data["either"],
        "other_total",
    }


def test_each_step_of_the_ladder_says_what_it_needs_and_what_it_may_harm():
    for row in judge.table("ladder"):
        assert row["vendor"] in ("", "AMD", "NVIDIA")
        assert all(row[key] for key in ("what", "command", "precondition", "blast_radius"))

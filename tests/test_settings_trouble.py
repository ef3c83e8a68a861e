"""Settings of a recorded program that do not do what was meant: which, where, and what to type."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.allocator.record import INJECT
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_message
from helpers.settings.allocator_text import AllocatorText
from helpers.settings.releases import behaviour
from helpers.settings.table import OPTIONS
from helpers.settings.trouble import repaired, settings_trouble
from helpers.tell.verdict import as_text

CUDA = {"version": "2.13.0+cu130", "cuda": "13.0", "hip": None}
CONF = "PYTORCH_CUDA_ALLOC_CONF"
NEWEST = behaviour("2.14.1", "cuda")


def trouble_of(at_import, at_end, in_force=None, torch=CUDA, assignments=()):
    variables = {
        "import": at_import,
        "start": at_import,
        "end": at_end,
        "assignments": list(assignments),
    }
    snapshot = {} if in_force is None else {CONF: in_force, "expandable_segments": False}
    return settings_trouble(variables, snapshot, torch)


def test_a_text_that_is_set_after_the_allocator_started_is_late():
    text = "expandable_segments:True"
    line = {"name": CONF, "value": text, "where": "track.py:19"}
    trouble = trouble_of({}, {CONF: text}, in_force="", assignments=[line])
    assert (trouble.kind, trouble.variable, trouble.value) == ("late", CONF, text)
    assert (trouble.instead, trouble.where, trouble.fatal) == (
        f"{CONF}={text}",
        "track.py:19",
        False,
    )
    assert "track.py:19" in trouble.says and "no effect" in trouble.says


def test_a_late_text_that_torch_could_not_read_is_given_back_as_it_was_meant():
    trouble = trouble_of({}, {CONF: "max_split_size_mb=96"}, in_force="")
    assert (trouble.kind, trouble.instead) == ("late", f"{CONF}=max_split_size_mb:96")


@pytest.mark.parametrize(
    ("at_import", "at_end", "in_force"),
    [
        ({}, {}, ""),
        ({CONF: "max_split_size_mb:96"}, {CONF: "max_split_size_mb:96"}, "max_split_size_mb:96"),
        # Set between the import and the first allocation: torch read it.
        ({}, {CONF: "max_split_size_mb:96"}, "max_split_size_mb:96"),
        # Late, and the same as what holds.
        ({}, {CONF: "expandable_segments:False"}, ""),
        # Started with one text, and set to another by torch's own call.
        ({CONF: "max_split_size_mb:96"}, {CONF: "max_split_size_mb:96"}, "max_split_size_mb:64"),
        # Whether it was read is not known.
        ({}, {CONF: "expandable_segments:True"}, None),
        # Neither the allocator's nor nearly one of its names.
        ({"PYTORCH_XPU_ALLOC_CONF": "expandable_segments:True"},) * 2 + ("",),
    ],
)
def test_a_setting_that_holds_or_changes_nothing_is_no_trouble(at_import, at_end, in_force):
    assert trouble_of(at_import, at_end, in_force) is None


def test_a_text_that_the_program_sets_and_then_overwrites_is_named_with_both_lines():
    meant = "expandable_segments:True"
    lines = [
        {"name": CONF, "value": meant, "where": "serve.py:4"},
        {"name": CONF, "value": "max_split_size_mb:96", "where": "defaults.py:21"},
    ]
    end = {CONF: "max_split_size_mb:96"}
    trouble = trouble_of({}, end, in_force="max_split_size_mb:96", assignments=lines)
    assert (trouble.kind, trouble.where) == ("overwritten", "serve.py:4")
    assert trouble.instead == f"{CONF}={meant}"
    assert "defaults.py:21" in trouble.says


def test_a_text_that_the_program_was_started_with_and_overwrites_is_named():
    meant = "expandable_segments:True"
    lines = [{"name": CONF, "value": "max_split_size_mb:96", "where": "defaults.py:21"}]
    end = {CONF: "max_split_size_mb:96"}
    trouble = trouble_of({CONF: meant}, end, in_force="max_split_size_mb:96", assignments=lines)
    assert (trouble.kind, trouble.value, trouble.where) == ("overwritten", meant, "")


def test_a_text_that_is_set_twice_is_no_trouble():
    line = {"name": CONF, "value": "expandable_segments:True", "where": "serve.py:4"}
    end = {CONF: "expandable_segments:True"}
    assert trouble_of({}, end, "expandable_segments:True", assignments=[line, line]) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("garbage_collection_threshold=0.7", "garbage_collection_threshold:0.7"),
        (
            "expandable_segments=True,max_split_size_mb=96",
            "expandable_segments:True,max_split_size_mb:96",
        ),
        ("expandable_segments:true", "expandable_segments:True"),
        ("expandable_segment:True", "expandable_segments:True"),
        ("expandable_segments", "expandable_segments:True"),
        ("max_split_size:96", "max_split_size_mb:96"),
        ("Max_Split_Size_MB:96", "max_split_size_mb:96"),
        ("max_split_size_mb 96", "max_split_size_mb:96"),
        (
            "expandable_segments: True; max_split_size_mb: 96",
            "expandable_segments:True,max_split_size_mb:96",
        ),
        ("'expandable_segments:True'", "expandable_segments:True"),
        (f"{CONF}=expandable_segments:True", "expandable_segments:True"),
        ("garbage_collection_threshold:70", "garbage_collection_threshold:0.7"),
        ("roundup_power2_divisions:[256:1,>:4", "roundup_power2_divisions:[256:1,>:4]"),
        ("default", ""),
    ],
)
def test_a_text_that_torch_refuses_is_given_back_as_it_was_meant(text, meant):
    trouble = trouble_of({CONF: text}, {CONF: text})
    assert (trouble.kind, trouble.value, trouble.fatal) == ("malformed", text, True)
    assert trouble.instead == (f"{CONF}={meant}" if meant else "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("expandable_segments:True,max_split_size_mb=96", "'max_split_size_mb=96' has = where"),
        ("max_split_size_mb:96; expandable_segments:True", "has a semicolon where"),
        ("max_split_size_mb:96 expandable_segments:True", "has no comma before"),
        ("garbage_collection_threshold 0.6", "has a blank where"),
        ("max_split_size_mb:96,expandable_segments", "'expandable_segments' has no colon"),
        ("max_split_size_mb:", "has no value"),
        ("roundup_power2_divisions:[512:2,>:4", "has no ] at the end"),
        ("expandable_segment:True", "the option is expandable_segments"),
        ("off", "'off' is none of torch's options"),
        ('"max_split_size_mb:96"', "has a quotation mark"),
        (f"{CONF}=max_split_size_mb:96", "repeats the name of the variable"),
        ("max_split_size_mb:8,expandable_segments:True", "'max_split_size_mb:8' is refused: "),
    ],
)
def test_the_option_that_torch_refuses_is_named_with_what_is_wrong_in_it(text, says):
    assert says in trouble_of({CONF: text}, {CONF: text}).why


@pytest.mark.parametrize(
    "name",
    ["PYTORCH_CUDA_ALOC_CONF", "PYTORCH_CUDA_ALLOC_CNF", "PYTORCH_CUDA_ALLOC_CONFIG", "PYTROCH_CUDA_ALLOC_CONF",
     "PYOTRCH_CUDA_ALLOC_CONF", "PYTORCH_CUDA_ALLOCCONF", "TORCH_CUDA_ALLOC_CONF", "pytorch_cuda_alloc_conf"],
)  # fmt: skip
def test_a_name_that_is_nearly_one_of_the_allocators_is_misspelt(name):
    text = "expandable_segments=True"
    trouble = trouble_of({name: text}, {name: text}, in_force="")
    assert (trouble.kind, trouble.variable) == ("misspelt", name)
    assert trouble.instead == f"{CONF}=expandable_segments:True"


@pytest.mark.parametrize(
    ("environ", "torch", "instead"),
    [
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:96"},
            {"version": "2.8.0+cu128", "cuda": "12.8", "hip": None},
            f"{CONF}=max_split_size_mb:96",
        ),
        (
            {CONF: "max_split_size_mb:96"},
            {"version": "2.6.0+rocm6.4", "cuda": None, "hip": "6.4"},
            None,  # whether it is read was not checked
        ),
        (
            {CONF: "", "PYTORCH_ALLOC_CONF": "max_split_size_mb:96"},
            CUDA,
            f"{CONF}=max_split_size_mb:96",
        ),
    ],
)
def test_a_name_that_this_build_does_not_read_has_no_effect(environ, torch, instead):
    trouble = trouble_of(environ, environ, in_force="", torch=torch)
    if instead is None:
        assert trouble is None
    else:
        assert (trouble.kind, trouble.instead) == ("ineffective", instead)


def test_a_cpu_build_reads_none_of_them():
    text = {CONF: "max_split_size_mb=96"}
    assert (
        trouble_of(text, text, torch={"version": "2.13.0+cpu", "cuda": None, "hip": None}) is None
    )


def test_a_torch_newer_than_what_is_known_may_know_more_keys():
    newer = {"version": "2.99.0+cu140", "cuda": "14.0", "hip": None}
    text = {CONF: "a_key_of_tomorrow:3"}
    assert trouble_of(text, text, torch=newer) is None


@given(st.text(alphabet="max_split_size_mb:=128,expandable[]; >True'0.8%", max_size=60))
def test_what_is_to_be_typed_is_never_refused(text):
    conf = repaired(text, NEWEST)
    assert AllocatorText(conf, NEWEST).error is None
    assert {
        option.partition(":")[0] for option in conf.split(",") if option and "[" not in conf
    } <= set(OPTIONS)


COMPLAINTS = [
    "RuntimeError: Unrecognized CachingAllocator option: max_split",
    "ValueError: Unrecognized key 'expandable' in CUDA allocator config.",
    "RuntimeError: Error parsing CachingAllocator settings, expected :",
    "RuntimeError: Error, expecting max_split_size_mb value",
    "what():  i < config_.size() INTERNAL ASSERT FAILED. Index out of bounds in ConfigTokenizer",
    "ValueError: Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'yes'",
    "RuntimeError: Expected a single True/False argument for expandable_segments",
    "RuntimeError: CachingAllocator option max_split_size_mb too small, must be > 20",
    "RuntimeError: garbage_collect_threshold too big, set it 0.0~1.0",
    "ValueError: For roundups, the divisions has to be power of 2 ",
    "RuntimeError: Unknown allocator backend, options are native and cudaMallocAsync",
]


@pytest.mark.parametrize("complaint", COMPLAINTS)
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "2026-11-03 10:11:12 worker-0 | "])
def test_torchs_own_complaint_names_the_setting(complaint, prefix):
    verdict = diagnose(evidence_from_message(f"epoch 0\n{prefix}{complaint}\n"))
    assert (verdict.cause, verdict.confidence) == ("config-ineffective", "likely")
    assert "PYTORCH_CUDA_ALLOC_CONF" in verdict.headline


@pytest.mark.parametrize(
    "line",
    [
        'export PYTORCH_CUDA_ALLOC_CONF="expandable_segments=True"',
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True python serve.py",
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments=True"',
        'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments=True")',
        '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments=True"}',
        "Environment=PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True",
    ],
)
def test_beside_torchs_complaint_the_line_that_was_meant_is_printed(line):
    verdict = diagnose(evidence_from_message(f"{line}\n{COMPLAINTS[4]}\n"))
    command = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert verdict.next_step.command == command
    assert "'expandable_segments=True' has = where PyTorch wants a colon" in as_text(verdict)
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True" in verdict.headline


def test_a_posted_variable_without_a_complaint_is_no_cause():
    advice = "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True\n"
    refusal = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 GiB. GPU 0 has a total "
        "capacity of 23.50 GiB of which 20.00 GiB is free.\n"
    )
    with_advice = diagnose(evidence_from_message(advice + refusal))
    assert with_advice.cause == diagnose(evidence_from_message(refusal)).cause == "true-capacity"


PROGRAM = """
import os, sys
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:96"
os.environ["SECRET_TOKEN"] = "hunter2"
os.environ.setdefault("PYTORCH_CUDA_ALOC_CONF", "expandable_segments:True")
os.environ.update(PYTORCH_ALLOC_CONF="x:1")
module = sys.modules["_casebook_under_torch.allocator_variables"]
import json
print(json.dumps([module.ASSIGNMENTS, module.present()]))
"""


def test_the_recorder_keeps_the_allocators_variables_with_their_lines_and_no_others(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = json.dumps({"folder": str(tmp_path), "max_events": 10, "hang_after_s": None})
    environ = {**os.environ, "PYTHONPATH": str(INJECT), "CASEBOOK_RECORD": options}
    environ = {name: value for name, value in environ.items() if "ALLOC_CONF" not in name}
    output = subprocess.run(
        [sys.executable, program], env=environ, capture_output=True, check=True
    ).stdout
    assignments, present = json.loads(output)
    assert [(row["name"], row["where"]) for row in assignments] == [
        (CONF, "program.py:3"),
        ("PYTORCH_CUDA_ALOC_CONF", "program.py:5"),
        ("PYTORCH_ALLOC_CONF", "program.py:6"),
    ]
    assert present == {row["name"]: row["value"] for row in assignments}

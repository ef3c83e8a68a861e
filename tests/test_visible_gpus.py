"""How many GPUs a visibility variable leaves, and what is said where it leaves none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import case_evidence, evidence_from_bundle
from helpers.judge.visible_gpus import visible_count
from helpers.look.boxes import open_box
from helpers.look.bundle import BundleWriter

TWO = ("GPU-0a1b2c3d-0000-0000-0000-000000000001", "GPU-0f9e8d7c-0000-0000-0000-000000000002")


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("0", 1),
        ("1,0", 2),
        ("2", 0),
        ("0,2,1", 1),
        ("-1", 0),
        ("-1,0", 0),
        ("0,-1,1", 1),
        ("", 0),
        (",0", 0),
        ("none", 0),
        ("0,0", 0),
        ("1gpu0,0", 2),
        (" 1 , 0 ", 2),
        ("GPU-0a1b", 1),
        ("GPU-0f9e8d7c-0000-0000-0000-000000000002,GPU-0a", 2),
        ("GPU-77", 0),
        ("GPU-0a,GPU-0a1b", 0),
        ("MIG-0a1b", None),
    ],
)
def test_a_list_ends_at_the_first_gpu_that_is_not_there(value, count):
    assert visible_count(value, TWO, repeats_hide_all=True) == count


def test_where_no_uuid_is_known_one_cannot_be_looked_up():
    assert visible_count("GPU-0a1b", ("", ""), repeats_hide_all=True) is None
    assert visible_count("1", ("", ""), repeats_hide_all=True) == 1


def test_rocm_ends_a_list_at_what_comes_twice():
    assert visible_count("0,0", ("", ""), repeats_hide_all=False) == 1


@given(st.text(max_size=30), st.integers(0, 8), st.booleans())
def test_no_value_leaves_more_gpus_than_there_are(value, count, repeats_hide_all):
    left = visible_count(value, ("",) * count, repeats_hide_all)
    assert left is None or 0 <= left <= count


def boxed(value, name="CUDA_VISIBLE_DEVICES", message="RuntimeError: No CUDA GPUs are available"):
    """The verdict on a box with one NVIDIA GPU, that variable and that error."""
    writer = BundleWriter("invented", "constructed", "0", "")
    device = {"pci": "0000:41:00.0", "class": "0x030200", "vendor": "0x10de", "driver": "nvidia"}
    gpu = {"index": 0, "pci": "0000:41:00.0", "status": "ok", "name": "A card", "unread": {}}
    rows = {
        "pci_devices": device,
        "nvml": {**gpu, "total_bytes": 48 << 30, "used_bytes": 1 << 30, "free_bytes": 47 << 30},
        "environment": {"name": name, "value": value},
    }
    for table, row in rows.items():
        writer.add("file", table, json.dumps(row) + "\n")
    writer.add("file", "message", message + "\n")
    return diagnose(evidence_from_bundle(writer.bundle()))


@pytest.mark.parametrize("value", ["-1", "", "1", "7,0", "0,0", "none"])
def test_a_value_that_leaves_no_gpu_is_the_cause_and_is_taken_away(value):
    verdict = boxed(value)
    assert verdict.cause == "config-ineffective"
    assert verdict.next_step.command == "unset CUDA_VISIBLE_DEVICES"
    assert repr(value) in verdict.next_step.what


@pytest.mark.parametrize("value", ["0", "0,5", "GPU-0a1b", "MIG-0a1b"])
def test_a_value_that_leaves_a_gpu_or_cannot_be_looked_up_is_no_cause(value):
    assert boxed(value).cause != "config-ineffective"


def test_a_program_that_ran_out_of_memory_saw_its_gpu():
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00 GiB. GPU 0 has a total "
        "capacity of 47.50 GiB of which 46.00 GiB is free."
    )
    assert boxed("-1", message=message).cause == "true-capacity"


@pytest.mark.parametrize(
    ("name", "value"),
    [("CUDA_VISIBLE_DEVICES", "-1"), ("CUDA_VISIBLE_DEVICES", ""), ("HIP_VISIBLE_DEVICES", "-1")],
)
def test_a_posted_value_that_hides_every_gpu_is_the_cause(name, value):
    torch = "2.8.0+rocm6.4" if name.startswith("HIP") else "2.8.0+cu128"
    evidence = {
        "error_text": "RuntimeError: No HIP GPUs are available",
        "environment": {"torch": torch, "env_vars": {name: value}},
    }
    assert diagnose(case_evidence(evidence)).cause == "config-ineffective"


def test_no_recorded_box_is_said_to_be_hidden_that_was_not():
    for name in ("rx7900xt-container", "strix-halo-1-found"):
        assert "hides" not in diagnose(evidence_from_bundle(open_box(name))).headline

"""Messages that people posted, where they are at hand: what a person reads off each is what the reader says.

The files are other people's text, kept beside the project and never in it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.judge.account import account
from helpers.look.messages import Message, Quantity, read_message

SHARED = Path(__file__).resolve().parents[1] / ".." / "shared"
SAMPLES = SHARED / "samples" / "smi"
pytestmark = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no ../shared/samples/smi beside this checkout"
)
READ_ELSEWHERE = {"torch_device_properties_gfx1151.txt"}
"""Holds no message; the framework reader answers for it."""


def one(name: str) -> Message:
    reading = read_message((SAMPLES / name).read_bytes())
    assert len(reading.messages) == 1 and not reading.truncated, reading
    return reading.messages[0]


TORCH = {
    "torch_cuda_oom_seed_24gib.txt": (
        "cuda",
        0,
        {
            "requested": "16.00 MiB",
            "capacity": "23.56 GiB",
            "free": "33.56 MiB",
            "process": "22.88 GiB",
            "allocated": "21.13 GiB",
            "reserved_unallocated": "1.41 GiB",
        },
        "possible",
        False,
    ),
    "torch_hip_oom_apu_512mib.txt": (
        "hip",
        0,
        {
            "requested": "84.00 MiB",
            "capacity": "512.00 MiB",
            "free": "0 bytes",
            "allocated": "103.83 MiB",
            "reserved_unallocated": "22.17 MiB",
        },
        "excluded",
        False,
    ),
    "torch_hip_oom_gfx1151_15gib.txt": (
        "hip",
        0,
        {
            "requested": "16.00 GiB",
            "capacity": "15.24 GiB",
            "free": "15.09 GiB",
            "allocated": "0 bytes",
            "reserved_unallocated": "0 bytes",
        },
        "excluded",
        True,
    ),
    "torch_hip_oom_seed_dual_7900xt.txt": (
        "hip",
        None,
        {"requested": "96.00 MiB", "capacity": "19.98 GiB", "free": "0 bytes"},
        "unknown",
        None,
    ),
    "torch_hip_oom_seed_gfx1151_62gib.txt": (
        "hip",
        0,
        {
            "requested": "3.99 GiB",
            "capacity": "62.54 GiB",
            "free": "668.07 MiB",
            "allocated": "59.55 GiB",
            "reserved_unallocated": "2.08 GiB",
        },
        "excluded",
        True,
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_out_of_memory(name: str) -> None:
    backend, device, sizes, fragmentation, beyond = TORCH[name]
    message = one(name)
    assert (message.event, message.program, message.backend, message.device) == (
        "refused",
        "torch",
        backend,
        device,
    )
    assert {
        field: value.text for field, value in vars(message).items() if isinstance(value, Quantity)
    } == sizes
    sums = account(message)
    assert (sums.fragmentation, sums.beyond_limit) == (
        fragmentation,
        beyond,
    ) and not sums.contradictions


def test_the_24_gib_card_is_near_capacity_and_stranded_at_once() -> None:
    sums = account(one("torch_cuda_oom_seed_24gib.txt"))
    assert sums.context and 0.33 < sums.context.bytes / (1 << 30) < 0.35
    assert sums.unaccounted and 0.6 < sums.unaccounted.bytes / (1 << 30) < 0.7
    assert sums.stranded and sums.stranded.text == "1.41 GiB"


@pytest.mark.parametrize(
    ("name", "rows", "repeats"),
    [
        ("torch_expandable_unsupported_warning.txt", ["torch-expandable-unsupported"], ""),
        ("dmesg_cs_enomem_new_form.txt", ["kernel-cs-enomem"], ""),
        (
            "dmesg_cs_enomem_old_form.txt",
            ["kernel-cs-enomem", "kernel-pin-buffer", "kernel-pin-framebuffer"],
            "1 repeats of the same message",
        ),
        ("dmesg_kfd_bo_enomem_old.txt", ["kernel-kfd-bo"], "1 repeats of the same message"),
    ],
)
def test_other_failures(name: str, rows: list[str], repeats: str) -> None:
    reading = read_message((SAMPLES / name).read_text())
    assert [message.row for message in reading.messages] == rows and reading.unused == repeats


def test_every_torch_sample_is_read_here_or_named() -> None:
    names = {path.name for path in SAMPLES.glob("torch_*")}
    assert names == set(TORCH) | READ_ELSEWHERE | {"torch_expandable_unsupported_warning.txt"}
    for name in READ_ELSEWHERE:
        assert not read_message((SAMPLES / name).read_text()).messages


def test_no_posted_text_raises_and_each_torch_number_is_read() -> None:
    for path in sorted((SHARED / "cases").glob("*.json")):
        text = json.loads(path.read_text())["evidence"].get("error_text") or ""
        reading = read_message(text)
        assert reading.messages or reading.unused, path.name
        if "Tried to allocate" in text:
            assert any(message.requested for message in reading.messages), path.name
        for message in reading.messages:
            account(message)

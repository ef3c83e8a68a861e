"""Each thing that keeps a process from a GPU is named, with the exact line that removes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.judge.obstacles import Obstacle, obstacles
from helpers.look.bundle import Bundle, BundleWriter

AMD = {"pci": "0000:03:00.0", "class": "0x030000", "vendor": "0x1002", "driver": "amdgpu"}
NVIDIA = {"pci": "0000:81:00.0", "class": "0x030200", "vendor": "0x10de", "driver": "nvidia"}
ME = {
    "uid": 1000,
    "gid": 1000,
    "groups": [{"gid": 1000, "name": ""}],
    "groups_in_database": [],
    "uid_map": "0 0 4294967295",
    "gid_map": "0 0 4294967295",
    "container": "none",
    "selinux_mode": "disabled",
    "selinux_context": "",
    "init_pid_ns": True,
}
KFD = {
    "path": "/dev/kfd",
    "status": "ok",
    "errno": "",
    "mode": "0660",
    "uid": 0,
    "gid": 110,
    "group": "render",
    "selinux": "",
}
RENDER = {**KFD, "path": "/dev/dri/renderD128"}
CONTROL = {**KFD, "path": "/dev/nvidiactl", "mode": "0666", "gid": 0, "group": "root"}
CARD = {**CONTROL, "path": "/dev/nvidia0"}


def bundle(**tables: list[Any]) -> Bundle:
    made = BundleWriter("b", "constructed", "0", "now")
    for name, rows in tables.items():
        made.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))
    return made.bundle()


def refused(node: dict[str, Any], number: str = "EACCES", **more: Any) -> dict[str, Any]:
    return {**node, "status": "not_allowed", "errno": number, "why": f"refused ({number})", **more}


def gone(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": node["path"],
        "status": "not_available",
        "errno": "ENOENT",
        "why": "no such file",
    }


@pytest.mark.parametrize(
    ("tables", "cause", "fix"),
    [
        ({"access": [KFD, RENDER], "pci_devices": [AMD]}, "", ""),
        ({"access": [CONTROL, CARD], "pci_devices": [NVIDIA]}, "", ""),
        ({"access": [gone(KFD), gone(RENDER)], "pci_devices": []}, "no_gpu", ""),
        (
            {"access": [gone(KFD), gone(RENDER)], "pci_devices": [{**AMD, "driver": ""}]},
            "no_driver",
            "sudo modprobe amdgpu",
        ),
        (
            {"access": [gone(KFD), gone(RENDER)], "pci_devices": [{**AMD, "driver": "vfio-pci"}]},
            "no_driver",
            "",
        ),
        (
            {"access": [gone(CONTROL)], "pci_devices": [{**NVIDIA, "driver": "nouveau"}]},
            "no_driver",
            "",
        ),
        ({"access": [gone(KFD), RENDER], "pci_devices": [AMD]}, "no_node", "sudo dmesg"),
        (
            {
                "access": [gone(KFD), gone(RENDER)],
                "pci_devices": [AMD],
                "identity": [{**ME, "container": "docker"}],
            },
            "no_node",
            "docker run --device=/dev/kfd --device=/dev/dri",
        ),
        (
            {
                "access": [gone(CONTROL)],
                "pci_devices": [NVIDIA],
                "identity": [{**ME, "container": "docker"}],
            },
            "no_node",
            "docker run --gpus all",
        ),
        (
            {
                "access": [gone(CONTROL)],
                "pci_devices": [NVIDIA],
                "identity": [{**ME, "container": "podman"}],
            },
            "no_node",
            "podman run --device nvidia.com/gpu=all",
        ),
        (
            {
                "access": [gone(KFD)],
                "pci_devices": [AMD],
                "identity": [{**ME, "container": "kubernetes"}],
            },
            "no_node",
            "amd.com/gpu",
        ),
        (
            {
                "access": [refused(KFD, "EPERM"), RENDER],
                "pci_devices": [AMD],
                "identity": [{**ME, "container": "docker"}],
            },
            "device_cgroup",
            "docker run --device=/dev/kfd",
        ),
        (
            {"access": [refused(KFD), RENDER], "pci_devices": [AMD]},
            "group",
            "sudo usermod -aG render $USER",
        ),
        (
            {"access": [refused(KFD, group=""), RENDER], "pci_devices": [AMD]},
            "group",
            "sudo usermod -aG 110 $USER",
        ),
        (
            {
                "access": [refused(KFD), RENDER],
                "pci_devices": [AMD],
                "identity": [{**ME, "groups_in_database": ["render"]}],
            },
            "group_not_in_session",
            "newgrp render",
        ),
        (
            {
                "access": [refused(KFD), RENDER],
                "pci_devices": [AMD],
                "identity": [{**ME, "container": "docker"}],
            },
            "group",
            "docker run --group-add 110",
        ),
        (
            {
                "access": [refused(KFD, uid=65534, gid=65534, group="nogroup"), RENDER],
                "pci_devices": [AMD],
                "identity": [{**ME, "uid": 0, "container": "podman", "gid_map": "0 1000 1"}],
            },
            "unmapped_group",
            "podman run --group-add keep-groups",
        ),
        (
            {
                "access": [refused(KFD, mode="0666"), RENDER],
                "pci_devices": [AMD],
                "identity": [
                    {
                        **ME,
                        "container": "podman",
                        "selinux_mode": "enforcing",
                        "selinux_context": "u:r:container_t:s0",
                    }
                ],
            },
            "selinux",
            "setsebool -P container_use_devices=true",
        ),
        (
            {
                "access": [refused(KFD), RENDER],
                "pci_devices": [AMD],
                "identity": [
                    {**ME, "groups": [{"gid": 110, "name": "render"}], "selinux_mode": "disabled"}
                ],
            },
            "refused",
            "",
        ),
        (
            {"access": [refused(KFD, mode="0600"), RENDER], "pci_devices": [AMD]},
            "refused",
            "ls -l /dev/kfd",
        ),
        (
            {
                "access": [
                    {
                        **KFD,
                        "status": "not_available",
                        "errno": "EIO",
                        "why": "Input/output error (EIO)",
                    },
                    RENDER,
                ],
                "pci_devices": [AMD],
            },
            "no_device",
            "sudo dmesg",
        ),
        (
            {
                "access": [KFD, RENDER],
                "pci_devices": [AMD],
                "environment": [{"name": "ROCR_VISIBLE_DEVICES", "value": ""}],
            },
            "variable",
            "unset ROCR_VISIBLE_DEVICES",
        ),
        (
            {
                "access": [KFD, RENDER],
                "pci_devices": [AMD],
                "environment": [{"name": "HIP_VISIBLE_DEVICES", "value": "-1"}],
            },
            "variable",
            "unset HIP_VISIBLE_DEVICES",
        ),
        (
            {
                "access": [KFD, RENDER],
                "pci_devices": [AMD],
                "environment": [{"name": "HIP_VISIBLE_DEVICES", "value": ""}],
            },
            "",
            "",
        ),
        (
            {
                "access": [KFD, RENDER],
                "pci_devices": [AMD],
                "environment": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}],
            },
            "",
            "",
        ),
        (
            {
                "access": [CONTROL, CARD],
                "pci_devices": [NVIDIA],
                "environment": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
            },
            "",
            "",
        ),
    ],
)
def test_what_stands_in_the_way_is_named_with_the_line_that_removes_it(
    tables: dict[str, Any], cause: str, fix: str
) -> None:
    found = obstacles(bundle(**{"identity": [ME], **tables}))
    assert [o.cause for o in found] == ([cause] if cause else [])
    assert all(fix in o.fix and bool(o.fix) is bool(fix) for o in found), found


def test_a_refused_screen_node_is_no_obstacle_to_computing() -> None:
    card = refused({**KFD, "path": "/dev/dri/card0"})
    assert obstacles(bundle(access=[KFD, RENDER, card], pci_devices=[AMD], identity=[ME])) == ()


def test_nothing_is_said_where_nothing_was_captured() -> None:
    assert obstacles(bundle()) == ()


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-1, 99999)
    | st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=2)
)
KEYS = [
    "path",
    "status",
    "errno",
    "mode",
    "uid",
    "gid",
    "group",
    "why",
    "name",
    "value",
    "vendor",
    "class",
    "driver",
    "groups",
    "container",
    "groups_in_database",
]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8), max_size=3))
def test_any_rows_are_judged_without_an_error(rows: list[Any]) -> None:
    made = bundle(access=rows, identity=rows, environment=rows, pci_devices=rows)
    assert all(isinstance(o, Obstacle) and o.says for o in obstacles(made))

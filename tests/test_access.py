"""Which nodes open, as whom this process runs, what stands in the way, and that no secret is taken along."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_user import as_nobody

from helpers.look import access as access_module
from helpers.look.access import access, collect_identity, identity, walk_access
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.environment import (
    collect_environment,
    collect_limits,
    is_allowed,
    limits,
    variables,
)


def bundle(**tables: list[Any]) -> Bundle:
    made = BundleWriter("b", "constructed", "0", "now")
    for name, rows in tables.items():
        made.add("file", name, "".join(json.dumps(row) + "\n" for row in rows))
    return made.bundle()


def test_a_node_that_opens_one_that_is_missing_and_one_that_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(
        access_module,
        "NODES",
        ("/dev/null", "/dev/no-such-node", "/dev/no-such-*", str(tmp_path / "pipe")),
    )
    found = {node.path: node for node in access(bundle(access=list(walk_access())))}
    assert (
        found["/dev/null"].opened.value == "yes"
        and found["/dev/null"].mode == "0666"
        and found["/dev/null"].group == "root"
    )
    assert (
        found["/dev/no-such-node"].missing
        and found["/dev/no-such-node"].opened.status == "not_available"
    )
    assert found["/dev/no-such-*"].missing
    assert found[str(tmp_path / "pipe")].errno == "ENODEV", (
        "a pipe is not opened, which would wait for a writer"
    )


def test_a_node_this_user_may_not_open_is_refused_with_its_mode_and_group() -> None:
    code = (
        "import json; from pathlib import Path; from helpers.look import access\n"
        "access.NODES = ('/dev/kmsg', '/dev/null')\n"
        "print(json.dumps([list(access.walk_access()), access.collect_identity(Path('/'))]))"
    )
    rows, me = as_nobody(code)
    found = {node.path: node for node in access(bundle(access=rows))}
    assert (found["/dev/kmsg"].errno, found["/dev/kmsg"].opened.status) == ("EACCES", "not_allowed")
    assert found["/dev/kmsg"].uid == 0 and found["/dev/kmsg"].mode
    assert found["/dev/null"].opened.ok
    who = identity(bundle(identity=me))
    assert (
        who
        and (who.uid, [gid for gid, _ in who.groups]) == (65534, [65534])
        and int(me[0]["cap_eff"], 16) == 0
    )


def test_an_open_that_hangs_costs_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def hang(path: str, flags: int, *more: Any, **named: Any) -> int:
        if path == "/dev/full":
            time.sleep(60)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(access_module, "NODES", ("/dev/full", "/dev/null"))
    monkeypatch.setattr(access_module, "OPEN_LIMIT_S", 0.3)
    monkeypatch.setattr(access_module.os, "open", hang)
    hung, fine = list(walk_access())
    assert (hung["status"], hung["why"]) == ("not_available", "open() hung for 0.3 s") and fine[
        "status"
    ] == "ok"


def test_opening_leaves_nothing_open_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "NODES", ("/dev/null", "/dev/zero", "/dev/full"))
    before = os.listdir("/proc/self/fd")
    list(walk_access())
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_this_process_is_described_without_its_name() -> None:
    row = collect_identity(Path("/"))[0]
    who = identity(bundle(identity=[row]))
    assert (
        who
        and who.uid == os.geteuid()
        and {gid for gid, _ in who.groups} == {os.getegid(), *os.getgroups()}
    )
    assert row["no_new_privs"] in (0, 1) and len(row["cap_eff"]) == 16 and row["uid_map"]
    assert row["namespaces"]["pid"] == os.readlink("/proc/self/ns/pid")
    assert who.init_pid_ns is (os.readlink("/proc/self/ns/pid") == "pid:[4026531836]")
    assert os.uname().nodename not in json.dumps(row)


def test_groups_in_the_database_and_groups_in_force_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {
        "/etc/passwd": "me:x:1000:1000::/home/me:/bin/sh\n",
        "/proc/self/status": "NoNewPrivs:\t1\nSeccomp:\t2\nCapEff:\t0\n",
        "/etc/group": "me:x:1000:\nrender:x:110:other, me\nvideo:x:44:me\nbroken line\nodd:x:nan:me\n",
    }
    monkeypatch.setattr(
        access_module.files,
        "read",
        lambda root, source, limit=0: (texts.get(source, "").encode(), "ok", ""),
    )
    monkeypatch.setattr(access_module.os, "getuid", lambda: 1000)
    monkeypatch.setattr(access_module.os, "getegid", lambda: 1000)
    monkeypatch.setattr(access_module.os, "getgroups", lambda: [1000, 44])
    row = collect_identity(Path("/"))[0]
    assert row["groups_in_database"] == ["render", "video"]
    assert row["groups"] == [
        {"gid": 44, "name": "video"},
        {"gid": 1000, "name": "(the user's own)"},
    ]
    assert (row["no_new_privs"], row["seccomp"]) == (1, 2)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ({"/.dockerenv": "", "/var/run/secrets/kubernetes.io/serviceaccount": ""}, "kubernetes"),
        ({"/run/.containerenv": ""}, "podman"),
        ({"/proc/self/cgroup": "0::/system.slice/docker-1234.scope"}, "docker"),
        ({"/run/systemd/container": "lxc"}, "lxc"),
        ({"/.singularity.d": ""}, "apptainer"),
        ({"/proc/self/mounts": "overlay / overlay rw 0 0"}, "container"),
        ({}, "none"),
    ],
)
@pytest.mark.parametrize("own_namespaces", [True, False])
def test_signs_of_a_container_name_its_kind(
    paths: dict[str, str], expected: str, own_namespaces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("container", raising=False)
    monkeypatch.setattr(access_module, "_text", lambda source: paths.get(source, ""))
    monkeypatch.setattr(access_module.os.path, "lexists", lambda path: path in paths)
    numbers = {
        f"/proc/self/ns/{name}": place for name, place in access_module.INIT_NAMESPACES.items()
    }
    monkeypatch.setattr(
        access_module, "_link", lambda path: "pid:[1]" if own_namespaces else numbers.get(path, "")
    )
    kind, signs = access_module._container()
    assert kind == (expected if own_namespaces or expected == "apptainer" else "none")
    assert bool(signs) is bool(paths), "what was seen is kept either way"


def test_nothing_is_said_where_nothing_was_captured() -> None:
    assert access(bundle()) == () and identity(bundle()) is None


def test_secrets_and_strangers_never_reach_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "MIOPEN_CACHE_TOKEN",
        "NVIDIA_API_KEY",
        "TORCH_HUB_PASSWORD",
        "WANDB_API_KEY",
        "HSA_auth_token",
        "PATH_TO_SECRETS",
        "AMD_CREDENTIALS",
        "NCCL_PROXY",
        "USER",
        "SSH_AUTH_SOCK",
        "HOSTNAME",
    ):
        monkeypatch.setenv(name, "planted-secret")
        assert not is_allowed(name)
    home = os.path.expanduser("~")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{home}/lib:/opt/rocm/lib:{home}")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", f"{home}side/x")
    monkeypatch.setenv("TORCH_MIRROR", "https://me:pw@host.invalid/x")
    monkeypatch.setenv("PYTORCH_HIP_ALLOC_CONF", "")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION_1", "11.0.0")
    text = json.dumps(collect_environment(Path("/")))
    assert "planted-secret" not in text and "me:pw" not in text
    found = {v.name: v.value for v in variables(bundle(environment=json.loads(text)))}
    assert found["LD_LIBRARY_PATH"] == "~/lib:/opt/rocm/lib:~"
    assert found["TORCH_EXTENSIONS_DIR"] == f"{home}side/x", (
        "only the home folder itself is replaced"
    )
    assert found["PYTORCH_HIP_ALLOC_CONF"] == "" and found["HSA_OVERRIDE_GFX_VERSION_1"] == "11.0.0"


def test_a_home_folder_at_the_root_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/rocm/lib")
    assert {"name": "LD_LIBRARY_PATH", "value": "/opt/rocm/lib"} in collect_environment(Path("/"))


def test_limits_are_numbers_or_unlimited() -> None:
    found = {limit.name: limit for limit in limits(bundle(limits=collect_limits(Path("/"))))}
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found["nofile"].soft.value == soft and found["nofile"].soft.unit == "count"
    odd = limits(
        bundle(
            limits=[
                {"name": "memlock", "soft": "unlimited", "unit": "bytes"},
                {"name": "stack", "soft": True},
            ]
        )
    )
    assert [limit.soft.why for limit in odd] == ["unlimited", "not captured"]


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
    "soft",
    "unit",
    "groups",
    "container",
    "namespaces",
    "init_pid_ns",
]


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8), max_size=3))
def test_any_rows_are_read_without_an_error(rows: list[Any]) -> None:
    made = bundle(access=rows, identity=rows, environment=rows, limits=rows)
    assert all(node.opened.ok or node.opened.why for node in access(made))
    assert all(limit.soft.ok or limit.soft.why for limit in limits(made))
    assert identity(made) is None or rows
    assert len(variables(made)) <= len(rows)

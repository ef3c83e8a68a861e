"""Which nodes open, as whom this process runs, what stands in the way, and that no secret is taken along."""

import json
import os
import resource
import time
from pathlib import Path

import pytest
from kernel_boxes import box
from other_user import as_nobody

from helpers.look import access as access_module
from helpers.look.access import access, collect_identity, identity, walk_access
from helpers.look.environment import (
    collect_environment,
    collect_limits,
    is_allowed,
    limits,
    sounds_secret,
    variables,
)


def test_a_node_that_opens_one_that_is_missing_and_one_that_is_none(monkeypatch, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    names = ("/dev/null", "/dev/no-such-*", "/dev/no-such-node", str(tmp_path / "pipe"))
    monkeypatch.setattr(access_module, "NODES", names)
    pattern, missing, null, pipe = access(box(access=list(walk_access())))
    assert (null.opened.value, null.mode, null.group) == ("yes", "0666", "root")
    assert pattern.missing and missing.missing and missing.opened.status == "not_available"
    assert pipe.errno == "ENODEV", "a pipe is not opened, which would wait for a writer"


def test_a_node_this_user_may_not_open_is_refused_with_its_mode_and_group():
    code = (
        "import json; from pathlib import Path; from helpers.look import access\n"
        "access.NODES = ('/dev/kmsg', '/dev/null')\n"
        "print(json.dumps([list(access.walk_access()), access.collect_identity()]))"
    )
    rows, me = as_nobody(code)
    found = {node.path: node for node in access(box(access=rows))}
    assert (found["/dev/kmsg"].errno, found["/dev/kmsg"].opened.status) == ("EACCES", "not_allowed")
    assert found["/dev/kmsg"].uid == 0 and found["/dev/kmsg"].mode
    assert found["/dev/null"].opened.ok
    who = identity(box(identity=me))
    assert who and (who.uid, [gid for gid, _ in who.groups]) == (65534, [65534])


def test_an_open_that_hangs_costs_its_limit(monkeypatch):
    real = os.open

    def hang(path, flags, *more, **named):
        if path == "/dev/full":
            time.sleep(60)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(access_module, "NODES", ("/dev/full", "/dev/null"))
    monkeypatch.setattr(access_module, "OPEN_LIMIT_S", 0.3)
    monkeypatch.setattr(access_module.os, "open", hang)
    hung, fine = list(walk_access())
    assert (hung["status"], hung["why"]) == ("not_available", "open() hung for 0.3 s")
    assert fine["status"] == "ok"


def test_opening_leaves_nothing_open_here(monkeypatch):
    monkeypatch.setattr(access_module, "NODES", ("/dev/null", "/dev/zero", "/dev/full"))
    before = os.listdir("/proc/self/fd")
    list(walk_access())
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_this_process_is_described_without_its_name():
    row = collect_identity()[0]
    who = identity(box(identity=[row]))
    assert who and who.uid == os.geteuid() and who.gid_map
    assert {gid for gid, _ in who.groups} == {os.getegid(), *os.getgroups()}
    assert who.init_pid_ns is (os.readlink("/proc/self/ns/pid") == "pid:[4026531836]")
    assert os.uname().nodename not in json.dumps(row)


def test_groups_in_the_database_and_groups_in_force_are_told_apart(monkeypatch):
    texts = {
        "/etc/passwd": "me:x:1000:1000::/home/me:/bin/sh\n",
        "/etc/group": "me:x:1000:\nrender:x:110:other, me\nvideo:x:44:me\nbroken line\nodd:x:nan:me\n",
    }
    monkeypatch.setattr(access_module.files, "text", lambda root, name, most=0: texts.get(name, ""))
    for name, value in (("getuid", 1000), ("getegid", 1000), ("getgroups", [1000, 44])):
        monkeypatch.setattr(access_module.os, name, lambda value=value: value)
    row = collect_identity()[0]
    assert row["groups_in_database"] == ["render", "video"]
    assert row["groups"] == [
        {"gid": 44, "name": "video"},
        {"gid": 1000, "name": "(the user's own)"},
    ]


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
def test_signs_of_a_container_name_its_kind(paths, expected, own_namespaces, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("container", raising=False)
    monkeypatch.setattr(access_module.files, "text", lambda root, name, most=0: paths.get(name, ""))
    monkeypatch.setattr(access_module.os.path, "lexists", lambda path: path in paths)
    places = {f"/proc/self/ns/{name}": at for name, at in access_module.INIT_NAMESPACES.items()}
    places = dict.fromkeys(places, "pid:[1]") if own_namespaces else places
    monkeypatch.setattr(access_module.os, "readlink", places.__getitem__)
    (row,) = collect_identity()
    named = expected if own_namespaces or expected == "apptainer" else "none"
    assert row["container"] == named


def test_secrets_and_strangers_never_reach_the_table(monkeypatch):
    secret = "AWS_SECRET_ACCESS_KEY HF_TOKEN MIOPEN_CACHE_TOKEN NVIDIA_API_KEY TORCH_HUB_PASSWORD "
    secret += "WANDB_API_KEY HSA_auth_token PATH_TO_SECRETS AMD_CREDENTIALS NCCL_PROXY "
    stranger = "USER SSH_AUTH_SOCK HOSTNAME"
    for name in (secret + stranger).split():
        monkeypatch.setenv(name, "planted-secret")
        assert not is_allowed(name)
    home = os.path.expanduser("~")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{home}/lib:/opt/rocm/lib:{home}")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", f"{home}side/x")
    monkeypatch.setenv("TORCH_MIRROR", "https://me:pw@host.invalid/x")
    monkeypatch.setenv("PYTORCH_HIP_ALLOC_CONF", "")
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION_1", "11.0.0")
    text = json.dumps(collect_environment())
    assert "planted-secret" not in text and "me:pw" not in text
    found = {v.name: v.value for v in variables(box(environment=json.loads(text)))}
    assert found["LD_LIBRARY_PATH"] == "~/lib:/opt/rocm/lib:~"
    assert found["TORCH_EXTENSIONS_DIR"] == f"{home}side/x", "only the home folder is replaced"
    assert found["PYTORCH_HIP_ALLOC_CONF"] == "" and found["HSA_OVERRIDE_GFX_VERSION_1"] == "11.0.0"


def test_a_home_folder_at_the_root_replaces_nothing(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/rocm/lib")
    assert {"name": "LD_LIBRARY_PATH", "value": "/opt/rocm/lib"} in collect_environment()


def test_limits_are_numbers_or_unlimited():
    found = {limit.name: limit for limit in limits(box(limits=collect_limits()))}
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found["nofile"].soft.value == soft and found["nofile"].soft.unit == "count"
    rows = [{"name": "memlock", "soft": "unlimited"}, {"name": "stack", "soft": True}]
    odd = limits(box(limits=rows))
    assert [limit.soft.why for limit in odd] == ["unlimited", "not captured"]


def test_every_row_of_the_tables_of_signs_and_names_is_used():
    folder = Path(access_module.__file__).parent
    signs, known = (
        json.loads((folder / f"{n}.json").read_text()) for n in ("access", "environment")
    )
    assert all(name.startswith("/dev/") for name in signs["nodes"])
    assert all(path.startswith("/") and kind for path, kind in signs["paths"].items())
    assert all(word and kind for word, kind in signs["cgroups"].items())
    assert all(place.startswith(name) for name, place in signs["namespaces"].items())
    assert all(is_allowed(name) for name in known["names"].split())
    assert all(is_allowed(prefix + "X") for prefix in known["prefixes"].split())
    for name in known["of secrets"].split():
        assert sounds_secret(f"my_{name}_keys") and not sounds_secret("num_keys")
    assert all(sounds_secret(f"api_key_{name}") for name in known["after a secret"].split())
    assert not any(sounds_secret(f"{name}_token") for name in known["of a tokenizer"].split())
    assert all(hasattr(resource, f"RLIMIT_{name.upper()}") for name in known["limits"])

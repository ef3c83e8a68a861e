"""Nobody gets into a fleet without its keys, nothing listens that was not asked for, and another checkout gets no run."""

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from fleet_stand_in import Loopback, soon
from other_user import as_nobody, open_folder  # noqa: F401  a fixture

from helpers.batch import fleet_worker
from helpers.batch.fleet import Fleet, FleetError
from helpers.batch.fleet_worker import checkout, make_keys, security, unfit
from helpers.batch.plan import load_plan
from helpers.cli import main

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")


def listening(process):
    """Every address at which a process, or a child of it, listens."""
    found = set()
    for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        sockets = one.net_connections("inet")
        found |= {(s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN}
    return found


def where(address):
    host, port = address.rpartition("/")[2].rsplit(":", 1)
    return host, int(port)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("fleet") / "keys")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, keys):
    """A fleet with keys: the batch's view of it and its processes."""
    grid = Loopback(tmp_path_factory.mktemp("guarded"), keys=keys)
    try:
        grid.worker("only")
        fleet = soon(lambda: _joined(grid.address, keys))
        yield grid, fleet
        fleet.close()
    finally:
        grid.end()


def _joined(address, keys):
    try:
        return Fleet(address, keys=keys)
    except FleetError as error:
        assert "seen no worker" in str(error)
        return None


@needs_openssl
def test_a_fleet_with_keys_listens_where_it_was_told_and_nowhere_else(guarded):
    grid, fleet = guarded
    [worker] = fleet.workers
    assert grid.address.startswith("tls://127.0.0.1:") and worker.startswith("tls://127.0.0.1:")
    assert listening(grid.processes["scheduler"]) == {where(grid.address)}
    assert listening(grid.processes["only"]) == {where(worker)}


@needs_openssl
@pytest.mark.parametrize("part", ["scheduler", "worker"])
@pytest.mark.parametrize("stranger", ["no TLS", "no certificate", "another CA", "its CA"])
def test_a_stranger_gets_nothing_from_a_port_of_the_fleet(guarded, keys, tmp_path, part, stranger):
    grid, fleet = guarded
    place = where(grid.address if part == "scheduler" else next(iter(fleet.workers)))
    raw = socket.create_connection(place, timeout=10)
    if stranger != "no TLS":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if stranger == "another CA":
            other = make_keys(tmp_path / "other")
            context.load_cert_chain(other / "cert.pem", other / "key.pem")
        elif (
            stranger == "its CA"
        ):  # what goes over the wire of everybody: the certificate without its key
            other = make_keys(tmp_path / "other")
            shutil.copy(keys / "cert.pem", tmp_path / "cert.pem")
            with pytest.raises(ssl.SSLError):
                context.load_cert_chain(tmp_path / "cert.pem", other / "key.pem")
    heard = b""
    try:
        with raw, context.wrap_socket(raw) if stranger != "no TLS" else raw as line:
            line.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(64))
            heard = line.recv(1000)
    except (ssl.SSLError, ConnectionError, TimeoutError):
        pass
    assert heard == b""


@needs_openssl
def test_a_stranger_with_other_keys_runs_no_program(guarded, tmp_path):
    grid, fleet = guarded
    other = make_keys(tmp_path / "other")
    proof = tmp_path / "proof"
    code = """if True:
        import asyncio, pathlib, sys
        from distributed.core import rpc
        from distributed.protocol.pickle import dumps
        from helpers.batch.fleet_worker import security
        address, keys, proof = sys.argv[1:]
        args = security(pathlib.Path(keys)).get_connection_args("client")
        function = dumps(eval(f"lambda dask_worker=None, dask_scheduler=None: open({proof!r}, 'w').close()"))
        async def attack():
            async with rpc(address, connection_args=args, timeout=5) as one:
                print(await one.run(function=function, args=dumps(()), kwargs=dumps({}), wait=True))
        asyncio.run(attack())
    """
    own = grid.keys[1]
    worker = next(iter(fleet.workers))
    for address, known in ((grid.address, other), (worker, other), (worker, own)):
        argv = [sys.executable, "-c", code, address, str(known), str(proof)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert proof.exists() == (known == own), done.stderr  # with the keys the attack works
        assert (done.returncode == 0) == (known == own)
    with pytest.raises(FleetError, match="expected one that has the same keys"):
        Fleet(grid.address, keys=other, first_s=2)


def test_without_keys_nothing_listens_beyond_loopback(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fleet_worker, "KEYS", tmp_path / "none")
    for part in (["scheduler"], ["worker", "--scheduler", "tcp://127.0.0.1:1"]):
        for host in ("0.0.0.0", "::", "192.0.2.7"):
            scratch = ["--scratch", str(tmp_path)] if part[0] == "worker" else []
            assert main(["fleet", *part, *scratch, "--host", host]) == 2
            said = capsys.readouterr().err
            assert f"--host {host}: reached from other boxes; expected TLS there" in said
            assert "fleet keys" in said and "insecure: true" in said and said.count("\n") == 1


def test_a_part_that_cannot_start_says_why_in_one_line(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(fleet_worker, "KEYS", tmp_path / "none")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = str(door.getsockname()[1])
        scratch = ["--scratch", str(tmp_path)]
        for words, says in (
            (["scheduler", "--port", port], "Address already in use"),
            (["scheduler", "--host", "nosuch.invalid"], "expected an address of this box"),
            (["worker"], "expected --scheduler ADDRESS or --scheduler-file FILE"),
            (["worker", "--scheduler", "tcp://127.0.0.1:1", "--resources", "GPU"], "NAME=COUNT"),
            (["nonsense"], "expected keys, scheduler or worker"),
        ):
            assert main(["fleet", *words, *scratch]) == 2
            said = capfd.readouterr().err.splitlines()
            assert says in said[-1] and "Traceback" not in said[-1]


def test_a_plan_may_say_that_its_fleet_is_insecure(tmp_path):
    plan = tmp_path / "plan.yaml"
    notebook = "runs:\n- {notebook: 01_hardware_probe.ipynb, box: cpu-only}\n"
    plan.write_text("name: a\n" + notebook)
    assert not load_plan(plan).plan.insecure
    plan.write_text("name: a\ninsecure: true\n" + notebook)
    assert load_plan(plan).plan.insecure


def test_a_fleet_of_distributeds_own_commands_is_refused_for_its_open_doors(tmp_path):
    grid = Loopback(tmp_path, stock=True, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
    plan = SimpleNamespace(gates=None, stop=SimpleNamespace(node_strikes=0), insecure=False)
    try:
        grid.worker("only")
        fleet = soon(lambda: _joined(grid.address, None))
        try:
            with pytest.raises(
                FleetError, match=r"seen 0\.0\.0\.0:\d+ open to other boxes"
            ) as refused:
                fleet.check(SimpleNamespace(plan=plan, steps=[]))
            assert "\n" not in str(refused.value)
            plan.insecure = True
            fleet.check(SimpleNamespace(plan=plan, steps=[]))
        finally:
            fleet.close()
    finally:
        grid.end()


def test_a_worker_of_another_checkout_takes_no_run(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # other tests of this process use it
    server = SimpleNamespace(listeners=[])
    own = checkout()
    assert unfit(own, False, server) == ""
    assert "helpers/batch/fleet_worker.py" in own
    assert not [name for name in own if "__pycache__" in name]  # what was compiled here
    other = {**own, "helpers/ground/units.py": "0" * 16}
    assert "other files than the batch has: helpers/ground/units.py; expected" in unfit(
        other, False, server
    )
    missing = {name: one for name, one in own.items() if not name.startswith("helpers/look/")}
    assert " more; expected the same" in unfit(missing, False, server)
    if own["commit"]:
        assert "expected aaaaaaaaaaaa, as" in unfit({**own, "commit": "a" * 40}, False, server)
    assert unfit({**own, "commit": ""}, False, server) == ""  # a copy without its history
    nanny = SimpleNamespace(listeners=[], nanny="tcp://127.0.0.1:1")
    assert "seen a nanny" in unfit(own, False, nanny)
    monkeypatch.setitem(sys.modules, "torch", object())
    assert "seen torch imported" in unfit(own, False, server)


@needs_openssl
def test_keys_are_their_owners_alone_and_never_overwritten(tmp_path, capsys):
    before = os.umask(0)
    try:
        made = tmp_path / "below" / "keys"
        assert main(["fleet", "keys", "--keys", str(made), "--json"]) == 0
    finally:
        os.umask(before)
    assert json.loads(capsys.readouterr().out) == {"keys": str(made)}
    modes = {stat.S_IMODE(one.stat().st_mode) for one in made.iterdir()}
    assert modes == {0o600} and stat.S_IMODE(made.stat().st_mode) == 0o700
    content = (made / "key.pem").read_bytes()
    assert main(["fleet", "keys", "--keys", str(made)]) == 2
    assert "name another with --keys" in capsys.readouterr().err
    assert (made / "key.pem").read_bytes() == content
    (made / "key.pem").chmod(0o644)
    with pytest.raises(FleetError, match="others may read it; .* run: chmod 600"):
        security(made)


@needs_openssl
def test_another_user_of_the_box_reads_no_key(open_folder):  # noqa: F811
    made = make_keys(open_folder / "keys")
    code = """
import json, sys
try:
    print(json.dumps(open(sys.argv[1] + "/key.pem").read()))
except OSError as error:
    print(json.dumps(error.strerror))
"""
    assert as_nobody(code, made) == "Permission denied"


def test_without_openssl_or_keys_one_line_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FleetError, match="make them: python3 -m helpers fleet keys"):
        security(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetError, match="seen no program openssl; .* install it") as refused:
        make_keys(tmp_path / "keys")
    assert "\n" not in str(refused.value)

"""Snapshots: every generation of the format is read, and no pickle runs code or fills the memory."""

import ast
import io
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_allocator import MIB, SAMPLES, Toy, layout_of

from helpers.allocator import pickle_scan
from helpers.allocator import plain_pickle as safely
from helpers.allocator.call_sites import site_of
from helpers.allocator.snapshot import load, parse
from helpers.allocator.stack_frames import frame_text
from helpers.allocator.trace import Op, TraceError
from helpers.allocator.trace_file import read_trace

ROOT = Path(__file__).resolve().parents[1]


def recorded():
    toy = Toy()
    first = toy.alloc(3000, [{"name": "forward", "filename": "/home/someone/model.py", "line": 12}])
    second = toy.alloc(5 * MIB)
    toy.free(first)
    toy.free(second)
    toy.alloc(700)
    return toy


def pickled(tmp_path, content, protocol=4):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(tmp_path, protocol):
    trace = read_trace(pickled(tmp_path, recorded().snapshot(), protocol))
    assert [Op(op).name for op in trace.op] == ["ALLOC", "ALLOC", "FREE", "FREE", "ALLOC"]
    assert trace.size.tolist() == [3000, 5 * MIB, 0, 0, 700]
    assert trace.header["label"] == "recorded on a GPU" and trace.recorded_by_gpu


def protocols(path):
    """(line, the protocol named, or None) of each call of pickle.dump and pickle.dumps in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr in ("dump", "dumps"):
            if isinstance(function.value, ast.Name) and function.value.id == "pickle":
                placed = node.args[2 if function.attr == "dump" else 1 :]
                named = {word.arg: word.value for word in node.keywords}.get("protocol", *placed)
                yield node.lineno, getattr(named, "value", None)


def test_every_writer_of_a_pickle_names_a_protocol_that_all_readers_have():
    """The recorder's snapshots, the stress program's, a rehearsal's and a redacted copy: a user's Python may be older."""
    written = {path: list(protocols(path)) for path in (ROOT / "helpers").rglob("*.py")}
    written = {path.name: found for path, found in written.items() if found}
    assert {"recorder.py", "history.py"} & written.keys()
    for name, found in written.items():
        assert all(protocol in (2, 3, 4) for _, protocol in found), (name, found)


def test_a_snapshot_of_2023_without_times_settings_and_annotations_is_read():
    content = recorded().snapshot()
    for event in content["device_traces"][0]:
        del event["time_us"]
    del content["allocator_settings"], content["external_annotations"]
    snapshot = parse(content)
    assert {event.time_us for event in snapshot.events} == {None}
    assert snapshot.settings == {}


def test_a_snapshot_of_2026_is_read_and_what_is_not_of_the_device_is_left_out():
    content = recorded().snapshot()
    events = content["device_traces"][0]
    for event in events:
        event |= {"compile_context": "N/A", "user_metadata": "step 1", "pool_id": (0, 0)}
    none = {"addr": 0, "size": 0, "stream": 0, "time_us": 1}
    events.insert(1, {"action": "annotate", **none, "user_metadata": "x"})
    events.append({"action": "snapshot", **none, "size": 1024})
    events.append({"action": "teleport", **none})
    content |= {"host_segments": [{"address": 1}], "host_traces": [[{}]]}
    snapshot = parse(content)
    kinds = "segment_alloc alloc free_requested free_completed"
    assert {event.action for event in snapshot.events} == set(kinds.split())
    assert any("pinned host memory" in note for note in snapshot.notes)
    assert any("1 events of the unknown kind 'teleport'" in note for note in snapshot.notes)
    assert [note for note in snapshot.notes if "annotate" in note or "'snapshot'" in note] == []


def test_a_list_of_segments_is_a_state_without_events(tmp_path):
    trace = read_trace(pickled(tmp_path, recorded().snapshot()["segments"]))
    assert len(trace) == 0
    assert sum(segment.size for segment in trace.start) == 22 * MIB
    assert any("segments only" in note for note in trace.notes)


def test_blocks_with_a_history_and_no_address_are_read():
    use = {"addr": 4096, "real_size": 1000, "frames": []}
    live = {"size": 1024, "state": "active_allocated", "history": [use]}
    rest = {"size": 2 * MIB - 1024, "state": "inactive", "history": []}
    home = {"device": 0, "address": 4096, "total_size": 2 * MIB, "stream": 0}
    old = parse([{**home, "segment_type": "small", "blocks": [live, rest]}])
    blocks = [(4096, 1024, 1000, "A"), (5120, 2 * MIB - 1024, 0, "I")]
    assert layout_of(old.segments) == [(4096, blocks)]


@pytest.mark.parametrize("state", ["active_pending_free", "active_awaiting_free"])
def test_both_names_of_a_block_that_awaits_events_are_known(state):
    content = recorded().snapshot()
    content["segments"][0]["blocks"][0]["state"] = state
    assert parse(content).segments[0].blocks[0].state == "P"


def test_private_pools_are_numbered_and_named():
    content = recorded().snapshot()
    content["segments"][1]["segment_pool_id"] = (0, 5)
    snapshot = parse(content)
    assert [segment.pool for segment in snapshot.segments] == [0, 1]


def test_the_device_with_most_events_is_taken_or_the_one_asked_for():
    content = recorded().snapshot()
    other = [{"action": "alloc", "addr": 512, "size": 1, "stream": 0}]
    content["device_traces"] = [[], other, content["device_traces"][0], []]
    for segment in content["segments"]:
        segment["device"] = 2
    snapshot = parse(content)
    assert (snapshot.device, len(snapshot.segments)) == (2, 2)
    assert any("devices [1, 2] have events: device 2" in note for note in snapshot.notes)
    first = parse(content, 1)
    assert (first.device, len(first.events), first.segments) == (1, 1, ())
    none = r"device 7 is not in the snapshot: it has devices \[0, 1, 2, 3\]"
    with pytest.raises(TraceError, match=none):
        parse(content, 7)


def test_the_free_bytes_of_an_oom_stand_in_either_field():
    for key in ("device_free", "addr"):
        event = {"action": "oom", key: 77 * MIB, "size": 2 * MIB, "stream": 0}
        assert parse({"segments": [], "device_traces": [[event]]}).events[0].address == 77 * MIB


def test_frames_are_python_frames_without_the_folders_of_their_author():
    places = [("gather", "memory_snapshot.cpp", 0), ("f", "??", 0)]
    places += [(f"level{k}", f"/home/someone/secret/m{k}.py", k) for k in range(12)]
    stack = [dict(zip(("name", "filename", "line"), place, strict=True)) for place in places]
    content = recorded().snapshot()
    for event in content["device_traces"][0]:
        event["frames"] = list(stack)
    snapshot = parse(content)
    assert snapshot.frames == (tuple(f"m{k}.py:{k} level{k}" for k in range(12)),)
    assert {event.frame for event in snapshot.events} == {0}


def test_frames_of_packages_keep_their_place_in_it_and_the_programs_own_are_kept_below_them():
    home = "/home/someone/proj/.venv/lib/python3.11"
    paths = [f"{home}/site-packages/torch/nn/modules/m{k}.py" for k in range(9)]
    paths += ["/usr/lib/python3/dist-packages/six.py", "/usr/lib/python3.12/contextlib.py"]
    paths += [r"C:\Python311\Lib\threading.py", "/opt/src/torch/optim/adam.py"]
    paths += ["/home/someone/proj/train.py", "<frozen runpy>", "/tmp/ipykernel_7/1.py"]
    stack = [{"filename": path, "line": 3, "name": "f"} for path in paths]
    content = recorded().snapshot()
    for event in content["device_traces"][0]:
        event["frames"] = list(stack)
    (kept,) = parse(content).frames
    assert kept[:8] == tuple(f"torch/nn/modules/m{k}.py:3 f" for k in range(8))
    assert kept[8:] == ("site-packages/six.py:3 f", "train.py:3 f", "1.py:3 f")
    content["device_traces"][0][1]["frames"] = stack[9:]
    shown = [line.split(":")[0] for line in parse(content).frames[1]]
    assert shown[:3] == ["site-packages/six.py", "python/contextlib.py", "python/threading.py"]
    assert shown[3:] == ["torch/optim/adam.py", "train.py", "<frozen runpy>", "1.py"]


def test_a_line_of_a_notebook_is_said_by_the_number_of_its_cell():
    content = recorded().snapshot()
    cell = {"filename": "/tmp/ipykernel_41/3120.py", "line": 2, "name": "<module>"}
    for event in content["device_traces"][0]:
        event["frames"] = [cell]
    content["casebook_cells"] = {cell["filename"]: 14, "/tmp/other.py": "15"}
    (kept,) = parse(content).frames
    assert kept == ("cell 14, line 2 <module>",)
    site = site_of(kept)
    assert site.in_program
    assert (site.file, site.line, site.function) == ("cell 14", 2, "<module>")


def alloc_with(**wrong):
    return lambda content: content["device_traces"][0][1].update(wrong)


def segment_with(**wrong):
    return lambda content: content["segments"][0].update(wrong)


def block_with(**wrong):
    return lambda content: content["segments"][0]["blocks"][0].update(wrong)


@pytest.mark.parametrize(
    "change, says",
    [
        (alloc_with(size=-5), "event 1 (alloc) has size -5: expected a whole number from 0 up"),
        (alloc_with(size=2.5), "event 1 (alloc) has size a float"),
        (alloc_with(addr="0x7f"), "event 1 (alloc) has addr a str"),
        (alloc_with(addr=True), "event 1 (alloc) has addr a bool"),
        (lambda c: c["device_traces"][0].insert(2, 17), "event 2 is a int without an action"),
        (lambda c: c.update(device_traces=5), "device_traces is a int"),
        (lambda c: c["segments"].append(None), "segments holds a NoneType"),
        (segment_with(total_size=5), "5 bytes and its blocks"),
        (block_with(state="haunted"), "whose state is haunted"),
        (block_with(address=5), "blocks that do not lie one after another"),
        (lambda c: c["segments"].append(c["segments"][0]), "overlap"),
        (lambda c: c.pop("segments"), "a dict without segments"),
    ],
)
def test_wrong_types_and_numbers_are_named_in_one_line(change, says):
    content = recorded().snapshot()
    change(content)
    with pytest.raises(TraceError) as error:
        parse(content)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


class Calls:
    """Pickles to a call of the function."""

    def __init__(self, function, *arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


class Settable:
    def __setstate__(self, state):
        Path(state["marker"]).touch()


ENGINES = pytest.mark.parametrize("from_bytes", [1, 1 << 40], ids=["compiled", "plain"])
"""The scan of a pickle as machine code and as plain Python."""


class WithPersistentIds(pickle.Pickler):
    def persistent_id(self, obj):
        return "id" if obj == "remote" else None


def malicious(marker):
    """{name: (pickle, what the refusal names)}; each would make the marker file, or reach for something it should not."""
    import builtins
    import os

    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w')"
    out = {}
    for protocol in (0, 2, 4):
        out[f"os.system {protocol}"] = pickle.dumps(Calls(os.system, touch), protocol), "GLOBAL"
        out[f"eval {protocol}"] = pickle.dumps(Calls(builtins.eval, code), protocol), "GLOBAL"
    nested = {"segments": [{"blocks": [Calls(os.system, touch)]}]}
    nested["device_traces"] = [[Calls(eval, code)]]
    out["nested reduce"] = pickle.dumps(nested, 4), "STACK_GLOBAL"
    settable = Settable()
    settable.marker = str(marker)
    out["setstate"] = pickle.dumps(settable, 4), "STACK_GLOBAL"
    out["build"] = b"\x80\x02}}b.", "BUILD"
    out["inst"] = b"(S'" + touch.encode() + b"'\nios\nsystem\n.", "STRING"
    out["obj"] = b"\x80\x02(cos\nsystem\nX\x01\x00\x00\x00ao.", "GLOBAL"
    out["extension"] = b"\x80\x02\x82\x01.", "EXT1"
    buffer = io.BytesIO()
    WithPersistentIds(buffer, 4).dump(["remote"])
    out["persistent id"] = buffer.getvalue(), "BINPERSID"
    stacked = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    out["stack global"] = stacked, "STACK_GLOBAL"
    return out


@ENGINES
def test_malicious_pickles_are_refused_and_named_and_nothing_runs(
    tmp_path, monkeypatch, from_bytes
):
    monkeypatch.setattr(pickle_scan, "COMPILED_FROM_BYTES", from_bytes)
    marker = tmp_path / "marker"
    for name, (content, names) in malicious(marker).items():
        path = tmp_path / "evil.pickle"
        path.write_bytes(content)
        for reader in (read_trace, load):
            with pytest.raises(TraceError) as error:
                reader(path)
            assert names in str(error.value), name
            assert "\n" not in str(error.value), name
        assert not marker.exists(), name


def test_the_same_pickle_runs_under_pickle_load(tmp_path):
    """The marker is a real alarm."""
    marker = tmp_path / "marker"
    pickle.loads(malicious(marker)["eval 4"][0])
    assert marker.exists()


def test_the_second_wall_holds_without_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(safely, "_scan", lambda *_: None)
    marker = tmp_path / "marker"
    path = tmp_path / "evil.pickle"
    evil = {"os.system 4": "system", "eval 2": "eval", "persistent id": "persistent id"}
    for name, names in evil.items():
        path.write_bytes(malicious(marker)[name][0])
        with pytest.raises(TraceError, match=names):
            safely.plain_pickle(path)
    assert not marker.exists()


def bombs():
    """{name: (pickle, what the refusal names)}."""
    deep = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    tuples = b"\x80\x02)" + b"\x85" * 200_000 + b"."
    key = b"\x80\x02}" + b")" + b"\x85" * 20 + b"Ns."
    doubling = b"\x80\x02}()q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(20))
    text = struct.pack("<Q", 1 << 50)
    number = struct.pack("<i", (1 << 31) - 1)
    by_refusal = {
        "claims a value": {
            "a long text": b"\x80\x04\x8d" + text + b"x.",
            "a long number": b"\x80\x02\x8b" + number + b"x.",
            "long bytes": b"\x80\x04B" + struct.pack("<I", 0xFFFFFFFF) + b"x.",
        },
        "forged to fill the memory": {
            "a far memo index": b"\x80\x02]r" + struct.pack("<I", 0x7FFFFFFF) + b".",
        },
        "nested deeper": {
            "deep lists": deep,
            "deep tuples": tuples,
            "deep marks": b"\x80\x02" + b"(" * 100_000 + b".",
        },
        "that is no text": {"a tuple": key, "a doubling tuple": doubling + b"Nu."},
        "no whole pickle": {
            "cut": b"\x80\x04]",
            "nothing on the stack": b"\x80\x04a.",
            "an unknown memo": b"\x80\x04h\x09.",
            "a text": b"hello",
            "empty": b"",
        },
        "0xff": {"an unknown opcode": b"\x80\x04\xff."},
        "EMPTY_SET": {"a set": b"\x80\x04\x8f."},
        "protocol 9": {"an unknown protocol": b"\x80\x09N."},
    }
    return {
        name: (content, says)
        for says, those in by_refusal.items()
        for name, content in those.items()
    }


@ENGINES
@pytest.mark.parametrize("name", bombs())
def test_bombs_are_refused_in_one_line(tmp_path, monkeypatch, name, from_bytes):
    monkeypatch.setattr(pickle_scan, "COMPILED_FROM_BYTES", from_bytes)
    content, says = bombs()[name]
    path = tmp_path / "bomb.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        load(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


DAMAGE = st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=5))


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(2, 5), st.lists(DAMAGE, min_size=1, max_size=4))
def test_a_damaged_snapshot_is_read_or_refused_in_one_line(tmp_path_factory, protocol, damage):
    content = bytearray(pickle.dumps(recorded().snapshot(), protocol))
    for place, bytes_ in damage:
        content[place % len(content) : place % len(content) + len(bytes_)] = bytes_
    path = tmp_path_factory.mktemp("damaged") / "snapshot.pickle"
    path.write_bytes(content)
    ends = []
    for from_bytes in (1, 1 << 40):
        with mock.patch.object(pickle_scan, "COMPILED_FROM_BYTES", from_bytes):
            ends.append(pickle_scan.scan(bytes(content), safely.MAX_OPCODES))
    assert ends[0] == ends[1]
    try:
        read_trace(path)
    except TraceError as error:
        assert "\n" not in str(error) and len(str(error)) < 500


def test_lists_that_hold_themselves_do_no_harm(tmp_path):
    doubling = []
    for _ in range(60):
        doubling = [doubling, doubling]
    for frames in ([], [1]):
        event = {"action": "alloc", "frames": frames}
        with pytest.raises(TraceError, match="has addr a NoneType"):
            load(pickled(tmp_path, {"segments": [], "device_traces": [[event]]}))
    ring = []
    ring.append(ring)
    with pytest.raises(TraceError, match="segments holds a list"):
        load(pickled(tmp_path, {"segments": ring}))
    with pytest.raises(TraceError, match="nested deeper"):
        load(pickled(tmp_path, doubling))


def test_a_file_above_a_limit_is_refused(tmp_path, monkeypatch):
    path = pickled(tmp_path, recorded().snapshot())
    with pytest.raises(TraceError, match=f"max_bytes={path.stat().st_size}"):
        read_trace(path, max_bytes=100)
    monkeypatch.setattr(safely, "MAX_OPCODES", 100)
    with pytest.raises(TraceError, match="more than 100 pickle opcodes"):
        load(path)


def test_a_file_over_the_limit_is_not_even_read(tmp_path):
    with (tmp_path / "huge.pickle").open("wb") as file:
        file.write(b"\x80\x04")
        file.truncate(3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceError, match="3,221,225,472 bytes and the limit is 1,073,741,824"):
        read_trace(tmp_path / "huge.pickle")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_a_million_empty_dicts_stay_within_bounds(tmp_path):
    (tmp_path / "many.pickle").write_bytes(b"\x80\x02](" + b"}" * 1_000_000 + b"e.")
    code = (
        "import resource, sys; from helpers.allocator import plain_pickle; from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "plain_pickle.MAX_OPCODES = 100_000\n"
        "try: plain_pickle.plain_pickle(Path(sys.argv[1]))\n"
        "except ValueError as error: print(error)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "many.pickle")]
    done = subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
    assert "more than 100,000 pickle opcodes" in done.stdout, done.stderr


@pytest.mark.skipif(not SAMPLES, reason="the shared snapshots are not beside this checkout")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_real_snapshots_are_read_whole(path):
    snapshot = load(path)
    raw = safely.plain_pickle(path)
    sizes = [entry["total_size"] for entry in raw["segments"]]
    assert sum(segment.size for segment in snapshot.segments) == sum(sizes)
    kept = [entry for entry in raw["device_traces"][0] if entry["action"] != "snapshot"]
    wanted = [(entry["action"], entry["addr"], entry["size"]) for entry in kept]
    assert [(event.action, event.address, event.size) for event in snapshot.events] == wanted
    lines = [line for stack in snapshot.frames for line in stack]
    # A module directly in site-packages, as ipykernel_launcher.py, keeps that folder's name.
    shown = [line.removeprefix("site-packages/") for line in lines]
    assert all(line[0] != "/" and "/home" not in line and "packages" not in line for line in shown)


@pytest.mark.parametrize("file", ["torchside/values", "rehearse/under_torch/operators"])
def test_a_rehearsals_own_files_are_not_the_programs_wherever_they_lay(file):
    """Traces of the version before 2026-11-28 name the first file."""
    frame = {"filename": f"/srv/casebook/helpers/{file}.py", "line": 157, "name": "call"}
    assert frame_text(frame) == ""

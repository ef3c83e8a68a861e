"""Traces: the oracle's lines, Parquet, and what a file is taken to be."""

import json
import lzma
from dataclasses import replace

import numpy as np
import pytest
from allocator_traces import trace_of
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocator.oracle_lines import from_oracle
from helpers.allocator.parquet_file import from_parquet, to_parquet
from helpers.allocator.trace import DriverCall, Op, StartBlock, StartSegment, TraceError, possible
from helpers.allocator.trace_file import read_trace


def lines(*rows):
    return [json.dumps(row) for row in rows]


ALLOC = {"op": "alloc", "id": 7, "size": 1000, "stream": 2}
FREE = {"op": "free", "id": 7}


def test_operations_become_columns():
    rows = [
        ALLOC,
        {"op": "record_stream", "id": 7, "stream": 3},
        FREE,
        {"op": "empty_cache"},
        {"op": "set_fraction", "fraction": 0.5},
        {"op": "set_conf", "conf": "max_split_size_mb:32"},
        {"op": "foreign", "bytes": 99},
        {"op": "fail_next", "n": 2},
        {"op": "events_hold"},
        {"op": "events_hold", "on": False},
        *({"op": name} for name in ("events_complete", "synchronize", "reset_peak", "snapshot")),
    ]
    trace = from_oracle(lines(*rows))
    assert [Op(op).name.lower() for op in trace.op] == [row["op"] for row in rows]
    assert trace.id.tolist() == [0, 0, 0] + [-1] * 11
    assert trace.size.tolist() == [1000, 0, 0, 0, 0, 1, 99, 2, 1, 0, 0, 0, 0, 0]
    assert trace.stream.tolist()[:3] == [0x2000, 0x3000, 0]
    assert trace.values == (0.5, "max_split_size_mb:32")
    assert (len(trace), trace.ids, trace.header["label"]) == (14, 1, "oracle")


def test_a_results_header_is_read_and_its_results_are_left_out():
    job = {"conf": "a:b", "vram": 1 << 30, "fraction": 0.8, "policy": "topdown", "foreign": 5}
    job["env"] = {"A": "1"}
    head = {"job": job, "torch": "2.14.1+cu130", "trace": "t.jsonl"}
    first = {**ALLOC, "i": 0, "out": "ok", "seg": "m0", "drv": [["malloc", 0, 0, 2097152]]}
    end = {"final": {}, "layout": []}
    trace = from_oracle(lines(head, first, {**FREE, "i": 1, "out": "ok"}, end))
    assert {key: trace.header[key] for key in job} == job
    assert trace.header["torch"] == "2.14.1+cu130"
    assert len(trace) == 2


def test_an_id_used_again_is_another_block():
    trace = from_oracle(lines(ALLOC, FREE, ALLOC, FREE))
    assert trace.id.tolist() == [0, 0, 1, 1]


def test_a_refused_allocation_leaves_its_id_free():
    refused = {**ALLOC, "out": "oom"}
    trace = from_oracle(lines(refused, {**FREE, "out": "skipped"}, refused, ALLOC))
    assert trace.id.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    "rows, says",
    [
        ([FREE], "line 1 (free) names id 7, which was not allocated"),
        ([{"op": "record_stream", "id": 1, "stream": 0}], "line 1 (record_stream) names id 1"),
        ([ALLOC, ALLOC], "line 2 allocates id 7, which is still live"),
        ([{**ALLOC, "size": -1}], "line 1 has size -1"),
        ([{**ALLOC, "size": 1.5}], "line 1 has size 1.5"),
        ([{**ALLOC, "size": True}], "line 1 has size True"),
        ([{**ALLOC, "size": 1 << 70}], "line 1 has size 1180591620717411303424"),
        ([{**ALLOC, "stream": -2}], "line 1 has stream -2"),
        ([{"op": "alloc", "size": 1}], "line 1 has no usable id"),
        ([{"op": "explode"}], "line 1 has the unknown operation 'explode'"),
        ([{"op": ["alloc"]}], "line 1 has the unknown operation"),
        ([{"id": 1, "size": 5}], "line 1 has no operation"),
        (
            [{"op": "set_fraction", "fraction": "half"}],
            "line 1 (set_fraction) has fraction half: expected a number",
        ),
        ([{"op": "set_conf", "conf": 3}], "line 1 (set_conf) has conf 3: expected a text"),
        ([[1]], "line 1 is a JSON list"),
    ],
)
def test_impossible_lines_are_named(rows, says):
    with pytest.raises(TraceError) as error:
        from_oracle(lines(*rows))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{", "nonsense", "[" * 100_000, "{}]["])
def test_a_line_that_is_not_json_is_named(text):
    with pytest.raises(TraceError, match="line 3 is"):
        from_oracle([*lines(ALLOC, FREE), text])


def test_files_are_known_by_their_content(tmp_path):
    text = "\n".join(lines(ALLOC, FREE)).encode() + b"\n\n"
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(text))
    to_parquet(from_oracle(text.splitlines()), tmp_path / "a.anything")
    for name in ("a.txt", "a.jsonl.xz", "a.anything"):
        assert read_trace(tmp_path / name).op.tolist() == [Op.ALLOC, Op.FREE]


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "begins with b''"),
        (b"PK\x03\x04 zip", "begins with b'PK"),
        (b"PAR1 no parquet", "is not a trace that this project"),
        (b"\xfd7zXZ\x00 no xz", "damaged"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, says):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TraceError) as error:
        read_trace(tmp_path / "file")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_packed_bomb_and_a_long_file_are_stopped(tmp_path):
    (tmp_path / "bomb.jsonl.xz").write_bytes(lzma.compress(b"{" + b" " * (32 << 20)))
    with pytest.raises(TraceError, match="longer than the limit"):
        read_trace(tmp_path / "bomb.jsonl.xz", max_bytes=16 << 20)
    (tmp_path / "long.jsonl").write_bytes(b"{" * 5000)
    with pytest.raises(TraceError, match="max_bytes=5000"):
        read_trace(tmp_path / "long.jsonl", max_bytes=4000)


def whole_trace():
    blocks = (StartBlock(0, 512, 500, "A", 0), StartBlock(512, 3584, 0, "I", -1))
    start = (StartSegment(0x7F00, 4096, 0, True, 1, False, blocks),)
    return trace_of(
        (Op.FREE, 0),
        (Op.ALLOC, 1, 3000, 4096, 2),
        (Op.SET_CONF,),
        values=("max_split_size_mb:20",),
        time_ns=np.array([1, 2, 3]),
        start=start,
        address=np.array([-1, 0x9000, -1]),
        driver=(DriverCall(1, "malloc", 0x9000, 2 << 20, 4096),),
        frame=np.array([-1, 0, -1], np.int32),
        frames=(("a.py:1 f", "b.py:2 g"),),
        header={"label": "recorded on a GPU", "vram": None},
        notes=("a note",),
    )


def test_parquet_gives_back_the_whole_trace(tmp_path):
    trace = whole_trace()
    to_parquet(trace, tmp_path / "t.parquet")
    back = from_parquet(tmp_path / "t.parquet")
    for name in ("op", "id", "size", "stream", "pool", "time_ns", "address", "frame"):
        assert getattr(back, name).tolist() == getattr(trace, name).tolist(), name
        assert getattr(back, name).dtype == getattr(trace, name).dtype, name
    for name in ("values", "start", "driver", "frames", "header", "notes", "ids"):
        assert getattr(back, name) == getattr(trace, name), name


def test_parquet_has_the_columns_of_the_design(tmp_path):
    import pyarrow.parquet as pq

    to_parquet(whole_trace(), tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    names = "i op id size_bytes stream time_ns frames pool address"
    assert table.column_names == names.split()
    assert table.column("op").to_pylist() == ["free", "alloc", "set_conf"]
    assert table.column("frames").to_pylist() == [None, "a.py:1 f\nb.py:2 g", None]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 40)), max_size=40))
def test_any_lines_survive_parquet(tmp_path_factory, steps):
    rows = []
    live = set()
    for ident, size in steps:
        alloc = {"op": "alloc", "id": ident, "size": size, "stream": ident}
        rows.append({"op": "free", "id": ident} if ident in live else alloc)
        live ^= {ident}
    trace = from_oracle(lines(*rows))
    path = tmp_path_factory.mktemp("parquet") / "t.parquet"
    to_parquet(trace, path)
    back = read_trace(path)
    for name in ("op", "id", "size", "stream"):
        assert np.array_equal(getattr(back, name), getattr(trace, name)), name
    assert (back.time_ns, back.address, back.frame, back.ids) == (None, None, None, trace.ids)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"id": np.array([1, 1, -1])}, "operation 0 names a block that was not allocated before"),
        ({"id": np.array([0, 0, -1])}, "operation 1 allocates a block that exists already"),
        ({"id": np.array([0, -1, -1])}, "operation 1 names no block"),
        ({"size": np.array([0, -3000, 0])}, "operation 1 has a size that is no number of bytes"),
        ({"values": ()}, "operation 2 names a setting"),
        ({"op": np.array([1, 0, 77], np.int8)}, "operation 2 is of an unknown kind"),
    ],
)
def test_impossible_traces_are_named(change, says):
    assert possible(whole_trace()) is not None
    with pytest.raises(TraceError, match=says):
        possible(replace(whole_trace(), **change))


def test_parquet_that_is_no_trace_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"i": [1], "op": ["alloc"]}), tmp_path / "other.parquet")
    with pytest.raises(TraceError, match="lacks address, frames, id"):
        from_parquet(tmp_path / "other.parquet")
    to_parquet(whole_trace(), tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    holes = table.set_column(2, "id", pa.array([0, None, -1], pa.int64()))
    cut = table.replace_schema_metadata({b"casebook.trace": b"{"})
    no_op = pa.array(["alloc", None, "free"]).dictionary_encode()
    cases = (
        (holes, "column id"),
        (cut, "not a trace that this project wrote"),
        (table.set_column(1, "op", no_op), "operation 1 is of an unknown kind"),
    )
    for wrong, says in cases:
        pq.write_table(wrong, tmp_path / "wrong.parquet")
        with pytest.raises(TraceError, match=says):
            from_parquet(tmp_path / "wrong.parquet")


def test_a_file_begun_in_the_middle_says_which_id_is_missing_and_what_to_do():
    lines = ['{"op": "alloc", "id": 1, "size": 100}', '{"op": "free", "id": 9}']
    with pytest.raises(TraceError) as caught:
        from_oracle(lines)
    says = (
        "line 2 (free) names id 9, which was not allocated before: record from the program's start"
    )
    assert str(caught.value).startswith(says)

"""The allocator compiled and in plain Python: the same numbers for every operation, whatever is asked."""

import ast
import os
import subprocess
import sys
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("numba")

from allocator_traces import MIB, trace_of  # noqa: E402
from examples import examples  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from helpers.allocator import (  # noqa: E402
    allocator,
    compiled,
    driver,
    patterns,
)
from helpers.allocator.driver import CALLS, POLICIES, Card  # noqa: E402
from helpers.allocator.operations import OUTCOMES  # noqa: E402
from helpers.allocator.outcome import ReplayError  # noqa: E402
from helpers.allocator.replay import replay  # noqa: E402
from helpers.allocator.trace import DriverCall, Op, StartBlock, StartSegment  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
SIZES = (0, 1, 512, 513, 4096, 300_000, *(int(mib * MIB) for mib in (1, 1 + 2**-20, 3, 9, 10, 14)))
SIZES += (21 * MIB, 33 * MIB, 70 * MIB)
OLD = (
    "",
    "max_split_size_mb:21",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.4",
    "roundup_power2_divisions:[1:8,4:2,>:1]",
)
NEW = (
    *OLD,
    "max_split_size_mb:21,max_non_split_rounding_mb:22",
    "large_segment_size_mb:32",
    "per_process_memory_fraction:0.7,garbage_collection_threshold:0.3",
    "throw_on_cudamalloc_oom:True",
    "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:12,per_process_memory_fraction:0.9,garbage_collection_threshold:0.5",
)
OFTEN = {"ALLOC": 24, "FREE": 17, "FREE_REQUESTED": 3, "FREE_COMPLETED": 3, "RECORD_STREAM": 4}
MIX = [op for op in Op for _ in range(OFTEN.get(op.name, 1 + (op is Op.EVENTS_HOLD)))]


def random_start(chance):
    """Segments and mapped ranges that are there at the start, and how many ids live in them."""
    segments = []
    ids = 0
    # Plain segments last, clear of what the ranges before them reserve.
    top = {(): 0x7F80_0000_0000}
    count = chance.choice((0, 0, 1, 3, 6))
    for k in range(count):
        small = chance.random() < 0.4
        expandable = chance.random() < 0.5 and k < count - 1
        stream = chance.choice((0, 0, 0x2000))
        pool = chance.choice((0, 0, 2))
        page = 2 * MIB if small else 20 * MIB
        span = page * chance.choice((1, 1, 2)) if expandable else 2 * MIB
        if not expandable and not small:
            span = chance.choice((20, 24)) * MIB
        area = (small, stream, pool) if expandable else ()
        address = top.get(area, 0x7F00_0000_0000 + (len(top) << 36))
        top[area] = address + span + chance.choice((0, 0, page, 4096 * MIB))
        blocks = []
        offset = 0
        while offset < span:
            size = min(span - offset, chance.choice((span // 4, span // 2, span)))
            # Free neighbours have merged.
            state = chance.choice("AAP" if blocks and blocks[-1].state == "I" else "AAPII")
            ident = -1 if state == "I" else ids
            blocks.append(StartBlock(offset, size, max(size - 3, 0), state, ident))
            ids += state != "I"
            offset += size
        segments.append(StartSegment(address, span, stream, small, pool, expandable, tuple(blocks)))
    return segments, ids


def random_case(seed, length):
    """A trace, and what it is replayed under."""
    chance = Random(seed)
    torch = chance.choice(("2.5.1", "2.6.0", "2.12.1", "2.14.1", "2.14.1", "2.14.1"))
    confs = NEW if torch == "2.14.1" else OLD
    start, ids = random_start(chance)
    live = list(range(ids))
    pending = list(range(ids))
    small_only = chance.random() < 0.2
    streams = chance.choice(((0,), (0, 0x1000, 0x5000)))
    pools = chance.choice(((0,), (0, 0, 2, -2)))
    values = []
    rows = []
    for _ in range(length):
        op = chance.choice(MIX)
        ident = -1
        size = 0
        stream = 0
        pool = 0
        if op == Op.ALLOC:
            ident = ids
            size = chance.choice(SIZES[:8] if small_only else SIZES)
            stream = chance.choice(streams)
            pool = chance.choice(pools)
            if live and chance.random() < 0.01:
                ident = chance.choice(live)  # the same name again while it is live
            ids += ident == ids
            live.append(ident)
        elif op in (Op.FREE, Op.FREE_REQUESTED, Op.RECORD_STREAM, Op.FREE_COMPLETED):
            known = pending if op == Op.FREE_COMPLETED else live
            if not known:
                continue
            ident = known.pop(chance.randrange(len(known)))
            if op == Op.FREE_REQUESTED:
                pending.append(ident)
            if op == Op.RECORD_STREAM or chance.random() < 0.03:
                known.append(ident)  # may be freed a second time
            stream = chance.choice((0, 0x1000, 0x5000, 0x7000))
        elif op == Op.SET_FRACTION:
            size = len(values)
            values.append(chance.choice((0.3, 0.5, 0.75, 1.0)))
        elif op == Op.SET_CONF:
            size = len(values)
            values.append(chance.choice((*confs, "max_split_size_mb:1")))
        elif op == Op.EMPTY_CACHE:
            pool = chance.choice((0, 2))
        elif op == Op.FOREIGN:
            size = chance.choice((0, 0, 30 * MIB))
        else:
            size = chance.choice((0, 1, 2))
        rows.append((op, ident, size, stream, pool))
    trace = trace_of(*rows, values=values, start=tuple(start))
    capacity = chance.choice((400, 1000) if start else (50, 120, 300, 1000)) * MIB
    card = Card(capacity, chance.choice((0, 0, 8 * MIB)), chance.choice(POLICIES))
    recorded = chance.choice((0, 5, 50)) if card.policy == "recorded" else 0
    addresses = tuple(0x6000_0000_0000 + k * 128 * MIB for k in range(recorded))
    return {
        "trace": trace,
        "conf": chance.choice(confs),
        "torch": torch,
        "card": card,
        "addresses": addresses,
        "fraction": chance.choice((None, None, 0.6, 1.0)),
    }


def outcome(compiled, case, timeline=True, stop=None):
    """None where the allocator's state is torn, which torch's own bookkeeping does not survive either."""
    calls = tuple(DriverCall(0, "malloc", address, 0, 0) for address in case["addresses"])
    try:
        return replay(
            replace(case["trace"], driver=calls),
            case["conf"],
            case["card"],
            torch=case["torch"],
            fraction=case["fraction"],
            stop=stop,
            timeline=timeline,
            engine="compiled" if compiled else "plain",
        )
    except ReplayError:
        return None


def same(one, other):
    for name in ("timeline", "calls", "figures", "oversize", "counters", "blocks"):
        left = getattr(one, name)
        right = getattr(other, name)
        assert (left is None) == (right is None), name
        if left is not None and not np.array_equal(left, right):
            assert left.shape == right.shape, name
            row = next(at for at in range(len(left)) if not np.array_equal(left[at], right[at]))
            raise AssertionError((name, row, left[row].tolist(), right[row].tolist()))
    for name in ("events", "ooms", "first_oom", "first_oom_bytes"):
        assert getattr(one, name) == getattr(other, name), name


def features(case, found):
    """What a replay went through."""
    assert found.timeline is not None and found.calls is not None
    names = {OUTCOMES[k] for k in found.column("out")} | {CALLS[k] for k in found.calls[:, 1]}
    names |= {name for name in COUNTED if found.counter(name)}
    state = found.blocks[:, 6]
    stream = found.blocks[:, 7]
    private = found.blocks[:, 9]
    holds = {
        "pending": (state == 2).any(),
        "private": (private > 0).any(),
        "other stream": (stream > 0).any(),
        "oversize": found.oversize[0, 2],
        "start": case["trace"].start,
        "start range": any(known.expandable for known in case["trace"].start),
    }
    names |= {name for name, so in holds.items() if so}
    return names | {case["card"].policy, case["torch"], "fraction " + str(case["fraction"])}


COUNTED = ("num_alloc_retries", "num_oom_rejections", "num_sync_all_streams")
FREEING = ("garbage_collect", "release_available_cached_blocks")
EVERY = {*OUTCOMES, *CALLS, *POLICIES, *COUNTED, *FREEING, "pending", "private", "other stream"}
EVERY |= {"oversize", "start", "start range", "2.5.1", "2.6.0", "2.12.1", "2.14.1"}
EVERY |= {"fraction None", "fraction 0.6", "fraction 1.0"}
CASES = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


def both_agree(case):
    """What both make of a case, which is the same; None where both say that the state is torn."""
    expected = outcome(False, case)
    found = outcome(True, case)
    assert (expected is None) == (found is None)
    if expected is not None and found is not None:
        same(expected, found)
    return expected


def test_both_agree_on_every_operation_whatever_is_asked(monkeypatch):
    seen = Counter()

    def watched(name):
        original = getattr(allocator, name)

        def call(a, *rest):
            before = a.num_device_free
            result = original(a, *rest)
            seen[name] += a.num_device_free > before
            return result

        return call

    for name in FREEING:
        monkeypatch.setattr(allocator, name, watched(name))

    @settings(max_examples=examples(300), **CASES)
    @given(st.integers(0, 1 << 32), st.integers(20, 240))
    def agree(seed, length):
        case = random_case(seed, length)
        found = both_agree(case)
        seen.update({"torn"} if found is None else {"whole"} | features(case, found))

    agree()
    assert seen["torn"] < seen["whole"] // 5
    assert {name for name in EVERY if not seen[name]} == set()


def test_both_agree_on_a_trace_that_goes_another_way_than_its_recording(monkeypatch):
    """Recorded addresses that a segment of this replay, or one of its start, still covers are handed out by neither."""
    refused = Counter()
    original = driver.recorded_address

    def watched(a, size):
        asked = a.next_recorded < a.recorded_count
        address = original(a, size)
        refused["yes" if asked and not address else "no"] += 1
        return address

    monkeypatch.setattr(driver, "recorded_address", watched)

    @settings(max_examples=examples(90), **CASES)
    @given(st.integers(0, 1 << 32), st.integers(20, 240))
    def agree(seed, length):
        case = random_case(seed, length)
        chance = Random(seed)
        case["card"] = replace(case["card"], policy="recorded")
        near = [known.address for known in case["trace"].start] or [0x6000_0000_0000]
        count = chance.choice((5, 60))
        case["addresses"] = tuple(
            chance.choice(near) + chance.randrange(40) * 10 * MIB for _ in range(count)
        )
        refused["whole"] += both_agree(case) is not None

    agree()
    assert refused["yes"] > examples(25), refused
    assert refused["no"] > examples(50) and refused["whole"] > examples(50), refused


@pytest.mark.parametrize("name", patterns.PATTERNS)
@pytest.mark.parametrize(
    "conf", ["", "expandable_segments:True", "max_split_size_mb:64,roundup_power2_divisions:4"]
)
def test_both_agree_on_each_pattern(name, conf):
    trace = patterns.generate(name)
    card = Card(trace.header["vram"] * 3 // 4)
    same(
        replay(trace, conf, card, timeline=True, stop=700, engine="plain"),
        replay(trace, conf, card, timeline=True, stop=700, engine="compiled"),
    )


def random_sizes(count, live, seed=0):
    chance = Random(seed)
    held = []
    rows = []
    for made in range(count):
        rows.append((Op.ALLOC, made, chance.randrange(1, 40_000)))
        held.append(made)
        if len(held) > live:
            rows.append((Op.FREE, held.pop(chance.randrange(live)), 0))
    return trace_of(*rows)


@pytest.mark.parametrize("torch", ["2.6.0", "2.14.1"])
def test_both_agree_when_sets_are_large_and_the_tables_grow(torch):
    case = {"trace": random_sizes(9000, 3000), "conf": "", "torch": torch, "card": Card(1 << 30)}
    found = both_agree({**case, "addresses": (), "fraction": None})
    assert found is not None
    assert found.figure("inactive_split") > 8 * 64


def test_without_a_timeline_the_totals_are_the_same():
    case = random_case(5, 200)
    whole = outcome(True, case)
    brief = outcome(True, case, timeline=False)
    assert whole is not None and brief is not None
    assert brief.timeline is None and brief.calls is None and brief.engine == "compiled"
    assert np.array_equal(whole.figures, brief.figures)
    assert np.array_equal(whole.blocks, brief.blocks)


@pytest.mark.parametrize("stop", [0, 1, 77])
def test_it_stops_where_it_is_told(stop):
    case = random_case(7, 200)
    expected, found = (outcome(compiled, case, stop=stop) for compiled in (False, True))
    assert expected is not None and found is not None
    same(expected, found)


def test_machine_code_is_made_anew_when_a_module_changes_that_it_is_made_of():
    watched = {module.__name__ for module in (*compiled.MODULES, *compiled._NUMBERS)}
    for module in compiled.MODULES:
        tree = ast.parse(Path(module.__file__).read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        taken_from = {node.module for node in imports if node.module.startswith("helpers.")}
        assert taken_from <= watched, module.__name__


def test_columns_that_cannot_be_written_to_need_no_second_compilation():
    trace = patterns.generate("volume_profiles", sessions=100)
    replay(trace, "", Card(1 << 30), engine="compiled")
    before = len(compiled.advance.signatures)
    for column in (trace.op, trace.id, trace.size, trace.stream, trace.pool):
        column.flags.writeable = False
    replay(trace, "", Card(1 << 30), engine="compiled")
    assert len(compiled.advance.signatures) == before == 1


def test_threads_side_by_side_do_not_disturb_each_other():
    cases = [random_case(seed, 200) for seed in range(40, 56)]
    alone = [outcome(True, case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda case: outcome(True, case), cases))
    for one, other in zip(alone, together, strict=True):
        assert one is not None and other is not None
        same(one, other)


def test_an_address_space_that_is_used_up_is_an_error_in_both():
    rows = [(Op.ALLOC, 0, 3 << 40), (Op.FREE, 0, 0), (Op.EMPTY_CACHE, -1, 0)] * 3
    trace = trace_of(*rows)
    for engine in ("plain", "compiled"):
        with pytest.raises(OverflowError, match="address space"):
            replay(trace, "", Card(4 << 40, policy="monotonic"), engine=engine)


def fresh_process(code, tmp_path, numba=True):
    """A program of another process, which has no machine code kept, and perhaps no numba."""
    places = [str(ROOT)]
    if not numba:
        (tmp_path / "numba.py").write_text("raise ImportError('not here')\n")
        places.insert(0, str(tmp_path))
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(places), **cache}
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True)


PATTERN = (
    "from helpers.allocator import replay as engine\nfrom helpers.allocator.driver import Card\n"
    "from helpers.allocator import patterns\n"
    "trace = patterns.generate('volume_profiles', sessions=100)\n"
    "print(engine.replay(trace, '', Card(1 << 30){0}).engine)\n"
)


BUSY = "import helpers.allocator.replay as r\nr._plain = {0}\n"
"""As if this process had carried out so many operations in plain Python."""
UNWRITABLE = """import numba.core.caching as caching
def refuse(*_):
    raise OSError('read only')
for locator in vars(caching).values():
    if isinstance(locator, type) and hasattr(locator, 'ensure_cache_path'):
        locator.ensure_cache_path = refuse
import helpers.allocator.compiled as compiled
print(compiled.advance.stats.cache_path, compiled.ready())
"""


def test_it_runs_where_machine_code_cannot_be_kept(tmp_path):
    assert fresh_process(UNWRITABLE, tmp_path).stdout == "None False\n"


def test_without_numba_plain_python_answers(tmp_path):
    code = BUSY.format("1 << 40") + PATTERN.format("")
    assert fresh_process(code, tmp_path, numba=False).stdout == "plain\n"


def test_without_numba_compiled_replays_are_refused(tmp_path):
    code = "try:\n" + textwrap.indent(PATTERN.format(", engine='compiled'"), "    ")
    code += "except ImportError as error:\n    print(error)\n"
    assert fresh_process(code, tmp_path, numba=False).stdout == "not here\n"


def test_a_small_trace_is_replayed_at_once_without_compiling(tmp_path):
    code = PATTERN.format("") + "import sys\nprint('numba' in sys.modules)\n"
    done = fresh_process(code, tmp_path)
    assert done.stdout == "plain\nFalse\n" and done.stderr == ""


def test_one_line_says_that_it_compiles_and_what_is_kept_is_loaded_without_a_word(
    monkeypatch, capsys
):
    trace = patterns.generate("volume_profiles", sessions=100)
    kept = []
    monkeypatch.setattr(compiled, "ready", lambda: bool(kept))
    monkeypatch.setattr(compiled, "make", lambda: kept.append(True))
    for before, engine, lines in (
        (0, "plain", 0),
        (1 << 40, "compiled", 1),
        (20_000, "compiled", 0),
    ):
        monkeypatch.setattr("helpers.allocator.replay._plain", before)
        assert replay(trace, "", Card(1 << 30)).engine == engine
        said = capsys.readouterr().err
        assert said.count("\n") == lines == said.count("Compiling")


@pytest.mark.slow
def test_a_fresh_box_compiles_once_and_keeps_it(tmp_path):
    first = fresh_process(BUSY.format("1 << 40") + PATTERN.format(""), tmp_path)
    assert first.stdout == "compiled\n"
    assert first.stderr.count("\n") == 1 and "Compiling" in first.stderr and " s " in first.stderr
    code = PATTERN.format("") + BUSY.format("20_000") + PATTERN.format("")
    again = fresh_process(code, tmp_path)
    assert again.stdout == "plain\ncompiled\n"
    assert again.stderr == "", "what is kept is loaded without a word"

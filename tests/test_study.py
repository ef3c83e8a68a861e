"""What notebook 02 studies, what it shows of it, and which verdict a what-if leads to."""

import json
from dataclasses import replace

import numpy as np
import pytest

from helpers import allocator
from helpers.allocator import study
from helpers.allocator.circumstances import circumstances, with_record
from helpers.allocator.driver import Card
from helpers.allocator.trace import Op, Trace
from helpers.allocator.views import replays, segment_map, trace_verdict
from helpers.allocator.views import studies as views
from helpers.allocator.whatif import whatif
from helpers.look.boxes import open_box
from helpers.trials import stress

MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"


@pytest.fixture(scope="module")
def seen():
    return views.view(study.open_study("growing-loop"))


@pytest.fixture(scope="module")
def answer(seen):
    case = seen.study
    return whatif(case.trace, case.card, torch=case.torch, confs=["", EXPANDABLE])


def test_what_record_wrote_beside_a_snapshot_tells_its_torch_build_card_and_fraction(tmp_path):
    torch = {"version": "2.8.0", "hip": "6.3.42134-a9a80e791"}
    card = {"total_bytes": 20 << 30, "fraction": 0.5}
    (tmp_path / "run.record").mkdir()
    record = {"processes": [{"torch": torch}, {"torch": torch, "devices": [card]}]}
    (tmp_path / "run.record/record.json").write_text(json.dumps(record))
    bare = study.open_study("growing-loop").trace
    trace = with_record(replace(bare, header={"label": "x"}), tmp_path / "run.pickle")
    assert trace.header["build"] == "rocm6.3" and trace.header["torch"] == "2.8.0"
    assert (trace.header["vram"], trace.header["fraction"]) == (20 << 30, 0.5)
    assert circumstances(trace).build == "rocm6.3"
    assert with_record(bare, tmp_path / "other.pickle") is bare


def test_a_field_of_the_header_says_who_recorded_a_trace_and_of_older_files_the_label():
    bare = study.open_study("growing-loop").trace
    headers = (
        ({"label": "any words", "recorded_by_gpu": True}, True),
        ({"label": "recorded on a GPU"}, True),
        ({"label": "made on a machine without a GPU"}, False),
        ({}, False),
    )
    for header, by_gpu in headers:
        assert replace(bare, header=header).recorded_by_gpu is by_gpu, header


def verdict_on(card_mib, *sizes_mib):
    """The verdict on a program that allocates these sizes and frees nothing, as a GPU recorded it."""
    count = len(sizes_mib)
    none = np.zeros(count, np.int64)
    sizes = np.array(sizes_mib, np.int64) * MIB
    op = np.full(count, Op.ALLOC, np.int8)
    header = {"label": "recorded on a GPU"}
    trace = Trace(op, np.arange(count), sizes, none, none.astype(np.int32), header=header)
    return trace_verdict.verdict(study.Study(trace, Card(card_mib * MIB), of_user=True))


def test_more_live_than_the_card_has_is_true_capacity():
    answer = verdict_on(250, 100, 100, 100)
    assert answer.cause == "true-capacity" and "smaller batch" in answer.next_step.what
    assert answer.headline == "The program needs 300.00 MiB at once; it can use 250.00 MiB"


def test_a_run_that_passes_is_left_alone():
    answer = verdict_on(250, 100, 100)
    assert answer.cause == "cannot-tell" and not answer.alternatives
    assert answer.headline.startswith("Nothing failed")


def test_a_study_under_a_setting_replays_with_it():
    plain = study.open_study("growing-loop", capacity="20GiB")
    joined = study.open_study("growing-loop", capacity="20GiB", conf=EXPANDABLE)
    assert plain.replay().first_oom is not None
    assert joined.conf == EXPANDABLE and joined.replay().first_oom is None


@pytest.mark.parametrize(("by_gpu", "confidence"), [(True, "confirmed"), (False, "likely")])
def test_fragmentation_is_confirmed_where_a_gpu_recorded_it_and_another_setting_passes(
    by_gpu, confidence
):
    pattern = study.open_study("growing_batches")
    header = {**pattern.trace.header, "recorded_by_gpu": by_gpu}
    case = replace(pattern, trace=replace(pattern.trace, header=header))
    verdict = trace_verdict.verdict(case)
    assert (verdict.cause, verdict.confidence) == ("allocator-fragmentation", confidence)
    assert verdict.next_step.command == f"export PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}"
    for torch, wins in (("2.6.0", "PYTORCH_HIP_ALLOC_CONF"), ("2.9.0", "PYTORCH_CUDA_ALLOC_CONF")):
        other = trace_verdict.verdict(replace(case, torch=torch, build="rocm6.4"))
        assert f"export {wins}=" in other.next_step.command, "the name that this build reads"


def test_a_loop_that_would_pass_with_room_to_spare_fails_by_its_pieces_and_not_by_what_it_keeps(
    seen, answer
):
    assert seen.outcome.first_oom is not None and seen.metrics.stranded_bytes > 4 << 30
    verdict = trace_verdict.verdict(seen.study, answer)
    assert (verdict.cause, verdict.confidence) == ("allocator-fragmentation", "likely")
    assert "growing_loop.py:23" in verdict.summary
    assert [row.cause for row in verdict.alternatives] == ["user-leak"]
    text = str(views.metrics_table(seen))
    assert "stranded" in text and "1 - allocated/reserved would say 0.24" in text


def test_every_figure_is_drawn_and_has_words(seen, answer):
    both = views.pair(seen, answer)
    for view in (
        views.memory(seen),
        views.segments(seen),
        views.league(answer),
        views.memory(*both),
    ):
        data, width, height = view.draw().picture()
        assert data.startswith(b"\x89PNG") and width > 300 and height > 100 and len(view.alt) > 40
    assert both[1].conf == EXPANDABLE and both[1].outcome.first_oom is None
    ends = [list(row.values())[-1] for row in views.memory(*both).rows]
    assert ends == [f"out of memory at operation {seen.outcome.first_oom}", "no request fails"]


def test_the_league_begins_with_the_setting_to_use_in_the_table_and_in_its_title(answer):
    worst_first = replace(answer, rows=answer.rows[::-1])
    for view in (views.league(worst_first), replays.league(worst_first, rows=3)):
        settings = [row["settings"] for row in view.rows]
        assert settings[0] == answer.use == EXPANDABLE and len(set(settings)) == len(settings)
        assert (
            view.title.startswith("memory grows by ")
            and f"; use: {EXPANDABLE}, which gets past the failure" in view.title
        )


def test_the_words_of_the_segment_map_add_up_to_what_is_reserved(seen):
    blocks = seen.at.blocks
    kinds = segment_map.kinds_of(blocks)
    in_use = int(blocks[(kinds == 0) | (kinds == 1)][:, 4].sum())
    assert in_use == seen.metrics.allocated_bytes
    assert int(blocks[kinds == 3][:, 4].sum()) == seen.metrics.stranded_bytes


@pytest.mark.parametrize(
    ("source", "told"),
    [("nowhere", "expected a file, a pattern"), ("cpu-training-step", "give capacity")],
)
def test_a_study_of_nothing_is_refused_in_one_line(source, told):
    with pytest.raises(ValueError, match=told):
        study.open_study(source)


@pytest.mark.parametrize(
    ("limit", "told"), [("", "no limit was given"), ("1GiB", "is not this machine")]
)
def test_a_recorded_box_is_never_loaded(limit, told):
    case = study.open_study("growing_batches")
    result, rows = stress.live(open_box("cuda-healthy"), case, limit)
    assert result.status == "not_available" and told in result.why and rows == []


def test_what_a_card_did_stands_beside_what_the_model_says(monkeypatch):
    case = study.open_study("volume_profiles")
    model = stress.StressResult(
        "ok", "", len(case.trace), torch=case.torch, build="cuda", total_bytes=2 << 30, fraction=1.0
    ).replayed(case.trace, "")
    sizes = zip(model.column("allocated").tolist(), model.column("reserved").tolist(), strict=True)
    rows = [(at, "ok", *both) for at, both in enumerate(sizes)]
    rows[7] = (7, "ok", 0, 0)
    known = {"torch": case.torch, "build": "cuda", "total_bytes": 2 << 30, "fraction": 1.0}
    done = stress.StressResult("ok", "", len(case.trace), rows=tuple(rows), **known)
    monkeypatch.setattr(stress, "is_this_box", lambda bundle: True)
    monkeypatch.setattr(stress, "free_targets", lambda bundle: ([stress.CPU], ""))
    monkeypatch.setattr(stress, "stress", lambda *args, **more: done)
    _, table = stress.live(open_box("cuda-healthy"), case, "2GiB")
    assert table[0] == ["operations", str(len(rows)), str(len(rows))]
    assert table[-1] == ["operations with equal bytes", str(len(rows)), str(len(rows) - 1)]


def test_the_room_offers_its_public_names_when_they_are_asked_for():
    assert 5 <= len(allocator.__all__) <= 12
    for name in allocator.__all__:
        assert getattr(allocator, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        allocator.nothing  # noqa: B018

"""What notebook 02 studies, what it shows of it, and which verdict a what-if leads to."""

import numpy as np
import pytest

from helpers.allocator.driver import Card
from helpers.allocator.trace import Op, Trace
from helpers.allocator.whatif import whatif
from helpers.load import study
from helpers.look.boxes import open_box
from helpers.tell import allocator_view as views
from helpers.tell import replayed
from helpers.tell.sheet import png

MIB = 1 << 20


@pytest.fixture(scope="module")
def seen():
    return views.view(study.study("growing-loop"), samples=4)


def made(*sizes_and_frees, label="recorded on a GPU"):
    """A trace of allocations (positive MiB) and frees (minus the number of an allocation, from 1)."""
    ops = [
        (Op.ALLOC, i, size) if size > 0 else (Op.FREE, -size - 1, 0)
        for i, size in zip(_numbers(sizes_and_frees), sizes_and_frees, strict=True)
    ]
    op, ident, size = (np.array(column) for column in zip(*ops, strict=True))
    none = np.zeros(len(ops), np.int64)
    return Trace(
        op.astype(np.int8),
        ident.astype(np.int64),
        size.astype(np.int64) * MIB,
        none,
        none.astype(np.int32),
        header={"label": label},
    )


def _numbers(values):
    count = -1
    for value in values:
        count += value > 0
        yield count


def answer_of(trace, mib, confs=("", "expandable_segments:True")):
    answer = whatif(trace, Card(mib * MIB), confs=confs)
    return answer, views.row_of(answer, "")


HOLES = made(*[20] * 8, -1, -3, -5, -7, 70)


def test_fragmentation_is_confirmed_where_a_gpu_recorded_it_and_another_setting_passes():
    answer, now = answer_of(
        HOLES, 200, confs=("", "max_split_size_mb:21", "expandable_segments:True")
    )
    passing = [row for row in answer.rows if row.passes]
    found = replayed.verdict(answer, now, None, recorded=True)
    if passing and not now.passes:
        assert (found.cause, found.confidence) == ("allocator-fragmentation", "confirmed")
    else:
        assert found.cause in ("true-capacity", "other")
    assert replayed.verdict(answer, now, None, recorded=False).confidence != "confirmed"


def test_a_floor_above_the_card_is_true_capacity_by_arithmetic():
    answer, now = answer_of(made(100, 100, 100), 250)
    found = replayed.verdict(answer, now, None, recorded=True)
    assert (found.cause, found.confidence) == (
        "true-capacity",
        "confirmed",
    ) and "52428800" in found.summary
    assert not found.alternatives and "smaller batch" in found.next_step.what


def test_a_run_that_passes_is_left_alone():
    answer, now = answer_of(made(100, 100), 250)
    found = replayed.verdict(answer, now, None, recorded=True)
    assert (
        found.cause == "other" and "Leave" in found.next_step.what and not found.next_step.command
    )


def test_the_bundled_loop_is_fragmentation_and_its_figures_add_up(seen):
    assert seen.outcome.first_oom is not None and seen.metrics.all.stranded_bytes > 4 << 30
    answer = whatif(
        seen.study.trace,
        seen.study.card,
        torch=seen.study.torch,
        confs=["", "expandable_segments:True"],
    )
    found = replayed.verdict(
        answer, views.row_of(answer, ""), seen.metrics, recorded=seen.study.recorded
    )
    assert (found.cause, found.confidence) == ("allocator-fragmentation", "likely")
    assert found.next_step.command == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    text = views.metrics_table(seen)
    assert "stranded" in text and "1 - allocated/reserved would say 0.24" in text


def test_every_figure_is_drawn_and_has_words(seen):
    answer = whatif(
        seen.study.trace,
        seen.study.card,
        torch=seen.study.torch,
        confs=["", "expandable_segments:True"],
    )
    both = views.pair(seen, answer)
    for figure, words in (
        (views.memory(seen), views.memory_alt(seen)),
        (views.segments(seen), views.segments_alt(seen)),
        (views.league(answer), views.league_alt(answer)),
        (views.before_after(both), views.before_after_alt(both)),
    ):
        data, width, height = png(figure)
        assert data.startswith(b"\x89PNG") and width > 300 and height > 100 and len(words) > 40
    assert both[1].conf == "expandable_segments:True" and both[1].outcome.first_oom is None


def test_the_words_of_the_segment_map_add_up_to_what_is_reserved(seen):
    from helpers.tell.replay_figures import kinds_of

    blocks = seen.at.blocks
    kinds = kinds_of(blocks)
    in_use = int(blocks[(kinds == 0) | (kinds == 1)][:, 4].sum())
    assert in_use == seen.metrics.all.allocated_bytes
    assert int(blocks[kinds == 3][:, 4].sum()) == seen.metrics.all.stranded_bytes


@pytest.mark.parametrize(
    ("source", "told"),
    [("nowhere", "expected a file, a pattern"), ("cpu-training-step", "give capacity")],
)
def test_a_study_of_nothing_is_refused_in_one_line(source, told):
    with pytest.raises(ValueError, match=told):
        study.study(source)


@pytest.mark.parametrize(
    ("limit", "told"), [("", "no limit was given"), ("1GiB", "is not this machine")]
)
def test_a_recorded_box_is_never_loaded(limit, told):
    result, rows = study.live(open_box("cuda-healthy"), study.study("growing_batches"), limit)
    assert result.status == "not_available" and told in rows[0][2]

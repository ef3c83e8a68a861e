"""The steps that the card under an out-of-memory proposes: what keeps the memory, and how to let go of it."""

import re
from collections import Counter
from unittest.mock import Mock

import pytest
from notebook_cells import SMALL_CARD, rows

from helpers.magics import cards
from helpers.magics.holder import Holder, Holdings

pytestmark = pytest.mark.filterwarnings("ignore")

pytest.importorskip("torch", reason="the tests of the notebook's own tensors need torch")


def test_the_row_of_all_further_names_counts_the_device_that_ran_out_alone():
    sizes = Counter({"cuda:0": 1 << 20, "cpu": 1 << 30})
    holders = [Holder(f"name{n}", "variable", bytes=sizes) for n in range(cards.MOST_ROWS + 2)]
    table = cards._table(Holdings(holders, []), "cuda:0")
    assert [row[:2] for row in table.rows[-2:]] == [("name11", "1.00 MiB"), ("2 more", "2.00 MiB")]


def test_a_list_of_losses_is_the_first_step_though_only_their_graphs_are_large(cells):
    *_, failed = cells(
        "net = torch.nn.Linear(500, 500)\nlosses = []",
        "for _ in range(4):\n    out = net(torch.ones(1000, 500)).relu()\n    losses.append((out * 2).relu().sum())",
        "raise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')",
    )
    first = re.search(r"^  1\. .*(?:\n     .*)*", failed["text"], re.M)[0]
    assert "losses keeps 4 tensors with their graphs" in first
    assert "(added to at cell 4, line 3)" in first


@pytest.mark.parametrize(
    ("loop", "name", "cut"),
    [
        (
            "total = total + net(torch.ones(900, 500)).relu().sum()",
            "total",
            "add the number alone, with .item()",
        ),
        ("state = net(state).tanh()", "state", "use state.detach()"),
    ],
)
def test_a_tensor_made_of_what_it_was_is_cut_from_its_graph_at_that_line(cells, loop, name, cut):
    *_, failed = cells(
        "net = torch.nn.Linear(500, 500)\ntotal = 0\nstate = torch.ones(900, 500)",
        f"for _ in range(20):\n    {loop}\n    seen = {name} * 1",
        SMALL_CARD,
    )
    text = " ".join(failed["text"].split())
    said = f"1. {name} is computed from its own previous value (cell 4, line 2), so it keeps the graph of every step,"
    assert said in text
    assert f"at that line {cut}" in text
    assert "also reached from seen" in text


@pytest.mark.parametrize(
    ("make", "loop", "first"),
    [
        (
            "sums = {'loss': 0, 'seen': 0}",
            "sums['seen'] += 1\n    sums['loss'] += net(torch.ones(900, 600)).relu().sum()",
            "sums['loss'] is computed from its own previous value (cell 4, line 3), so it keeps the graph",
        ),
        (
            "rows = torch.ones(900, 600)",
            "net(rows).pow(2).mean().backward(create_graph=True)",
            "Gradients of net carry graphs",
        ),
        (
            "def rows():\n    pool = torch.ones(900, 600)\n    yield from pool\nstreams = []",
            "streams.append(rows()); next(streams[-1])",
            "streams keeps generators that have not ended, and they keep variables of their functions",
        ),
        (
            "def load():\n    pool = torch.ones(900, 600)\n    raise ValueError\nproblems = []",
            "try:\n        load()\n    except ValueError as error:\n        problems.append(error)",
            "problems keeps exceptions, and they keep variables of their functions (pool in cell 3",
        ),
    ],
)
def test_the_first_step_names_what_keeps_the_memory(cells, make, loop, first):
    *_, failed = cells(
        f"net = torch.nn.Linear(600, 600)\n{make}", f"for _ in range(20):\n    {loop}", SMALL_CARD
    )
    assert f"1. {first}" in failed["text"]


@pytest.mark.parametrize(
    ("make", "name", "join"),
    [
        ("kept = torch.zeros(0, 1000)", "kept", "torch.cat([kept, row])"),
        ("class Kept: pass\nkept = Kept(); kept.rows = torch.zeros(0, 1000)", "kept.rows", "torch.vstack((row, kept.rows))"),
        ("kept = {'rows': None}", "kept['rows']", "row if kept['rows'] is None else torch.concat([kept['rows'], row])"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_joined_with_more_is_said_to_grow_at_that_line(cells, make, name, join):
    *_, failed = cells(
        make,
        f"for _ in range(9):\n    row = torch.ones(300, 1000)\n    {name} = {join}",
        SMALL_CARD,
    )
    said = f"1. {name} takes 10.30 MiB and grows each time cell 4, line 3 runs"
    assert said in " ".join(failed["text"].split())
    assert "put there by cell 4, line 3" in failed["text"]


def test_a_tensor_whose_oldest_part_is_dropped_is_not_said_to_grow(cells):
    *_, failed = cells(
        "kept = torch.zeros(900, 1000)",
        "for _ in range(9):\n    kept = torch.cat([kept[300:], torch.ones(300, 1000)])",
        SMALL_CARD,
    )
    assert "1. The largest variable is kept" in failed["text"]


def test_what_grows_in_the_failed_call_is_the_first_step(cells):
    *_, failed = cells(
        "def evaluate():\n    outputs = []\n    for _ in range(9):\n"
        "        outputs.append(torch.ones(300, 1000))\n    " + SMALL_CARD,
        "evaluate()",
    )
    said = "1. outputs keeps 9 tensors, 10.30 MiB (added to at cell 3, line 4, in evaluate()):"
    assert said in " ".join(failed["text"].split())


@pytest.mark.parametrize(
    ("make", "keep", "name"),
    [
        ("import numpy\nkept = numpy.empty(9, dtype=object)", "kept[index] = row", "kept"),
        ("import queue\nkept = queue.Queue()", "kept.put(row)", "kept.queue"),
        (
            "class Kept:\n    __slots__ = ('rows',)\nkept = Kept(); kept.rows = []",
            "kept.rows.append(row)",
            "kept.rows",
        ),
    ],
)
def test_collections_that_are_no_lists_are_named_with_the_line(cells, make, keep, name):
    *_, failed = cells(
        make,
        f"for index in range(9):\n    row = torch.ones(300, 1000)\n    {keep}\n    del row",
        SMALL_CARD,
    )
    said = f"1. {name} keeps 9 tensors, 10.30 MiB (added to at cell 4, line 3):"
    assert said in " ".join(failed["text"].split())


def test_what_a_running_thread_keeps_is_the_first_step(cells):
    *_, failed, _ = cells(
        "import threading\nready, stop = threading.Event(), threading.Event()\ndef load():\n"
        "    parts = [torch.ones(300, 1000) for _ in range(9)]\n    ready.set(); stop.wait(60)\n"
        "worker = threading.Thread(target=load, name='loader')\nworker.start(); ready.wait(60)",
        SMALL_CARD,
        "stop.set(); worker.join()",
    )
    said = "1. A function that runs in thread loader keeps 10.30 MiB (parts[...] in cell 3, line 5"
    assert said in " ".join(failed["text"].split())


def test_a_list_of_a_library_is_not_said_to_grow_at_a_line_that_adds_to_one_of_that_name(
    cells, tmp_path
):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    library = f"import torch\ndef run():\n    outputs = [torch.ones(600, 1000) for _ in range(9)]\n    {SMALL_CARD}\n"
    (folder / "a_library.py").write_text(library)
    *_, failed = cells(
        f"sys.path.insert(0, {str(folder)!r})\nimport a_library\noutputs = []\noutputs.append(1)",
        "a_library.run()",
    )
    assert "outputs[...] in a_library.py:4, in run()" in failed["text"]
    assert "added to at" not in failed["text"]


def test_the_error_of_a_cell_is_let_go_of_though_a_kept_exception_has_its_frames(cells):
    *_, freed, kept = cells(
        "def load(rows):\n    pool = torch.ones(rows, 1000)\n    if rows > 600:\n        "
        + SMALL_CARD
        + "\n    raise ValueError\nproblems = []",
        "for rows in (500, 900):\n    try:\n        load(rows)\n    except ValueError as error:\n"
        "        problems.append(error)",
        "1 + 1",
        "%vram free",
        "print(len(problems), problems[0].__traceback__ is None)",
    )
    assert "3.43 MiB on cpu came back." in freed["text"]
    assert kept["text"].startswith("1 False")


def test_where_the_garbage_collector_is_off_the_first_step_turns_it_on(cells):
    *_, failed = cells(
        "import gc; gc.disable()\nclass Sample: pass",
        "for _ in range(3):\n    sample = Sample()\n    sample.owner = sample\n    sample.image = torch.ones(600, 1000)",
        SMALL_CARD,
    )
    assert "1. %vram free lets go of 4.58 MiB" in failed["text"]
    assert "gc.enable()" in failed["text"]


def test_layers_that_run_once_are_not_called_repeated(cells):
    *_, failed = cells(
        "layers = [torch.nn.Linear(500, 500) for _ in range(9)]\nx = torch.ones(3000, 500)",
        "for layer in layers:\n    x = layer(x).relu()",
        SMALL_CARD,
    )
    assert "made of what it was" not in failed["text"]
    assert re.search(r"^  1\. [\d.]+ MiB is kept for a backward pass", failed["text"], re.M)


def test_states_of_optimizers_are_not_called_results(cells):
    *_, failed = cells(
        "net = torch.nn.Linear(900, 900)\nkept = {}",
        "for rate in (1e-2, 1e-3):\n    kept[rate] = torch.optim.Adam(net.parameters(), lr=rate)\n"
        "    net(torch.ones(1, 900)).sum().backward()\n    kept[rate].step()",
        SMALL_CARD,
    )
    assert (
        "1. kept keeps states of optimizers, 12.36 MiB (added to at cell 4, line 2)"
        in failed["text"]
    )


def test_what_the_failed_call_holds_is_the_last_step(cells):
    *_, failed = cells(
        "big = torch.ones(1000, 1000)\ndef step():\n    inner = torch.ones(600, 1000)\n    "
        + SMALL_CARD,
        "step()",
    )
    steps = re.findall(r"^  \d\. (\w+ \w+)", failed["text"], re.M)
    assert steps == ["The largest", "Before the"]


def test_memory_that_the_failed_line_let_go_of_is_not_called_pieces():
    import dataclasses

    from helpers.magics import cards
    from helpers.magics.devices import DeviceUse
    from helpers.magics.failure import CellFailure
    from helpers.magics.holder import Holdings
    from helpers.magics.next_steps import next_steps

    gib = 1 << 30
    failed = CellFailure(
        "cell 2, line 1",
        "x = [torch.empty(n) for _ in range(9)]",
        gib,
        "cuda:0",
        Holdings([], []),
    )
    failed.use = DeviceUse("cuda:0", gib, 6 * gib, 0, 8 * gib)
    failed.allocated, failed.in_pieces = 6 * gib, 1 << 20
    steps = list(next_steps(failed))
    assert not [step for step in steps if "in pieces" in step]
    assert "the failed line had 5.00 GiB of its own" in cards.of_failure(failed).words()
    scattered = dataclasses.replace(failed, in_pieces=2 * gib)
    assert [step for step in next_steps(scattered) if "had 2.00 GiB in pieces" in step]


def test_open_widgets_are_said_to_keep_what_their_callbacks_hold(cells):
    pytest.importorskip("ipywidgets")
    _, listed, freed, closed, left = cells(
        "import ipywidgets\ndef draw():\n    noise = torch.ones(1000, 1000)\n"
        "    button = ipywidgets.Button()\n    button.on_click(lambda b: noise)\n"
        "    return button\npanel = draw(); panel = draw()",
        "%vram",
        "%vram free",
        "ipywidgets.Widget.close_all()",
        "%vram free",
    )
    assert rows(listed["text"]) == {"panel": "3.81 MiB", "open widgets": "3.81 MiB"}
    assert "ipywidgets.Widget.close_all()" in freed["text"]
    assert "open widgets" not in left["text"]


TRAINERS = """
import sys, types
library = types.ModuleType("transformers")
library.TrainerCallback = type("TrainerCallback", (), {})
sys.modules["transformers"] = library
from vram_casebook import transformers_callback
callback = transformers_callback("snapshot.pickle")
callback.on_train_begin(None, None, None)
callback.on_train_end(None, None, None)
print(type(callback).__bases__[0].__module__, callback.on_train_end(None, None, None))
"""


def test_a_callback_of_a_trainer_says_nothing_where_memory_is_enough(cells, tmp_path):
    (shown,) = cells(TRAINERS)
    assert shown["text"].strip() == "__main__ None"
    assert not list(tmp_path.glob("*.pickle"))


def test_a_variable_that_no_later_cell_names_is_said_to_be_idle(cells):
    *_, failed = cells(
        "teacher = torch.nn.Linear(1000, 1000)",
        "student = torch.nn.Linear(1000, 900)\nsteps = torch.optim.SGD(student.parameters())",
        "student.zero_grad()\nraise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')",
    )
    assert "teacher (3.81 MiB, no cell after cell 3 names it)" in failed["text"]
    assert "student (3.43 MiB, also reached from steps)" in failed["text"]


@pytest.mark.parametrize("keeps_model", [False, True])
def test_an_optimizer_whose_model_was_deleted_is_said_to_be_kept(cells, keeps_model):
    *_, failed = cells(
        "model = torch.nn.Linear(1000, 1000)\nsteps = torch.optim.Adam(model.parameters())",
        "models = [model]" if keeps_model else "models = []",
        "del model\nraise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')",
    )
    is_said = "steps keeps 3.81 MiB for parameters that no model has" in failed["text"]
    assert is_said is not keeps_model
    assert ("largest variable is steps" in failed["text"]) is keeps_model, "one step for a name"


def test_a_view_does_not_hide_the_generator_that_has_the_larger_tensor(cells):
    *_, listed = cells(
        "def parts():\n    pool = torch.ones(1000, 1000)\n    yield pool[:2]\n    yield pool[2:]\n"
        "pieces = parts()",
        "first = next(pieces)",
        "%vram",
    )
    assert rows(listed["text"]) == {"pieces": "3.81 MiB"}
    assert "also reached from first" in listed["text"]


def test_tensors_that_a_hook_of_a_model_keeps_are_named_with_the_line(cells):
    *_, failed = cells(
        "def watch(layer):\n    seen = []\n    def keep(module, args, output):\n"
        "        seen.append(output.detach())\n    layer.register_forward_hook(keep)\n"
        "layer = torch.nn.Linear(10, 1000)\nwatch(layer)",
        "for _ in range(5):\n    layer(torch.ones(1000, 10))",
        "raise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')",
    )
    assert (
        "seen keeps 5 tensors, 19.07 MiB (added to at cell 3, line 4, in keep())" in failed["text"]
    )


def test_a_name_whose_storage_an_earlier_name_counts_has_no_step_of_its_own():
    from helpers.magics.holder import Holder
    from helpers.magics.next_steps import step_of_holder

    holder = Holder("loss", "variable", graph_bytes={"cuda:0": 1 << 20})
    assert step_of_holder(holder, Mock()) == ""

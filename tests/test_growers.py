"""What grows in a recording is named by who keeps it, where its record says so."""

import json
import pickle

import pytest
from command_line import verb as run
from test_growth import BACKWARD, MODULE, leak, loop
from test_lines import frames
from toy_allocator import MIB, Toy

from helpers.allocator.growers import growth_of_recording
from helpers.allocator.program_facts import evidence_from_trace
from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import parse
from helpers.allocator.under_torch import recorder

HOME = "/home/someone/.venv/lib/python3.12/site-packages"


def recording(toy, path):
    path.write_bytes(pickle.dumps(toy.snapshot()))
    return rewind(parse(toy.snapshot()))


def record_of(path, rows, step=()):
    """A record beside a trace that says who keeps the tensors, and which lines belong to the step
    that ran.
    """
    folder = path.with_suffix(".record")
    folder.mkdir()
    process = {"keepers": {"keepers": rows, "complete": True}, "part_of_step": {"lines": [*step]}}
    (folder / "record.json").write_text(json.dumps({"processes": [process]}))


def keeper(addresses, collection="losses", graphs=0, lines=("train.py:41 epoch",)):
    return {
        "name": f"{collection}[...]",
        "where": "train.py:55 main",
        "collection": collection,
        "length": 9,
        "bytes": 512,
        "graphs": graphs,
        "addresses": addresses,
        "lines": list(lines),
    }


@pytest.fixture
def leaking(tmp_path):
    path = tmp_path / "run.pickle"
    trace = recording(loop(9, leak), path)
    addresses = trace.address[(trace.size == 3 * MIB) & (trace.op == 0)].tolist()
    return path, trace, addresses


def test_the_collection_that_reaches_what_grows_keeps_it(leaking):
    path, trace, addresses = leaking
    record_of(path, [keeper([1, 2], "others"), keeper(addresses)])
    (grower,) = growth_of_recording(trace, path).growers
    assert grower.keeper.name == "losses" and not grower.keeper.with_graph
    assert grower.line == "train.py:41 epoch"
    _, out, _ = run("leaks", path, "--json")
    where = json.loads(out)["growers"][0]["where"]
    assert where == "losses keeps it (train.py:41 epoch); it is allocated at train.py:13 train"


def test_what_one_line_keeps_under_many_keys_is_kept_together(leaking):
    path, trace, addresses = leaking
    keys = [keeper([address], f"caches[{address}]") for address in addresses]
    record_of(path, [keeper(addresses[:2], "batch", lines=["train.py:9 main"]), *keys])
    (grower,) = growth_of_recording(trace, path).growers
    assert grower.line == "train.py:41 epoch"


def test_what_is_reached_from_no_name_is_kept_by_a_graph(leaking):
    path, trace, _ = leaking
    record_of(path, [keeper([5], "batches"), keeper([7], "losses", graphs=9)])
    (grower,) = growth_of_recording(trace, path).growers
    assert grower.keeper.name == "losses" and grower.keeper.with_graph


@pytest.mark.parametrize(
    ("entry_bytes", "graphs", "alone"),
    [(512, 9, False), (3 * MIB, 9, True), (3 * MIB, 0, True)],
)
def test_tensors_whose_graphs_keep_nothing_more_are_said_to_be_kept_alone(
    leaking, entry_bytes, graphs, alone
):
    path, _, addresses = leaking
    row = keeper(addresses, graphs=graphs) | {"bytes": 9 * entry_bytes}
    record_of(path, [row])
    (grower,) = evidence_from_trace(path).program.growth.growers
    assert grower.tensors_alone == alone
    assert grower.with_graphs != alone


def test_without_a_record_the_line_that_asked_is_named(leaking):
    path, trace, _ = leaking
    recorded = growth_of_recording(trace, path)
    assert [row.line for row in recorded.growers] == ["train.py:13 train"]
    assert recorded.held_bytes == 8 * 3 * MIB or recorded.held_bytes == 9 * 3 * MIB
    assert growth_of_recording(trace).growers[0].keeper is None


def test_steps_are_taken_from_the_recording_without_a_limit_where_there_is_one(tmp_path):
    path = tmp_path / "run.pickle"
    trace = recording(loop(3, leak), path)
    assert growth_of_recording(trace, path).growth is None
    folder = path.with_suffix(".record")
    folder.mkdir()
    recording(loop(30, leak), folder / "without-limit.pickle")
    recorded = growth_of_recording(recording(loop(3, leak), path), path)
    assert recorded.is_longer and len(recorded.growth.steps) == 30
    assert recorded.steps_begun == 3 and recorded.reached_first_step
    assert recorded.growers[0].line == "train.py:13 train"


def refused(toy):
    toy.say("oom", 1 << 20, 8 * MIB, frames=frames(9))
    return toy


@pytest.mark.parametrize("last_length", [4, 100])
def test_a_step_that_needs_more_than_all_before_it_stands_beside_what_they_kept(
    tmp_path, last_length
):
    path = tmp_path / "run.pickle"
    recording(loop(30, leak, lambda step: last_length if step == 29 else 4), path)
    _, out, _ = run("whatif", path, "--only", "--json", "--capacity", "300MiB")
    is_larger = last_length == 100
    verdict = json.loads(out)["verdict"]
    assert verdict["title"].startswith("The step that failed needed") is is_larger


def test_a_trace_that_ends_while_its_layers_are_made_did_not_reach_its_first_step(tmp_path):
    toy = Toy()
    for layer in range(20):
        toy.alloc(2 * MIB, [*frames(30 + layer % 2, "__init__", inside=""), *frames(9, "main")])
    path = tmp_path / "run.pickle"
    recorded = growth_of_recording(recording(refused(toy), path), path)
    assert recorded.ran_out and not recorded.reached_first_step and not recorded.growers
    code, out, _ = run("leaks", path)
    assert code == 0 and "before its first step ended" in out


def module(line, *outer):
    """The frames of a module that is called in a line of the program's own."""
    calls = {"filename": f"{HOME}/torch/nn/modules/module.py", "line": 1, "name": "_call_impl"}
    return [
        {"filename": f"{HOME}/torch/nn/functional.py", "line": 5, "name": "linear"},
        calls,
        *outer,
    ]


def test_a_validation_that_keeps_its_outputs_after_training_is_found(tmp_path):
    toy = loop(20, lambda step, alloc, toy: None)
    for _ in range(12):
        batch = toy.alloc(MIB, frames(70, "validate", inside=""))
        toy.alloc(6 * MIB, module(71, *frames(71, "validate", inside="")))
        toy.free(batch)
    path = tmp_path / "run.pickle"
    recorded = growth_of_recording(recording(refused(toy), path), path)
    assert [row.line for row in recorded.growers] == ["train.py:71 validate"]
    assert recorded.growers[0].grower.bytes_per_step == 6 * MIB


def test_the_loop_of_a_trainer_is_a_loop_of_the_program(tmp_path):
    toy = Toy()
    main = frames(12, "main", inside="")
    for _ in range(15):
        for line, size in ((310, 4), (311, 2)):
            loop_of_trainer = {"filename": f"{HOME}/coach/loop.py", "line": line, "name": "run"}
            stack = module(12, loop_of_trainer, *main) if size == 4 else [loop_of_trainer, *main]
            block = toy.alloc(size * MIB, stack)
            if size == 4:
                toy.free(block)
    path = tmp_path / "run.pickle"
    recorded = growth_of_recording(recording(refused(toy), path), path)
    assert len(recorded.growth.steps) == 15
    assert recorded.growth.steps.line.startswith("train.py:12 main, in coach/loop.py:31")
    assert recorded.growers[0].line == "train.py:12 main"


def test_what_is_kept_until_its_loop_ends_is_no_leak_where_the_program_goes_on(tmp_path):
    toy = loop(20, leak)
    path = tmp_path / "run.pickle"
    assert growth_of_recording(recording(toy, path), path).is_leak
    toy.alloc(60 * MIB, frames(90, "join", inside=""))
    ended = growth_of_recording(recording(toy, path), path)
    assert ended.growers and not ended.is_leak
    _, out, _ = run("leaks", path, "--json")
    assert json.loads(out)["grows"] is False
    _, out, _ = run("leaks", path)
    assert "each step keeps 3.00 MiB, most at train.py:13 train" in out


def test_next_to_nothing_is_no_leak(tmp_path):
    path = tmp_path / "run.pickle"
    trace = recording(loop(20, lambda step, alloc, toy: alloc("keep", 8), lambda step: 40), path)
    assert growth_of_recording(trace, path).growers
    assert not growth_of_recording(trace, path).is_leak


def test_a_sum_of_losses_is_told_from_the_activations_of_the_running_step(leaking):
    path, trace, _ = leaking
    running = keeper([5], "", graphs=1) | {"name": "total", "length": 0}
    hidden = keeper([6], "", graphs=1, lines=["train.py:20 main"])
    hidden |= {"name": "hidden", "bytes": 9 * MIB, "length": 0}
    inner = keeper([7], "", graphs=3) | {"name": "x", "where": "net.py:7 forward"}
    record_of(path, [hidden, inner, running])
    (grower,) = growth_of_recording(trace, path).growers
    assert grower.keeper.name == "total"


def test_a_program_that_its_record_says_ended_well_has_no_leak(leaking):
    path, trace, _ = leaking
    record_of(path, [])
    file = path.with_suffix(".record") / "record.json"
    file.write_text(json.dumps({"exit_code": 0, "processes": []}))
    assert not growth_of_recording(trace, path).is_leak


def test_a_program_that_ended_well_says_in_which_step_a_smaller_card_is_full(leaking):
    path, _, _ = leaking
    record_of(path, [])
    file = path.with_suffix(".record") / "record.json"
    file.write_text(json.dumps({"exit_code": 0, "processes": []}))
    _, out, _ = run("leaks", path, "--capacity", "20MiB")
    assert "on a card of 20.00 MiB it runs out in step " in " ".join(out.split())


@pytest.mark.parametrize(("rehearsed", "ooms"), [(True, 0), (True, 1), (False, 0)])
def test_a_rehearsal_that_never_ran_out_looks_at_its_end_for_who_keeps_the_tensors(
    rehearsed, ooms, tmp_path, monkeypatch
):
    monkeypatch.setattr(recorder, "keepers_of", lambda torch: {"keepers": ["of the end"]})
    monkeypatch.setattr(recorder, "cells", list)
    if rehearsed:
        monkeypatch.setenv("CASEBOOK_REHEARSE", str(tmp_path))
    process = recorder.Recorder(str(tmp_path / "1"), whole_program=False)
    process.history = True
    process.facts["ooms"] = ooms
    process.finish("exit")
    kept = json.loads((tmp_path / "1.json").read_text())
    assert ("keepers" in kept) is (rehearsed and not ooms)


def pieces(count, parts, last_ends=True):
    """Steps that run in parts, whose activations one backward pass at the end of each frees."""
    toy = Toy()
    ends = [True] * (count - 1) + [last_ends]
    for step_ends in ends:
        graph = []
        for _ in range(parts):
            batch = toy.alloc(MIB, frames(50, "epoch", inside=""))
            graph.append(toy.alloc(4 * MIB, module(51, *frames(51, "epoch", inside=""))))
            toy.free(batch)
        backward = f"{HOME}/torch/autograd/__init__.py"
        for block in graph if step_ends else ():
            gradient = toy.alloc(MIB, frames(53, "epoch", inside=backward))
            toy.free(block)
            toy.free(gradient)
    return toy


@pytest.mark.parametrize(
    ("state_bytes", "names_it"), [(None, True), (9 * MIB, False)], ids=["sum", "carried state"]
)
def test_a_sum_of_losses_keeps_the_graphs_of_its_parts_unless_a_state_joins_them(
    tmp_path, state_bytes, names_it
):
    path = tmp_path / "run.pickle"
    rows = [keeper([5], "", graphs=1) | {"name": "total", "length": 0}]
    if state_bytes:
        rows.append(rows[0] | {"name": "state", "bytes": state_bytes})
    record_of(path, rows)
    recording(pieces(2, 20), path.with_suffix(".record") / "without-limit.pickle")
    recorded = growth_of_recording(recording(refused(pieces(1, 15, last_ends=False)), path), path)
    names = [row.keeper.name for row in recorded.growers]
    assert names == (["total"] if names_it else [])


@pytest.mark.parametrize(("ends", "may_be"), [(False, True), (True, False)])
def test_passes_that_hand_on_a_state_may_be_one_step_until_a_backward_pass_is_seen(
    tmp_path, ends, may_be
):
    path = tmp_path / "run.pickle"
    state = keeper([5], "", graphs=1) | {"name": "state", "length": 0, "bytes": 9 * MIB}
    record_of(path, [state])
    toy = pieces(1, 15, last_ends=ends)
    assert growth_of_recording(recording(refused(toy), path), path).may_be_one_step is may_be


@pytest.mark.parametrize(
    ("graphs", "step", "is_leak"),
    [
        (9, ["train.py:50 epoch", "train.py:51 epoch"], False),
        (0, ["train.py:50 epoch", "train.py:51 epoch"], True),
        (9, ["train.py:70 validate"], True),
        (9, [], True),
    ],
    ids=["for its backward pass", "tensors alone", "another line", "no backward pass"],
)
def test_what_a_loop_within_one_step_keeps_for_its_backward_pass_is_no_leak(
    tmp_path, graphs, step, is_leak
):
    path = tmp_path / "run.pickle"
    toy = pieces(1, 15, last_ends=False)
    trace = recording(refused(toy), path)
    kept = trace.address[(trace.size == 4 * MIB) & (trace.op == 0)].tolist()
    record_of(path, [keeper(kept, graphs=graphs)], step)
    assert bool(growth_of_recording(trace, path).growers) is is_leak
    _, out, _ = run("leaks", path)
    assert ("Your program keeps" in out) is is_leak


@pytest.mark.parametrize("loops", [["train.py:50 epoch"], []], ids=["inner steps", "steps"])
def test_steps_within_a_step_keep_nothing_beyond_it(tmp_path, loops):
    path = tmp_path / "run.pickle"
    toy = Toy()
    for _ in range(12):
        batch = toy.alloc(MIB, frames(50, "epoch", inside=""))
        toy.alloc(4 * MIB, module(51, *frames(51, "epoch", inside="")))
        gradient = toy.alloc(MIB, frames(53, "epoch", inside=BACKWARD))
        toy.free(gradient)
        toy.free(batch)
    record_of(path, [], ["train.py:50 epoch", "train.py:51 epoch"])
    record = path.with_suffix(".record") / "record.json"
    facts = json.loads(record.read_text())
    facts["processes"][0]["part_of_step"]["loops"] = loops
    record.write_text(json.dumps(facts))
    growers = growth_of_recording(recording(refused(toy), path), path).growers
    assert bool(growers) is not bool(loops)


@pytest.mark.parametrize("steps", [0, 3], ids=["in the first step", "after three"])
def test_what_a_loop_prepared_for_the_training_behind_it_did_not_grow(tmp_path, steps):
    toy = Toy()
    for _ in range(20):
        raw = toy.alloc(3 * MIB, frames(30, "<module>", inside=""))
        toy.alloc(2 * MIB, frames(31, "<module>", inside=""))
        toy.free(raw)
    for _ in range(steps):
        activation = toy.alloc(4 * MIB, module(51, *frames(51, "<module>", inside="")))
        gradient = toy.alloc(MIB, frames(53, "<module>", inside=BACKWARD))
        toy.free(activation)
        toy.free(gradient)
    toy.alloc(4 * MIB, module(51, *frames(51, "<module>", inside="")))
    path = tmp_path / "run.pickle"
    assert not growth_of_recording(recording(refused(toy), path), path).growers


@pytest.mark.parametrize(
    ("gradient_bytes", "more_bytes"), [(3 * MIB, 2 * MIB), (0, 0)], ids=["backward", "nothing"]
)
def test_what_came_behind_the_same_layer_of_earlier_steps_is_still_to_come(
    tmp_path, gradient_bytes, more_bytes
):
    toy = Toy()
    for step in range(7):
        batch = toy.alloc(MIB, frames(50, "epoch", inside=""))
        layers = [toy.alloc(MIB, module(51, *frames(51, "epoch", inside=""))) for _ in range(2)]
        if step == 6:
            toy.say("oom", MIB, MIB, frames=module(51, *frames(51, "epoch", inside="")))
            break
        layers.append(toy.alloc(MIB, module(51, *frames(51, "epoch", inside=""))))
        toy.free(batch)
        if gradient_bytes:
            toy.free(toy.alloc(gradient_bytes, frames(53, "epoch", inside=BACKWARD)))
        for layer in layers:
            toy.free(layer)
    path = tmp_path / "run.pickle"
    recording(toy, path)
    assert evidence_from_trace(path).program.more_to_come_bytes == more_bytes


def test_the_bytes_that_a_verdict_says_were_kept_belong_to_its_count_of_steps(leaking):
    path, _, _ = leaking
    growth = evidence_from_trace(path).program.growth
    assert growth.steps == 9  # the peak lies in the last of them, before it has kept its own
    assert growth.kept_bytes == 8 * growth.bytes_per_step == 8 * 3 * MIB


def test_what_a_growing_line_needs_within_a_step_is_not_kept(tmp_path):
    def loss(step, alloc, toy):
        passing = alloc("keep", 40 * MIB)
        alloc("keep", 512)
        toy.free(passing)

    path = tmp_path / "run.pickle"
    recording(loop(9, loss), path)
    growth = evidence_from_trace(path).program.growth
    assert growth.bytes_per_step == 512 and growth.kept_bytes <= 9 * 512
    for verb_name in ("whatif", "leaks"):
        options = ["--only"] if verb_name == "whatif" else []
        code, out, _ = run(verb_name, path, *options, "--capacity", "60MiB")
        assert code == 0 and "Your program keeps" not in out
        assert " ".join(out.split()).startswith("The program needs")


def test_a_leak_that_begins_late_is_counted_from_its_first_step_without_what_the_start_made(
    tmp_path,
):
    def keep(step, alloc, toy):
        if step in (0, *range(12, 40)):
            alloc("keep", 7 * MIB)

    path = tmp_path / "run.pickle"
    recording(loop(40, keep), path)
    growth = evidence_from_trace(path).program.growth
    assert growth.bytes_per_step == 7 * MIB
    assert growth.kept_bytes == (growth.steps - 1) * 7 * MIB == 27 * 7 * MIB


@pytest.mark.parametrize(("card", "steps"), [("150MiB", 10), ("50MiB", 0)])
def test_what_was_kept_is_counted_up_to_the_request_that_fails_on_the_card(tmp_path, card, steps):
    path = tmp_path / "run.pickle"
    recording(loop(60, leak), path)
    _, out, _ = run("whatif", path, "--only", "--json", "--capacity", card)
    verdict = json.loads(out)["verdict"]
    is_leak = verdict["cause"] == "user-leak"
    assert is_leak is (steps > 0)
    if is_leak:
        (kept,) = (row for row in verdict["evidence"] if row["id"] == "grows")
        assert kept["reading"]["value"] <= 3 * MIB * 60 / 2


def nested(line):
    """The frames of a layer that another module calls."""
    container = {"filename": f"{HOME}/torch/nn/modules/container.py", "line": 7, "name": "forward"}
    return module(line, container, *module(line, *frames(line, "<module>", inside=""))[1:])


def test_the_layers_of_one_forward_are_no_steps(tmp_path):
    toy = Toy()
    toy.alloc(MIB, frames(50, "<module>", inside=""))
    for _ in range(12):
        toy.alloc(4 * MIB, nested(51))
    path = tmp_path / "run.pickle"
    recorded = growth_of_recording(recording(refused(toy), path), path)
    assert not recorded.growers and not recorded.reached_first_step
    _, out, _ = run("leaks", path)
    assert "Your program keeps" not in out and "before its first step ended" in out


def test_the_outputs_of_a_module_that_a_line_calls_again_and_again_are_kept_by_step(tmp_path):
    toy = Toy()
    for _ in range(10):
        for _ in range(4):
            hidden = toy.alloc(4 * MIB, nested(51))
            toy.free(hidden)
        toy.alloc(MIB, frames(51, "<module>", inside=f"{HOME}/torch/_tensor.py"))
    path = tmp_path / "run.pickle"
    recorded = growth_of_recording(recording(refused(toy), path), path)
    assert len(recorded.growth.steps) == 10
    assert recorded.growth.bytes_per_step == MIB


def test_of_a_leak_whatif_says_what_to_let_go_and_tries_no_smaller_pieces(tmp_path):
    path = tmp_path / "run.pickle"
    recording(refused(loop(30, leak)), path)
    heads = []
    for words in (("leaks",), ("whatif", "--only")):
        code, out, _ = run(words[0], path, *words[1:])
        heads.append(out.split("\n\n")[0])
        assert code == 0 and "chunks" not in out
    assert heads[0] == heads[1]
    assert "Next step: Do not keep GPU tensors at train.py:13 train" in " ".join(heads[0].split())


def test_leaks_says_of_growth_too_small_to_matter_that_it_is(tmp_path):
    def one_number(step, alloc, toy):
        alloc("keep", 8)

    path = tmp_path / "run.pickle"
    recording(refused(loop(20, one_number)), path)
    _, out, _ = run("leaks", path)
    words = " ".join(out.split())
    assert "each step keeps 512 B, most at train.py:13 train; that is too little" in words
    _, out, _ = run("whatif", path, "--only")
    assert "memory grows" not in out


def test_leaks_and_whatif_name_the_same_need(tmp_path):
    path = tmp_path / "run.pickle"
    recording(loop(9, lambda step, alloc, toy: None), path)
    heads = []
    for verb_name in ("whatif", "leaks"):
        _, out, _ = run(verb_name, path, "--capacity", "30MiB")
        heads.append(out.split("\n\n")[0])
    assert heads[0] == heads[1]
    assert heads[0].startswith("The program needs ")


@pytest.mark.parametrize(("size", "is_said"), [(3 * MIB, True), (512, False)])
def test_the_short_answer_has_a_line_for_what_grows_beside_the_reason(tmp_path, size, is_said):
    path = tmp_path / "run.pickle"
    recording(loop(60, lambda step, alloc, toy: alloc("keep", size)), path)
    record_of(path, [])
    file = path.with_suffix(".record") / "record.json"
    file.write_text(json.dumps({"exit_code": 0, "processes": []}))
    _, out, _ = run("diagnose", path)
    assert out.startswith("The program finished")
    line = "Also seen: The program keeps 3.00 MiB more each step (train.py:13 train)"
    assert (line in out) is is_said
    assert is_said or "Also seen" not in out


def test_a_run_that_was_ended_while_it_grew_says_in_which_step_the_card_is_full(tmp_path):
    path = tmp_path / "run.pickle"
    recording(loop(9, lambda step, alloc, toy: alloc("keep", 3 * MIB)), path)
    file = path.with_suffix(".record") / "record.json"
    record_of(path, [])
    file.write_text(json.dumps({"exit_code": 0, "stopped": "--steps", "processes": []}))
    step = json.loads(run("leaks", path, "--capacity", "300MiB", "--json")[1])["runs_out"]["step"]
    _, out, _ = run("leaks", path, "--capacity", "300MiB")
    assert out.startswith(
        "Your program keeps 3.00 MiB more each step (train.py:13 train); at this "
    )
    assert f"it fills the 300.00 MiB in step {step}" in " ".join(out.split()[:40])
    _, whole, _ = run("diagnose", path)
    assert "in step" not in whole.split("\n")[0]


def epochs(*validations):
    """Epochs of 20 training steps, each followed by a validation whose steps keep 3 MiB."""
    toy = Toy()
    toy.alloc(8 * MIB, frames(2, "<module>", inside=MODULE))
    for count in validations:
        for line, steps in ((20, 20), (30, count)):
            for _ in range(steps):
                batch = toy.alloc(4 * MIB, frames(line, "epoch"))
                output = toy.alloc(4 * MIB, frames(line + 1, "epoch"))
                if line == 30:
                    toy.alloc(3 * MIB, frames(line + 2, "epoch"))
                else:
                    toy.free(toy.alloc(MIB, frames(line + 3, "epoch", inside=BACKWARD)))
                toy.free(output)
                toy.free(batch)
    return toy


def test_steps_that_come_after_the_failed_request_do_not_hide_what_grew_until_then(tmp_path):
    path = tmp_path / "run.pickle"
    record_of(path, [])
    recording(epochs(30, 30), path.with_suffix(".record") / "without-limit.pickle")
    recorded = growth_of_recording(recording(refused(epochs(9)), path), path)
    assert not recorded.is_longer and not recorded.is_later
    assert [row.held_bytes for row in recorded.growers] == [27 * MIB]

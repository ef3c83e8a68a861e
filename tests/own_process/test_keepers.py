"""Who keeps the tensors of a process, by the names that the program itself has for them."""

import collections
import functools
import gc
import sys
import types
import weakref

import pytest

from helpers.allocator.under_torch import keepers, walk
from helpers.allocator.under_torch.keeping_lines import (
    carrying_lines,
    keeping_lines,
    remaking_lines,
)

torch = pytest.importorskip("torch")

SIZE = 12_345
REGISTRY = {}


class Model(torch.nn.Module):
    shared = []

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(SIZE, 1, bias=False)
        self.history = collections.deque()


def tensor():
    """A tensor of a size that no other test or library has."""
    return torch.zeros(SIZE)


def keeper_of(name):
    """The keeper of that name among those of all CPU tensors."""
    answer = keepers.keepers_of(torch, "cpu")
    assert answer["complete"]
    by_name = {keeper["name"]: keeper for keeper in answer["keepers"]}
    assert name in by_name, sorted(by_name)
    return by_name[name]


@pytest.fixture(autouse=True)
def room_for_every_keeper(monkeypatch):
    monkeypatch.setattr(keepers, "MOST_KEEPERS", 10_000)
    monkeypatch.setattr(walk, "MOST_OBJECTS", 100_000_000)
    monkeypatch.setattr(keepers, "LONGEST_S", 60.0)


def test_a_list_of_a_running_function_is_named_with_its_length_and_its_bytes():
    losses = [tensor() for _ in range(7)]
    keeper = keeper_of("losses[...]")
    assert keeper["kind"] == "variable"
    assert keeper["where"].startswith("test_keepers.py:")
    assert (keeper["container"], keeper["length"]) == ("list", 7)
    assert keeper["tensors"] == len(losses)
    assert keeper["bytes"] == 7 * SIZE * 4
    assert len(keeper["addresses"]) == 7


def test_views_of_one_storage_are_counted_once():
    whole = tensor()
    parts = [whole[:10], whole[10:20]]
    keeper = keeper_of("whole")
    assert keeper["bytes"] == SIZE * 4
    assert keeper_of("parts[...]")["bytes"] == 0
    assert len(parts) == 2


def test_an_attribute_of_an_object_is_named_through_the_variable_that_has_the_object():
    model = Model()
    model.history.append({"out": tensor()})
    assert keeper_of("model.history[...]['out']")["collection"] == "model.history"
    assert keeper_of("model.layer.weight")["tensors"] == 1


def test_a_gradient_is_named_beside_its_weight():
    model = Model()
    model.layer(tensor()).sum().backward()
    assert keeper_of("model.layer.weight.grad")["tensors"] == 1


def test_an_attribute_of_a_class_is_a_global_name():
    Model.shared.append(tensor())
    try:
        assert keeper_of("Model.shared[...]")["kind"] == "global"
    finally:
        Model.shared.clear()


def test_the_states_of_an_optimizer_are_named_by_their_keys():
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model.layer(tensor()).sum().backward()
    optimizer.step()
    assert keeper_of("optimizer.state[...]['exp_avg']")["tensors"] == 1


def test_what_lies_deep_in_a_kept_object_is_kept_where_the_object_is():
    trials = {}
    for rate in (1, 2):
        trials[rate] = types.SimpleNamespace(moments=[tensor() for _ in range(5)])
    deep = keeper_of("trials[...].moments[...]")
    assert deep["collection"] == "trials"
    (line,) = deep["lines"]
    assert line.endswith("test_what_lies_deep_in_a_kept_object_is_kept_where_the_object_is")


def test_the_entries_of_a_long_dictionary_are_one_name():
    sessions = {f"user {number}": tensor() for number in range(40)}
    assert keeper_of("sessions[...]")["tensors"] == len(sessions)


def test_a_closure_is_named_by_the_variable_that_it_keeps():
    def closing_over(kept):
        return lambda: kept

    callbacks = [closing_over(tensor()) for _ in range(3)]
    keeper = keeper_of("kept")
    assert keeper["kind"] == "function"
    assert keeper["where"].endswith("closing_over.<locals>.<lambda>")
    assert (keeper["collection"], keeper["length"]) == ("callbacks", len(callbacks))


def test_a_hook_is_followed_to_what_it_stores():
    def store_outputs(layer):
        stored = []
        layer.register_forward_hook(lambda module, inputs, output: stored.append(output))

    model = Model()
    store_outputs(model.layer)
    model.layer(tensor())
    assert keeper_of("stored[...]")["kind"] == "function"


def test_a_suspended_generator_is_named_by_its_variable():
    def batches():
        batch = tensor()
        yield 1
        yield batch

    streams = [batches() for _ in range(4)]
    for stream in streams:
        next(stream)
    keeper = keeper_of("batch")
    assert keeper["kind"] == "generator"
    assert keeper["collection"] == "streams"


def test_a_kept_exception_is_named_by_the_variables_of_its_frames():
    def fail():
        secret = tensor()
        raise ValueError(secret.shape)

    try:
        fail()
    except ValueError as error:
        kept = error
    assert keeper_of("secret")["kind"] == "exception"
    del kept


def test_a_tensor_that_carries_a_graph_says_so():
    weight = torch.zeros(SIZE, requires_grad=True)
    outputs = [weight * factor for factor in range(3)]
    assert keeper_of("outputs[...]")["graphs"] == len(outputs)


@pytest.mark.parametrize("most", [None, 16])
def test_what_a_cache_of_functools_keeps_is_named_by_the_function_and_its_line(most):
    @functools.lru_cache(maxsize=most)
    def features(image):
        return {"map": tensor()}

    for image in range(6):
        features(image)
    answer = keepers.keepers_of(torch, "cpu")
    rows = [row for row in answer["keepers"] if row["collection"] == "the lru_cache of features"]
    (row,) = rows
    assert (row["tensors"], row["length"]) == (6, 6)
    line = features.__wrapped__.__code__.co_firstlineno
    assert row["lines"] == [f"test_keepers.py:{line} features"]


def test_a_partial_function_is_followed():
    calls = [functools.partial(print, tensor())]
    assert keeper_of("calls[...].args[...]")["tensors"] == len(calls)


def test_a_weak_proxy_whose_object_is_gone_is_passed_over():
    gone = Model()
    proxies = [weakref.proxy(gone), tensor()]
    del gone
    assert keeper_of("proxies[...]")["tensors"] == len(proxies) - 1


def test_nothing_of_the_program_is_called():
    class Touchy(types.SimpleNamespace):
        def __getattr__(self, name):
            raise AssertionError(f"asked for {name}")

        def __repr__(self):
            raise AssertionError("shown")

        def __len__(self):
            raise AssertionError("counted")

    touchy = Touchy(inner=tensor())
    REGISTRY[touchy.__class__] = touchy
    try:
        assert keeper_of("touchy.inner")["tensors"] == 1
    finally:
        REGISTRY.clear()


def test_a_walk_that_takes_too_long_is_said_to_be_incomplete(monkeypatch):
    monkeypatch.setattr(walk, "MOST_OBJECTS", 3)
    kept = [[[[tensor()]]]]
    answer = keepers.keepers_of(torch, "cpu")
    assert not answer["complete"]
    assert answer["not_reached"] > 0
    assert len(kept) == 1


def test_a_circle_and_a_deep_structure_end():
    deepest = kept = []
    for _ in range(100_000):
        deeper = []
        deepest.append(deeper)
        deepest = deeper
    deepest.append(kept)
    deepest.append(tensor())
    answer = keepers.keepers_of(torch, "cpu")
    assert answer["complete"]
    assert answer["not_reached"] == 0


@pytest.mark.parametrize(
    ("line", "collection"),
    [
        ("losses.append(loss)", "losses"),
        ("self.history[step] = out", "trainer.history"),
        ("self.cache.setdefault(key, value)", "model.bias.cache['k']"),
        ("out, state = cell(out, state)", "state"),
        ("layer.register_forward_hook(store)", "model.layer._forward_hooks"),
        ("history += [loss]", "history"),
        ("self.maps[name].append(out)", "extractor.maps['pool0']"),
        ("optimizer.add_param_group(group)", "optimizer.param_groups"),
        ("optimizer.add_param_group(group)", "optimizer.state"),
        ("queue.put(batch)", "queue"),
    ],
)
def test_the_line_that_puts_something_into_a_collection_is_found(line, collection):
    source = f"import torch\nprint(history, losses)\n{line}\n"
    assert keeping_lines(source, collection) == (3,)


def test_a_line_that_only_reads_a_collection_does_not_keep_anything():
    assert keeping_lines("total = sum(losses)\nprint(losses[0])\n", "losses") == ()


def test_a_source_that_is_no_python_has_no_such_line():
    assert keeping_lines("for in range(", "losses") == ()
    assert keeping_lines("x = 1", "") == ()


def test_the_walk_imports_nothing():
    before = set(sys.modules)
    keepers.keepers_of(torch, "cpu")
    assert set(sys.modules) == before


CARRIED = """class Run:
    def __init__(self):
        self.state = first()

    def advance(self):
        self.state = move(self.state)
        self.shown = self.state

    def twice(self):
        state = move(move(self.state))
        self.state = state
"""


def test_the_lines_that_bind_a_state_which_steps_go_on_with_are_found():
    assert carrying_lines(CARRIED, "self.state") == (6, 11)


def test_an_attribute_that_nothing_reads_carries_nothing():
    assert carrying_lines(CARRIED, "run.shown") == ()
    assert carrying_lines("self.state = (", "self.state") == ()


def test_an_entry_that_is_made_anew_beside_another_name_is_found():
    source = "def step(x):\n    x, stats['loss'] = cell(x, stats['loss'])\n    return stats"
    assert remaking_lines(source, "self.stats['loss']") == (2,)
    assert remaking_lines(source, "self.stats['other']") == ()


class Circle:
    """An object that refers to itself."""

    def __init__(self):
        self.data = tensor()
        self.again = self


def circles():
    rows = keepers.keepers_of(torch, "cpu")["keepers"]
    return [row for row in rows if row["kind"] == "circle"]


def test_objects_in_a_circle_keep_what_no_name_reaches_while_the_collector_is_off():
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            Circle()
        assert [row["bytes"] for row in circles()] == [3 * SIZE * 4]
    finally:
        gc.enable()
        gc.collect()


def test_while_the_collector_is_on_a_circle_is_left_to_it():
    Circle()
    assert circles() == []
    gc.collect()


def test_what_only_a_graph_keeps_lies_in_no_circle():
    gc.collect()
    gc.disable()
    try:
        weight = tensor().requires_grad_()
        loss = (weight.exp().exp() * 2).sum()
        assert circles() == []
        assert loss.requires_grad
    finally:
        gc.enable()

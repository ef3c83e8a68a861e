"""Changes of what a program keeps without need: hooks, exceptions, states, results thrown away."""

import sys
from dataclasses import replace

import pytest

pytest.importorskip("libcst")
from test_fix import ended, keeper, program, proposed, texts
from test_fix_doors import searched

from helpers.commands.fix import MOST_NESTED_CALLS
from helpers.fix.candidates import candidates
from helpers.fix.change import Change, Results
from helpers.fix.imports import sources_of
from helpers.fix.proof import Proof
from helpers.fix.search import TriedChange
from helpers.fix.view import results_in_words
from helpers.judge.program_facts import GrowthFacts, ProgramFacts

PROBE = """import torch


class Probe:
    def __init__(self, layer):
        {handle}layer.register_forward_hook(self.take)

    def take(self, module, inputs, output):
        self.seen = output


def explain(model, x):
    probe = Probe(model.body)
    y = model(x)
    return probe.seen * y


for x in batches:
    print(explain(model, x))
"""


@pytest.mark.parametrize("handle", ["", "self.handle = ", "self.token = "])
def test_a_hook_of_an_object_made_in_each_turn_is_removed_where_its_function_ends(handle):
    change, after = proposed(PROBE.format(handle=handle), "true-capacity")[0]
    name = handle.removeprefix("self.").removesuffix(" = ") or "handle"
    ending = f"result = probe.seen * y\n    probe.{name}.remove()\n    return result\n"
    assert after.endswith(f"{ending}\n\nfor x in batches:\n    print(explain(model, x))\n")
    assert f"self.{name} = layer.register_forward_hook(self.take)" in after
    assert change.only_if_measured


def test_an_object_that_can_remove_its_hooks_is_told_to():
    close = "    def close(self):\n        self.handle.remove()\n\n    def take"
    text = PROBE.format(handle="self.handle = ").replace("    def take", close)
    _, after = proposed(text, "true-capacity")[0]
    assert "    probe.close()\n    return result\n" in after
    told = text.replace("    return probe", "    probe.close()\n    return probe")
    assert not [after for after in texts(told, "true-capacity") if "result = " in after]


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (
            "    layer.register_forward_hook(hook)\n    y = model(x)\n",
            "    handle = layer.register_forward_hook(hook)\n    y = model(x)\n    handle.remove()\n",
        ),
        (
            "    token = layer.register_forward_hook(hook)\n    y = model(x)\n",
            "    token = layer.register_forward_hook(hook)\n    y = model(x)\n    token.remove()\n",
        ),
    ],
)
def test_hooks_registered_in_each_turn_of_a_loop_are_removed_at_its_end(body, after):
    loop = "import torch\nfor x in batches:\n"
    assert f"{loop}{after}" in texts(f"{loop}{body}", "true-capacity")


@pytest.mark.parametrize(
    "text",
    [
        "for m in model.modules():\n    m.register_forward_hook(hook)\nmodel(x)\n",
        "for x in batches:\n    with layer.register_forward_hook(hook):\n        model(x)\n",
        "for x in batches:\n    h = layer.register_forward_hook(hook)\n    model(x)\n    h.remove()\n",
        "def attach(m):\n    m.register_forward_hook(hook)\nattach(model)\nmodel(x)\n",
    ],
)
def test_hooks_that_are_registered_once_or_removed_stay(text):
    assert not [after for after in texts(f"import torch\n{text}", "true-capacity") if after]


FAILED = """import torch

failed = []
for x in batches:
    try:
        loss = model(x).mean()
    except ValueError as error:
        {kept}
        continue
    loss.backward()
print(failed)
"""


@pytest.mark.parametrize(
    ("kept", "after"),
    [
        ("failed.append(error)", "failed.append(error.with_traceback(None))"),
        ("last = (1, error)", "last = (1, error.with_traceback(None))"),
        (
            "failed.append([str(error), error])",
            "failed.append([str(error), error.with_traceback(None)])",
        ),
    ],
)
def test_an_exception_that_is_kept_first_loses_its_traceback(kept, after):
    own = [keeper("train.py:8 <module>", "failed")]
    change, text = proposed(FAILED.format(kept=kept), "user-leak", own)[0]
    assert f"        {after}\n" in text
    assert change.results is Results.SAME


@pytest.mark.parametrize(
    "kept", ["failed.append(str(error))", "print(error.args, f'{error}')", "raise"]
)
def test_an_exception_that_is_only_looked_at_stays(kept):
    own = [keeper("train.py:8 <module>", "failed")]
    changed = texts(FAILED.format(kept=kept), "user-leak", own)
    assert not [after for after in changed if "with_traceback" in after]


def test_an_exception_raised_while_another_is_handled_loses_that_too():
    text = FAILED.format(kept="failed.append(error)")
    text += "try:\n    print(x)\nexcept KeyError as e:\n    raise ValueError() from e\n"
    after = texts(text, "user-leak", [keeper("train.py:8 <module>", "failed")])[0]
    cleared = "error.__cause__ = error.__context__ = None"
    assert f"        {cleared}\n        failed.append(error.with_traceback(None))\n" in after


KEPT = """import torch

best = []
for x in batches:
    score = model(x).mean().item()
    best.append((score, model.state()))
    {thrown}
    loss.backward()
print(best[0])
"""


@pytest.mark.parametrize(
    "thrown", ["sorted(best, key=len)[:3]", "best[-3:]", "list(reversed(best))[:3]"]
)
def test_a_shorter_list_that_nobody_keeps_is_kept_and_measured(thrown):
    own = [keeper("train.py:6 <module>", "best")]
    change, after = proposed(KEPT.format(thrown=thrown), "user-leak", own)[0]
    assert f"    best[:] = {thrown}\n" in after
    assert change.only_if_measured


@pytest.mark.parametrize("shown", ["best[0]", "len(best)"])
def test_an_entry_that_is_only_shown_is_not_taken_for_a_shorter_list(shown):
    own = [keeper("train.py:6 <module>", "best")]
    changed = texts(KEPT.format(thrown=shown), "user-leak", own)
    assert not [after for after in changed if "best[:] = " in after]


def test_a_name_that_only_stands_for_numbers_is_not_taken_for_a_tensor():
    own = [keeper("train.py:6 <module>", "best")]
    changed = texts(KEPT.format(thrown="pass"), "user-leak", own)
    assert not [after for after in changed if "score.item()" in after or "score.det" in after]
    assert [after for after in changed if "best.append((score, model.state().d" in after]


METRIC = """class Metric:
    def __init__(self):
        self.reset()

    def reset(self):
        self.values = []

    def update(self, value):
        self.values.append(value)


metric = Metric()
for epoch in range(9):
    for x in batches:
        metric.update(model(x))
    print(metric.values)
"""


def test_an_object_that_is_never_emptied_is_emptied_first_which_counts_as_different_unmeasured():
    own = [keeper("train.py:9 update", "metric.values")]
    change, after = proposed(METRIC, "user-leak", own)[0]
    assert "    metric.reset()\n    for x" in after
    trial = TriedChange(change, ended(), Proof(None, "on the CPU it fails"))
    assert trial.results is Results.OTHER
    why = "what was collected before no longer counts, as was probably meant"
    assert results_in_words(trial) == f"different ({why}; not measured: on the CPU it fails)"


def test_an_object_that_is_emptied_somewhere_is_not_emptied_again():
    own = [keeper("train.py:9 update", "metric.values")]
    changed = texts(f"{METRIC}metric.reset()\n", "user-leak", own)
    assert not [after for after in changed if "metric.reset()\n    for x" in after]


STATE = """import torch


class Cell:
    def forward(self, x):
        h = self.cell(x, self.h)
        self.h = h
        return self.out(h)


cell = Cell()
for x in batches:
    y = cell(x)
    {use}
"""


def test_a_state_that_a_module_carries_loses_its_graph_where_it_is_set_or_read():
    own = [keeper("train.py:6 forward", "")]
    changes = proposed(STATE.format(use="print(y)"), "user-leak", own)
    afters = [after for _, after in changes]
    assert "with torch.no_grad():\n    for x in batches:\n        y = cell(x)\n" in afters[0]
    assert any("        self.h = h.detach()\n" in after for after in afters)
    assert any("        h = self.cell(x, self.h.detach())\n" in after for after in afters)
    assert all(change.results is Results.SAME for change, after in changes if "h.detach" in after)


def test_a_cut_graph_is_called_the_same_only_where_that_was_measured():
    own = [keeper("train.py:7 forward", "cell.h", through_graph=True)]
    change, after = proposed(STATE.format(use="y.sum().backward()"), "user-leak", own)[0]
    assert "        self.h = h.detach()\n" in after
    assert change.cuts_graphs
    same = Proof(Results.SAME, "the same to the bit")
    results = [TriedChange(change, ended(), proof).results for proof in (None, same)]
    assert results == [Results.OTHER, Results.SAME]


EVALUATES = """import torch

for epoch in range(9):
    for x in batches:
        model(x).mean().backward()
    model.eval()
    values.append(model(x).mean())
    model.train()
"""


def test_what_is_evaluated_between_training_steps_computes_no_graph():
    own = keeper("train.py:7 <module>", "values", through_graph=True)
    after = texts(EVALUATES, "user-leak", [own])[0]
    assert "    with torch.no_grad():\n        values.append(model(x).mean())\n    model" in after


def test_a_change_that_only_a_measurement_calls_different_waits_for_the_other_cuts(tmp_path):
    def cut(name):
        return Change(
            name,
            Results.OTHER,
            "",
            environment={name: name},
            replaces={0: "python"},
            cuts_graphs=True,
        )

    changes = [cut("one"), cut("two"), Change("no", Results.SAME, "", replaces={0: "python"})]
    proofs = iter([Proof(Results.OTHER, "other"), Proof(Results.OTHER, "other")])
    winner, tried = searched(
        tmp_path,
        changes,
        {name: {} for name in ("one", "two", "no")},
        prove=lambda *words: next(proofs),
    )
    assert winner.change.title == "one"
    assert tried == ["one", "two"]


WINDOW = """import torch
from collections import deque

recent = {made}
for x in batches:
    recent.append(model(x))
    print({read})
"""


@pytest.mark.parametrize(
    ("made", "read", "after"),
    [
        ("[]", "recent[-5:]", "    recent.append(model(x))\n    del recent[:-5]\n"),
        ("[]", "sum(recent[-9:]) - recent[-1]", "    del recent[:-9]\n"),
    ],
)
def test_a_list_of_which_only_the_last_entries_are_read_keeps_no_more(made, read, after):
    own = [keeper("train.py:6 <module>", "recent")]
    change, text = proposed(WINDOW.format(made=made, read=read), "user-leak", own)[0]
    assert after in text
    assert change.results is Results.SAME


@pytest.mark.parametrize("read", ["recent", "recent[-2], recent[0]", "recent[-2], len(recent)"])
def test_a_list_that_may_be_read_anywhere_is_not_cut(read):
    own = [keeper("train.py:6 <module>", "recent")]
    changed = texts(WINDOW.format(made="[]", read=read), "user-leak", own)
    assert not [after for after in changed if "del recent" in after]


def test_where_nothing_is_known_to_keep_it_what_fills_a_collection_is_tried():
    text = "import torch\ndef smooth(value, history=[]):\n    history.append(value)\n    return sum(history)\nsmooth(loss).backward()\n"
    own = [keeper("train.py:5 forward", "")]
    assert [
        after
        for after in texts(text, "user-leak", own)
        if "    history.append(value.detach())\n" in after
    ]


def test_what_may_be_read_at_the_end_is_the_same_only_where_the_end_was_seen():
    change = Change("Use it", Results.SAME, "", only_if_measured=True, shows_late=True)
    proofs = [Proof(Results.SAME, "the same", to_its_end=seen) for seen in (False, True)]
    results = [TriedChange(change, ended(), proof).results for proof in proofs]
    assert results == [Results.OTHER, Results.SAME]


def test_a_program_in_which_nothing_grows_gets_changes_all_the_same():
    nothing = GrowthFacts(growers=(), steps=4)
    own = replace(program("import torch\n"), facts=ProgramFacts(source="a test", growth=nothing))
    assert not list(candidates(own, "user-leak"))


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("outs = [model(x) for x in data]", "outs = [model(x).detach().cpu() for x in data]"),
        ("outs.append((1, [model(x)]))", "outs.append((1, [model(x).detach().cpu()]))"),
        ("outs.append(Out(y=model(x)))", "outs.append(Out(y=model(x).detach().cpu()))"),
    ],
)
def test_tensors_are_seen_in_whatever_fills_a_collection(line, after):
    changed = texts(
        f"import torch\n{line}\nprint(outs)\n", "user-leak", [keeper("train.py:2 <module>", "outs")]
    )
    assert any(f"{after}\n" in text for text in changed)


@pytest.mark.parametrize("cache", ["lru_cache", "lru_cache()", "lru_cache(512)", "functools.cache"])
def test_a_cache_of_a_function_that_keeps_many_results_keeps_a_few(cache):
    own = [keeper("train.py:2 f", "the lru_cache of f")]
    first = texts(f"import torch\n@{cache}\ndef f(x):\n    return x\n", "user-leak", own)[0]
    assert "lru_cache(maxsize=4)\ndef f" in first


def test_a_copy_of_a_model_goes_to_the_cpu_as_it_is():
    text = "import copy\nkept = []\nfor x in data:\n    kept.append((1, copy.deepcopy(model)))\nprint(kept)\n"
    changed = texts(text, "user-leak", [keeper("train.py:4 <module>", "kept")])
    assert any("    kept.append((1, copy.deepcopy(model).cpu()))\n" in after for after in changed)


ONE_LINE = """import torch

for phase in phases:
    if phase == 1: loss = model(x).sum()
    elif phase == 2: loss.backward()
    else: model.eval()
    kept.append(loss)
"""


def test_a_program_with_statements_behind_its_conditions_is_read():
    own = [keeper("train.py:7 <module>", "kept", through_graph=True)]
    assert [
        after for after in texts(ONE_LINE, "user-leak", own) if "kept.append(loss.detach()" in after
    ]


def test_a_file_with_a_sum_of_very_many_terms_is_read_or_left_out(tmp_path):
    (tmp_path / "train.py").write_text(f"import torch\nx = {' + '.join(450 * ['y'])}\n")
    limit = sys.getrecursionlimit()
    read = []
    try:
        for deepest in (1000, MOST_NESTED_CALLS):
            sys.setrecursionlimit(deepest)
            read.append(sources_of(["python", "train.py"], tmp_path, []))
    finally:
        sys.setrecursionlimit(limit)
    assert [len(sources) for sources in read] == [0, 1]


def test_a_rule_that_cannot_read_a_program_is_left_out_and_named(monkeypatch, capsys):
    def unreadable(program):
        raise ValueError("no such line")
        yield

    monkeypatch.setattr("helpers.fix.candidates.SMALLER", (unreadable,))
    own = [keeper("train.py:7 <module>", "kept")]
    assert texts(ONE_LINE, "user-leak", own)
    assert (
        "unreadable could not read this program: ValueError: no such line"
        in capsys.readouterr().err
    )

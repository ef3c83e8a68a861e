"""`%vram`, `%%vram`, `%vram free` and the card under an out-of-memory, in an IPython of its own, on tensors in host memory."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock

import pytest

ROOT = Path(__file__).resolve().parents[1]
SESSION = Path(__file__).with_name("notebook_session.py")
EXTENSION = ROOT / "helpers/magics/extension"
LOAD = f"import sys; sys.path.insert(0, {str(EXTENSION)!r})\n%load_ext vram_casebook"
TORCH = "import torch"
TOO_LARGE = "torch.empty(10**15)"
pytestmark = pytest.mark.filterwarnings("ignore")

pytest.importorskip("torch", reason="the tests of the notebook's own tensors need torch")


class Sessions:
    """Notebooks without a front end: each list of cells runs in an IPython of its own."""

    def __init__(self, folder, *modules):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["IPYTHONDIR"] = str(folder)
        command = [sys.executable, str(SESSION), *modules]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )

    def run(self, *sources, folder):
        self.process.stdin.write(json.dumps({"cells": sources, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory):
    sessions = Sessions(tmp_path_factory.mktemp("ipython"), "torch")
    yield sessions
    sessions.end()


@pytest.fixture
def cells(with_torch, tmp_path):
    """What each cell showed; those that load torch and the extension come first and are left out."""
    return lambda *sources: with_torch.run(LOAD, TORCH, *sources, folder=tmp_path)[2:]


@pytest.fixture
def session(tmp_path):
    """The same in a kernel that has imported no torch."""
    sessions = Sessions(tmp_path)
    yield lambda *sources: sessions.run(*sources, folder=tmp_path)
    sessions.end()


def rows(text):
    """The rows of a printed table: name and size."""
    return dict(re.findall(r"^(\S.*?) {2,}([\d.]+ [KMG]iB)  ", text, flags=re.MULTILINE))


def test_the_card_under_an_out_of_memory_names_line_size_and_holders(cells):
    *_, failed = cells(
        "history = []\nmodel = torch.nn.Linear(500, 500)\nweights = torch.ones(1000, 1000)",
        "def step(count):\n    big = torch.ones(2000, 1000)\n    return torch.empty(count)",
        "history += [model(torch.ones(1000, 500)) for _ in range(4)]",
        "step(10**15)",
    )
    text = failed["text"]
    assert "DefaultCPUAllocator" in text, "torch's own error stays"
    assert "Out of memory: cell 4, line 3, in step() asked for 3637.98 TiB of host memory." in text
    assert "return torch.empty(count)" in text
    assert rows(text)["weights"] == "3.81 MiB"
    assert rows(text)["history"] == "15.26 MiB"
    assert (
        "list of 4; 4 tensors in history[...]; graphs of autograd keep 7.63 MiB of that" in text
    ), "the inputs of the model"
    assert "put there by cell 5, line 1" in text
    assert text.index("DefaultCPUAllocator") < text.index("Out of memory: cell"), (
        "the card comes below"
    )


def test_the_card_names_the_list_that_grows_with_each_run(cells):
    keep = "kept.append(torch.ones(500, 1000, requires_grad=True) * 2)"
    fail = "\nif len(kept) > 4:\n    raise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')"
    *_, failed = cells("kept = []", *[keep + fail] * 5)
    assert (
        "keeps 5 tensors with their graphs, 19.07 MiB (added to at cell 8, line 1)"
        in failed["text"]
    )
    assert ".detach().cpu()" in failed["text"]


def test_an_error_that_is_no_out_of_memory_gets_no_card(cells):
    (failed,) = cells("raise ValueError('the batch is out of memory of mine')")
    assert "Out of memory: " not in failed["text"]


def test_an_out_of_memory_behind_another_error_is_found(cells):
    (failed,) = cells(
        f"try:\n    {TOO_LARGE}\nexcept RuntimeError as error:\n    raise ValueError('step') from error"
    )
    assert "Out of memory: cell 3, line 2 asked for" in failed["text"]


def test_off_turns_the_card_off_and_on_again(cells):
    off, failed, on, again = cells("%vram off", TOO_LARGE, "%vram on", TOO_LARGE)
    assert "Out of memory: " not in failed["text"]
    assert "Out of memory: " in again["text"]


def test_free_lets_go_of_errors_outputs_and_circles_and_touches_no_name(cells):
    *_, before, freed, after = cells(
        "mine = torch.ones(1000, 1000)",
        "torch.ones(2000, 1000)",
        "import gc; gc.disable()\nclass Node: pass\na, b = Node(), Node()\na.b, b.a = b, a\na.big = torch.ones(3000, 1000)\ndel a, b",
        "def work():\n    local = torch.ones(4000, 1000)\n    raise ValueError('no')",
        "work()",
        "%vram",
        "%vram free",
        "%vram",
    )
    assert rows(before["text"]) == {
        "the last error": "15.26 MiB",
        "objects without a name": "11.44 MiB",
        "Out[4]": "7.63 MiB",
        "mine": "3.81 MiB",
    }
    assert "34.33 MiB on cpu came back." in freed["text"]
    assert "Let go: the last error, Out[4]." in freed["text"]
    assert rows(after["text"]) == {"mine": "3.81 MiB"}


def test_a_name_is_deleted_only_if_it_is_said(cells):
    _, wrong, freed, left = cells(
        "big = torch.ones(1000, 1000)\nsmall = torch.ones(600, 1000)",
        "%vram free bog",
        "%vram free big",
        "print('big' in dir(), 'small' in dir())",
    )
    assert "%vram free: seen bog; expected the name of a variable" in wrong["text"]
    assert "3.81 MiB on cpu came back." in freed["text"]
    assert left["text"].startswith("False True")


def test_an_output_that_is_a_named_variable_stays_the_variable(cells):
    *_, freed, left = cells("x = torch.ones(1000, 1000)\nx", "%vram free", "print(x.shape)")
    assert "Nothing came back." in freed["text"]
    assert "1000, 1000" in left["text"]


def test_a_measured_cell_says_peak_and_what_it_keeps_by_line(cells):
    (measured,) = cells(
        "%%vram\nkept = []\nfor _ in range(3):\n    a = torch.ones(1000, 1000)\n    b = a * 2\n    kept.append(b)\ndel a, b",
    )
    assert "At its peak this cell had 15.26 MiB on cpu more than before." in measured["text"]
    assert "Of that it keeps 11.44 MiB on cpu." in measured["text"]
    assert re.search(r"^cpu +7.63 MiB +11.44 MiB  cell 3, line 5$", measured["text"], re.M)


def test_a_measured_cell_that_fails_keeps_its_traceback_and_its_card(cells):
    (measured,) = cells(f"%%vram\nx = torch.ones(1000, 1000)\n{TOO_LARGE}")
    assert "DefaultCPUAllocator" in measured["text"]
    assert "Out of memory: " in measured["text"]
    assert "At its peak this cell had 3.81 MiB" in measured["text"]


def test_a_kernel_without_torch_is_told_so(session):
    *_, listed, measured = session(LOAD, "%vram", "%%vram\nx = 1\nprint(x)")
    assert "torch has not been imported in this notebook" in listed["text"]
    assert "1\n" in measured["text"]


def test_loading_it_imports_no_torch_and_no_package_named_helpers(session, tmp_path):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers/__init__.py").write_text(
        "raise ImportError('this is the notebook\\'s own folder')\n"
    )
    _, names, listed = session(
        "import sys; sys.path.insert(0, '.')\n" + LOAD,
        "print([name for name in sys.modules if name == 'helpers' or name == 'torch' or name.startswith('torch.')])",
        "import torch\nx = torch.ones(1000, 1000)\n%vram",
    )
    assert names["text"].startswith("[]")
    assert rows(listed["text"]) == {"x": "3.81 MiB"}


def test_the_package_loads_it_by_its_own_name(session):
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n%load_ext helpers"
    _, listed = session(path, "import torch\nx = torch.ones(1000, 1000)\n%vram")
    assert rows(listed["text"]) == {"x": "3.81 MiB"}


def test_unloading_takes_the_command_and_the_look_away(cells):
    _, gone, failed = cells("%unload_ext vram_casebook", "%vram", TOO_LARGE)
    assert "not found" in gone["text"]
    assert "Out of memory: " not in failed["text"]


HOSTILE = """
import weakref
class Hostile:
    def __repr__(self): raise SystemExit('repr')
    __str__ = __repr__
    def __getattr__(self, name): raise RuntimeError('getattr')
    def __len__(self): raise RuntimeError('len')
    def __eq__(self, other): raise RuntimeError('eq')
    __hash__ = object.__hash__
    @property
    def value(self): raise RuntimeError('property')
class Shapeless(torch.Tensor):
    @property
    def shape(self): raise RuntimeError('shape')
hostile = Hostile()
hostile.tensor = torch.ones(1000, 1000)
proxy = weakref.proxy(hostile)
gone = weakref.proxy(Hostile())
class Long(list):
    def __len__(self): raise RuntimeError('len')
long = Long([torch.ones(600, 1000)])
"""
CIRCLE = """
nodes = [[] for _ in range(100_000)]
for index, node in enumerate(nodes):
    node.append(nodes[index - 1]); node.append(nodes)
nodes[-1].append(torch.ones(1000, 1000))
"""


def test_objects_that_refuse_every_question_are_listed(cells):
    _, listed, failed, freed = cells(HOSTILE, "%vram", TOO_LARGE, "%vram free hostile")
    assert rows(listed["text"])["hostile"] == "3.81 MiB"
    assert rows(listed["text"])["long"] == "2.29 MiB"
    assert "Out of memory: " in failed["text"]
    assert "no answer" not in listed["text"] + failed["text"] + freed["text"]


def test_a_circle_of_a_hundred_thousand_objects_is_walked(cells):
    _, listed = cells(CIRCLE, "%vram")
    (row,) = rows(listed["text"]).items()
    name, size = row
    assert name in ("nodes", "node", "not looked at in time")
    assert size == "3.81 MiB"


def longest_look(seconds):
    return f"import vram_casebook\nvram_casebook._module('holdings').LONGEST_LOOK_S = {seconds}"


def test_a_look_that_stops_says_after_how_long_and_at_how_many_tensors(cells):
    kept = "kept = [torch.ones(600, 1000) for _ in range(3)]"
    _, _, listed = cells(longest_look(0), kept, "%vram")
    assert rows(listed["text"]) == {"not looked at in time": "6.87 MiB"}
    text = " ".join(listed["text"].split())
    assert re.search(r"stopped after \d\.\d s of work, when names had led to 0 of 3 tensors", text)


def test_many_tensors_in_a_circle_without_a_name_are_counted_and_let_go(cells):
    circle = (
        "import gc; gc.disable()\nclass Node: pass\nbase = torch.ones(600, 1000)\n"
        "nodes = [Node() for _ in range(30_000)]\n"
        "for index, node in enumerate(nodes):\n    node.next = nodes[index - 1]; node.part = base[:9]\n"
        "del nodes, node, base"
    )
    _, _, listed, freed = cells(longest_look(60), circle, "%vram", "%vram free")
    assert rows(listed["text"]) == {"objects without a name": "2.29 MiB"}
    assert "30,001 tensors that no name leads to" in listed["text"]
    assert "2.29 MiB on cpu came back." in freed["text"]


def test_a_tensor_that_only_a_library_keeps_is_not_called_one_of_a_graph(cells):
    *_, listed = cells(
        "import ctypes\nimage = torch.ones(600, 1000)",
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(image)); del image",
        "%vram",
    )
    assert rows(listed["text"]) == {"a library": "2.29 MiB"}
    assert "1 tensor that no known object refers to" in listed["text"]


def test_what_was_not_looked_at_in_time_is_counted_once():
    from types import SimpleNamespace

    from helpers.allocator.under_torch.keepers import Storage
    from helpers.magics import holdings

    storage = Storage(SimpleNamespace(device="cuda:0"), address=512, bytes=100, has_graph=False)
    (holder,) = holdings._without_a_name({1: storage, 2: storage}, set(), complete=False)
    assert holder.bytes == {"cuda:0": 100}
    assert holder.addresses == {512}, (
        "a block of the allocator at that address is not counted again"
    )


def test_a_card_that_does_not_answer_is_one_line(cells):
    lost = "def lost(*a): raise RuntimeError('CUDA error: the GPU is lost')"
    lost += "\ntorch.cuda.is_initialized = lambda: True\ntorch.cuda.device_count = lost"
    _, listed, plain = cells(lost, "%vram", "print(1 + 1)")
    assert "the GPU is lost" in listed["text"]
    assert "Traceback" not in listed["text"]
    assert "Traceback" not in plain["text"]


def test_arrays_of_another_library_are_named_and_not_counted(cells):
    fake = "import types\nArray = type('ndarray', (), {'__module__': 'cupy', 'shape': (3,)})\nframes = Array()"
    _, listed = cells(fake, "%vram")
    assert "Arrays of other libraries are not counted: frames." in listed["text"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_card_fits_the_width_of_the_terminal(width):
    from helpers.magics.view import Card, Table

    rows = [
        (
            "history",
            "3.75 GiB",
            "cuda:0",
            "list of 30; 30 tensors in it\nalso reached from the last error",
        ),
        ("the_last_batch", "64.00 MiB", "cuda:0", "tensor float32, 4,096 x 4,096, with graph"),
    ]
    table = Table(("name", "size", "on", "what"), rows, numbers=frozenset([1]))
    step = "history keeps 30 tensors with their graphs: keep numbers (.item()), or only the last."
    card = Card("Out of memory: " + step, sentences=[step], table=table, steps=[step], foot=step)
    lines = card.words(width).splitlines()
    assert max(map(len, lines)) <= width
    assert [word for line in lines for word in line.split()] == card.words().split()


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = set()
        self.attributes = set()
        self.styles = []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attributes)
        self.styles += [value for name, value in attributes if name == "style"]


def test_nothing_of_the_notebook_becomes_markup(cells):
    name = "class Evil: pass\nEvil.__name__ = '<script>alert(1)</script>'\nevil = Evil()\nevil.x = torch.ones(1000, 1000)"
    _, listed = cells(name, "%vram")
    parser = Tags()
    parser.feed(listed["html"])
    assert "script" not in parser.tags
    assert "&lt;script&gt;" in listed["html"]


def test_a_card_needs_no_script_and_nothing_of_a_front_end(cells):
    *_, failed = cells("kept = [torch.ones(600, 1000) for _ in range(9)]", SMALL_CARD)
    parser = Tags()
    parser.feed(failed["html"])
    assert parser.tags == set("b code div li ol table tbody td th tr".split())
    assert parser.attributes == {"style"}
    styles = " ".join(parser.styles)
    assert "url(" not in styles
    variables = re.findall(r"var\(([^()]*)\)", styles)
    assert variables, "JupyterLab's font"
    assert all("," in variable for variable in variables), "other front ends have none of these"


def test_a_measured_cell_is_run_as_any_other(cells):
    quiet, awaited, failed, *_, inner = cells(
        "%%vram\n'silenced';",
        "%%vram\nimport asyncio\nawait asyncio.sleep(0)\na = torch.ones(1000, 1000)\na.shape",
        "%%vram\nb = torch.ones(1000, 1000)\n1 / 0",
        "x = 1",
        "%%time\n%%vram\nc = torch.ones(1000, 1000)",
    )
    assert "silenced" not in quiet["text"]
    assert "cell 4, line 4" in awaited["text"]
    assert "torch.Size([1000, 1000])" in awaited["text"]
    assert "Cell In[5], line 3" in failed["text"]
    assert "cell 5, line 2" in failed["text"].rpartition("kept  line")[2]
    assert "At its peak this cell had 3.81 MiB on cpu" in inner["text"]
    assert "Wall time" in inner["text"]


def test_names_may_be_separated_by_commas(cells):
    *_, freed, left = cells(
        "x = torch.ones(1000, 1000); y = torch.ones(1000, 1000)",
        "%vram free x, y;",
        "print('x' in globals(), 'y' in globals())",
    )
    assert "7.63 MiB on cpu came back." in freed["text"]
    assert "False False" in left["text"]


REFUSING = """
import sys, threading, types
class Meta(type):
    def __getattribute__(self, name): raise RuntimeError('metaclass')
class OfMeta(metaclass=Meta):
    def __init__(self): self.t = torch.ones(3_000_000)
class NoClass:
    @property
    def __class__(self): raise RuntimeError('no class')
    def __init__(self): self.t = torch.ones(2_000_000)
class NoFunction(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *a, **k): raise RuntimeError('no function')
of_meta, no_class = OfMeta(), NoClass()
no_function = torch.Tensor._make_subclass(NoFunction, torch.ones(1_000_000))
from torch._subclasses.fake_tensor import FakeTensorMode
fake = FakeTensorMode().from_tensor(torch.ones(1_000_000))
def work(until):
    mine = torch.ones(4_000_000)
    until.wait()
until = threading.Event()
thread = threading.Thread(target=work, args=(until,), daemon=True, name='loader')
thread.start()
import time; time.sleep(0.5)
module = types.ModuleType('refusing')
exec("def __getattr__(name): raise RuntimeError('module')", vars(module))
sys.modules['refusing'] = module
"""


def test_classes_modules_and_threads_of_any_kind_are_walked(cells):
    _, listed, _ = cells(REFUSING, "%vram", "until.set()")
    assert rows(listed["text"]) == {
        "thread loader": "15.26 MiB",
        "of_meta": "11.44 MiB",
        "no_class": "7.63 MiB",
        "no_function": "3.81 MiB",
    }
    assert "Warning" not in listed["text"]


def test_a_kept_exception_is_listed_by_its_name(cells):
    _, failed = cells(
        "def load():\n    rows = torch.ones(2000, 1000)\n    raise ValueError('labels')\n"
        "try:\n    load()\nexcept ValueError as error:\n    kept = error",
        TOO_LARGE,
    )
    assert re.search(
        r"^kept +7.63 MiB .*exception ValueError; 1 tensor in rows", failed["text"], re.M
    )


def test_what_a_module_of_the_person_keeps_is_emptied_in_the_module(cells, tmp_path):
    (tmp_path / "store.py").write_text(
        "import torch\nCACHE = {}\ndef put(key):\n    CACHE[key] = torch.ones(1000, 1000)\n"
    )
    *_, freed, emptied, left = cells(
        "sys.path.insert(0, '.')\nfrom store import put\nput(1); put(2)",
        "%vram free",
        "import store; store.CACHE.clear()",
        "%vram",
    )
    assert "import store; store.CACHE.clear()" in freed["text"]
    assert "store.CACHE" not in left["text"]


def test_a_module_of_a_package_is_named_as_it_is_imported(cells, tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").write_text("")
    (tmp_path / "shop/store.py").write_text("import torch\nCACHE = [torch.ones(1000, 1000)]\n")
    *_, freed, emptied, left = cells(
        "sys.path.insert(0, '.')\nimport shop.store",
        "%vram free",
        "import shop.store; shop.store.CACHE.clear()",
        "%vram",
    )
    assert "let go with: import shop.store; shop.store.CACHE.clear()" in freed["text"]
    assert "CACHE" not in left["text"]


def test_a_list_of_losses_is_the_first_step_though_only_their_graphs_are_large(cells):
    *_, failed = cells(
        "net = torch.nn.Linear(500, 500)\nlosses = []",
        "for _ in range(4):\n    out = net(torch.ones(1000, 500)).relu()\n    losses.append((out * 2).relu().sum())",
        "raise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')",
    )
    first = re.search(r"^  1\. .*(?:\n     .*)*", failed["text"], re.M)[0]
    assert "losses keeps 4 tensors with their graphs" in first
    assert "(added to at cell 4, line 3)" in first


SMALL_CARD = "raise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')"


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

    from helpers.magics import cards, failure
    from helpers.magics.devices import DeviceUse
    from helpers.magics.holdings import Holdings

    gib = 1 << 30
    failed = failure.Failure(
        "cell 2, line 1",
        "x = [torch.empty(n) for _ in range(9)]",
        gib,
        "cuda:0",
        Holdings([], []),
    )
    failed.use = DeviceUse("cuda:0", gib, 6 * gib, 0, 8 * gib)
    failed.allocated, failed.in_pieces = 6 * gib, 1 << 20
    steps = list(failure._steps(failed))
    assert not [step for step in steps if "in pieces" in step]
    assert "the failed line had 5.00 GiB of its own" in cards.of_failure(failed).words()
    scattered = dataclasses.replace(failed, in_pieces=2 * gib)
    assert [step for step in failure._steps(scattered) if "had 2.00 GiB in pieces" in step]


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
    from helpers.magics.failure import _step_of_holder
    from helpers.magics.holdings import Holder

    holder = Holder("loss", "variable", graph_bytes={"cuda:0": 1 << 20})
    assert _step_of_holder(holder, Mock()) == ""

"""`%vram`, `%%vram`, `%vram free` and the card under an out-of-memory, in an IPython of its own, on tensors in host memory."""

import re
from html.parser import HTMLParser

import pytest
from notebook_cells import LOAD, ROOT, SMALL_CARD, rows

TOO_LARGE = "torch.empty(10**15)"
pytestmark = pytest.mark.filterwarnings("ignore")

pytest.importorskip("torch", reason="the tests of the notebook's own tensors need torch")


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

    from helpers.allocator.under_torch.storages import Storage
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
    from helpers.magics.view import Notice, Table

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
    card = Notice("Out of memory: " + step, sentences=[step], table=table, steps=[step], foot=step)
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

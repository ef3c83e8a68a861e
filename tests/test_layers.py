"""Imports go one way, what runs on the user's Python stays light, and importing the package costs next to nothing."""

import ast
import graphlib
import importlib
import itertools
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from pythons import starts

ROOT = Path(__file__).resolve().parents[1]
HELPERS = ROOT / "helpers"

# What each room may import of the others. The core stands from the ground floor up to tell; the rooms
# beside it know the core, and the core does not know them. A room that is not named here is an error.
CORE = {"ground", "look", "settings", "judge", "tell"}
MAY_IMPORT = {
    "": {"cli"},
    "ground": set(),
    "look": {"ground"},
    "settings": {"ground", "look"},
    "judge": {"ground", "look", "settings"},
    "tell": CORE,
    "allocator": CORE,
    "trials": {*CORE, "allocator"},
    "rehearse": {*CORE, "allocator", "trials"},
    "fix": {*CORE, "allocator", "rehearse", "trials"},
    "fits": {*CORE},
    "vpoc": {*CORE, "trials"},
    "batch": {*CORE, "trials"},
    "share": {*CORE, "allocator", "batch"},
    "magics": {"ground", "allocator"},
}
MAY_IMPORT[""] |= {"magics"}
MAY_IMPORT["agent"] = {"ground", "look"}
MAY_IMPORT["face"] = {*MAY_IMPORT} - {"", "cli", "magics", "agent"}
MAY_IMPORT["commands"] = set(MAY_IMPORT)
MAY_IMPORT["cli"] = {"commands", "look", "ground"}


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", "")


MODULES = {module_name(path): path for path in sorted(HELPERS.rglob("*.py"))}


def imports(path):
    """Full names of all that a file imports, also inside functions."""
    name = module_name(path).split(".")
    package = name if path.name == "__init__.py" else name[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join(base + (node.module.split(".") if node.module else []))
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else base for name in names)


@cache
def imported():
    return {name: set(imports(path)) for name, path in MODULES.items()}


def layer(name):
    return "" if name in ("helpers", "helpers.__main__") else name.split(".")[1]


def test_a_layer_imports_only_the_layers_below_it():
    wrong = [
        (name, other)
        for name, others in imported().items()
        for other in others & MODULES.keys() - {"helpers"}
        if layer(other) not in MAY_IMPORT[layer(name)] | {layer(name)}
    ]
    assert wrong == []


def test_the_figure_of_the_rooms_shows_what_imports_what():
    figure = (ROOT / "CONTRIBUTING.md").read_text().split("graph TD\n")[1].split("```")[0]
    below = {}
    for line in figure.splitlines():
        steps = [step.split(" & ") for step in line.strip().split(" --> ")]
        for upper, lower in itertools.pairwise(steps):
            for room in upper:
                below.setdefault(room, set()).update(lower)
    reached = {"ground": set()}
    for room in graphlib.TopologicalSorter(below).static_order():
        direct = below.get(room, set())
        reached[room] = direct.union(*(reached[lower] for lower in direct))
    assert reached.keys() == MAY_IMPORT.keys() - {"", "cli"}
    used = {room: set() for room in reached}
    for name, others in imported().items():
        for other in others & MODULES.keys() - {"helpers"}:
            if layer(name) in reached and layer(other) != layer(name):
                used[layer(name)].add(layer(other))
    for room, lower in used.items():
        assert lower <= reached[room], room
        assert below.get(room, set()) <= lower, room


def test_files_import_each_other_in_no_circle():
    graph = {name: others & MODULES.keys() - {name} for name, others in imported().items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) == MODULES.keys()


def test_torch_is_imported_only_on_torchs_side():
    outside = {name: others for name, others in imported().items() if ".under_torch" not in name}
    tops = {name: {other.split(".")[0] for other in others} for name, others in outside.items()}
    assert {name: top for name, top in tops.items() if top & {"torch", "amdsmi"}} == {}


# Which modules run on a user's own Python, and from which version on. PyYAML is for what only the workbook's views show.
OWN = {
    "*.py": (3, 8),
    "ground/*.py": (3, 8),
    "look/*.py": (3, 8),
    "judge/*.py": (3, 8),
    "settings/*.py": (3, 8),
    "batch/box_state.py": (3, 8),
    "batch/clean.py": (3, 8),
    "batch/kernel_errors.py": (3, 8),
    "batch/look_shapes.py": (3, 8),
    "trials/targets.py": (3, 8),
    "commands/gone.py": (3, 8),
    "commands/use.py": (3, 8),
    "commands/options.py": (3, 8),
    "commands/signs.py": (3, 8),
    "commands/diagnose.py": (3, 8),
    "commands/gate.py": (3, 8),
    "*/under_torch/*.py": (3, 9),
    "magics/*.py": (3, 9),
}
OPTIONAL = {
    "magics/*.py": {"IPython"},
    "look/*.py": {"pynvml"},
    "*/under_torch/*.py": {"torch"},
    "judge/*.py": {"yaml"},
}


@pytest.mark.parametrize("these", OWN)
def test_what_runs_on_the_users_python_uses_the_standard_library_alone(these):
    allowed = set(sys.stdlib_module_names) | {"helpers"} | OPTIONAL.get(these, set())
    for path in HELPERS.glob(these):
        outside = {name.split(".")[0] for name in imports(path)} - allowed
        assert not outside, f"{path.name} imports {outside}"


@pytest.mark.parametrize("these", OWN)
def test_what_runs_on_the_users_python_parses_on_its_oldest(these):
    for path in HELPERS.glob(these):
        ast.parse(path.read_text(), feature_version=OWN[these])


ASK = """import importlib, sys
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except Exception as error:
        print(name, repr(error))
"""


def test_what_diagnose_needs_imports_on_the_oldest_python_without_packages():
    place = starts("python3.8")
    if not place:
        pytest.skip("no python3.8 here")
    names = [
        module_name(path)
        for these, oldest in OWN.items()
        if oldest == (3, 8)
        for path in sorted(HELPERS.glob(these))
        if path.stem != "__main__"
    ]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + ASK
    done = subprocess.run(
        [place, "-I", "-S", "-B", "-c", code],
        input="\n".join([*names, "helpers.tell.verdict"]),
        capture_output=True,
        text=True,
        check=True,
    )
    failed = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert failed == {}


def test_importing_the_package_imports_no_heavy_package():
    code = (
        "import sys; before = set(sys.modules); import helpers; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "['helpers']"


def test_the_checkouts_helpers_win_over_another_package_of_that_name(tmp_path):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("raise SystemExit('the other helpers')\n")
    out = subprocess.run(
        [sys.executable, str(HELPERS / "__main__.py"), "boxes"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert "cpu-only" in out.stdout


def test_every_file_is_as_the_formatter_writes_it():
    beside = str(Path(sys.executable).parent)
    ruff = shutil.which("ruff", path=beside) or shutil.which("ruff")
    if not ruff:
        pytest.skip("no ruff here")
    done = subprocess.run(
        [ruff, "format", "--check", "--no-cache", "--quiet", "helpers", "tests", "env"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, "make check: ruff format " + done.stdout


def test_a_file_is_small_enough_to_read():
    files = [*HELPERS.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    sizes = {str(path): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in sizes.items() if lines > 800} == {}


@pytest.mark.parametrize("room", sorted(path.parent.name for path in HELPERS.glob("*/__init__.py")))
def test_every_name_that_a_room_offers_can_be_imported(room):
    package = importlib.import_module(f"helpers.{room}")
    missing = [name for name in getattr(package, "__all__", ()) if not hasattr(package, name)]
    assert missing == []

"""Imports go one way, look and torchside stay light, and importing the package costs next to nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HELPERS = ROOT / "helpers"
SHAPES = "helpers.run.shapes"

# What each layer may import of the others. Shapes is a floor of its own: any layer above look and allocator may use it.
MAY_IMPORT = {
    "look": set(),
    "allocator": set(),
    "torchside": set(),
    "judge": {"look", "allocator"},
    "load": {"look", "allocator", "judge"},
    "run": {"look", "allocator", "judge", "load"},
    "tell": {"look", "allocator", "judge", "load", "run"},
}


def modules():
    return sorted(path for path in HELPERS.rglob("*.py"))


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(path):
    """Full names of all modules that a file imports, also inside functions."""
    name = module_name(path).split(".")
    package = name if path.name == "__init__.py" else name[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            yield ".".join(base)
            yield from (".".join([*base, alias.name]) for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_a_layer_imports_only_the_layers_below_it(path):
    parts = module_name(path).split(".")
    layer = parts[1] if len(parts) > 1 else ""
    if layer not in MAY_IMPORT:
        return
    allowed = MAY_IMPORT[layer] | {layer}
    for imported in imports(path):
        if imported == SHAPES or imported.startswith(SHAPES + "."):
            assert layer not in ("look", "allocator", "torchside"), f"{path.name} imports {imported}"
            continue
        if imported.startswith("helpers.") and imported not in ("helpers.run", "helpers.look"):
            assert imported.split(".")[1] in allowed | {"__version__"}, f"{path.name} imports {imported}"


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_torch_is_imported_only_on_torchs_side(path):
    if "torchside" not in path.parts:
        assert not {name for name in imports(path) if name.split(".")[0] in ("torch", "amdsmi")}


@pytest.mark.parametrize("folder", ["look", "torchside"])
def test_look_and_torchside_use_the_standard_library_alone(folder):
    allowed = set(sys.stdlib_module_names) | {"helpers"}
    optional = {"look": {"zstandard", "pynvml"}, "torchside": {"torch"}}[folder]
    for path in (HELPERS / folder).glob("*.py"):
        outside = {name.split(".")[0] for name in imports(path)} - allowed - optional
        assert not outside, f"{path.name} imports {outside}"


@pytest.mark.parametrize(("folder", "oldest"), [("look", (3, 8)), ("torchside", (3, 9))])
def test_what_runs_on_the_users_python_parses_on_its_oldest(folder, oldest):
    for path in (HELPERS / folder).glob("*.py"):
        ast.parse(path.read_text(), feature_version=oldest)


def test_importing_the_package_imports_no_heavy_package():
    code = ("import sys; before = set(sys.modules); import helpers; "
            "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))")
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['helpers']"


def test_the_checkouts_helpers_win_over_another_package_of_that_name(tmp_path):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("raise SystemExit('the other helpers')\n")
    out = subprocess.run([sys.executable, str(HELPERS / "__main__.py"), "boxes"], cwd=tmp_path, capture_output=True, text=True,
                         check=False)
    assert out.returncode == 0, out.stderr
    assert "cpu-only" in out.stdout


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_a_module_is_small_enough_to_read(path):
    assert len(path.read_text().splitlines()) <= 340

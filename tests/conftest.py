"""The checkout stands first on sys.path, here and in every kernel and child, also where another package named helpers is."""

import os
import signal
import sys
from pathlib import Path

import pytest
from examples import PROFILE, examples
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "tests"))
sys.path.insert(2, str(ROOT / "env"))
os.environ["PYTHONPATH"] = str(ROOT)

# Tests send these to children, which inherit what is ignored here: by nohup, or in the background of a script.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A run of the tests is repeatable: what hypothesis tries does not change from run to run, unless it searches for what nobody has
# met yet (HYPOTHESIS_PROFILE=searching).
settings.register_profile(
    PROFILE,
    max_examples=examples(100),
    derandomize=PROFILE != "searching",
    deadline=None,
)
settings.load_profile(PROFILE)

# Misbehaving fixtures of the engine's tests: nbval would run them, and one kills the process that started it.
collect_ignore = ["notebooks"]


@pytest.fixture
def share_command(capsys):
    """The command share: its exit code, what it printed and what it said on stderr."""
    from helpers import cli
    from helpers.commands.share import share

    parser, _ = cli.parsers("share")

    def call(*words):
        arguments = parser.parse_args(["share", *map(str, words)])
        return share(arguments), *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def example_batch(tmp_path_factory):
    """A batch of runs in five states with a torn record, to be read or copied, never changed."""
    from tell_boxes import batch

    return batch(tmp_path_factory.mktemp("example") / "20261121-quick")


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory):
    """Notebooks whose kernel has imported torch."""
    from notebook_cells import Sessions

    sessions = Sessions(tmp_path_factory.mktemp("ipython"), "torch")
    yield sessions
    sessions.end()


@pytest.fixture
def cells(with_torch, tmp_path):
    """What each cell showed; those that load torch and the extension come first and are left out."""
    from notebook_cells import LOAD, TORCH

    return lambda *sources: with_torch.run(LOAD, TORCH, *sources, folder=tmp_path)[2:]


@pytest.fixture
def session(tmp_path):
    """Notebooks whose kernel has imported no torch."""
    from notebook_cells import Sessions

    sessions = Sessions(tmp_path)
    yield lambda *sources: sessions.run(*sources, folder=tmp_path)
    sessions.end()

"""Starts the recorder in every Python of a recorded program, when and only when that Python
imports torch.

Python imports a module of this name at its start (docs of the site module); `record` puts this
folder first on PYTHONPATH. It takes the folder out of sys.path again at once, and runs the
program's own sitecustomize as if this one were not there. A Python that never imports torch has
one more entry in sys.meta_path, an os.putenv that notes which lines set the allocator's variables,
and one empty file that says that it was reached. In a rehearsed program there is also the witness
(helpers/rehearse/under_torch/witness.py), whether it imports torch or not.

Read by any Python 3: no annotation of a variable, no f-string, and annotations of functions that
older releases cannot evaluate are in quotes.
"""

import importlib.machinery
import importlib.util
import os
import sys
import types

TYPE_CHECKING = False  # at each start of a Python, importing typing costs too much
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helpers.allocator.under_torch.recorder import Recorder

    Text = str | bytes | os.PathLike[str] | os.PathLike[bytes]

FOLDER = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 9)  # Python that the recorder runs under
# The recorder's modules get this name in place of helpers.allocator.under_torch: the program may
# have a package named helpers.
PACKAGE = "_casebook_under_torch"
WITNESS = None  # type: types.ModuleType | None
"""The module witness, in a rehearsed program."""


class AtTorch:
    """A finder of modules that waits for the import of torch. It leaves the finding to the other
    finders, and starts the recorder when the module that they find is executed.
    """

    def __init__(self, start_recorder: "Callable[[], Recorder | None]") -> None:
        self.start_recorder = start_recorder
        self.busy = False

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "types.ModuleType | None" = None,
    ) -> "importlib.machinery.ModuleSpec | None":
        """Python asks this for each module that it imports. None leaves it to the other finders;
        for torch it is what these find, with a loader that starts the recorder.
        """
        if name != "torch" or self.busy:
            return None
        # The search below asks all finders, this one too: it then answers None.
        self.busy = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.busy = False
        loader = getattr(spec, "loader", object())
        if not hasattr(loader, "exec_module"):
            # no torch, or a loader of a kind that cannot be changed
            return None
        execute = loader.exec_module

        # Only when it is executed: a program that asks whether it has torch calls find_spec, too.
        def exec_module(module: types.ModuleType) -> None:
            """Execute torch as its loader does, with the recorder started before."""
            recorder = self.start_recorder()
            if WITNESS is not None:
                WITNESS.torch_begins()
            try:
                execute(module)
            except BaseException as error:
                if recorder is not None:
                    recorder.torch_failed(error)
                raise
            finally:
                sys.meta_path[:] = [
                    finder for finder in sys.meta_path if finder is not self
                ]
            # torch reads its own source through its loader: make that as it was.
            del loader.exec_module
            torch_imported(recorder, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return None  # a loader that cannot be changed: nothing is recorded
        return spec


def own_module(name: str) -> types.ModuleType:
    """A module of the recorder or of a rehearsal, imported under the name PACKAGE."""
    if PACKAGE not in sys.modules:
        package = sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
        # folders of a rehearsal's modules
        more = os.environ.get("CASEBOOK_PROGRAMS", "")
        package.__path__ = [
            os.path.dirname(FOLDER),
            *filter(None, more.split(os.pathsep)),
        ]
    return importlib.import_module(PACKAGE + "." + name)


def start_recorder() -> "Recorder | None":
    """The recorder of this process; None where it cannot start: a file PID-VERSION.failed then says
    why. Nothing is raised into the program.
    """
    try:
        recorder = own_module("recorder").from_environment()  # type: Recorder
    except Exception as error:  # noqa: BLE001 - a recorder that cannot start must not cost the program its torch
        announce(".failed", type(error).__name__ + ": " + str(error))
        return None
    return recorder


def torch_imported(recorder: "Recorder | None", module: types.ModuleType) -> None:
    """Tells recorder and witness that torch is imported."""
    if recorder is not None:
        recorder.torch_imported(module)
    if WITNESS is not None:
        start_witness(WITNESS, module)


def start_witness(witness: types.ModuleType, module: types.ModuleType) -> None:
    """Starts the witness of a rehearsal with torch; as with the recorder, nothing is raised into
    the program.
    """
    try:
        witness.torch_imported(module)
        own_module("values").start(module, witness)
    except Exception as error:  # noqa: BLE001 - private parts of a torch that nobody knows yet
        announce(".failed", type(error).__name__ + ": " + str(error))


def announce(ending: str, text: str = "") -> bool:
    """Writes a small file into the folder of the recording, which recorded_processes.collect reads.
    Its name is the process id, the version of its Python, and ``ending``, or ".too-old" in place of
    that.

    Returns whether the process can be recorded: there is a recording whose folder can be written
    to, and the Python is new enough.
    """
    if not os.environ.get("CASEBOOK_RECORD"):
        return False
    import json

    is_new_enough = sys.version_info[:2] >= OLDEST
    if not is_new_enough:
        ending = ".too-old"
    version = ".".join(map(str, sys.version_info[:3]))
    name = str(os.getpid()) + "-" + version + ending
    try:
        folder = json.loads(os.environ["CASEBOOK_RECORD"])["folder"]
        with open(os.path.join(folder, name), "a", opener=open_for_its_owner) as file:
            file.write(text)
    except (OSError, ValueError, KeyError):
        return False  # the folder went away: there is nowhere to record to
    return is_new_enough


def open_for_its_owner(path: str, flags: int) -> int:
    """An opener, as of ``open``, of a file that only its owner may read."""
    return os.open(path, flags, 0o600)


def watch_the_allocators_variables() -> None:
    """From now on note the lines of the program that set the allocator's variables."""
    set_variable = os.putenv

    def putenv(name: "Text", value: "Text") -> None:
        """os.environ calls it for each assignment."""
        set_variable(name, value)
        words = os.fsdecode(name)
        # A part of each name that allocator_variables.NAME matches: others need no import.
        if "CONF" in words.upper() or "LOC" in words.upper():
            variables = own_module("allocator_variables")
            caller = sys._getframe(1)
            variables.note(words, os.fsdecode(value), caller)

    os.putenv = putenv


def run_the_programs_own() -> None:
    """Runs the sitecustomize that is found without this one, if there is one. The site module
    reports what it raises, as without a recorder.
    """
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def begin() -> None:
    """Watch this process until it imports torch. A Python that cannot be recorded (``announce``)
    stays as it is.
    """
    global WITNESS
    if announce(".reached"):
        watch_the_allocators_variables()
        sys.meta_path.insert(0, AtTorch(start_recorder))
    if "CASEBOOK_REHEARSE" in os.environ and sys.version_info[:2] >= OLDEST:
        WITNESS = own_module("witness").start(own_module("private_files").replacing)


sys.path[:] = [
    entry for entry in sys.path if os.path.abspath(entry or os.curdir) != FOLDER
]
if __name__ == "sitecustomize":  # else a fork begins (forking.py)
    begin()
    run_the_programs_own()

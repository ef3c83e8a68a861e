"""The verbs: what each needs of .venv, and the command it becomes."""

from __future__ import annotations

import getpass
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import SetupError, WrongUse, offline, torch_build, venv
from .call import Call
from .ready import ready
from .stamp import read as read_stamp

COPIES = "outputs/lab"
PRESS = "Run > Run All Cells"
TO_START = f"**To start: {PRESS}.** This copy is yours to change, and looks at this machine."
CLOSE_TESTS = ("tests/test_layers.py", "tests/test_docs.py")
SAY_LAST = "CASEBOOK_SAY_LAST"
OF_BATCHES = ("diagnose", "overnight")
LAB_PORTS = range(8888, 8988)
QUIET_LAB = (
    "--ServerApp.log_level=WARN",  # its own address is without the token, and would be the last that is read
    "--LabApp.log_level=WARN",
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)


def program(*argv: str) -> Callable[[Call], int]:
    """A verb that becomes this command of .venv's Python, with the verb's own arguments behind it."""
    return lambda call: call.become(*argv, *call.arguments)


def check(call: Call) -> int:
    """Style, types, layers and docs; every one runs, also after one has failed."""
    close = [path for path in CLOSE_TESTS if (call.root / path).exists()]
    commands = {
        "ruff": ["-m", "ruff", "check", "."],
        "format": ["-m", "ruff", "format", "--check", "."],
        "mypy": ["-m", "mypy"],
        "layers and docs": ["-m", "pytest", "-q", *close] if close else [],
    }
    failed = []
    for name, argv in commands.items():
        print(f"== {name}", flush=True)
        if argv and call.call(*argv):
            failed.append(name)
    print(f"check: {', '.join(failed)} failed" if failed else "check: all passed")
    return 1 if failed else 0


def working_copies(root: Path) -> list[Path]:
    """Copies of the notebooks that look at this machine, and of the cases as they are, for exploring; one that is
    there already is yours and stays.

    So an autosave changes none of the committed notebooks, which hold what was found on recorded boxes.
    """
    copies = []
    made = root / ".venv" / "pyvenv.cfg"
    found = re.search(r"(?m)^version\w* = ([\d.]+)", made.read_text() if made.exists() else "")
    notebooks = root / "notebooks"
    for path in [*sorted(notebooks.glob("*.ipynb")), *sorted(notebooks.glob("cases/*.ipynb"))]:
        copies.append(root / COPIES / path.relative_to(notebooks))
        if copies[-1].exists():
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if path.parent == notebooks:
            look_at_this_machine(notebook)
        if found:  # what JupyterLab would write there at once, and so mark the notebook as changed
            notebook["metadata"]["language_info"]["version"] = found[1].rstrip(".")
        copies[-1].parent.mkdir(parents=True, exist_ok=True)
        copies[-1].write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
        copies[-1].chmod(0o600)
    return copies


def look_at_this_machine(notebook: dict[str, Any]) -> None:
    """Without what was found on a recorded box, with ``box = "live"``, and with what to press under its title."""
    first, *_ = notebook["cells"]
    title, _, rest = "".join(first["source"]).partition("\n\n")
    first["source"] = f"{title}\n\n{TO_START}\n\n{rest}"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
            cell["execution_count"] = None
        if "parameters" in cell["metadata"].get("tags", ()):
            cell["source"] = re.sub(
                r'(?m)^(box: str = )"[^"]*"', r'\1"live"', "".join(cell["source"])
            )


def lab(call: Call) -> int:
    notebook = next((path.relative_to(call.root) for path in working_copies(call.root)), "")
    asked = re.search(r"--(?:ServerApp\.)?port[= ](\d+)", " ".join(call.arguments))
    port = asked[1] if asked else free_port()
    token = secrets.token_hex(24)
    call = with_token(call, str(port), token)
    server = {"ip": "127.0.0.1", "port_retries": 0, "root_dir": call.root}
    server |= {} if asked else {"port": port}
    argv = ["-m", "jupyterlab", *(f"--ServerApp.{name}={value}" for name, value in server.items())]
    argv += [f"--LabApp.default_url=/lab/tree/{notebook}", *QUIET_LAB]
    if os.getuid() == 0:
        print("running as root: --allow-root is passed to JupyterLab")
        argv.append("--allow-root")
    if not (call.environ.get("DISPLAY") or call.environ.get("WAYLAND_DISPLAY")):
        argv.append("--no-browser")
    tunnel = f"ssh -L {port}:127.0.0.1:{port} {user()}@{socket.gethostname()}"
    address = f"http://127.0.0.1:{port}/lab/tree/{notebook}?token={token}"
    print(f"open: {address}\n  from another machine first: {tunnel}")
    print(f"then: {PRESS}; the cases are in {COPIES}/cases, each told from the error to the fix")
    print("Ctrl-C twice ends it")
    return call.become(*argv, *call.arguments)


def with_token(call: Call, port: str, token: str) -> Call:
    """The call with a token for this lab alone, above what the user's own Jupyter settings give or take away.

    In a file of the owner's: a command line is read by everybody.
    """
    folder = call.root / COPIES / ".jupyter" / port
    folder.mkdir(parents=True, exist_ok=True)
    for place in (folder, *tuple(folder.parents)[:3]):  # up to outputs
        place.chmod(0o700)
    text = json.dumps({"IdentityProvider": {"token": token}})
    for name in ("jupyter_server_config.json", "jupyter_lab_config.json"):
        (folder / name).unlink(missing_ok=True)
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    before = call.environ.get("JUPYTER_CONFIG_PATH", "")
    path = os.pathsep.join(filter(None, (str(folder), before)))
    # What the lab writes is its owner's alone.
    return replace(call, environ={**call.environ, "JUPYTER_CONFIG_PATH": path}, umask=0o077)


def free_port() -> int:
    """A port that nobody listens on and no other lab that starts now takes: its name in the kernel's own space of names
    (unix(7), abstract) is held until this process, and what it becomes, ends."""
    for port in LAB_PORTS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0casebook-lab-{port}")
            with socket.socket() as trial:
                trial.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        claim.set_inheritable(True)
        claim.detach()
        return port
    seen = f"from {LAB_PORTS[0]} to {LAB_PORTS[-1]}"
    raise SetupError(f"lab: no free port seen {seen}: stop another server")


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "USER"


def set_up(call: Call) -> int:
    assert call.stamp is not None
    made = call.stamp.made
    print(f"{made.python}: Python {made.version}, made with {made.way}")
    print(venv.how_to_call(call.root, call.environ))
    return 0


def help_text(_call: Call) -> int:
    print("python3 env/bootstrap.py VERB [ARGS], or make VERB; the first use sets up .venv\n")
    print("\n".join(f"  {name:<13} {verb.says}" for name, verb in VERBS.items()))
    kinds = f"--torch {'|'.join(torch_build.KINDS)}, --torch-python PATH"
    print(f"\nwhich torch: {kinds} (make: TORCH=, TORCH_PYTHON=)")
    return 0


@dataclass(frozen=True)
class Verb:
    says: str
    run: Callable[[Call], int]
    needs: tuple[str, ...] = ()
    takes_arguments: bool = True


ALL = "base torch"
"""What the workbook and the programs that it starts need."""
# name, what it does, the command it becomes, what .venv needs for it.
PROGRAMS = """
diagnose | looks at this box and ends with the path of a page (make: BOX=) | -m helpers run notebooks/plans/quick.yaml | base
overnight | runs a plan (make: PLAN=) | -m helpers run | base
check-gpu | runs the checks that allocate on a GPU (make: GPU=pci address) | -m helpers check | base
bench | measures the workbook itself | -m helpers bench | base test
test | the tests and the notebooks, without what takes long | env/run_tests.py | base test
test-all | all tests | env/run_tests.py --all | base test
test-browser | every panel in JupyterLab, in a headless Chromium | -m pytest -q tests/browser | base test
doors | papermill, nbval and jupyter as typed, on every notebook | -m pytest -v --durations=0 tests/test_stock_commands.py | base test
faults | breaks batches in some forty ways and checks their records | tests/fault_campaign.py | base test
cases | scores the diagnosis on the shared cases, where they lie beside the checkout | tests/cases.py | base test
oracle | holds the allocator model against torch's own, of a CUDA wheel and a ROCm build (fetches both) | -m tests.oracle | base test
oracle-rocm | the same on a ROCm build, shipped or made here (RELEASE=, SOURCE=, HEADERS=) | -m tests.oracle --build rocm | base test
gpu-proof | on a machine with a GPU: the model against the card, under 8 minutes, as one JSON record | tests/gpu_proof.py | base
rehearse-proof | every kind of training on a card that is not there (fetches two CUDA wheels) | tests/rehearse_proof.py | base test
rank-proof | ranks rehearsed alone beside true ranks on cards that are not there (fetches a CUDA wheel) | tests/rank_proof.py | base
published | rehearses published runs of real GPUs and compares the peaks (fetches a CUDA wheel) | tests/published.py | base
lock | pins the newest packages that fit (ARGS=--upgrade) | env/check_pins.py lock | maintain
check-pins | proves that the pins install on every Python and processor | env/check_pins.py check | maintain
"""


def programs() -> dict[str, Verb]:
    rows = [[cell.strip() for cell in row.split(" | ")] for row in PROGRAMS.strip().splitlines()]
    return {
        name: Verb(says, program(*command.split()), tuple(needs.replace("base", ALL).split()))
        for name, says, command, needs in rows
    }


WHEELS = "downloads every package to wheelhouse/, for a box without a network"
SET_UP = "sets up .venv with the command casebook, and says which torch is used"
PYZ = "packs capture and diagnose into one file for Python 3.8 or newer"
VERBS: dict[str, Verb] = {
    "help": Verb("this list", help_text, takes_arguments=False),
    "capture": Verb("writes an evidence bundle of this box; needs nothing installed", help_text),
    **programs(),
    "lab": Verb("opens the notebooks in JupyterLab on this machine", lab, ("base", "torch")),
    "check": Verb(
        "ruff, mypy, layers, docs", check, ("base", "torch", "test"), takes_arguments=False
    ),
    "setup": Verb(SET_UP, set_up, ("base", "torch"), False),
    "wheelhouse": Verb(WHEELS, offline.wheelhouse, takes_arguments=False),
    "capture.pyz": Verb(PYZ, offline.capture_pyz, takes_arguments=False),
}


def split(arguments: Sequence[str]) -> tuple[str, str | None, list[str]]:
    """(verb, what --torch or --torch-python asked for, the verb's own arguments); WrongUse in one line."""
    rest = []
    words = list(arguments)
    asked = None
    while words:
        option, given, value = words.pop(0).partition("=")
        if option not in ("--torch", "--torch-python"):
            rest.append(option + given + value)
            continue
        value = value if given else words.pop(0) if words else ""
        if asked:
            raise WrongUse(f"{option} {value}: expected --torch or --torch-python once")
        if option == "--torch" and value not in torch_build.KINDS:
            kinds = ", ".join(torch_build.KINDS)
            raise WrongUse(f"--torch {value or '(nothing)'}: expected one of {kinds}")
        if not value:
            raise WrongUse("--torch-python (nothing): expected the path of a Python")
        asked = value if option == "--torch" else os.path.abspath(value)
    verb = rest.pop(0) if rest else "help"
    verb = "help" if verb in ("-h", "--help") else verb
    if verb not in VERBS:
        raise WrongUse(f"{verb}: no such verb; expected one of {', '.join(VERBS)}")
    if rest and not VERBS[verb].takes_arguments:
        raise WrongUse(f"{verb}: takes no argument, seen: {' '.join(rest)}")
    if verb == "overnight" and (not rest or rest[0].startswith("-")):
        example = "make overnight PLAN=notebooks/plans/overnight.yaml"
        raise WrongUse(f"overnight: no plan seen, expected one: {example}")
    if asked and "base" not in VERBS[verb].needs:
        raise WrongUse(f"{verb}: does not use torch, seen: {asked}; give it to setup")
    return verb, asked, rest


def needed(root: Path, verb: str, asked: str | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """What .venv must hold for this use of a verb: no torch where a plan looks at recorded boxes and bundles alone.

    A plan or a notebook that cannot be read here is taken to need it: its own reader says what is wrong with it.
    """
    needs = VERBS[verb].needs
    plans = root / "notebooks/plans"
    if verb not in ("diagnose", "overnight") or asked:
        return needs
    words = [word for argument in arguments for word in argument.split("=", 1)]
    box = dict(zip(words, words[1:])).get("--box", "live")  # noqa: B905
    try:
        plan = plans / "quick.yaml" if verb == "diagnose" else Path(arguments[0])
        text = re.sub(r"(?m)(^|\s)#.*$", "", plan.read_text(encoding="utf-8"))
        names = re.findall(r"[^\s'\"{},:]+\.ipynb", text)
        read = [json.loads((plans.parent / name).read_text(encoding="utf-8")) for name in names]
        looks = all(one["metadata"]["casebook"]["safety"] == "looks" for one in read)
    except (OSError, ValueError, LookupError, TypeError):
        return needs
    here = box == "live" and re.search(r"\blive\b", text)
    return tuple(n for n in needs if n != "torch") if names and looks and not here else needs


def main(root: str, arguments: Sequence[str]) -> int:
    """Run a verb. Exit 2 for wrong use, 1 where set-up cannot go on, else the exit code of what the verb became."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    environ = dict(os.environ)
    try:
        verb, asked, rest = split(arguments)
        here = Path(root)
        if verb == "overnight" and rest and os.path.exists(rest[0]):
            rest[0] = os.path.abspath(rest[0])
        os.chdir(here)
        needs = needed(here, verb, asked, rest)
        is_first_use = bool(needs) and read_stamp(here / ".venv") is None
        stamp = ready(here, needs, asked, environ, again=verb == "setup") if needs else None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # What a batch says last: what set-up said is far above by then.
        if is_first_use and verb in OF_BATCHES:
            environ[SAY_LAST] = venv.how_to_call(here, environ)
        return VERBS[verb].run(Call(here, rest, environ, stamp))
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.code

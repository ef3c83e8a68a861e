"""The environment of the workbook's own processes: kernels, runners, samplers."""

from __future__ import annotations

import os

from helpers.ground.child import CHECKOUT, OUTPUTS

MARK = "CASEBOOK_RUN"
"""The variable by which the processes of one run of a batch are recognised."""
TRIALS_HERE = "CASEBOOK_TRIALS"
"""The variable with the folder in which a run of a batch keeps its trials, so that a resumed run
goes on from them.
"""
# ipykernel does not capture file descriptor 2 under PYTEST_CURRENT_TEST; the others make Python,
# matplotlib, IPython and Jupyter run or load something of the user's own.
LEFT_OUT = {
    "PYTEST_CURRENT_TEST",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONSAFEPATH",
    "PYTHONINSPECT",
    "MPLBACKEND",
    "IPYTHONDIR",
    "JUPYTER_DEFAULT_PROVISIONER_NAME",
}


def environment() -> dict[str, str]:
    """Environment of a child of the workbook: only the checkout is on PYTHONPATH, and nothing of
    the user's own Python is loaded. The user's MPLCONFIGDIR is kept.
    """
    inherited = {
        name: value for name, value in os.environ.items() if name not in LEFT_OUT
    }
    return {
        # In front of what is inherited, so that a value of the user's wins.
        "MPLCONFIGDIR": str(OUTPUTS / "cache" / "matplotlib"),
        **inherited,
        # Behind what is inherited, so that these win.
        "PYTHONPATH": str(CHECKOUT),
        "CASEBOOK_OUTPUTS": str(OUTPUTS),
        "PYTHONNOUSERSITE": "1",  # no packages of ~/.local
        "JUPYTER_PREFER_ENV_PATH": "1",  # kernels of this environment before the user's
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no warning of the kernel's debugger
    }

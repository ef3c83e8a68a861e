"""The environment of the workbook's own processes: kernels, runners, samplers."""

from __future__ import annotations

import os

from helpers.ground.child import CHECKOUT, OUTPUTS

MARK = "CASEBOOK_RUN"
"""The variable by which the processes of one run of a batch are recognised."""
TRIALS_HERE = "CASEBOOK_TRIALS"
"""The variable with the folder in which one run keeps the trials it made, to go on from them."""
# ipykernel turns its capture of fd 2 off under PYTEST_CURRENT_TEST; the others run or load what
# the user's own Python needs.
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
    """Environment of a child of the workbook: the checkout alone on PYTHONPATH, nothing of the
    user's own Python.
    """
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    return {
        "MPLCONFIGDIR": str(OUTPUTS / "cache" / "matplotlib"),
        **kept,
        "PYTHONPATH": str(CHECKOUT),
        "CASEBOOK_OUTPUTS": str(OUTPUTS),
        "PYTHONNOUSERSITE": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }

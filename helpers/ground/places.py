"""Where the checkout lies, and where everything that is kept goes."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
"""What holds helpers, env and notebooks: a checkout, or the folder of an installed package that
is laid out like one.
"""
IN_CHECKOUT = (CHECKOUT / "pyproject.toml").is_file()
_HERE = CHECKOUT if IN_CHECKOUT else Path.cwd()
OUTPUTS = Path(os.environ.get("CASEBOOK_OUTPUTS") or _HERE / "outputs").absolute()
"""Where everything that is kept goes: in the checkout, for an installed package below the
folder where a command is typed.
"""

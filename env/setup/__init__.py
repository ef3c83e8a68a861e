"""Set-up of the workbook: makes .venv, finds the interpreter that owns torch, runs the verbs. Standard library only."""


class SetupError(Exception):
    """Set-up cannot go on. The message is for the user: what was seen, what was expected, what to do."""

    code = 1


class WrongUse(SetupError):
    """What was typed cannot be done as it stands; one line."""

    code = 2

"""Find out why a GPU is out of memory, with evidence.

``from helpers import open_box, diagnose`` is enough for a notebook; ``dir(helpers)`` lists every
name, and each is loaded when it is first asked for. Nothing here imports torch: programs that need
it run as child processes, under the Python in which torch is installed.

>>> from helpers import diagnose, open_box
>>> box = open_box("strix-halo-1-found")
>>> diagnose(box)
"""

__version__ = "0.1.0"

_HOMES = {
    "open_box": "face.box",
    "gpus": "face.box",
    "processes": "face.box",
    "pools": "face.box",
    "ledger": "face.box",
    "ceilings": "face.ceilings",
    "memory_settings": "face.box",
    "kernel_events": "face.box",
    "diagnose": "face.diagnosis",
    "ttm_plan": "face.ceilings",
    "load_trace": "face.traces",
    "replay": "face.traces",
    "what_if": "face.traces",
    "leaks": "face.traces",
    "what_fits": "face.fit",
    "volume_profiles": "face.profiles",
    "try_fixes": "face.fixes",
    "fix_program": "face.change",
    "training_paths": "face.training",
    "check_torch": "face.checks",
    "fields_of": "face.fields",
    "open_batch": "face.batches",
    "show_bytes": "ground.units",
    "Shown": "tell.shown",
    "display": "tell.display",
    "refuse_wrong_parameters": "batch.notebook_file",
}
"""Each public name, and the module below this package that holds it."""

_OF_IPYTHON = {
    "load_ipython_extension": "magics.hooks",
    "unload_ipython_extension": "magics.hooks",
}
"""What IPython calls at ``%load_ext helpers`` and ``%unload_ext helpers``: as for
``vram_casebook``.
"""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    # PEP 562: Python calls this for a name that the module does not have yet.
    # Imported here, so that a bare import of the package loads nothing else.
    from importlib import import_module

    homes = {**_HOMES, **_OF_IPYTHON}
    if name not in homes:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; see dir({__name__})"
        )
    value = getattr(import_module(f"{__name__}.{homes[name]}"), name)
    globals()[name] = value  # so that this is not called for it again
    return value


def __dir__() -> "list[str]":
    return sorted(__all__)

"""The VRAM Casebook's helpers: look at a box, model its allocator, judge, load, and tell.

Nothing here imports torch: what needs torch runs in a child process under the interpreter that
owns it (helpers.trials.under_torch).
"""

__version__ = "0.1.0"

"""How servers size weights, cache and buffers: a function a figure, with its source.

``read`` means read in the program's code, ``records`` fitted to what programs printed.
"""

from helpers.fits.rules import (  # noqa: F401 -- each registers its rules with the sheet
    buffers,
    cache,
    cells,
    context,
    dimensions,
    graphs,
    pool,
    room,
    states,
    weights,
)

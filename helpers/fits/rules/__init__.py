"""How servers size weights, cache and buffers: a function for each figure, with its source."""

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

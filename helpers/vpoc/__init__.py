"""Volume profiles of futures sessions: right on the tick grid, within the memory that is there,
and the ways to blow it up.
"""

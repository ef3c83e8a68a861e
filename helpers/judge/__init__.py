"""Judgement: facts in, verdict out. Pure functions, no effects."""

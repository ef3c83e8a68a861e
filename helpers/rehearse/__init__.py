"""A program of the user's own, run whole on a GPU that is not there: what fits, what it asks
for, where it runs out.
"""

"""What ``import helpers`` offers: a box, its diagnosis, its ceilings and a trace as objects that
show themselves.
"""

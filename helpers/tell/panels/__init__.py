"""Panels for JupyterLab: each a state that needs no widgets, a view of it, and a static twin
for reports.

A ``Panel`` has ``show``, which a notebook's cell calls: where nobody is there to act it draws
the twin.
"""

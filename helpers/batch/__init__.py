"""A batch: every notebook of a plan, each run in a process of its own, with its record and a
page.
"""

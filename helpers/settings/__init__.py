"""What people set against memory trouble, and what becomes of it: one table by release and
build, and its readers.
"""

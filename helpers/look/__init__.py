"""Facts about a box, without opinion.

Standard library only, Python 3.8 or later, so that a capture runs anywhere.
"""

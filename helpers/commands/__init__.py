"""The commands of ``casebook``, by what they are about. A command reads arguments and prints; no
more.
"""

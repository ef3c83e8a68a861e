"""Programs that load a GPU or the CPU under the user's own torch, each started as a child by its
text.
"""

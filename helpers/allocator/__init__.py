"""PyTorch's caching allocator: its settings, traces of what was asked of it, and a model that
replays them.
"""

"""What fits: weights, cache and buffers of a model against what a card or a box can give, as its
server would round them.
"""

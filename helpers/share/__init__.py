"""One page of a batch, a run or a notebook for others."""

"""The fewest requests that still fail in the same way."""

"""Programs that run under the user's own torch: standard library and torch only, each started as a child by its text."""

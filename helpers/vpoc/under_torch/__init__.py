"""Programs of this room that run under the user's own torch."""

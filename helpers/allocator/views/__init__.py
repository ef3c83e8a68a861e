"""What a replay, an edit and a study look like."""

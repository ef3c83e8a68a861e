"""A line of the program changed: what the edited program would ask of the allocator."""

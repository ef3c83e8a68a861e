"""The recorder that runs in a recorded program: standard library and the program's own torch only."""

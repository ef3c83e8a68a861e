"""What a rehearsal knows of a program from inside it: standard library and its own torch only."""

"""Work that stresses a box, each piece in a child process of its own."""

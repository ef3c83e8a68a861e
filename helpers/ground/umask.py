"""The umask of whoever typed a command, for a program of the user's."""

users_umask = -1
"""-1 where it is this process's own."""

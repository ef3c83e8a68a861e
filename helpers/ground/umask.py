"""The umask of whoever typed a command, for a program of the user's.

A command that writes private files narrows its own umask (helpers/cli.py); the programs that it
starts for the user get the user's back.
"""

users_umask = -1
"""-1 while this process's own umask is the user's."""

"""The commands of ``python3 -m helpers``, by what they are about. A command reads arguments and prints; no more."""

"""Changes of a program that runs out of GPU memory, each tried by rehearsing it."""

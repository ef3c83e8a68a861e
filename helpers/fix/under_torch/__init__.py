"""What runs in the user's own Python to see what a program computes."""

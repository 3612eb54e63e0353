"""A watch on a running federation: updates about to leave are read at a small budget, and rules act on the readings."""

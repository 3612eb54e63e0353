"""What `bench/auto.py` compares, and the page it makes of it."""

"""What `bench/priors.py` compares, and the page it makes of it."""

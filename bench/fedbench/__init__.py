"""Parts of `bench/federation.py`."""

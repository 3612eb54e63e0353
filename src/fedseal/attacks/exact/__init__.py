"""Attacks that take whole batches apart by linear algebra: what they return is exact, or they say that it is not."""

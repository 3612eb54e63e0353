"""LIDS (paper of 2025, [S4]): mini-groups of similar images against servers that isolate one of a batch."""

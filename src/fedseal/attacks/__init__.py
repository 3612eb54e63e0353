"""Attacks, one module per family; `matching` is the one optimisation engine they share."""

"""Defences, one module per family, and the pipeline that composes them."""

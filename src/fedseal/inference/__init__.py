"""Inference from updates: who took part, what a client's data have in common; nothing is rebuilt."""

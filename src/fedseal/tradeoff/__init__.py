"""Strengths of defences swept: accuracy kept against leakage."""

"""Attacks that read text."""

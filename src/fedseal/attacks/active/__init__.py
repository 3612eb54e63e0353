"""Attacks of a malicious server, which alters the model before the client answers."""

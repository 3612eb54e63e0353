"""Attacks of a malicious server, which alters the model before the client answers (ATTACKS.md 10 and 15)."""

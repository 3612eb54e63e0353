"""Shadow targets: updates of public images an attacker plays itself, knows the truth of, and tunes its attacks on."""

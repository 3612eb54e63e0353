"""`fedseal view`: a local, read-only page over runs. It listens on loopback, to who has its token."""

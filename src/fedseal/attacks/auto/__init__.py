"""`auto`: everything a passive server can try, tuned on shadows of its own, the best by what it can know itself."""

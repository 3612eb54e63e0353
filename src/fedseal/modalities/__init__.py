"""What is measured of each kind of input: scores, baselines, line-ups, and what is kept to be shown."""

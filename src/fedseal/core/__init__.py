"""What flows through fedseal (batches, updates, observations, reconstructions) and the contracts around it."""

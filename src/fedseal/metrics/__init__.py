"""What a reconstruction is worth: image metrics, matching of batches, chance baselines and intervals."""

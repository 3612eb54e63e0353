"""Text: tokenisers, data sets of token ids, and where texts come from."""

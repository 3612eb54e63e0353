"""SEER (Garov et al., ICLR 2024): a server trains the model it sends together with a secret decoder."""

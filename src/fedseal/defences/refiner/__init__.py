"""Refiner (Fan et al., USENIX Security 2025): send the gradient of refined images in place of the private ones."""

"""LIDS (Lin et al. 2025): mini-groups of similar images, against servers that isolate one image of a batch."""

"""A Flower app that trains under a fedseal defence named in its run config."""

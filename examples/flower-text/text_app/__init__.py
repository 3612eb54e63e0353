"""A Flower app that trains a text classifier, or adapters of one, under a fedseal defence."""

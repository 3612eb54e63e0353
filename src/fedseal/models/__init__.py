"""Classifiers an audit can be run on, their initialisations and checkpoints."""

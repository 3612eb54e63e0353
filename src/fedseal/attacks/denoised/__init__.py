"""Post-processing of any attack by a network that learned on shadows what the attack does to images."""

"""Federated training as a command: scenario, run, accuracy kept."""

"""What a client can check before it answers: whether the model it received is a weapon."""

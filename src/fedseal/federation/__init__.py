"""What happens in a federation: a client's round, and what travels between client and server."""

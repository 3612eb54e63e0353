"""What an update gives away, computed or proven rather than searched for."""

"""What an update holds, computed and not searched for: the ideal reading of an upload."""

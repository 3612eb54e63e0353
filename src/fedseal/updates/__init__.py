"""The audit of one update a real client sent."""

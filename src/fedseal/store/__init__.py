"""What runs leave behind: the database, its records, and the names of what is in it."""

"""What a run says to people and programs: HTML, JSON, JUnit and the terminal."""

"""What a site enforces on whatever app arrives: its policy, apart from the framework that brings the app."""

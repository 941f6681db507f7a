"""Jobs: their states, and everything the service remembers of them, in SQL."""

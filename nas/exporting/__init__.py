"""Networks of a run as folders that work without it."""

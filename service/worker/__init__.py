"""Workers: they take jobs, and have each done by a process of its own."""

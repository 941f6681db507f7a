"""Training networks of a run from scratch, with settings given or tuned."""

"""The tasks networks are trained for: what their batches are and what is predicted."""

"""What a supernet takes over from a checkpoint: first weights, and other kinds of attention."""

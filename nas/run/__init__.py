"""A run: what it is asked for, its folder, its data, its supernet, its stages, its evaluators."""

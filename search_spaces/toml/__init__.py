"""TOML within bounds, with the line of each key."""

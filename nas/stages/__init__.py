"""The stages of a search, from the space to the front, and what runs them."""

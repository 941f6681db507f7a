"""What is asked for: the request of a search, and the words that choose a network of its front."""

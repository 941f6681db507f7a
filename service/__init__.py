"""The search as a service: an API, workers and the commands that talk to them."""

"""The API's routes, one module for each kind of thing."""

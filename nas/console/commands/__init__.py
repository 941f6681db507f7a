"""Commands of `nas`, one module a group: they start runs and print their results."""

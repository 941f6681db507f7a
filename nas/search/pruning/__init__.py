"""Cutting choices out of a space, with the evidence for every cut."""

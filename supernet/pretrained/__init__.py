"""Checkpoints of others, in and out: folders as Hugging Face's libraries write them.

Nothing in a folder is run: weights are safetensors, settings are JSON, and what a family's networks
compute is written here. ``families`` has an adapter for each, with one table of names that is used
in both directions.
"""

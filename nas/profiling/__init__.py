"""Timing networks on a device, and the profile that other machines can use."""

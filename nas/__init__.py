"""The search: rank, prune, evolve, verify, retrain, and the `nas` command."""

import importlib.metadata


def version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("nas-service")
    except importlib.metadata.PackageNotFoundError:
        return "(run from a source tree, not installed)"

"""The search: rank, prune, evolve, verify, retrain, and the `nas` command."""

import importlib.metadata

from supernet.card_environment import use_expandable_segments, use_repeatable_products

# Every process of a run comes through here first, those of Ray and of a service too.
use_expandable_segments()
use_repeatable_products()


def version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("nas-service")
    except importlib.metadata.PackageNotFoundError:
        return "(run from a source tree, not installed)"

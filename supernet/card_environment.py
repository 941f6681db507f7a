"""What torch is told of graphics cards before it uses one, in every process of a run."""

from __future__ import annotations

import os

# Some versions of torch read the one, some the other, and warn where there is the older alone.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = "expandable_segments:True"
# Without it cuBLAS may add in another order each time; torch asks for one of two values.
_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def use_expandable_segments() -> None:
    """Let free memory that lies apart serve one large tensor; before torch uses CUDA.

    Sizes change from network to network, so that much would be lost between tensors. Nothing is
    changed where the user has set torch's allocator himself.
    """
    if not any(name in os.environ for name in _VARIABLES):
        os.environ |= dict.fromkeys(_VARIABLES, _EXPANDABLE)


def use_repeatable_products() -> None:
    """Let trainings that ask for it be repeated to the bit; before cuBLAS is used."""
    os.environ.setdefault(*_WORKSPACE)

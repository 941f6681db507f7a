"""How many threads the numerical libraries of a process use."""

from __future__ import annotations

import os

# BLAS and OpenMP read these once, when they are loaded.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def use_threads(threads: int | None) -> None:
    """Limit every numerical library to that many threads; before torch is imported.

    The stages limit torch themselves; this is for BLAS, OpenMP and what was loaded before.

    Args:
        threads: of the run's budget; None leaves the libraries' own choice.
    """
    if threads is None:
        return
    from threadpoolctl import threadpool_limits

    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)
    threadpool_limits(threads)  # what is loaded already

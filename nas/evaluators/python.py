"""An evaluator that is a Python object, named as ``package.module:Name``."""

from __future__ import annotations

import importlib
from typing import Any

from nas.evaluators import Evaluator
from search_spaces.errors import UnknownNameError, UsageError


def load_evaluator(name: str) -> Evaluator:
    """Import an evaluator.

    Args:
        name: ``package.module:Name``. A class, or a function that makes one, is called without
            arguments; an object with `evaluate` is taken as it is.

    Raises:
        UnknownNameError: when there is no such module or name.
        UsageError: for another form, or when what was found is no evaluator.
    """
    module, colon, attribute = name.partition(":")
    if not module or not colon or not attribute:
        raise UsageError(f"an evaluator is named as package.module:Name; given {name!r}")
    found: Any
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise UnknownNameError(f"the evaluator {name!r} cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UnknownNameError(f"the module {module} has no {attribute!r}")
        found = getattr(found, part)
    if isinstance(found, type) or (callable(found) and not hasattr(found, "evaluate")):
        found = found()
    if not callable(getattr(found, "evaluate", None)):
        raise UsageError(f"the evaluator {name!r} has no method `evaluate`")
    evaluator: Evaluator = found
    return evaluator

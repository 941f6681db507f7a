"""An evaluator that is a Python object, named as ``package.module:Name``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from nas.run.evaluators import Evaluator
from search_spaces.errors import UnknownNameError, UsageError


def load_evaluator(name: str) -> Evaluator:
    """Import an evaluator.

    Args:
        name: ``package.module:Name``, of a module that is installed or lies in the folder where
            the command was given. A class, or a function that makes one, is called without
            arguments; an object with `evaluate` is taken as it is.

    Raises:
        UnknownNameError: when there is no such module or name.
        UsageError: for another form, or when what was found is no evaluator.
    """
    module, colon, attribute = name.partition(":")
    if not module or not colon or not attribute:
        raise UsageError(f"an evaluator is named as package.module:Name; given {name!r}")
    found: Any
    here = str(Path.cwd())
    if here not in sys.path:  # a command's own path has it not
        sys.path.append(here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise UnknownNameError(
            f"the evaluator {name!r} cannot be imported: {error}; give the command where its "
            "module lies, or name its folder in PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # whatever else a module does when it is read
        raise UsageError(
            f"the evaluator {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UnknownNameError(f"the module {module} has no {attribute!r}")
        found = getattr(found, part)
    if isinstance(found, type) or (callable(found) and not hasattr(found, "evaluate")):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"the evaluator {name!r} cannot be made: {type(error).__name__}: {error}"
            ) from error
    if not callable(getattr(found, "evaluate", None)):
        raise UsageError(f"the evaluator {name!r} has no method `evaluate`")
    evaluator: Evaluator = found
    return evaluator

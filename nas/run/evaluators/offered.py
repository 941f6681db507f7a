"""Costs that an evaluator tells of any network without evaluating it.

An evaluator may have a method ``costs(networks)``: name → one number above 0 for each network, less
is better. It has to be quick, since a search asks it for thousands of networks, and always to say
the same of a network. A cost that is not among them is known of evaluated networks alone, and
predicted for all others.

N: networks; S: positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from nas.run.evaluators import Evaluator, finite
from search_spaces.errors import EvaluationError
from search_spaces.genotypes import Genotypes, GenotypeSpace

Floats = NDArray[np.float64]


class OfferedCosts:
    """See the module; each network is asked about once.

    Args:
        evaluator: that tells them.
        space: of the networks.
        wanted: names of the costs that matter.
        limit: for how long a question may last.

    Attributes:
        names: those of the wanted costs that it tells.

    Raises:
        EvaluationError: see `of`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        space: GenotypeSpace,
        wanted: Iterable[str],
        limit: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._tell = getattr(evaluator, "costs", None)
        self._space, self._limit = space, limit
        self._known: dict[bytes, tuple[float, ...]] = {}
        self.names: tuple[str, ...] = ()
        if callable(self._tell):
            one = np.zeros((1, len(space.slots)), dtype=np.int16)
            offered = self._asked(space.canonical(one))
            self.names = tuple(name for name in wanted if name in offered)

    def of(self, rows: Genotypes) -> dict[str, Floats]:
        """The costs of rows ``(N, S)``: name → ``(N,)``.

        Raises:
            EvaluationError: when it raises, takes too long, or tells something else than numbers.
        """
        if not self.names:
            return {}
        keys = [row.tobytes() for row in rows]
        new = {key: index for index, key in enumerate(keys) if key not in self._known}
        if new:
            answers = self._asked(rows[list(new.values())])
            for name in self.names:
                if name not in answers:
                    raise EvaluationError(f"the evaluator's costs have no {name!r} any more")
            columns = zip(*(answers[name] for name in self.names), strict=True)
            self._known.update(zip(new, columns, strict=True))
        values = np.array([self._known[key] for key in keys]).reshape(-1, len(self.names))
        return dict(zip(self.names, values.T, strict=True))

    def _asked(self, rows: Genotypes) -> dict[str, list[float]]:
        networks = [dict(network) for network in self._space.decode(rows)]
        assert callable(self._tell)
        try:
            with self._limit():
                answers = self._tell(networks)
        except (Exception, SystemExit) as error:
            raise EvaluationError(
                f"the evaluator's costs cannot be told: {type(error).__name__}: {error}; mend that "
                "and resume"
            ) from error
        if not isinstance(answers, Mapping):
            raise EvaluationError(
                f"the evaluator's costs are {answers!r:.60}: they have to be a mapping from name "
                "to a list of numbers"
            )
        return {str(name): _numbers(str(name), values, rows) for name, values in answers.items()}


def _numbers(name: str, values: object, rows: Genotypes) -> list[float]:
    """The values of a cost, one above 0 for each row."""
    given = list(values) if isinstance(values, Iterable) else []
    numbers = [finite(value) for value in given]
    good = [number for number in numbers if number is not None and number > 0]
    if len(good) != len(rows) or len(given) != len(rows):
        raise EvaluationError(
            f"the evaluator's cost {name!r} has {len(good)} numbers above 0 for {len(rows)} "
            "networks: there has to be one for each"
        )
    return good

"""Profiles a device: which networks to time, timing them in sessions, fitting the predictors.

The first half of the networks is spread over the space, its ends included; the rest comes in
rounds from where the predictor is least sure. Every session times a reference network in the same
rounds, so that the device's slow spells are divided out: a network's time is its ratio to the
reference, times what the reference takes undisturbed. What stayed doubtful, and what the
others would not lead one to expect, is timed again at the end: two timings that agree are believed,
of up to three.

N: networks; F: features; S: slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from latency.acceptance import Reading, agree
from latency.predictor import LatencyPredictor, believed
from latency.workload import Workload
from nas.profiling.device_profile import MeasuredNetwork, Session, WorkloadProfile, trust
from nas.profiling.fitting import fit_predictor
from nas.profiling.report import learning_curve
from nas.search.farthest import farthest_first
from nas.search.uniform_networks import cheapest_rows, largest_rows, middle
from search_spaces.encoding import cost_terms, encode_features
from search_spaces.errors import UsageError
from search_spaces.measurement import Measurement
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import distinct, largest, sample_distinct, smallest

Floats = NDArray[np.float64]

MIN_SAMPLES = 8
SESSION_SIZE = 10
POOL_SIZE = 4096
MAX_SAMPLES = POOL_SIZE
# Networks among which a round spreads its choice: this many times as many as it takes.
UNSURE_SHARE = 6
MOST_TIMINGS = 3


@dataclass(frozen=True)
class TimedSession:
    """What a session brought: the networks with their times as they were.

    Attributes:
        session: what all have in common.
        networks: in the order timed, without the reference.
        calm: what the timer said of the reference when nothing disturbed it; the profile does not
            tell it.
    """

    session: Session
    networks: tuple[MeasuredNetwork, ...]
    calm: tuple[Reading, ...] = ()


# Times networks together with the reference: (networks, session number) → session.
TimeThem = Callable[[Genotypes, int], TimedSession]


def check_samples(space: SearchSpace, samples: int) -> None:
    """Refuse a profile of too few networks, or of more than there are to choose from.

    Raises:
        UsageError: for fewer than 8 or more than 4096, and for a space of fewer than 8 networks.
    """
    if samples > MAX_SAMPLES:
        raise UsageError(
            f"--samples {samples} is too many: a profile times at most {MAX_SAMPLES} networks for "
            "each workload, and 100 are usual"
        )
    if samples < MIN_SAMPLES:
        raise UsageError(
            f"--samples {samples} is too few: a predictor needs at least {MIN_SAMPLES} timed "
            "networks, and 100 are usual"
        )
    if space.size < MIN_SAMPLES:
        raise UsageError(
            f"the space {space.name} has only {space.size} network{'s' * (space.size != 1)}, and a "
            f"predictor needs at least {MIN_SAMPLES} timed ones: offer more choices in the space"
        )


def num_networks(space: SearchSpace, samples: int, seed: int) -> int:
    """How many networks a profile of so many samples times: a small space has fewer."""
    return min(samples, len(Pool.of(space, seed).rows))


def same_sessions(sizes: Sequence[int], one: int, other: int) -> bool:
    """Whether two profiles that differ in their number of networks begin with the same sessions.

    The first half of the networks is chosen otherwise than the second, so a longer profile goes on
    from a shorter one while that is in its first half.

    Args:
        sizes: networks in each session timed so far, in order.
        one: networks of the one profile.
        other: networks of the other one.
    """
    counts = [0, *accumulate(sizes)][:-1]
    return all(_next_session(one, count) == _next_session(other, count) for count in counts)


def _next_session(wanted: int, count: int) -> tuple[bool, int]:
    """Whether the next session spreads over the space, and how many networks it times."""
    first_half = max(-(-wanted // 2), MIN_SAMPLES)
    spreads = count < first_half
    return spreads, min(SESSION_SIZE, (first_half if spreads else wanted) - count)


def profile_workload(
    space: SearchSpace,
    workload: Workload,
    samples: int,
    seed: int,
    done: Sequence[TimedSession],
    time_them: TimeThem,
) -> Iterator[TimedSession | WorkloadProfile]:
    """Time networks until there are enough, then fit the predictors.

    Which networks are timed follows from the seed and the times so far, so a profile that was
    stopped goes on as if it had not been.

    Args:
        space: whose networks are timed.
        workload: what they do.
        samples: networks to time, 8 to 4096; a smaller space is timed whole.
        seed: of the pool of networks and the folds.
        done: sessions of an earlier try, in order.
        time_them: times some networks together with the reference.

    Yields:
        Each new session, and at last the profile.

    Raises:
        UsageError: for too few or too many samples, or a space of fewer than 8 networks.
    """
    check_samples(space, samples)
    pool = Pool.of(space, seed)
    wanted = min(samples, len(pool.rows))
    sessions = list(done)
    while (count := _num_first(sessions)) < wanted:
        known = space.encode([one.architecture for s in sessions for one in s.networks])
        spreads, size = _next_session(wanted, count)
        if spreads:
            picked = spread(pool, known, size)
        else:
            measured = corrected(sessions)
            picked = unsure(pool, known, fit_latency(space, measured, seed), size)
        sessions.append(time_them(picked, len(sessions)))
        yield sessions[-1]
    while len(odd := _unsettled(space, sessions, seed)):
        timed = time_them(odd[:SESSION_SIZE], len(sessions))
        sessions.append(replace(timed, session=replace(timed.session, again=True)))
        yield sessions[-1]
    yield fitted(space, workload, sessions, seed)


def _unsettled(space: SearchSpace, sessions: Sequence[TimedSession], seed: int) -> Genotypes:
    """The networks that have to be timed again."""
    measured = corrected(sessions)
    counts = Counter(one.architecture.id for s in sessions for one in s.networks)
    kept = believed([one.latency for one in measured])
    odd = {
        measured[number].architecture.id
        for number in np.flatnonzero(kept)[fit_latency(space, measured, seed).unexpected()]
    }
    reference = measured[0].architecture  # beside which all others are timed
    odd.discard(reference.id)
    again = [
        one.architecture
        for one in measured
        if (one.latency.doubtful and counts[one.architecture.id] < MOST_TIMINGS)
        or (one.architecture.id in odd and counts[one.architecture.id] == 1)
    ]
    others = [one for one in again if one.id != reference.id]  # it is not timed on its own
    return space.encode(again) if others else np.zeros((0, len(space.slots)), np.int16)


def _num_first(sessions: Sequence[TimedSession]) -> int:
    """How many networks were timed, each counted once."""
    return sum(len(one.networks) for one in sessions if not one.session.again)


def fitted(
    space: SearchSpace, workload: Workload, sessions: Sequence[TimedSession], seed: int
) -> WorkloadProfile:
    """The profile that some sessions make."""
    measured = corrected(sessions)
    rows = space.encode([one.architecture for one in measured])
    features = encode_features(space, rows)
    depth = space.depths(rows, space.stacks[-1]).astype(np.float64)
    times = [one.latency.value for one in measured]
    memory = [one.peak_memory_mb for one in measured]
    return WorkloadProfile(
        workload=workload,
        measured=tuple(measured),
        sessions=tuple(one.session for one in sessions),
        latency=fit_latency(space, measured, seed),
        memory=fit_predictor(space, rows, memory, seed),
        report=learning_curve(
            features, cost_terms(space), np.array(times), depth, trust(measured), seed
        ),
    )


def fit_latency(
    space: SearchSpace, measured: Sequence[MeasuredNetwork], seed: int
) -> LatencyPredictor:
    """The latency predictor of some measured networks."""
    kept = believed([one.latency for one in measured])
    measured = [one for one, keep in zip(measured, kept, strict=True) if keep]
    rows = space.encode([one.architecture for one in measured])
    return fit_predictor(
        space, rows, [one.latency.value for one in measured], seed, trust(measured)
    )


def corrected(sessions: Sequence[TimedSession]) -> list[MeasuredNetwork]:
    """All networks with the drift between sessions divided out, the reference first.

    The unit is the least that the reference was found to take: sessions lie in slower spells.
    """
    usual = min(one.session.unit_ms or one.session.reference_ms for one in sessions)
    found: dict[str, list[MeasuredNetwork]] = {}
    for one in sessions:
        factor = usual / one.session.reference_ms
        for network in one.networks:
            found.setdefault(network.architecture.id, []).append(_scaled(network, factor))
    return [_agreed(timings) for timings in found.values()]


def _agreed(timings: Sequence[MeasuredNetwork]) -> MeasuredNetwork:
    """One of several timings of a network: the first accepted one that another one confirms."""
    first, *others = timings
    if not others:
        return first
    sure = [one for one in timings if not one.latency.doubtful]
    for number, one in enumerate(sure):
        if any(agree(one.latency.value, other.latency.value) for other in sure[number + 1 :]):
            return one
    if first.latency.doubtful and len(sure) == 1:
        return sure[0]  # what was disturbed at first says nothing against what was not
    listed = ", ".join(f"{one.latency.value:.3g}" for one in timings)
    doubt = f"timings of it do not agree: {listed} ms"
    return replace(timings[-1], latency=replace(timings[-1].latency, doubtful=doubt))


def _scaled(network: MeasuredNetwork, factor: float) -> MeasuredNetwork:
    old = network.latency
    latency = replace(old, value=old.value * factor, spread=old.spread * factor)
    return replace(network, latency=latency)


# -- which networks -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pool:
    """Networks to choose from.

    Attributes:
        space: of the rows.
        rows: ``(N, S)``, distinct; the reference first, then the ends of the space.
        num_first: how many of them are timed in any case.
        features: ``(N, F)``, as the predictor sees them.
        points: ``(N, F)``, the same standardised.
    """

    space: SearchSpace
    rows: Genotypes
    num_first: int
    features: Floats
    points: Floats

    @classmethod
    def of(cls, space: SearchSpace, seed: int) -> Pool:
        """A random pool with the reference and the ends of the space."""
        rng = np.random.default_rng([seed, POOL_SIZE])
        ends = [largest_rows(space), cheapest_rows(space), largest(space), smallest(space)]
        first = distinct(np.concatenate([middle(space), *ends]))
        rows = distinct(np.concatenate([first, sample_distinct(space, rng, POOL_SIZE)]))
        features = encode_features(space, rows)
        return cls(space, rows, len(first), features, _standardised(features))

    def missing(self, known: Genotypes) -> NDArray[np.int64]:
        """Indices of the rows that are not among `known`."""
        keys = {row.tobytes() for row in np.ascontiguousarray(known, dtype=np.int16)}
        here = np.ascontiguousarray(self.rows, dtype=np.int16)
        return np.array([i for i, row in enumerate(here) if row.tobytes() not in keys], np.int64)

    def timed(self, missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices of all other rows."""
        return np.setdiff1d(np.arange(len(self.rows)), missing)


def spread(pool: Pool, known: Genotypes, count: int) -> Genotypes:
    """The next networks of a sample spread over the space: each is far from all before it.

    The reference and the ends of the space come first.

    Args:
        pool: to choose from.
        known: ``(K, S)`` networks timed so far.
        count: how many to choose.

    Source: see `farthest_first`.
    """
    missing = pool.missing(known)
    first = missing[missing < pool.num_first][:count]
    centres = np.concatenate([pool.timed(missing), first])
    rest = farthest_first(pool.points, centres, missing, count - len(first))
    return _rows(pool, first, rest)


def unsure(pool: Pool, known: Genotypes, predictor: LatencyPredictor, count: int) -> Genotypes:
    """The networks whose predicted time is least sure, spread among themselves.

    Without the spreading a round would take ten copies of one idea.
    """
    missing = pool.missing(known)
    mean_N, std_N = predictor.predict(pool.features[missing])
    order = np.argsort(-std_N / mean_N, kind="stable")
    doubtful = missing[order[: max(count, UNSURE_SHARE * count)]]
    chosen = doubtful[:1]
    centres = np.concatenate([pool.timed(missing), chosen])
    rest = farthest_first(pool.points, centres, np.sort(doubtful), count - 1)
    return _rows(pool, chosen, rest)


def _rows(pool: Pool, *parts: NDArray[np.int64]) -> Genotypes:
    rows: Genotypes = pool.rows[np.concatenate(parts)]
    return rows


def _standardised(features: Floats) -> Floats:
    width = features.std(axis=0)
    return np.asarray((features - features.mean(axis=0)) / np.where(width > 0, width, 1.0))


def measurement(median_ms: float, iqr_ms: float, count: int, device: str) -> Measurement:
    """A network's time in a session."""
    return Measurement("latency_ms", median_ms, iqr_ms, count, "ms", device)

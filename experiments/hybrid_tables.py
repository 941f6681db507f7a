"""What the numbers of `experiments.hybrid_study` say: winners compared, marks and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from experiments.harness import table_of
from nas.objectives import OBJECTIVES, QUALITIES, QualityMetric
from search_spaces.architecture import base_kind

MIXED = "mixed"
CACHE = "kv_cache_mb"
COSTS = (CACHE, "decode_ms", "prefill_ms")
UNTIMED = (CACHE, "flops")
TIMES = COSTS[1:]

TOLERANCE = 0.02  # of a quality in the search: share of right answers, or nats
MOST_CACHE, MOST_TIME, LEAST_TAU = 0.6, 0.75, 0.7


def has_several(kinds: Sequence[str]) -> bool:
    """Whether layers are of more than one kind, whatever their windows and kernels."""
    return len({base_kind(kind) for kind in kinds}) > 1


def reached(row: Mapping[str, Any], metric: QualityMetric) -> tuple[float, float]:
    """Mean and deviation over the seeds of the quality of a winner; less is better."""
    values = [QUALITIES[metric].of(one) for one in row["scores"]]
    return float(np.mean(values)), float(np.std(values, ddof=1))


def is_mixed(row: Mapping[str, Any]) -> bool:
    """Whether a winner of the mixed space has more than one kind of attention."""
    return row["space"] == MIXED and has_several(row["kinds"])


@dataclass(frozen=True)
class Comparison:
    """A mixed winner beside the best pure one under the same cost.

    Attributes:
        cost: that was searched for.
        mixed: the row of the mixed winner.
        pure: that of the pure one.
        gain: by how much the mixed one is better, in the unit of the quality.
        deviation: of that difference, from those of the seeds of both.
        ratios: what the mixed one costs, as a share of the pure one, by name of the cost.
    """

    cost: str
    mixed: Mapping[str, Any]
    pure: Mapping[str, Any]
    gain: float
    deviation: float
    ratios: Mapping[str, float]

    @property
    def matches(self) -> bool:
        """Whether it is no worse beyond the deviation."""
        return self.gain >= -self.deviation

    @property
    def small(self) -> bool:
        """Whether it matches within its share of the cache."""
        return self.matches and self.ratios[CACHE] <= MOST_CACHE

    @property
    def fast(self) -> bool:
        """Whether it matches within its share of a time."""
        return any(self.fast_by(name) for name in TIMES)

    def fast_by(self, name: str) -> bool:
        """Whether it matches within its share of this time."""
        return self.matches and self.ratios.get(name, math.inf) <= MOST_TIME


def comparisons(content: Mapping[str, Any], behind: Mapping[str, Any]) -> list[Comparison]:
    """Every mixed winner with the best pure winner under its cost, behind one context."""
    metric: QualityMetric = content["quality"]
    table = []
    for cost in dict.fromkeys(row["cost"] for row in behind["winners"]):
        rows = [row for row in behind["winners"] if row["cost"] == cost]
        pure = min(
            (row for row in rows if row["space"] != MIXED),
            key=lambda row: (reached(row, metric)[0], row["costs"][CACHE]),
        )
        there, its_deviation = reached(pure, metric)
        for row in filter(is_mixed, rows):
            mine, deviation = reached(row, metric)
            ratios = {name: row["costs"][name] / pure["costs"][name] for name in row["costs"]}
            both = math.hypot(deviation, its_deviation)
            table.append(Comparison(cost, row, pure, there - mine, both, ratios))
    return table


def marks(content: Mapping[str, Any], behind: Mapping[str, Any]) -> dict[str, bool]:
    """Which of the three marks are met; a time that was not measured meets none."""
    found = comparisons(content, behind)
    return {
        "cache": any(one.small for one in found),
        "time": any(one.small and one.fast for one in found),
        "ranking": behind["ranking"]["kendall_tau"] >= LEAST_TAU,
    }


def _verdict(stands: bool) -> str:
    return "met" if stands else "MISSED"


def met(content: Mapping[str, Any]) -> bool:
    """Whether all marks are met behind the longest context."""
    return all(marks(content, content["contexts"][-1]).values())


def show(content: Mapping[str, Any]) -> Iterator[Table | str]:
    """Fronts, winners, comparisons, and the marks, behind each context."""
    for behind in content["contexts"]:
        yield from _shown(content, behind)


def _shown(content: Mapping[str, Any], behind: Mapping[str, Any]) -> Iterator[Table | str]:
    title = f"{content['space']}, {content['length']} tokens"
    if behind["context"] != content["length"]:
        title += f", caches and times behind {behind['context']:,}"
    yield _fronts_table(behind, title)
    yield _winners_table(content, behind, title)
    found = comparisons(content, behind)
    heads = ("under", "mixed", "pure", "gain", "± seeds", "cache", "time", "FLOPs")
    yield table_of(
        f"{title}: mixed winners beside the best pure one, costs as shares of its",
        heads,
        [
            (
                OBJECTIVES[one.cost].label,
                _layers(one.mixed),
                _layers(one.pure),
                f"{one.gain:+.4f}",
                f"{one.deviation:.4f}",
                f"{one.ratios[CACHE]:.3f}",
                ", ".join(
                    f"{OBJECTIVES[name].head} {one.ratios[name]:.3f}"
                    for name in TIMES
                    if name in one.ratios
                )
                or "not timed",
                f"{one.ratios['flops']:.3f}",
            )
            for one in found
        ],
    )
    if behind["whole"]:
        yield from _whole_space(content, behind["whole"], title)
    yield from _sentences(content, behind)


def _whole_space(
    content: Mapping[str, Any], whole: Mapping[str, Any], title: str
) -> Iterator[Table | str]:
    networks, searches = whole["networks"], whole["searches"]
    yield table_of(
        f"{title}: all {len(networks)} networks, as the search evaluates them",
        ("layers", "quality"),
        [(" ".join(one["kinds"]), f"{one['in_search']:.4f}") for one in networks],
    )
    yield table_of(
        f"{title}: the cheapest network as good as the best within {TOLERANCE}, and with which of "
        f"{content['budget']} evaluations searches with other seeds found it",
        ("under", "layers", "found by", "median", "last", "at random: found by", "median"),
        [
            (
                OBJECTIVES[row["cost"]].label,
                " ".join(row["kinds"]),
                *_found(row["found_at"]),
                *_found(row["at_random"])[:2],
            )
            for row in searches
        ],
    )


def _found(places: Sequence[int | None]) -> tuple[str, str, str]:
    """How many found it, and with which evaluation: the median of all and the last."""
    found = [place for place in places if place is not None]
    middle = float(np.median([math.inf if place is None else place for place in places]))
    last = str(max(found)) if found else "never"
    return f"{len(found)} of {len(places)}", f"{middle:g}", last


def _sentences(content: Mapping[str, Any], behind: Mapping[str, Any]) -> Iterator[str]:
    stand = marks(content, behind)
    yield (
        f"a mixed winner is as good as the best pure one at {MOST_CACHE} of its cache or less: "
        f"{_verdict(stand['cache'])}"
    )
    small = [one for one in comparisons(content, behind) if one.small]
    times = [name for name in TIMES if any(name in row["costs"] for row in behind["winners"])]
    told = (
        f"{OBJECTIVES[name].label} {_verdict(any(one.fast_by(name) for one in small))}"
        for name in times
    )
    yield f"and takes {MOST_TIME} of its time or less: {', '.join(told) or 'not timed, so not met'}"
    order = behind["ranking"]
    interval = order["interval"]
    within = "" if interval is None else " ({:.2f} … {:.2f})".format(*interval)
    yield (
        f"Kendall's τ of qualities in the search with those from scratch, {len(order['networks'])} "
        f"networks: {order['kendall_tau']:.3f}{within} (wanted ≥ {LEAST_TAU}): "
        f"{_verdict(stand['ranking'])}"
    )


def _fronts_table(behind: Mapping[str, Any], title: str) -> Table:
    fronts = behind["fronts"]
    shares = {(row["cost"], row["space"]): row for row in fronts}
    names = list(dict.fromkeys(row["space"] for row in fronts))
    return table_of(
        f"{title}: hypervolume of each space's front, as a share of the common front's",
        ("cost", *names),
        [
            (
                OBJECTIVES[cost].label,
                *(f"{shares[cost, name]['hypervolume']:.3f}" for name in names),
            )
            for cost in dict.fromkeys(row["cost"] for row in fronts)
        ],
    )


def _winners_table(content: Mapping[str, Any], behind: Mapping[str, Any], title: str) -> Table:
    metric: QualityMetric = content["quality"]
    updates = f"{content['updates']['scratch']:,} updates, {content['seeds']} seeds"
    heads = (
        "under",
        "space",
        "winner",
        "layers",
        "in the search",
        f"{QUALITIES[metric].objective.label}",
    )
    costs = [*UNTIMED, *(name for name in TIMES if name in behind["winners"][0]["costs"])]
    rows = []
    for row in behind["winners"]:
        mean, deviation = reached(row, metric)
        rows.append(
            (
                OBJECTIVES[row["cost"]].label,
                row["space"],
                f"{row['which']} {row['id']}",
                " ".join(row["kinds"]),
                f"{row['in_search']:.4f}",
                f"{mean:.4f}",
                f"{deviation:.4f}",
                f"{np.mean([one['loss'] for one in row['scores']]):.4f}",
                *(f"{row['costs'][name]:.4g}" for name in costs),
            )
        )
    return table_of(
        f"{title}: winners from scratch, {updates}",
        (*heads, "± seeds", "loss", *(OBJECTIVES[name].head for name in costs)),
        rows,
    )


def _layers(row: Mapping[str, Any]) -> str:
    return f"{' '.join(row['kinds'])} ({row['which']})"

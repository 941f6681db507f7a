"""Where the kind of attention decides, does a search find the mix of kinds that pays?

``python -m experiments.hybrid_study --space recall --length 512 --context 512 2048``

On a task that needs recall, one supernet of the whole space is trained, with weights of their own
for each kind of attention; where the preset has `own_updates`, as those of `recall` have, each
network is trained alone for so many updates instead. Four spaces are searched, by the same number
of real evaluations: softmax only, windows only, linear only, and all kinds mixed; for quality
against the size of the cache, and against the times of a token and of a prompt, predicted from 60
networks that are timed. Two winners of each space, the best and the cheapest that is as good within
a tolerance, and of the mixed space the cheapest one of several kinds that is as good as the best
pure one, are trained from scratch, all with the same updates and several seeds, and tested. More
networks, spread over all qualities in the search, are trained once, to see how well the search
ranks them.

Caches and times are taken behind each of several contexts; what networks learn does not depend on
them, so that each is evaluated and trained once. The marks are those of the longest.

With `--searches` a small space is evaluated whole, so that it is known which network is to be
found, and searches with other seeds tell how often and how soon it is. A space for that is
`experiments/recall_kinds.toml`, where only kinds and depth are open.

The marks: a winner of the mixed space, of more than one kind, is no worse than the best of the pure
spaces, beyond the deviation of the seeds, with at most 0.6 of its cache and 0.75 of its time; and
Kendall's tau of the qualities in the search with those from scratch is 0.7 or more.

Evaluations, timings and trainings are kept in the work folder and not repeated.

Shapes: N networks, S slots of a genotype.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from experiments.attention_study import (
    ROUNDS,
    Costs,
    Training,
    predicted_ms,
    searched,
    train,
)
from experiments.harness import Options, Study, add_numbers, note, positive, processes
from experiments.hybrid_tables import (
    COSTS,
    MIXED,
    TIMES,
    TOLERANCE,
    UNTIMED,
    has_several,
    met,
    show,
)
from experiments.searchers import FIRST, Floats, Measure
from experiments.trainings import RUN, Oracle, oracle, train_supernet
from latency.timer import time_calls
from nas.objectives import OBJECTIVES, QUALITIES, QualityMetric, counted, timed_workload
from nas.profiling.timed_work import timed_call
from nas.request.fields import pairs
from nas.request.presets import budget_for
from nas.run.folder import RunFolder
from nas.search.pareto import non_dominated
from nas.search.ranking.agreement import tau_interval
from search_spaces.architecture import LINEAR_KERNELS, Architecture, base_kind
from search_spaces.data_keys import RECALL
from search_spaces.errors import UsageError
from search_spaces.loading import load_space
from search_spaces.space import Genotypes, SearchSpace
from search_spaces.variation import distinct, enumerate_all, sample_distinct

# Of each task its quality: that which asks for recall.
QUALITY_OF: Mapping[str, QualityMetric] = {"recall": "accuracy", "python-source": "recall_nats"}
KINDS = ("softmax", "window", "linear")
LEAST_RANKED = 10
MOST_LISTED = 1000  # networks of a space that is evaluated whole


# -- the spaces -----------------------------------------------------------------------------------


def space_at(space: SearchSpace, length: int, context: int | None = None) -> SearchSpace:
    """A space whose texts have a length in tokens, and whose networks write behind it.

    Args:
        space: as it is shipped.
        length: of the texts, which nothing but the data depends on.
        context: tokens behind which caches and times are taken; None for the length.

    Raises:
        UsageError: for a length or context below 1, or too short for the data.
    """
    if length < 1:
        raise UsageError(f"the length of texts is at least 1 token; given {length}")
    if context is not None and context < 1:
        raise UsageError(f"costs are taken behind at least 1 token; given {context}")
    data = {**space.data, "length": length} if space.data["dataset"] == RECALL else space.data
    behind = {} if context is None else {"context": context}
    return replace(
        space,
        model=replace(space.model, max_length=max(length, context or 0) + 1),
        data=data,
        workload={**space.workload, "source": length, **behind},
    )


def numbers_at(
    space: SearchSpace, usual: int, preset: str, given: Mapping[str, str]
) -> dict[str, str]:
    """Numbers of the budget of a space of `space_at` that are other ones than the preset's.

    An update reads as many sequences as it does at the shipped length, whatever their length.

    Args:
        space: with the length as its workload's source.
        usual: the length as shipped.
        preset: of it.
        given: numbers by name that go before all others.
    """
    budget, length = budget_for(space, preset, {}), int(space.workload["source"])
    numbers = {}
    for name, settings in (("supernet", budget.supernet), ("retrain", budget.retrain)):
        numbers[f"{name}.segment_length"] = str(length)
        numbers[f"{name}.max_tokens"] = str(max(1, settings.max_tokens // usual) * length)
    return {**numbers, **given}


def parts_of(space: SearchSpace) -> dict[str, SearchSpace]:
    """The pure spaces of the kinds that its layers offer, and the whole."""
    choices = space.slot("decoder.0.self_attention").choices
    parts = {}
    for kind in KINDS:
        of_kind = [choice for choice in choices if base_kind(str(choice)) == kind]
        if of_kind:
            parts[kind] = space.restrict({"decoder.self_attention": of_kind})
    return {**parts, MIXED: space}


def kinds_of(network: Architecture) -> list[str]:
    """The kind of each layer, from the first."""
    assert network.decoder is not None
    return [layer.self_attention for layer in network.decoder.layers]


# -- what networks cost ---------------------------------------------------------------------------


def costs_of(space: SearchSpace, work: Path, names: Sequence[str]) -> dict[str, Costs]:
    """What networks cost, rows ``(N, S)`` → ``(N, 1)``, by name of the objective."""

    def one(name: str) -> Costs:
        if OBJECTIVES[name].timed:
            workload = timed_workload(space, OBJECTIVES[name].mode)
            return predicted_ms(space, workload, work)
        return lambda rows: counted(space, rows, [name])[name][:, None]

    return {name: one(name) for name in names}


def timed_ms(
    space: SearchSpace, networks: Sequence[Architecture], name: str, work: Path
) -> list[float]:
    """Milliseconds of networks, timed beside each other; once for all."""
    workload = timed_workload(space, OBJECTIVES[name].mode)
    file = work / f"timed-{workload.digest[:8]}.json"
    known: dict[str, float] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    # Times of different sessions are not compared: all are taken anew where one is missing.
    if any(network.id not in known for network in networks):
        calls = [timed_call(space, network, workload, "cpu") for network in networks]
        timings = time_calls(calls, "cpu", dtype=workload.dtype, warmup=1, repeats=ROUNDS)
        known = {one.id: t.median_ms for one, t in zip(networks, timings, strict=True)}
        file.write_text(json.dumps(known), encoding="utf-8")
    return [known[network.id] for network in networks]


# -- search and training --------------------------------------------------------------------------

Found = Mapping[str, Mapping[str, Genotypes]]  # cost → space → rows that were evaluated


@dataclass(frozen=True)
class Winner:
    """A network that a space's search would give.

    Attributes:
        cost: what was searched for besides quality.
        space: a kind, or ``mixed``.
        which: ``best``; ``lean``: the cheapest that is as good within `TOLERANCE`; of the mixed
            space also ``match``: the cheapest of several kinds that is as good as the best pure
            network.
        row: its genotype in the whole space, ``(1, S)``.
        network: itself.
    """

    cost: str
    space: str
    which: str
    row: Genotypes
    network: Architecture


def fronts_of(asked: Oracle, found: Found, costs: Mapping[str, Costs]) -> list[dict[str, Any]]:
    """For each cost and space its front, and the share of the common front's hypervolume."""
    table = []
    for cost, by_space in found.items():
        points = {
            name: np.column_stack([asked(rows), costs[cost](rows)])
            for name, rows in by_space.items()
        }
        measure = Measure.of(np.concatenate(list(points.values())))
        for name, mine in points.items():
            best = non_dominated(mine)
            networks = asked.space.decode(by_space[name][best])
            front = [
                {"id": one.id, "kinds": kinds_of(one), "quality": point[0], "cost": point[1]}
                for one, point in zip(networks, mine[best].tolist(), strict=True)
            ]
            front.sort(key=lambda point: (point["cost"], point["quality"]))
            share = measure.share(mine)
            table.append({"cost": cost, "space": name, "hypervolume": share, "front": front})
    return table


def winners_of(asked: Oracle, found: Found, costs: Mapping[str, Costs]) -> list[Winner]:
    """The winners under every cost in every space; a network may win more than once."""
    winners = []
    for cost, by_space in found.items():
        pure = [asked(rows).min() for space, rows in by_space.items() if space != MIXED]
        for space, rows in by_space.items():
            qualities, prices = asked(rows), costs[cost](rows)[:, 0]
            networks = asked.space.decode(rows)
            picked = {
                "best": int(np.lexsort((prices, qualities))[0]),
                "lean": _cheapest(qualities <= qualities.min() + TOLERANCE, qualities, prices),
            }
            if space == MIXED and pure:
                mixes = np.array([has_several(kinds_of(network)) for network in networks])
                matching = mixes & (qualities <= min(pure) + TOLERANCE)
                if matching.any():
                    picked["match"] = _cheapest(matching, qualities, prices)
            for which, number in picked.items():
                row = rows[number : number + 1]
                winners.append(Winner(cost, space, which, row, networks[number]))
    return winners


def _cheapest(chosen: NDArray[np.bool_], qualities: Floats, prices: Floats) -> int:
    """The cheapest of the chosen ones, of equally cheap ones the best."""
    return int(np.lexsort((qualities, prices, ~chosen))[0])


def ranked_rows(asked: Oracle, winners: Sequence[Winner], found: Found, count: int) -> Genotypes:
    """The winners, and networks spread evenly over the qualities of all that was met."""
    won = distinct(np.concatenate([winner.row for winner in winners]))
    met = [rows for by_space in found.values() for rows in by_space.values()]
    keys = {row.tobytes() for row in won}
    others = distinct(np.concatenate(met))
    others = others[[row.tobytes() not in keys for row in others]]
    others = others[np.argsort(asked(others), kind="stable")]
    places = np.linspace(0, len(others) - 1, max(0, count - len(won))).round().astype(int)
    return np.concatenate([won, others[np.unique(places)]])


def measure(options: Options) -> dict[str, Any]:
    """Search the spaces, train the winners, and more networks to compare the ranking with.

    Raises:
        UsageError: for numbers that nothing can be said from.
    """
    _check(options)
    whole = space_of(options)
    usual = int(whole.workload["source"])
    length = options.length or usual
    quality = options.quality or QUALITY_OF[str(whole.data["dataset"])]
    contexts = _contexts(options) or [length]
    longest = space_at(whole, length, contexts[-1])
    work = Path(options.work) / _name(options, "-")
    numbers = numbers_at(longest, usual, options.preset, pairs("--set", options.set))
    train_supernet(longest, numbers, work, options.preset, data=options.data, quality=quality)
    asked = oracle(str(work))
    if options.searches:
        asked.evaluate(enumerate_all(asked.space, MOST_LISTED), options.workers)
    budget = RunFolder.open(work / RUN).spec.budget
    return {
        "space": whole.name,
        "length": length,
        "quality": quality,
        "budget": options.budget,
        "first": options.first,
        "seeds": options.seeds,
        "updates": {
            "alone": budget.own_updates,
            "supernet": 0 if budget.own_updates else budget.supernet.max_updates,
            "scratch": budget.retrain.max_updates,
        },
        "contexts": [
            _behind(options, asked, space_at(whole, length, context), quality, work)
            for context in contexts
        ],
    }


def _behind(
    options: Options, asked: Oracle, space: SearchSpace, quality: QualityMetric, work: Path
) -> dict[str, Any]:
    """What is found by the costs of a space of `space_at`."""
    context = int(space.workload.get("context", space.workload["source"]))
    names = list(dict.fromkeys(options.costs.split(",")))
    costs = costs_of(space, work, names)
    found: dict[str, dict[str, Genotypes]] = {}
    for cost, price in costs.items():
        for name, part in parts_of(asked.space).items():
            rows = searched(asked, part, price, 0, options.budget, options.first)
            found.setdefault(cost, {})[name] = rows
            note(f"behind {context:,}, {cost}, {name}: {len(rows)} evaluations")
    whole_space = again(asked, costs, options) if options.searches else None
    won = winners_of(asked, found, costs)
    ranked = ranked_rows(asked, won, found, options.ranked)
    asked.keep()
    scores = scratch_scores(asked, won, ranked, work, options.seeds, options.workers)
    return {
        "context": context,
        "fronts": fronts_of(asked, found, costs),
        "whole": whole_space,
        "winners": winner_rows(asked, space, won, scores, timed_of(options), work),
        "ranking": ranking(asked, ranked, scores, quality),
    }


def again(asked: Oracle, costs: Mapping[str, Costs], options: Options) -> dict[str, Any]:
    """What a search of the mixed space is worth: the same with other seeds, beside the truth.

    All networks of the space are evaluated. The network to be found under a cost is the
    cheapest that is as good as the best one, within `TOLERANCE`.

    Returns:
        All networks with their qualities, from the best on; and a row for each cost: the network to
        be found, and with which evaluation each search found it, None where it did not; the same of
        as many networks in random order.
    """
    space = asked.space
    rows = enumerate_all(space, MOST_LISTED)
    qualities, table = asked(rows), []
    for cost, price in costs.items():
        alike = rows[qualities <= qualities.min() + TOLERANCE]
        wanted = alike[int(np.argmin(price(alike)[:, 0]))]
        found_at: list[int | None] = []
        at_random: list[int | None] = []
        for seed in range(1, options.searches + 1):
            orders = (
                searched(asked, space, price, seed, options.budget, options.first),
                sample_distinct(space, np.random.default_rng([seed, 6]), options.budget),
            )
            for order, places in zip(orders, (found_at, at_random), strict=True):
                place = np.flatnonzero((order == wanted).all(axis=1))
                places.append(int(place[0]) + 1 if len(place) else None)
        network = space.decode(wanted[None])[0]
        table.append(
            {"cost": cost, "kinds": kinds_of(network), "found_at": found_at, "at_random": at_random}
        )
        note(f"{cost}: {options.searches} searches")
    everything = [
        {"kinds": kinds_of(network), "in_search": quality}
        for network, quality in zip(space.decode(rows), qualities.tolist(), strict=True)
    ]
    everything.sort(key=lambda one: one["in_search"])
    return {"networks": everything, "searches": table}


def timed_of(options: Options) -> list[str]:
    """The times that winners are measured for: those that were searched for, and `--timed`."""
    asked = f"{options.costs},{options.timed or ''}".split(",")
    return [name for name in TIMES if name in asked]


def _contexts(options: Options) -> list[int]:
    """Those asked for, from the shortest on."""
    return sorted(set(options.context or ()))


def space_of(options: Options) -> SearchSpace:
    """The space as it is given, with the kernel that was asked for.

    Raises:
        UsageError: for a kernel where no linear layer is without one of its own.
    """
    space = load_space(options.space)
    if options.linear_kernel is None:
        return space
    if "linear" not in space.slot("decoder.0.self_attention").choices:
        raise UsageError(
            f"--linear-kernel {options.linear_kernel} is for layers of kind linear, of which "
            f"{options.space} has none without a kernel of its own"
        )
    return replace(space, model=replace(space.model, linear_kernel=options.linear_kernel))


def _name(options: Options, joint: str) -> str:
    space = space_of(options)
    length = options.length or int(space.workload["source"])
    behind = "-".join(map(str, _contexts(options)))
    return joint.join([space.name, *filter(None, [options.linear_kernel, str(length), behind])])


def _check(options: Options) -> None:
    dataset = str(space_of(options).data["dataset"])
    if dataset not in QUALITY_OF:
        raise UsageError(
            f"this study is of spaces whose data are {' or '.join(QUALITY_OF)}; those of "
            f"{options.space} are {dataset}"
        )
    for name in filter(None, (options.timed or "").split(",")):
        if name not in TIMES:
            allowed = ", ".join(TIMES)
            raise UsageError(f"winners are timed for {allowed}; given --timed {name}")
    unknown = [name for name in options.costs.split(",") if name not in {*COSTS, *UNTIMED}]
    if unknown:
        allowed = ", ".join(dict.fromkeys((*COSTS, *UNTIMED)))
        raise UsageError(f"there is no cost {unknown[0]!r} in this study; allowed are {allowed}")
    if not 2 <= options.first <= min(FIRST, options.budget):
        raise UsageError(
            f"of {options.budget} evaluations of a search 2 to {min(FIRST, options.budget)} are "
            f"drawn before any is predicted; given --first {options.first}"
        )
    if options.seeds < 2:
        raise UsageError(f"a deviation needs at least 2 seeds; given {options.seeds}")
    if options.ranked < LEAST_RANKED:
        raise UsageError(
            f"a ranking is judged by at least {LEAST_RANKED} networks; given {options.ranked}"
        )


def scratch_scores(
    asked: Oracle,
    won: Sequence[Winner],
    ranked: Genotypes,
    work: Path,
    seeds: int,
    workers: int,
) -> dict[str, list[dict[str, float]]]:
    """Test scores of networks from scratch by id: of winners with all seeds, of others with one."""
    epochs = RunFolder.open(work / RUN).spec.budget.retrain.epochs
    many = {winner.network.id for winner in won}
    jobs = [
        Training(str(work), network, seed, epochs)
        for network in asked.space.decode(ranked)
        for seed in range(1, (seeds if network.id in many else 1) + 1)
    ]
    scores: dict[str, list[dict[str, float]]] = {}
    with processes(workers) as pool:
        for job, result in zip(jobs, pool.map(train, jobs), strict=True):
            scores.setdefault(job.network.id, []).append(result)
            note(f"{' '.join(kinds_of(job.network))}, seed {job.seed}: {result}")
    return scores


def winner_rows(
    asked: Oracle,
    space: SearchSpace,
    won: Sequence[Winner],
    scores: Mapping[str, list[dict[str, float]]],
    times: Sequence[str],
    work: Path,
) -> list[dict[str, Any]]:
    """A row for each winner: what it is, costs, takes of these times, and reaches."""
    networks = list({winner.network.id: winner.network for winner in won}.values())
    rows = distinct(np.concatenate([winner.row for winner in won]))
    priced: dict[str, dict[str, float]] = {network.id: {} for network in networks}
    for name, price in costs_of(space, work, UNTIMED).items():
        for network, value in zip(space.decode(rows), price(rows)[:, 0], strict=True):
            priced[network.id][name] = float(value)
    for name in times:
        for network, ms in zip(networks, timed_ms(space, networks, name, work), strict=True):
            priced[network.id][name] = ms
    return [
        {
            "cost": winner.cost,
            "space": winner.space,
            "which": winner.which,
            "id": winner.network.id,
            "kinds": kinds_of(winner.network),
            "architecture": winner.network.to_json(),
            "in_search": float(asked(winner.row)[0]),
            "costs": priced[winner.network.id],
            "scores": scores[winner.network.id],
        }
        for winner in won
    ]


def ranking(
    asked: Oracle,
    rows: Genotypes,
    scores: Mapping[str, list[dict[str, float]]],
    metric: QualityMetric,
) -> dict[str, Any]:
    """Kendall's tau-b of qualities in the search with those from scratch, means over the seeds."""
    networks, found = asked.space.decode(rows), asked(rows)
    scratch = np.array(
        [np.mean([QUALITIES[metric].of(one) for one in scores[n.id]]) for n in networks]
    )
    interval = tau_interval(found, scratch)
    return {
        "networks": [
            {"id": network.id, "kinds": kinds_of(network), "in_search": mine, "scratch": theirs}
            for network, mine, theirs in zip(
                networks, found.tolist(), scratch.tolist(), strict=True
            )
        ],
        "kendall_tau": float(kendalltau(found, scratch).statistic),
        "interval": None if interval is None else list(interval),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument(
        "--space", default="recall", help="of recall or python-source, or a file with one"
    )
    parser.add_argument(
        "--linear-kernel",
        choices=LINEAR_KERNELS,
        help="that linear layers compute; the space's own if left out",
    )
    parser.add_argument("--length", type=int, help="tokens of a text; the space's own if left out")
    parser.add_argument(
        "--context",
        type=int,
        nargs="+",
        help="caches and times behind so many tokens, one context or several; the length if left "
        "out",
    )
    parser.add_argument("--data", help="the prepared folder of python-source")
    parser.add_argument("--quality", choices=["loss", *QUALITY_OF.values()])
    parser.add_argument(
        "--costs",
        default=",".join(COSTS),
        help=f"searched for besides quality; {','.join(UNTIMED)} on a machine that does other work",
    )
    parser.add_argument(
        "--timed", help=f"winners are timed for, besides those costs: {','.join(TIMES)}"
    )
    parser.add_argument("--preset", default="quick", help="whose trainings are done")
    add_numbers(parser)
    parser.add_argument("--budget", type=int, default=160, help="evaluations of each search")
    parser.add_argument(
        "--first", type=int, default=FIRST, help="of them drawn before any is predicted"
    )
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each winner")
    parser.add_argument("--ranked", type=int, default=16, help="networks that the ranking is of")
    parser.add_argument(
        "--searches",
        type=int,
        default=0,
        help="evaluate a small space whole, and search it with so many more seeds",
    )
    parser.add_argument("--work", default="runs/hybrid_study", help="supernet, evaluations, nets")
    parser.add_argument("--workers", type=positive, default=1, help="trainings at a time")


def _results(options: Options) -> str:
    return f"hybrid_study_{_name(options, '_')}"


STUDY = Study(
    "hybrid_study",
    "Where the kind of attention decides, does a search find the mix of kinds that pays?",
    add_options,
    measure,
    show,
    met,
    results=_results,
    example="--space recall --length 512 --context 512 2048 --set retrain.max_updates=2000",
    width=180,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

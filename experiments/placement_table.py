"""Which layers should get another kind of attention? All placements, and what choosing misses.

``python -m experiments.placement_table --checkpoint DIR --data DIR --kinds softmax,linear``

Every other kind is distilled in every layer of a checkpoint once (`supernet.inheritance.local`),
then every placement of the kinds is evaluated with these weights. So the best placement with any
number of converted layers is known, and for each way of choosing how much it is short of that, as
a share of the distance between the best and the worst. A table that is cut short goes on; what
placements are known by are numbers of kinds, so each order of `--kinds` has a folder of its own.

With `--contexts` it is told what placements cost at such lengths (`experiments.placement_costs`).
With `--halves` the placement that the search names for half of the layers is fine-tuned beside
uniform ones, with several seeds, and judged on the test split. With `--again` the ways of choosing
are judged anew on the table that stands in ``results/`` under its `--name`, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from rich.table import Table
from scipy.stats import kendalltau

from experiments.harness import RESULTS, Options, Study, done_jobs, note, table_of
from experiments.placement_costs import CACHE, cost_tables, costs_at, priced
from experiments.placement_selectors import (
    SELECTORS,
    Choice,
    Placement,
    PlacementTable,
    additive,
    additive_fit,
    additive_fits,
    all_placements,
    mean_regrets,
    num_layers,
    placed,
    ranked,
)
from experiments.shared_prefixes import shared_prefixes
from nas.console.commands.search import Here
from nas.console.formatting import decimal
from nas.objectives import QUALITY, QualityMetric
from nas.request.resolve import resolve
from nas.request.spec import SearchRequest
from nas.run.evaluator import trained_supernet, validation_quality
from nas.run.folder import RunFolder
from nas.run.layout import DISTILLED_ERRORS_FILE
from nas.run.network_training import trainer_of
from nas.run.stage_runner import run_stage
from nas.run.stages import search_stages
from nas.stages.base import Run
from nas.stages.pipeline import work_of
from search_spaces.errors import UsageError
from search_spaces.files import append_lines, write_atomically
from search_spaces.loading import dump_space
from search_spaces.recall import SETTING
from search_spaces.space import SearchSpace
from search_spaces.variation import largest
from supernet.building import build_supernet
from supernet.extraction import StandAlone, extract
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.pretrained.space import space_around
from supernet.tasks.evaluation import evaluate
from supernet.training_settings import TrainingSettings

JOURNAL, TUNED_JOURNAL, HALVES_JOURNAL = "placements.jsonl", "tuned.jsonl", "halves.jsonl"
COSTS_FILE = "costs-{}.json"
MARK = 0.01
FOLD = 25
RECALL = "recall_accuracy"
# Of a network with half of its layers converted, beside the checkpoint; of its decoder's state.
MOST_NATS, LEAST_RECALL, MOST_STATE = 1.02, 0.95, 0.55
DEVIATIONS = 2.0
LOSS_RATIO, RECALL_RATIO = "loss beside the checkpoint's", "recalled tokens beside the checkpoint's"
STATE_RATIO, AHEAD = "state beside the checkpoint's", "ahead of uniform, in deviations of the seeds"


def kinds_space(
    checkpoint: Path,
    kinds: list[str],
    recall_window: int | None = None,
    length: int | None = None,
) -> SearchSpace:
    """The checkpoint's networks that differ in their kinds of attention alone.

    Args:
        checkpoint: its folder.
        kinds: its own first.
        recall_window: beyond which tokens count as recalled; None where that is not told.
        length: tokens of a text of a decoder that are read at once in evaluation; None for as many
            as are timed.

    Raises:
        UsageError: for a kind that the space around the checkpoint does not offer.
    """
    space = space_around(read_checkpoint(checkpoint))
    if length is not None:
        space = replace(space, workload={**space.workload, "source": length})
    if recall_window is not None:
        space = replace(space, data={**space.data, SETTING: recall_window})
    top = largest(space)[0]
    choices: dict[str, list[Any]] = {}
    for slot, index in zip(space.slots, top, strict=True):
        if not slot.gene.endswith("attention"):
            choices[slot.name] = [slot.choices[index]]
            continue
        if missing := [kind for kind in kinds if kind not in slot.choices]:
            raise UsageError(
                f"{slot.name} offers {', '.join(map(str, slot.choices))}, not {missing[0]}"
            )
        choices[slot.name] = kinds
    return space.restrict(choices)


def distilled_run(options: Options, space: SearchSpace) -> Run:
    """A run of the space whose kinds of attention have been distilled, now or earlier."""
    request = SearchRequest(
        start=str(options.checkpoint),
        space_toml=dump_space(space),
        data=str(options.data),
        objectives=("quality", "flops"),
        quality=cast(QualityMetric, options.quality),
        settings={
            "threads": options.threads,
            "distil.updates": options.updates,
            "valid_examples": options.examples,
        },
    )
    spec = resolve(request, Here()).spec
    run = Run(RunFolder.create(options.work / "run", spec))
    for stage in search_stages(spec):
        if stage.name in ("declare", "inherit", "distil"):
            for _ in run_stage(run, stage, work_of(stage)):
                pass
    return run


def evaluate_all(run: Run, kinds: list[str], journal: Path) -> dict[Placement, dict[str, float]]:
    """What the validation split says of every placement, as far as the journal does not know it."""
    supernet = build_supernet(run.space)
    supernet.load_state_dict(run.first_weights())
    run.__dict__["supernet"] = supernet.to(run.spec.device).eval()
    done = {tuple(line["placement"]): line["values"] for line in done_jobs(journal).values()}
    every = sorted(all_placements(num_layers(run.space), len(kinds)))
    with shared_prefixes(list(getattr(supernet, run.space.stacks[0]).blocks)):
        for number, placement in enumerate(every):
            if placement in done:
                continue
            values = run.quality(placed(run.space, kinds, placement))
            line = {"key": str(placement), "placement": placement, "values": values}
            append_lines(journal, [json.dumps(line)])
            done[placement] = values
            if number % FOLD == 0:
                note(f"{number} of {len(every)} placements")
    return done


def costs(run: Run, kinds: list[str], options: Options) -> list[dict[str, Any]]:
    """`costs_at` all lengths, now or earlier."""
    found: list[dict[str, Any]] = []
    for length in options.contexts:
        file = kept_in(options) / COSTS_FILE.format(length)
        if not file.exists():
            write_atomically(file, json.dumps(costs_at(run.space, kinds, length)))
        found += json.loads(file.read_text(encoding="utf-8"))
    return found


def kept_in(options: Options) -> Path:
    """The folder of what is known of placements of these kinds, in this order."""
    return Path(options.work, options.kinds)


def tuning(run: Run, options: Options, updates: int) -> TrainingSettings:
    """The numbers of a short training from the checkpoint's targets."""
    return replace(
        run.spec.budget.retrain,
        epochs=1,
        epoch_updates=updates,
        batch_size=options.tuned_batch,
        learning_rate=options.tuned_rate,
        bfloat16=options.bfloat16 or None,
    )


def fine_tune(run: Run, network: StandAlone, settings: TrainingSettings, seed: int) -> None:
    """Train a network; the seed decides the order of the texts."""
    spec = run.spec.model_copy(update={"seed": seed})
    for _ in trainer_of(network, spec, run.quick_task, settings, None, run.teacher).run():
        pass


def halves(run: Run, kinds: list[str], table: PlacementTable, options: Options) -> dict[str, Any]:
    """What the search and uniform placement name for half of the layers, fine-tuned and tested.

    The test split is read here and nowhere else. Of the uniform placements, one for each phase and
    kind, all are fine-tuned.
    """
    half = table.num_layers // 2
    named = {
        "search": [tuple(one) for one in ranked(table, run.space, seed=0)[half]],
        "uniform": [tuple(one) for one in SELECTORS["uniform"](table)[half]],
    }
    supernet = trained_supernet(run.spec, run.first_weights())
    test = run.task.open_test()
    own = placed(run.space, kinds, (0,) * table.num_layers)
    journal = kept_in(options) / HALVES_JOURNAL
    done = done_jobs(journal)
    settings = tuning(run, options, options.half_updates)
    rows = []
    for chosen_by, placements in named.items():
        for placement in placements:
            for seed in range(options.halves):
                key = str((placement, seed, _learnt(options, options.half_updates)))
                if key not in done:
                    network = extract(supernet, placed(run.space, kinds, placement))
                    fine_tune(run, network, settings, seed)
                    scores = tested(run, network, test)
                    done[key] = {"key": key, "placement": placement, "seed": seed, "test": scores}
                    append_lines(journal, [json.dumps(done[key])])
                    note(f"{chosen_by} {placement}, seed {seed}: {scores}")
                rows.append({"chosen_by": chosen_by, **done[key]})
    teacher = tested(run, extract(supernet, own), test)
    return {
        "updates": options.half_updates,
        "learning_rate": options.tuned_rate,
        "before": {name: [table.known[one] for one in found] for name, found in named.items()},
        "own": teacher,
        "rows": rows,
    }


@torch.inference_mode()
def tested(run: Run, network: StandAlone, split: Any) -> dict[str, float]:
    """The scores of a network, and the share of recalled tokens that it predicts."""
    model, architecture = network.network.eval(), network.architecture
    scores = dict(evaluate(run.task, model, architecture, split, device="cpu").scores)
    right = count = 0
    for one in run.task.evaluation(model, architecture, split, "cpu"):
        if one.recalled is not None:
            said, labels = one.logits[one.recalled].argmax(dim=-1), one.labels[one.recalled]
            right, count = right + int((said == labels).sum()), count + len(labels)
    return {**scores, **({RECALL: right / count} if count else {})}


def tune(run: Run, kinds: list[str], placements: list[Placement], options: Options) -> list[float]:
    """The qualities of placements after a short training of each from the checkpoint's targets."""
    journal = kept_in(options) / TUNED_JOURNAL
    done = done_jobs(journal)
    supernet = trained_supernet(run.spec, run.first_weights())
    settings = tuning(run, options, options.tuned_updates)
    found = []
    for placement in placements:
        key = str((placement, _learnt(options, options.tuned_updates)))
        if key in done:
            found.append(done[key]["quality"])
            continue
        network = extract(supernet, placed(run.space, kinds, placement))
        fine_tune(run, network, settings, run.spec.seed)
        values = validation_quality(
            run.quick_task,
            network.network.eval(),
            network.architecture,
            run.spec.quality,
            run.spec.device,
        )
        line = {"key": key, "placement": placement, "quality": values[QUALITY]}
        append_lines(journal, [json.dumps(line)])
        found.append(values[QUALITY])
        note(f"{len(found)} of {len(placements)} placements tuned")
    return found


def _learnt(options: Options, updates: int) -> tuple[int, float, int, bool]:
    """What a short training is known by, beside its network."""
    return updates, options.tuned_rate, options.tuned_batch, options.bfloat16


def tuned(run: Run, kinds: list[str], table: PlacementTable, options: Options) -> dict[str, Any]:
    """Whether fine-tuning changes the order of placements that convert half of the layers."""
    among = np.flatnonzero(table.converted == table.num_layers // 2)
    drawn = np.random.default_rng(0).permutation(among)[: options.tuned]
    chosen = [tuple(row) for row in table.placements[drawn].tolist()]
    before = [table.known[one] for one in chosen]
    after = tune(run, kinds, chosen, options)
    tau = float(kendalltau(before, after).statistic)
    return {
        "updates": options.tuned_updates,
        "learning_rate": options.tuned_rate,
        "batch_size": options.tuned_batch,
        "placements": chosen,
        "before": before,
        "after": after,
        "tau": tau if math.isfinite(tau) else None,  # of one placement, or of equal ones
    }


def measure(options: Options) -> dict[str, Any]:
    """All numbers of the study."""
    torch.set_num_threads(options.threads)
    kinds = options.kinds.split(",")
    space = kinds_space(options.checkpoint, kinds, options.recall_window, options.length)
    if options.again:
        return judged_again(space, kinds, options)
    if options.data is None:
        raise UsageError("to evaluate placements takes --data, a folder of nas data prepare")
    options.work.mkdir(parents=True, exist_ok=True)
    run = distilled_run(options, space)
    found = evaluate_all(run, kinds, kept_in(options) / JOURNAL)
    placements = sorted(found)
    errors = run.folder.read_json(DISTILLED_ERRORS_FILE)
    layers = len(placements[0])
    table = PlacementTable(
        np.array(placements),
        np.array([found[one][QUALITY] for one in placements]),
        np.array([[errors.get(f"{n}.{kind}", 0.0) for kind in kinds] for n in range(layers)]),
    )
    prices = costs(run, kinds, options)
    lines = [
        {"placement": placement, **found[placement], **priced(prices, placement)}
        for placement in placements
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    write_atomically(RESULTS / f"{options.name}.jsonl", text)
    np.savez_compressed(
        RESULTS / f"{options.name}.npz",
        placements=table.placements.astype(np.int8),
        qualities=table.qualities,
        errors=table.errors,
    )
    return {
        "name": options.name,
        "kinds": kinds,
        "layers": layers,
        "quality": options.quality,
        "placements": len(placements),
        "own": table.known[(0,) * layers],
        "best": [_extreme(table, count, best=True) for count in table.counts],
        "worst": [_extreme(table, count, best=False) for count in table.counts],
        **_all_judged(table, space, options.seeds),
        "costs": prices,
        "tuned": tuned(run, kinds, table, options) if options.tuned > 1 else None,
        "halves": halves(run, kinds, table, options) if options.halves else None,
        "r2": additive_fit(table),
        "r2_by_count": {str(count): value for count, value in additive_fits(table).items()},
    }


def judged_again(space: SearchSpace, kinds: list[str], options: Options) -> dict[str, Any]:
    """The numbers of a table that is known, with the ways of choosing judged by today's code.

    Raises:
        UsageError: where there is none of that name, or of other kinds.
    """
    file = RESULTS / f"{options.name}.json"
    if not file.exists():
        raise UsageError(f"there is no table {options.name} in {RESULTS}: leave out --again")
    numbers: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    layers = num_layers(space)
    if (numbers["kinds"], numbers["layers"]) != (kinds, layers):
        raise UsageError(
            f"{options.name} is of {numbers['layers']} layers with {','.join(numbers['kinds'])}; "
            f"given {layers} with {options.kinds}"
        )
    with np.load(file.with_suffix(".npz")) as kept:
        placements = kept["placements"].astype(np.int64)
        table = PlacementTable(placements, kept["qualities"], kept["errors"])
    return numbers | _all_judged(table, space, options.seeds)


def _all_judged(table: PlacementTable, space: SearchSpace, seeds: int) -> dict[str, Any]:
    """What every way of choosing is short of the best; of those with chance in them each seed."""
    return {
        "chosen": {name: _judged(table, choose) for name, choose in SELECTORS.items()},
        "additive": [_judged(table, partial(additive, seed=seed)) for seed in range(seeds)],
        "search": [
            _judged(table, partial(ranked, space=space, seed=seed)) for seed in range(seeds)
        ],
    }


def _extreme(table: PlacementTable, count: int, best: bool) -> dict[str, Any]:
    among = np.flatnonzero(table.converted == count)
    values = table.qualities[among]
    number = among[values.argmin() if best else values.argmax()]
    placement = table.placements[number].tolist()
    return {"count": count, "quality": float(table.qualities[number]), "placement": placement}


def _judged(table: PlacementTable, choose: Callable[[PlacementTable], Choice]) -> dict[str, Any]:
    """What a way of choosing is short of the best, and how many placements it had to evaluate."""
    table.asked.clear()
    choice = choose(table)
    regrets = {str(count): value for count, value in mean_regrets(table, choice).items()}
    return {"evaluations": len(table.asked), "regrets": regrets}


def show(numbers: dict[str, Any]) -> Iterator[Table | str]:
    """Tables of the numbers."""
    kinds = numbers["kinds"]
    counts = [str(one["count"]) for one in numbers["best"]]
    rows = []
    for best, worst in zip(numbers["best"], numbers["worst"], strict=True):
        names = " ".join(kinds[kind] for kind in best["placement"])
        rows.append([best["count"], f"{best['quality']:.4g}", f"{worst['quality']:.4g}", names])
    yield table_of(
        f"{numbers['name']}: {numbers['placements']} placements, {numbers['quality']}, less is "
        f"better; the network itself {numbers['own']:.4g}",
        ["converted", "best", "worst", "the best placement"],
        rows,
    )
    lines = [_line(name, [found], counts, np.mean) for name, found in numbers["chosen"].items()]
    for name in ("additive", "search"):
        runs = numbers[name]
        lines.append(_line(f"{name}, mean of {len(runs)} seeds", runs, counts, np.mean))
        lines.append(_line(f"{name}, worst of {len(runs)} seeds", runs, counts, np.max))
    yield table_of(
        "regret: share of the distance from the best to the worst with as many converted layers",
        ["chosen by", "evaluated", *counts],
        lines,
    )
    if of := numbers.get("tuned"):
        yield table_of(
            f"after {of['updates']} updates at a rate of {of['learning_rate']:g}: Kendall's τ with "
            f"before is {decimal(of['tau'], 2)}",
            ["placement", "before", "after"],
            [
                [" ".join(kinds[kind] for kind in one), f"{before:.4g}", f"{after:.4g}"]
                for one, before, after in zip(
                    of["placements"], of["before"], of["after"], strict=True
                )
            ],
        )
    if numbers.get("costs"):
        yield from cost_tables(kinds, numbers["costs"])
    if numbers.get("halves"):
        yield _halves_table(kinds, numbers["halves"])
        yield "; ".join(f"{what}: {value:.4g}" for what, value in _half_marks(numbers).items())
    fits = ", ".join(f"{n}: {value:.2f}" for n, value in numbers["r2_by_count"].items())
    yield f"R² of a sum of scores by layer: {numbers['r2']:.3f} over all; by count {fits or 'none'}"


def _halves_table(kinds: list[str], halves: dict[str, Any]) -> Table:
    """Half of the layers converted and fine-tuned: the test split."""
    names = list(halves["own"])
    rows = [["the network itself", "", *(f"{halves['own'][name]:.4f}" for name in names)]]
    for chosen_by, placement, found in _by_placement(halves):
        rows.append(
            [
                chosen_by,
                " ".join(kinds[kind] for kind in placement),
                *(
                    f"{np.mean([one[name] for one in found]):.4f} ± "
                    f"{np.std([one[name] for one in found], ddof=len(found) > 1):.4f}"
                    for name in names
                ),
            ]
        )
    return table_of(
        f"test split after {halves['updates']:,} updates at a rate of "
        f"{halves['learning_rate']:g}, mean and deviation of the seeds",
        ["chosen by", "placement", *names],
        rows,
    )


def _by_placement(
    halves: dict[str, Any],
) -> list[tuple[str, Placement, list[dict[str, float]]]]:
    """Who chose it, the placement, and the scores of its trainings."""
    found: dict[tuple[str, Placement], list[dict[str, float]]] = {}
    for row in halves["rows"]:
        key = row["chosen_by"], tuple(row["placement"])
        found.setdefault(key, []).append(row["test"])
    return [(*key, scores) for key, scores in found.items()]


def _line(
    name: str, runs: list[dict[str, Any]], counts: list[str], of: Callable[[list[float]], Any]
) -> list[str]:
    cells = [f"{float(of([one['regrets'][count] for one in runs])):.3f}" for count in counts]
    return [name, str(max(one["evaluations"] for one in runs)), *cells]


def _half_marks(numbers: dict[str, Any]) -> dict[str, float]:
    """What half of the layers converted costs and saves, beside the checkpoint and uniform ones.

    The best uniform placement is the one to be ahead of, in deviations of the seeds of both.
    """
    halves = numbers["halves"]
    found = _by_placement(halves)
    (chosen,) = (scores for name, _, scores in found if name == "search")
    losses = [one["loss"] for one in chosen]
    others = [[one["loss"] for one in scores] for name, _, scores in found if name == "uniform"]
    beside = min(others, key=lambda one: float(np.mean(one)))
    marks = {LOSS_RATIO: float(np.mean(losses)) / halves["own"]["loss"]}
    if halves["own"].get(RECALL):
        recall = float(np.mean([one[RECALL] for one in chosen]))
        marks[RECALL_RATIO] = recall / halves["own"][RECALL]
    placement = next(one["placement"] for one in halves["rows"] if one["chosen_by"] == "search")
    own = [0] * len(placement)
    longest = max((one["context"] for one in numbers["costs"]), default=0)
    states = {
        tuple(one["placement"]): one[CACHE]
        for one in numbers["costs"]
        if CACHE in one and one["context"] == longest
    }
    if states:
        marks[STATE_RATIO] = states[tuple(sorted(placement))] / states[tuple(own)]
    if len(losses) > 1:
        deviation = math.sqrt(float(np.var(losses, ddof=1) + np.var(beside, ddof=1)) / 2)
        marks[AHEAD] = (float(np.mean(beside)) - float(np.mean(losses))) / deviation
    return marks


def met(numbers: dict[str, Any]) -> bool:
    """Whether the search is within a hundredth of the best everywhere, with every seed.

    Where half of the layers were converted, besides: nearly the checkpoint's loss and recall, about
    half of its state, and clearly ahead of uniform placement.
    """
    within = all(value <= MARK for one in numbers["search"] for value in one["regrets"].values())
    found = _half_marks(numbers) if numbers.get("halves") else {}
    return within and all(
        (
            found.get(LOSS_RATIO, 0.0) <= MOST_NATS,
            found.get(RECALL_RATIO, 1.0) >= LEAST_RECALL,
            found.get(STATE_RATIO, 0.0) <= MOST_STATE,
            found.get(AHEAD, math.inf) > DEVIATIONS,
        )
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Study.add_options`."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--data", type=Path, help="folder of nas data prepare")
    parser.add_argument("--kinds", default="softmax,linear", help="the checkpoint's own first")
    parser.add_argument("--quality", default="loss", choices=get_args(QualityMetric))
    parser.add_argument("--updates", type=int, default=100, help="of the local distillation")
    parser.add_argument("--examples", type=int, default=500, help="validation examples")
    parser.add_argument("--tuned", type=int, default=0, help="placements that are fine-tuned")
    parser.add_argument("--tuned-updates", type=int, default=200, help="of each of them")
    parser.add_argument("--tuned-rate", type=float, default=3e-5, help="at the peak of a cosine")
    parser.add_argument("--tuned-batch", type=int, default=32, help="examples of an update")
    parser.add_argument("--threads", type=int, default=1, help="of all but what is timed")
    parser.add_argument("--bfloat16", action="store_true", help="products of these trainings")
    parser.add_argument("--halves", type=int, default=0, help="seeds of half-converted networks")
    parser.add_argument("--half-updates", type=int, default=200, help="of each of them")
    parser.add_argument(
        "--contexts", type=int, nargs="*", default=[], help="lengths of texts to take costs at"
    )
    parser.add_argument(
        "--length", type=int, help="tokens that decoders read at once: as in their training"
    )
    parser.add_argument("--recall-window", type=int, help="beyond which tokens are recalled")
    parser.add_argument("--seeds", type=int, default=10, help="of the searches")
    parser.add_argument(
        "--again", action="store_true", help="judge the ways of choosing on the table of --name"
    )
    parser.add_argument("--name", default="placement_table", help="of the results' files")
    parser.add_argument("--work", type=Path, default=Path("runs/placement_table"))


STUDY = Study(
    name="placement_table",
    question="Which layers should get another kind of attention, and who finds them?",
    add_options=add_options,
    measure=measure,
    show=show,
    met=met,
    results=lambda options: str(options.name),
    example="--checkpoint ./all-MiniLM-L6-v2 --data data/texts --kinds softmax,linear",
)

if __name__ == "__main__":
    raise SystemExit(STUDY.main())

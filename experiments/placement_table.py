"""Which layers should get another kind of attention? All placements, and what choosing misses.

``python -m experiments.placement_table --checkpoint DIR --data DIR --kinds softmax,linear``

Every other kind is distilled in every layer of a checkpoint once (`supernet.inheritance.local`),
then every placement of the kinds is evaluated with these weights. So the best placement with any
number of converted layers is known, and for each way of choosing how much it is short of that, as
a share of the distance between the best and the worst. A table that is cut short goes on.
"""

from __future__ import annotations

import argparse
import json
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
    ranked,
)
from experiments.shared_prefixes import shared_prefixes
from nas.console.commands.search import Here
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
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.files import append_lines, write_atomically
from search_spaces.loading import dump_space
from search_spaces.operators import largest
from search_spaces.space import SearchSpace
from supernet.building import build_supernet
from supernet.extraction import extract
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.pretrained.space import space_around

JOURNAL, TUNED_JOURNAL = "placements.jsonl", "tuned.jsonl"
MARK = 0.01
FOLD = 25


def kinds_space(checkpoint: Path, kinds: list[str]) -> SearchSpace:
    """The checkpoint's networks that differ in their kinds of attention alone.

    Raises:
        UsageError: for a kind that the space around the checkpoint does not offer.
    """
    space = space_around(read_checkpoint(checkpoint))
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
            "threads": 1,
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
    layers = sum(slot.gene.endswith("attention") for slot in run.space.slots)
    every = sorted(all_placements(layers, len(kinds)))
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


def placed(space: SearchSpace, kinds: list[str], placement: Placement) -> Architecture:
    """The largest network of a space with these kinds of attention."""
    row, left = largest(space), iter(placement)
    for column, slot in enumerate(space.slots):
        if slot.gene.endswith("attention"):
            row[0, column] = slot.choices.index(kinds[next(left)])
    return space.decode(row)[0]


def tune(run: Run, kinds: list[str], placements: list[Placement], options: Options) -> list[float]:
    """The qualities of placements after a short training of each from the checkpoint's targets."""
    journal = options.work / TUNED_JOURNAL
    done = {tuple(line["placement"]): line["quality"] for line in done_jobs(journal).values()}
    supernet = trained_supernet(run.spec, run.first_weights())
    updates = options.tuned_updates
    settings = replace(
        run.spec.budget.retrain,
        epochs=1,
        epoch_updates=updates,
        batch_size=options.tuned_batch,
        learning_rate=options.tuned_rate,
    )
    for placement in placements:
        if placement in done:
            continue
        network = extract(supernet, placed(run.space, kinds, placement))
        trainer = trainer_of(network, run.spec, run.quick_task, settings, teacher=run.teacher)
        for _ in trainer.run():
            pass
        values = validation_quality(
            run.quick_task,
            network.network.eval(),
            network.architecture,
            run.spec.quality,
            run.spec.device,
        )
        line = {"key": str(placement), "placement": placement, "quality": values[QUALITY]}
        append_lines(journal, [json.dumps(line)])
        done[placement] = values[QUALITY]
        note(f"{len(done)} of {len(placements)} placements tuned")
    return [done[placement] for placement in placements]


def tuned(run: Run, kinds: list[str], table: PlacementTable, options: Options) -> dict[str, Any]:
    """Whether fine-tuning changes the order of placements that convert half of the layers."""
    among = np.flatnonzero(table.converted == table.num_layers // 2)
    drawn = np.random.default_rng(0).permutation(among)[: options.tuned]
    chosen = [tuple(row) for row in table.placements[drawn].tolist()]
    before = [table.known[one] for one in chosen]
    after = tune(run, kinds, chosen, options)
    return {
        "updates": options.tuned_updates,
        "learning_rate": options.tuned_rate,
        "batch_size": options.tuned_batch,
        "placements": chosen,
        "before": before,
        "after": after,
        "tau": float(kendalltau(before, after).statistic),
    }


def measure(options: Options) -> dict[str, Any]:
    """All numbers of the study."""
    torch.set_num_threads(1)
    kinds = options.kinds.split(",")
    options.work.mkdir(parents=True, exist_ok=True)
    space = kinds_space(options.checkpoint, kinds)
    run = distilled_run(options, space)
    found = evaluate_all(run, kinds, options.work / JOURNAL)
    placements = sorted(found)
    errors = run.folder.read_json(DISTILLED_ERRORS_FILE)
    layers = len(placements[0])
    table = PlacementTable(
        np.array(placements),
        np.array([found[one][QUALITY] for one in placements]),
        np.array([[errors.get(f"{n}.{kind}", 0.0) for kind in kinds] for n in range(layers)]),
    )
    lines = [{"placement": placement, **found[placement]} for placement in placements]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    write_atomically(RESULTS / f"{options.name}.jsonl", text)
    np.savez_compressed(
        RESULTS / f"{options.name}.npz",
        placements=table.placements.astype(np.int8),
        qualities=table.qualities,
        errors=table.errors,
    )
    seeds = range(options.seeds)
    return {
        "name": options.name,
        "kinds": kinds,
        "layers": layers,
        "quality": options.quality,
        "placements": len(placements),
        "own": table.known[(0,) * layers],
        "best": [_extreme(table, count, best=True) for count in table.counts],
        "worst": [_extreme(table, count, best=False) for count in table.counts],
        "chosen": {name: _judged(table, choose) for name, choose in SELECTORS.items()},
        "additive": [_judged(table, partial(additive, seed=seed)) for seed in seeds],
        "search": [_judged(table, partial(ranked, space=space, seed=seed)) for seed in seeds],
        "tuned": tuned(run, kinds, table, options) if options.tuned > 1 else None,
        "r2": additive_fit(table),
        "r2_by_count": {str(count): value for count, value in additive_fits(table).items()},
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
            f"after {of['updates']} updates of {of['batch_size']} examples at a rate of "
            f"{of['learning_rate']:g}: Kendall's τ with before is {of['tau']:.2f}",
            ["placement", "before", "after"],
            [
                [" ".join(kinds[kind] for kind in one), f"{before:.4g}", f"{after:.4g}"]
                for one, before, after in zip(
                    of["placements"], of["before"], of["after"], strict=True
                )
            ],
        )
    fits = ", ".join(f"{n}: {value:.2f}" for n, value in numbers["r2_by_count"].items())
    yield f"R² of a sum of scores by layer: {numbers['r2']:.3f} over all; by count {fits or 'none'}"


def _line(
    name: str, runs: list[dict[str, Any]], counts: list[str], of: Callable[[list[float]], Any]
) -> list[str]:
    cells = [f"{float(of([one['regrets'][count] for one in runs])):.3f}" for count in counts]
    return [name, str(max(one["evaluations"] for one in runs)), *cells]


def met(numbers: dict[str, Any]) -> bool:
    """Whether the search is within a hundredth of the best everywhere, with every seed."""
    return all(value <= MARK for one in numbers["search"] for value in one["regrets"].values())


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Study.add_options`."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--data", type=Path, required=True, help="folder of nas data prepare")
    parser.add_argument("--kinds", default="softmax,linear", help="the checkpoint's own first")
    parser.add_argument("--quality", default="loss", choices=get_args(QualityMetric))
    parser.add_argument("--updates", type=int, default=100, help="of the local distillation")
    parser.add_argument("--examples", type=int, default=500, help="validation examples")
    parser.add_argument("--tuned", type=int, default=0, help="placements that are fine-tuned")
    parser.add_argument("--tuned-updates", type=int, default=200, help="of each of them")
    parser.add_argument("--tuned-rate", type=float, default=3e-5, help="at the peak of a cosine")
    parser.add_argument("--tuned-batch", type=int, default=32, help="examples of an update")
    parser.add_argument("--seeds", type=int, default=10, help="of the searches")
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

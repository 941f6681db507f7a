"""`nas runs`, `nas show` and `nas report`: the commands that look at runs."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from nas.console import options
from nas.console.commands.picking import chosen, picking_json, step_table
from nas.console.commands.results import compared_lines, duration_words, show_results
from nas.console.formatting import NOTHING, main_score, test_scores
from nas.console.output import out, print_json, say, tell
from nas.console.tables import (
    failed_table,
    feature_table,
    front_table,
    stage_table,
    table,
    workers_table,
)
from nas.request import picks
from nas.request.protected_choices import as_options, spelled
from nas.results.state import RUNS, RunState, find_runs, going_on, open_run, read_state
from nas.run.folder import RunFolder
from nas.run.layout import REPORT_FILE
from nas.run.omni_views import OmniViews, check_omni, read_views
from nas.run.stages import TRAINED
from nas.run.threads import use_threads
from nas.search.doubtful import key
from nas.search.front import limit_text, pick, read_front
from search_spaces.errors import DamagedRunError, NasError, UsageError
from search_spaces.omni import OmniLayer


def runs(
    parent: Path = typer.Option(RUNS, "--dir", help="The folder the runs are in."),
    as_json: bool = options.JSON,
) -> None:
    """List the runs of a folder: how far each one is and what it found."""
    rows = [_row(path) for path in find_runs(parent)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say(f"no runs in {parent}; nas search --space digits makes one")
        return
    names = ["run", "space", "preset", "state", "front", "test"]
    made = table(
        "",
        names,
        right=["front", "test"],
        whole=["run", "space", "preset"],
        spare=["preset", "space", "front"],
    )
    for row in rows:
        front = NOTHING if row["front"] is None else str(row["front"])
        shown = {**row, "front": front, "test": main_score(row["test"], row["picked"])}
        made.add_row(*(shown[name] for name in names))
    out().print(made)


def show(
    run: str = options.RUN,
    pick: str | None = typer.Option(
        None,
        "--pick",
        metavar=f"[{picks.METAVAR}]",
        help="Help with choosing from the front instead: the network that nas search picks with "
        "these words, with conditions such as 'latency_ms<=12,params<=2e5' or 'quality<=0.35', or "
        "an id; alone, what each step along the front costs.",
        autocompletion=options.complete_pick,
    ),
    features: bool = typer.Option(
        False, "--features", help="The genes that decide quality and each cost instead."
    ),
    attention: str | None = typer.Option(
        None,
        "--attention",
        metavar="ID",
        help="What the omnidirectional layers of a network on the front look at instead: a layer's "
        "share of attention and of pooling. Measured on validation examples where it was not yet.",
    ),
    as_json: bool = options.JSON,
) -> None:
    """Show a run: its request, its stages, the Pareto front and what was trained from scratch."""
    if sum((pick is not None, features, attention is not None)) > 1:
        raise UsageError("--pick, --features and --attention show different things: give one")
    folder = open_run(run)
    if attention is not None:
        show_attention(folder, attention, as_json)
        return
    if pick is not None:
        _show_pick(folder, pick, as_json)
        return
    if features:
        _show_features(folder, as_json)
        return
    _show_state(folder, as_json)


def _show_state(folder: RunFolder, as_json: bool) -> None:
    """How far a run is and what it has found."""
    state = read_state(folder, thorough=True)
    if as_json:
        print_json(_state_json(folder, state))
        return
    for name, value in _request(folder).items():
        say(f"{name:<11} {as_options(value) if name == 'keep' else _words(value)}")
    say(f"{'state':<11} {state.summary}")
    told = state.told
    if line := duration_words(state):
        say(f"{'duration':<11} {line}")
    out().print(
        stage_table((s.name, s.state, told.told.get(s.name), s.seconds) for s in state.stages)
    )
    if state.workers:
        out().print(workers_table(state.workers, time.time()))
    show_results(folder, state)
    for line in compared_lines(state, folder):
        say(line)
    if state.failed:
        out().print(failed_table(state.failed))
    for problem in state.warnings:
        tell(f"warning: {problem}", "yellow")
    if not state.running and state.summary != "finished":
        unpicked = bool(state.unpicked) and state.summary == f"stopped at {TRAINED}"
        say(f"go on with: {going_on(folder.path, unpicked=unpicked)}")


def report(run: str = options.RUN) -> None:
    """Write a run's report.html anew and print its path; works on unfinished runs too."""
    from nas.report import write_report

    folder = open_run(run)
    path = write_report(folder)
    record = folder.record("report")
    if record is not None:  # the recorded checksum is that of the file before
        folder.refresh(record, REPORT_FILE)
    say(str(path))


def _show_features(folder: RunFolder, as_json: bool) -> None:
    from nas.search.sensitivity import read_features  # brings the learners along

    found = read_features(folder)
    if as_json:
        print_json({name: lists.to_json() for name, lists in found.items()})
        return
    for name, lists in found.items():
        for title, part in (("all layers together", lists.genes), ("by layer", lists.slots)):
            out().print(feature_table(f"What decides {name}, {title}", part))


def _show_pick(folder: RunFolder, how: str, as_json: bool) -> None:
    front = read_front(folder)
    entry = chosen(front, how)
    if as_json:
        print_json(picking_json(front, how))
        return
    picked = None if entry is None else entry.id
    if entry is not None:
        alone = replace(front, entries=(entry,))
        out().print(front_table(alone, picked, f"Picked by {how}"))
    out().print(step_table(front, picked))
    if doubtful_key := key(front.entries):
        say(doubtful_key)
    run = shlex.quote(str(folder.path))
    if folder.spec.evaluator is None:
        say(f"train it: nas retrain {run} --pick {picked or 'ID'}")


def _row(path: Path) -> dict[str, Any]:
    """A run, and the network it picked; one that cannot be read has a row as well."""
    row: dict[str, Any] = {"run": str(path), "space": NOTHING, "preset": NOTHING, "picked": None}
    try:
        folder = RunFolder.open(path)
        state = read_state(folder, thorough=False)
        row |= {"space": folder.spec.domain.name, "preset": folder.spec.preset}
    except NasError:
        return {**row, "state": "damaged", "front": None, "test": []}
    return {
        **row,
        "state": state.summary,
        "front": None if state.front is None else len(state.front.entries),
        "test": test_scores(state.retrained),
        "picked": state.picked,
    }


def _request(folder: RunFolder) -> dict[str, Any]:
    spec = folder.spec
    try:
        protected = spelled(spec.space, folder.protected) if folder.protected else []
    except DamagedRunError:
        protected = []  # the state names the problem
    external = spec.evaluator is not None
    return {
        "run": str(folder.path),
        "space": spec.domain.name,
        **({"evaluator": spec.evaluator} if external else {"dataset": spec.dataset}),
        "device": spec.device,
        "objectives": list(spec.objectives),
        "limits": spec.limits,
        "preset": spec.preset,
        "seed": spec.seed,
        "pick": spec.pick,
        "keep": protected,
        "digest": spec.digest,
    }


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(limit_text(name, most) for name, most in value.items()) or "none"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _state_json(folder: RunFolder, state: RunState) -> dict[str, Any]:
    front = None if state.front is None else state.front.to_json()
    return {
        **_request(folder),
        "state": state.summary,
        "stages": [
            {
                "name": s.name,
                "state": s.state,
                "seconds": s.seconds,
                "seconds_told": state.told.told.get(s.name),
            }
            for s in state.stages
        ],
        "front": None if front is None else front["front"],
        "hypervolume": None if front is None else front["hypervolume"],
        "retrained": list(state.retrained),
        **({"from_scratch": list(state.from_scratch)} if state.from_scratch else {}),
        "baselines": [
            {**one.baseline.to_json(), "sentence": one.sentence}
            for one in state.comparisons(folder.spec)
        ],
        "failed": [{"id": one.network.id, **one.failure.to_json()} for one in state.failed],
        "workers": [asdict(one) for one in state.workers],
        "problems": list(state.warnings),
    }


def show_attention(folder: RunFolder, how: str, as_json: bool) -> None:
    """Print the shares of each layer, as tables or JSON.

    Raises:
        UsageError: for a network that is not on the front or has no such layer.
    """
    entry = pick(read_front(folder), how)
    check_omni(entry.architecture, folder.spec.space.model.omni_span)
    views = _up_to_date(folder, entry.id)
    if as_json:
        print_json(views.to_json())
        return
    say(f"{views.id}, weights {views.weights}, means over {views.examples} validation examples")
    for layer in views.layers:
        _print_layer(layer)


def _up_to_date(folder: RunFolder, identity: str) -> OmniViews:
    """The views, measured first where there are none of the weights that there are now."""
    try:
        found = read_views(folder, identity)
    except DamagedRunError:
        found = None
    if found is None:
        tell(f"measuring the omni layers of {identity} …")
        use_threads(folder.spec.budget.threads)
        from nas.stages.attention import measure_views  # imports torch

        for _ in measure_views(folder, identity):
            pass
        found = read_views(folder, identity)
    assert found is not None
    return found


def _print_layer(layer: OmniLayer) -> None:
    names = [f"layer {source}" if source else "embeddings" for source in layer.sources]
    made = table(f"{layer.name} looks at", ["share of", *names], right=names)
    made.add_row("attention", *map(_percent, layer.attended))
    if len(layer.by_head) > 1:
        for number, shares in enumerate(layer.by_head, start=1):
            made.add_row(f"  head {number}", *map(_percent, shares))
    made.add_row("pooling", *map(_percent, layer.pooling))
    out().print(made)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

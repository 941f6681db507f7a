"""`nas evaluate`: the scores of a network trained from scratch on a split of the run's data."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from nas.console import options
from nas.console.commands.translate import (
    ARCH,
    BATCH_TOKENS,
    BEAM,
    DATA,
    DEVICE,
    LENPEN,
    beam_settings,
)
from nas.console.output import print_json, say
from nas.request.spec import Device
from nas.results import networks
from nas.results.state import open_run
from nas.run.threads import use_threads
from search_spaces.errors import UsageError
from search_spaces.tasks import TASKS, TaskName

if TYPE_CHECKING:
    from supernet.tasks.base import Scores


class SplitChoice(StrEnum):
    """What to evaluate on."""

    test = "test"
    valid = "valid"


def evaluate(
    run: str = options.RUN,
    arch: str = ARCH,
    split: SplitChoice = typer.Option(SplitChoice.test, help="What to evaluate on."),
    beam: int | None = BEAM,
    lenpen: float | None = LENPEN,
    batch_tokens: int | None = BATCH_TOKENS,
    data: str = DATA,
    device: Device = DEVICE,
    as_json: bool = options.JSON,
) -> None:
    """Score a network trained from scratch: BLEU, accuracy or perplexity, by the run's task.

    Beams, their length penalty and batches are those of translation.
    """
    folder = open_run(run)
    spec, task = folder.spec, folder.spec.space.task
    if task != "translation" and (beam is not None or lenpen is not None):
        raise UsageError(f"--beam and --lenpen are for translation; {folder.path} is for {task}")
    chosen = networks.choose_trained(folder, arch)
    use_threads(spec.budget.threads)
    settings = beam_settings(beam, lenpen) if task == "translation" else None
    network = networks.open_network(folder, chosen, device if device else spec.device)
    opened = networks.open_data(folder, data)
    scores = networks.evaluate_network(network, opened, split.value, settings, batch_tokens)
    facts = {"run": str(folder.path), "id": chosen, "task": task}
    facts |= {"dataset": opened.task.name, "split": split.value}
    if as_json:
        how = (
            {}
            if settings is None
            else {"beam": settings.beam_size, "length_penalty": settings.length_penalty}
        )
        print_json({**facts, **_scores_json(scores), **how})
        return
    for name, text in [*facts.items(), *_scores_lines(task, scores)]:
        say(f"{name:<21} {text}")


def _scores_json(scores: Scores) -> dict[str, Any]:
    """All scores."""
    signed = {} if scores.bleu_signature is None else {"bleu_signature": scores.bleu_signature}
    return {"predictions": scores.count, **scores.values, **signed}


def _scores_lines(task: TaskName, scores: Scores) -> list[tuple[str, str]]:
    digits = {"bleu": 2}
    lines = [
        (words, f"{scores.values[name]:.{digits.get(name, 4)}f}")
        for name, words in TASKS[task].metrics.items()
        if name in scores.values
    ]
    if scores.bleu_signature is not None:
        lines.insert(1, ("signature", scores.bleu_signature))
    return lines

"""What a finished stage leaves that is worth logging, read from the files of the run."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nas.request.protected_choices import as_options, spelled
from nas.request.spec import SearchSpec
from nas.run.folder import RunFolder
from nas.run.layout import FRONT_FILE, REPORT_CARD_FILE, REPORT_FILE, result_file
from nas.search.front import value_text

_MEASURES = ("kendall_tau", "spearman", "pairwise_accuracy")


@dataclass(frozen=True, slots=True)
class Results:
    """Numbers by step, texts by name, and names of files below the run folder."""

    series: Sequence[tuple[int, Mapping[str, float]]] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[str] = ()


NOTHING = Results()


def stage_results(folder: RunFolder, stage: str) -> Results:
    """What to keep of a stage that is done.

    Raises:
        DamagedRunError: when a file of it cannot be read.
    """
    if stage == "rank":
        return _card(folder.read_json(REPORT_CARD_FILE))
    if stage == "front":
        return _front(folder.read_json(FRONT_FILE))
    if stage == "report":
        return Results(files=[REPORT_FILE])
    if stage.startswith("retrain-"):
        return _retrained(folder, stage)
    return NOTHING


def request(spec: SearchSpec) -> dict[str, str]:
    """The request in short: name → value."""
    limits = ", ".join(f"{name}={value:g}" for name, value in spec.limits.items())
    return {
        "space": spec.domain.name,
        **({} if spec.evaluator is None else {"evaluator": spec.evaluator}),
        "dataset": spec.dataset,
        "device": spec.device,
        "objectives": ", ".join(spec.objectives),
        "quality": spec.quality,
        "limits": limits or "none",
        "preset": spec.preset,
        "seed": str(spec.seed),
        "pick": spec.pick,
        "keep": as_options(spelled(spec.space, spec.keep) if spec.keep else []),
        "digest": spec.digest,
    }


def _card(card: Mapping[str, Any]) -> Results:
    """The report card: the chosen ranker, all that were tried, and the learning curve."""
    values = {"ranker/observations": float(card["observations"])}
    values |= _fidelity("ranker", card["held_out"])
    for group in ("candidates", "baselines"):
        for name, fidelity in card[group].items():
            values |= _fidelity(f"ranker/{group}/{_plain(name)}", fidelity)
    curve = [
        (point["observations"], _fidelity("ranker/curve", point["fidelity"]))
        for point in card["curve"]
    ]
    return Results([(0, values), *curve], {"ranker": _markdown(card["ranker"])}, [REPORT_CARD_FILE])


def _fidelity(prefix: str, fidelity: Mapping[str, Any]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(fidelity[name]) for name in _MEASURES}


def _front(front: Mapping[str, Any]) -> Results:
    names = [objective["name"] for objective in front["objectives"]]
    rows = [[entry["id"], *(value_text(entry, name) for name in names)] for entry in front["front"]]
    table = [["id", *names], ["---"] * (len(names) + 1), *rows]
    markdown = "\n".join(f"| {' | '.join(map(_markdown, row))} |" for row in table)
    # Apart from what FrontUpdated tells on the way, which a session that resumes may miss.
    values = {
        "front/final_hypervolume": float(front["hypervolume"]),
        "front/final_networks": float(len(rows)),
    }
    return Results([(0, values)], {"front": markdown}, [FRONT_FILE])


def _retrained(folder: RunFolder, stage: str) -> Results:
    file = result_file(stage.removeprefix("retrain-"))
    scores = {
        f"{stage}/{name}": float(value)
        for name, value in folder.read_json(file).items()
        if name.startswith(("test_", "valid_")) and isinstance(value, int | float)
    }
    return Results([(0, scores)], files=[file])


def _markdown(text: str) -> str:
    """Data as Markdown that stands in one cell of a table."""
    return html.escape(text, quote=False).replace("|", "\\|")


def _plain(name: str) -> str:
    """A name in letters that every logger takes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")

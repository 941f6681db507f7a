"""The first thing read, and the last: what was found, and how to get it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nas.objectives import OBJECTIVES, QUALITY
from nas.objectives.quality import copies
from nas.report import doubtful, words
from nas.report.baseline_section import sentences
from nas.report.markup import Html, cell, join, paragraph, section, table, tag
from nas.request.fields import option_of, texts_of
from nas.request.picks import read_pick
from nas.request.presets import Budget, budget_for, flat
from nas.request.protected_choices import NONE, spelled
from nas.request.spec import SYNTHETIC, SearchRequest, SearchSpec, SearchTerms
from nas.results.contents import UNPICKED, Retrained, RunContents
from nas.results.state import going_on
from nas.run.layout import (
    DEVICE_PROFILE_FILE,
    EVENTS_FILE,
    PROTECTED_FILE,
    SPACE_FILE,
    SPEC_FILE,
    result_file,
)
from nas.run.stages import stages_of_run
from nas.search.doubtful import shortfall_and_advice
from search_spaces.architecture import Architecture
from search_spaces.errors import UnknownNameError
from search_spaces.loading import dump_space, load_space, space_names

UNSAID = ("evaluator", "quality", "limits", "searcher", "retrain")

# What is in a run folder beside the files of the stages.
FILES = {
    SPEC_FILE: "everything that was asked for",
    PROTECTED_FILE: "what was asked to be kept after the search, if anything was",
    "retrained/": "networks that were retrained, with their scores and weights",
    "stages/": "time and checksums of each stage",
    EVENTS_FILE: "a diary with times",
}


def headline(run: RunContents) -> Html:
    """What was found, in a few sentences and numbers."""
    parts = [_story(run)]
    if run.unfinished:
        left = f"This run is not finished; left to do: {', '.join(run.unfinished)}. "
        next_command = going_on(Path(run.name), unpicked=run.unfinished == [UNPICKED])
        parts.append(tag("p", left, tag("code", next_command), class_="warning"))
    parts += [tag("p", problem, class_="warning") for problem in _shortfalls(run)]
    parts.append(doubtful.warnings(run))
    return join(tag("header", tag("h1", _title(run)), *parts), _figures(run), _facts(run))


def _shortfalls(run: RunContents) -> list[str]:
    """Networks that learnt less on their own than they showed in the search, a sentence each."""
    front = run.front.entries if run.front is not None else ()
    entries = {entry.id: entry for entry in front}
    found = [
        shortfall_and_advice(
            run.spec, entries[one.id], one.valid_scores["loss"], one.asked_epochs, run.name
        )
        for one in run.retrained
        if one.id in entries
    ]
    return [problem[0].upper() + problem[1:] + "." for problem in found if problem]


def _title(run: RunContents) -> str:
    return f"Architecture search in {run.spec.domain.name}"


def _story(run: RunContents) -> Html:
    costs = " and ".join(
        f"{'many' if OBJECTIVES[name].maximise else 'little'} {words.metric(run, name)}"
        for name in run.spec.objectives
        if name != QUALITY
    ).replace(" and little ", " and ")
    external = run.spec.evaluator is not None
    what = "networks" if external else "transformers"
    where = "" if external else f" on the data set {run.spec.dataset}"
    sentences: list[str | Html] = [
        f"This run looked for {what} with {run.quality.wish} and {costs}{where}. "
    ]
    if run.observed:
        sentences.append(
            f"Of {words.count(run.spec.domain.size)} networks in the space, "
            f"{len(run.observed):,} were observed {words.observed_how(run)}. "
        )
    if run.verified:
        sentences.append(
            "Evolution searched the rest with predictors that learnt from these, and "
            f"{len(run.verified):,} of its best were measured. "
        )
    if run.front is not None:
        found = words.plural(len(run.front.entries), "network")
        sentences += [tag("strong", f"{found} on the front"), ": no measured network beats them. "]
    return tag("p", sentences, _winner(run), class_="lead")


def _winner(run: RunContents) -> Html:
    picked = run.picked
    if picked is None:
        return Html("")
    begun = run.front is not None and run.front.checkpoint is not None
    reason = read_pick(run.spec.pick, run.costs).reason(run.quality, begun=begun)
    if picked.id == run.halving_winner:
        reason = "chosen by how the candidates trained"
    name = tag("code", picked.id)
    if run.front is not None and picked in run.front.entries:
        name = tag("a", name, href=f"#network-{picked.id}")
    parts: list[str | Html] = [
        "The picked network is ",
        name,
        f" ({reason}; {words.outline(picked.network)}). ",
    ]
    result = next((one for one in run.retrained if one.id == picked.id), None)
    if result is not None:
        parts += [
            f"{run.spec.trained.capitalize()} for {words.plural(result.epochs, 'epoch')}, it ",
            *_reached(result),
            ", which nothing before had seen. ",
        ]
    return join(parts, " ".join(sentences(run)))


def _reached(result: Retrained) -> list[str | Html]:
    """What a network did on the test split; the words go on behind "it"."""
    text = words.score(result.headline, result.test_scores[result.headline])
    if result.headline == "accuracy":
        return ["was right on ", tag("strong", f"{text} of the test split")]
    others = [
        f"{words.SCORES[name]} {words.score(name, result.test_scores[name])}"
        for name in ("perplexity_per_word", "bits_per_character")
        if name in result.test_scores
    ]
    more = f" (per token; {', '.join(others)})" if others else ""
    score = tag("strong", f"{words.SCORES[result.headline]} of {text}")
    return ["reached a ", score, f"{more} on the test split"]


def _figures(run: RunContents) -> Html:
    """The numbers to remember, as tiles."""
    tiles = [("networks in the space", words.count(run.spec.domain.size))]
    if run.front is not None:
        tiles.append(("networks on the front", f"{len(run.front.entries):,}"))
        tiles.append(("hypervolume of the front", f"{run.front.hypervolume:.3f}"))
    if run.card is not None:
        accuracy = words.percent(run.card.held_out.pairwise_accuracy)
        tiles.append(("pairs the ranker orders right", accuracy))
    picked = run.picked
    for result in run.retrained:
        if picked is not None and result.id == picked.id:
            name = f"test {words.SCORES[result.headline]}, retrained"
            tiles.append((name, words.score(result.headline, result.test_scores[result.headline])))
    if run.seconds:
        tiles.append(("time", words.duration(sum(run.seconds.values()))))
    boxes = [
        tag("div", tag("span", number, class_="figure"), tag("span", name), class_="tile")
        for name, number in tiles
    ]
    return tag("div", boxes, class_="tiles")


def _facts(run: RunContents) -> Html:
    spec = run.spec
    data = spec.dataset
    if run.sizes:
        judged = spec.budget.valid_examples
        few = f", of which {judged:,} were used" if 0 < judged < run.sizes["valid"] else ""
        data += f" ({run.sizes['train']:,} to train on, {run.sizes['valid']:,} to judge by{few})"
    timed_on = [profile.header.device.label for profile in run.profiles.values()]
    device = timed_on[0] if timed_on else spec.device
    more = [words.axis_label(run, n) for n in spec.objectives if OBJECTIVES[n].maximise]
    facts = {
        **(_known_to(spec) if spec.evaluator is not None else _of_data(spec, data, device)),
        "objectives (less is better)": ", ".join(
            words.axis_label(run, name) for name in spec.objectives if not OBJECTIVES[name].maximise
        ),
        **({"objectives (more is better)": ", ".join(more)} if more else {}),
        "limits": ", ".join(
            f"{words.metric(run, name)} {OBJECTIVES[name].sign} {words.limit(name, most)}"
            for name, most in spec.limits.items()
        )
        or "none",
        "budget": f"preset {spec.preset}",
        "seed": str(spec.seed),
    }
    if run.front is not None:
        facts["hypervolume"] = (
            f"{run.front.hypervolume:.4f} of the box between {run.front.origin or 'zero'} and a "
            f"network that {run.quality.useless} and costs as much as the "
            f"{'dearest of them' if spec.evaluator is not None else 'largest'}; more is better"
        )
    rows = [tag("tr", tag("th", name, scope="row"), cell(text)) for name, text in facts.items()]
    return tag("div", tag("table", tag("tbody", rows), class_="facts"), class_="scroll")


def _of_data(spec: SearchSpec, data: str, device: str) -> dict[str, str]:
    """What was searched, and where."""
    return {
        "space": f"{spec.space.name}: {spec.space.description or spec.space.task}",
        "data set": data,
        "device": device,
    }


def _known_to(spec: SearchSpec) -> dict[str, str]:
    """What was searched, and who knows it."""
    description = f": {spec.domain.description}" if spec.domain.description else ""
    return {"space": spec.domain.name + description, "evaluator": spec.evaluator or ""}


# -- how to get it again ------------------------------------------------------------------------


def reproduce_section(run: RunContents) -> Html:
    """Commands, digests and files."""
    commands = "\n".join([search_command(run), f"nas show {shlex.quote(run.name)}"])
    digests = {"request": run.spec.digest, "space": run.spec.domain.digest}
    rows = [[cell(name), cell(tag("code", digest))] for name, digest in digests.items()]
    outputs = {
        name: what
        for one in stages_of_run(run.spec, run.seconds)
        for name, what in one.outputs.items()
    }
    meanings = (outputs | FILES).items()
    files = [[cell(tag("code", name)), cell(meaning)] for name, meaning in meanings]
    return section(
        "reproduce",
        "How to get this again",
        paragraph(
            "The first command asks for the same search; run it in a folder that does not hold "
            "this run. The same request and versions give the same front, up to the measured "
            "times. The second shows this run in a terminal."
        ),
        tag("pre", tag("code", commands)),
        table(["what", "sha256"], rows, "Digests: equal digests mean equal content."),
        table(["file", "content"], files, f"Files of the run folder {run.name}."),
    )


def search_command(run: RunContents) -> str:
    """The command that asks for this search."""
    spec = run.spec
    space = spec.domain.name
    shipped = (
        spec.evaluator is None
        and space in space_names()
        and dump_space(load_space(space)) == spec.space_toml
    )
    parts = ["nas", "search", "--space", space if shipped else f"{run.name}/{SPACE_FILE}"]
    if spec.start is not None:
        parts += ["--from", spec.start.folder]
    if spec.evaluator is None:
        parts += _data_options(spec)
    for name, field in SearchTerms.model_fields.items():
        value = getattr(spec, name)
        if value != field.default or name not in UNSAID:
            texts = texts_of(value)
            parts += [part for text in texts for part in (option_of(SearchRequest, name), text)]
    parts += _baseline_options(run)
    if spec.device_profile is not None:
        parts += ["--device-profile", f"{run.name}/{DEVICE_PROFILE_FILE}"]
    protected = spec.keep if run.audit is None else run.audit.protected
    if protected:
        for text in spelled(run.space, protected):
            parts += ["--keep", text]
    for name, number in _overrides(run):
        parts += ["--set", f"{name}={number}"]
    return shlex.join(parts)


def _baseline_options(run: RunContents) -> list[str]:
    """What says what the winner is held against, where that is not what it usually is."""
    spec, given = run.spec, run.spec.baseline
    if isinstance(given, dict):
        network = Architecture.from_json(given).id
        return ["--baseline", f"{run.name}/{result_file(network)}"]
    if given is not None or spec.evaluator is not None:
        return []
    copied = copies(spec.space.task, spec.quality, begun=spec.start is not None)
    return [] if copied else ["--baseline", NONE]


def _data_options(spec: SearchSpec) -> list[str]:
    """Those that name the data."""
    parts = []
    of_folder = spec.data is not None and Path(spec.data).name == spec.dataset
    generated = spec.data is None and spec.dataset == SYNTHETIC
    if not of_folder and not generated and spec.dataset != spec.space.data.get("dataset"):
        parts += ["--dataset", spec.dataset]
    if generated or spec.data is not None:
        parts += ["--data", spec.data or SYNTHETIC]
    return parts


def _overrides(run: RunContents) -> Iterator[tuple[str, Any]]:
    """The numbers of the budget that are not the preset's."""
    try:
        own = None if run.spec.evaluator is not None else run.space
        usual = budget_for(own, run.spec.preset, {})
    except UnknownNameError:
        usual = Budget()
    before = dict(flat(usual))
    for name, number in flat(run.spec.budget):
        # A number that is left open cannot be asked for; it stays open by itself.
        if number is not None and number != before[name]:
            yield name, number

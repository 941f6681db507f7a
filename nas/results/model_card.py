"""The model card of an export, for people who have only the folder.

What a run knows of the network as plain values, ``export.json``, and the same in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from latency.timings import read_timings
from nas.objectives import LATENCY
from nas.objectives import SCORES as MEASURED_SCORES
from nas.objectives.size import counted_lengths
from nas.request.spec import SearchSpec, Start
from nas.results.networks import measured_networks
from nas.run.folder import RunFolder
from nas.run.layout import DATA_FILE, FRONT_FILE, profile_file, result_file
from nas.search.front import read_front
from search_spaces.architecture import Architecture
from search_spaces.costs import cost
from search_spaces.tasks import TASKS

SCHEMA = 1
LICENCE = "Apache-2.0"
# Of a result these are told elsewhere, or are no scores.
_NO_SCORES = (
    "schema",
    "id",
    "architecture",
    "task",
    "dataset",
    "epochs",
    "seed",
    "params",
    "by_distance",
    "settings",
    "tuning",
)
SCORES = {
    "bleu": "BLEU",
    "accuracy": "accuracy",
    "perplexity": "perplexity per token",
    "perplexity_per_word": "perplexity per word",
    "bits_per_character": "bits per character",
    "similarity": "similarity to the checkpoint",
    "recall_at_10": "recall at 10",
    "checkpoint_recall_at_10": "recall at 10 of the checkpoint",
    "loss": "loss (nats)",
    "recall_nats": "loss on recalled tokens (nats)",
    "kl": "divergence from the checkpoint (nats)",
}
SPLITS = {"test": "test split", "valid": "validation split"}

READINGS = {
    "sentencepiece": "Text becomes token numbers, and they text again, with the package "
    'sentencepiece: `SentencePieceProcessor(model_file="{source}").encode("a text")` and '
    '`SentencePieceProcessor(model_file="{target}").decode(tokens)`.',
    "words": "Text is split at spaces; a word's number is its place in `{source}`, 3 if it is not "
    "there, and numbers become words of `{target}`.",
    "tokenizer_json": "Text becomes token numbers, its begin and end marks among them, and they "
    "text again, with the package tokenizers: with `t = Tokenizer.from_file("
    '"{source}")`, `t.encode("a text").ids` and `t.decode(tokens)`. There are no other marks; '
    "{cut}",
    "images": "The middle square of an image is scaled to `side` pixels, enlarged bilinearly to "
    "`image_size` where that is more, and a byte b of it becomes `black + (white - black) * b / "
    "255`; the numbers, and the names of the classes, stand in `reading.json`.",
    "bytes": "Texts are read byte by byte, the first {max_tokens} of them: token = byte + 1. "
    "`reading.json` names the classes.",
    "symbols": "A symbol's number is its place in the list in `reading.json`, which also names the "
    "classes.",
    "numbers": "Rows of token numbers; 0 fills short rows up. `reading.json` names the classes.",
}
# How much of a text is read, by whether there is an end to it.
CUT = "texts are cut to {max_tokens} tokens, marks included, and not filled up."
WHOLE = "texts are neither cut nor filled up, and one that is to be continued has no end mark."

RETRAINED = (
    "Trained from scratch on the training split, {why}. The test split was opened once, after "
    "training."
)
CHOSEN = "after the search had chosen the network"
BASELINE = "as a network to compare the search's with"
INHERITED = (
    "**Inherited from the supernet, not trained further.** A network of this architecture that is "
    "trained from scratch (`nas retrain`) is usually better. Its scores serve to compare networks."
)

FINE_TUNED = (
    "Begun with the checkpoint {name}: its weights, by way of the supernet of the search, then "
    "fine-tuned on the training split with the checkpoint as teacher. The test split was opened "
    "once, after training."
)
INHERITED_OF_CHECKPOINT = (
    "**Inherited from the supernet, not trained further**, which began with the checkpoint {name}. "
    "A network of this architecture that is fine-tuned (`nas retrain`) is usually better. Its "
    "scores serve to compare networks."
)


def gather_facts(folder: RunFolder, architecture: Architecture, inherited: bool) -> dict[str, Any]:
    """What a run knows of a network, for people who have not got the run.

    Args:
        folder: the run.
        architecture: the network.
        inherited: whether its weights are the supernet's.

    Raises:
        DamagedRunError: when a file of the run cannot be read.
    """
    spec, data = folder.spec, folder.read_json(DATA_FILE)
    space = spec.space
    return {
        "schema": SCHEMA,
        "id": architecture.id,
        "task": space.task,
        "space": {"name": space.name, "digest": space.digest, "description": space.description},
        "data": {"name": data.get("dataset", spec.dataset), "digest": data.get("digest")},
        "run": spec.digest,
        **_start(spec.start),
        "seed": spec.seed,
        "weights": "inherited" if inherited else "retrained",
        **_baseline(folder, architecture),
        "scores": _inherited_scores(folder, architecture)
        if inherited
        else _scores(folder, architecture),
        **_judged(spec, data),
        "latency": _latency(folder, architecture),
        **_costs(folder, architecture),
        "licence_of_code": LICENCE,
    }


def _start(start: Start | None) -> dict[str, Any]:
    if start is None:
        return {}
    return {"start": {"name": Path(start.folder).name, "digest": start.digest}}


def _baseline(folder: RunFolder, architecture: Architecture) -> dict[str, Any]:
    """Whether the winner was held against the network, which the search did not find."""
    if not folder.has(FRONT_FILE):
        return {}
    front = read_front(folder)
    beside = {one.entry.id for one in front.baselines} - {entry.id for entry in front.entries}
    return {"baseline": True} if architecture.id in beside else {}


def _judged(spec: SearchSpec, data: Mapping[str, Any]) -> dict[str, Any]:
    """How many validation examples the scores are of, where these are not all."""
    count = spec.budget.valid_examples
    return {"valid_examples": count} if 0 < count < data.get("num_valid", 0) else {}


def _scores(folder: RunFolder, architecture: Architecture) -> dict[str, Any]:
    """The scores of the network that was trained from scratch; how long that took."""
    result = folder.read_json(result_file(architecture.id))
    scores = {name: value for name, value in result.items() if name not in _NO_SCORES}
    return scores | ({"epochs": result["epochs"]} if "epochs" in result else {})


def _inherited_scores(folder: RunFolder, architecture: Architecture) -> dict[str, Any]:
    """What the search measured with the supernet's weights, on the validation split."""
    found = measured_networks(folder).get(architecture.id, {})
    scores = {name: found[name] for name in MEASURED_SCORES if name in found}
    if folder.spec.quality == "loss" and "quality" in found:
        scores["valid_loss"] = found["quality"]
    return scores


def _costs(folder: RunFolder, architecture: Architecture) -> dict[str, Any]:
    space = folder.spec.space
    source, target = counted_lengths(space)
    counted = cost(
        space.model, space.task, architecture, source_length=source, target_length=target
    )
    lengths: dict[str, Any] = {"source_length": counted.source_length}
    if counted.target_length is not None:
        lengths["target_length"] = counted.target_length
    return {
        "params": counted.params,
        "flops": {"value": counted.flops, "convention": counted.convention, **lengths},
    }


def _latency(folder: RunFolder, architecture: Architecture) -> dict[str, Any] | None:
    """Milliseconds with workload and device, measured or predicted; None where nobody asked."""
    file = folder.path / profile_file("latency")
    foreign = _predicted_latency(folder, architecture)
    if foreign is not None or not file.exists():
        return foreign
    profile = read_timings(file)
    timed = profile.get(architecture.id)
    known = measured_networks(folder).get(architecture.id, {})
    if LATENCY in known:
        value, why = known[LATENCY], known.get("doubtful", {}).get(LATENCY)
    elif timed is not None:
        value, why = timed.value, timed.doubtful
    else:
        return None
    header = profile.header
    return {
        "value_ms": value,
        "measured": True,
        **({"doubtful": why} if why else {}),
        "device": header.device.label,
        "torch": header.device.torch_version,
        "workload": header.workload.label,
    }


def _predicted_latency(folder: RunFolder, architecture: Architecture) -> dict[str, Any] | None:
    """Where latency is that of another device, from its profile."""
    if not folder.has(FRONT_FILE):
        return None
    front = read_front(folder)
    device = front.predicted_for.get(LATENCY)
    entry = next((one for one in front.networks if one.id == architecture.id), None)
    if device is None or entry is None or LATENCY not in entry.predicted:
        return None
    workload = ", ".join(f"{key} {value}" for key, value in folder.spec.space.workload.items())
    value = entry.predicted[LATENCY]
    return {"value_ms": value, "measured": False, "device": device, "workload": workload}


def model_card(facts: Mapping[str, Any], usage: str) -> str:
    """The card as Markdown.

    Args:
        facts: the content of ``export.json``.
        usage: how to use the folder, of the format.
    """
    parts = [
        f"# {facts['space']['name']} {TASKS[facts['task']].network} {facts['id']}",
        f"Format: {facts['format']}. The network stands in `architecture.json`.",
        "## Use",
        usage.strip(),
        *([] if facts.get("stock") else [_reading(facts["reading"])]),
        "## Weights",
        _weights(facts),
        *_table(("", ""), _origin(facts)),
        "## Quality",
        *_quality(facts),
        "## Size and speed",
        *_table(("", ""), _size(facts)),
        "## Check",
        _check(facts),
        "## Licence",
        f"{_code(facts)} Weights and tokenizer were made from {_sources(facts)} named above, whose "
        "own terms may apply to them.",
    ]
    return "\n\n".join(parts) + "\n"


def _reading(reading: Mapping[str, Any]) -> str:
    cut = (CUT if "max_tokens" in reading else WHOLE).format(**reading)
    return READINGS[reading["kind"]].format(cut=cut, **reading)


def _weights(facts: Mapping[str, Any]) -> str:
    inherited, start = facts["weights"] == "inherited", facts.get("start")
    if start is None:
        why = BASELINE if facts.get("baseline") else CHOSEN
        return INHERITED if inherited else RETRAINED.format(why=why)
    return (INHERITED_OF_CHECKPOINT if inherited else FINE_TUNED).format(name=start["name"])


def _code(facts: Mapping[str, Any]) -> str:
    if facts.get("stock"):
        return "There is no code in this folder."
    return f"The code in this folder is under {facts['licence_of_code']}."


def _sources(facts: Mapping[str, Any]) -> str:
    return "the checkpoint and the data" if "start" in facts else "the data"


def _origin(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    space, data = facts["space"], facts["data"]
    yield "search space", f"{space['name']} (sha256 {space['digest'][:12]})"
    if space.get("description"):
        yield "about it", space["description"]
    if "start" in facts:
        start = facts["start"]
        yield "checkpoint", f"{start['name']} (sha256 {start['digest'][:12]})"
    if "family" in facts:
        yield "for transformers", facts["family"]
    yield "data", f"{data['name']} (sha256 {str(data['digest'])[:12]})"
    yield "seed", str(facts["seed"])
    if "epochs" in facts["scores"]:
        yield "epochs", str(facts["scores"]["epochs"])
    yield "request", f"sha256 {facts['run'][:12]}"


def _quality(facts: Mapping[str, Any]) -> Iterator[str]:
    scores, unit = facts["scores"], TASKS[facts["task"]].loss_unit
    called = SCORES if unit else SCORES | {"loss": "loss (1 − cosine)"}
    splits = [s for s in SPLITS if any(name.startswith(f"{s}_") for name in scores)]
    names = [n for n in SCORES if any(f"{s}_{n}" in scores for s in splits)]
    rows = [
        (
            called[name],
            *(_number(scores.get(f"{split}_{name}")) for split in splits),
        )
        for name in names
    ]
    if not rows:
        yield "Nothing was measured."
        return
    yield from _table(("", *(_split(split, facts) for split in splits)), rows)
    if "bleu_signature" in scores:
        yield f"BLEU with a beam of 4, sacreBLEU's signature `{scores['bleu_signature']}`."


def _split(name: str, facts: Mapping[str, Any]) -> str:
    """What a split is called, and how much of it was looked at."""
    if name != "valid" or "valid_examples" not in facts:
        return SPLITS[name]
    some = f"{facts['valid_examples']:,} of the {SPLITS[name]}"
    # Of classes each has its share.
    return some if facts["task"] == "classification" else f"first {some}"


def _size(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    flops, latency = facts["flops"], facts["latency"]
    lengths = f"{flops['source_length']} input tokens"
    if "target_length" in flops:
        lengths += f", {flops['target_length']} target tokens"
    yield "parameters", f"{facts['params']:,} (shared ones once)"
    yield (
        "FLOPs",
        f"{flops['value']:,} for one example of {lengths} (convention `{flops['convention']}`: a "
        "multiply-add is two)",
    )
    if latency is None:
        yield "latency", "not measured in this search"
        return
    how = "measured" if latency["measured"] else "predicted"
    if latency.get("doubtful"):
        how += f" and doubtful ({latency['doubtful']})"
    build = f", torch {latency['torch']}" if "torch" in latency else ""
    yield (
        "latency",
        f"{latency['value_ms']:.3g} ms, {how}: {latency['workload']}; {latency['device']}{build}",
    )


def _check(facts: Mapping[str, Any]) -> str:
    return (
        "When this folder was written, its outputs for validation examples differed from those of "
        f"the run's model by at most {facts['difference']:.2g} (allowed: {facts['tolerance']:g}). "
        "Those examples and outputs are part of the folder. `nas verify DIR` compares checksums, "
        "shapes and outputs again, without executing anything that lies here."
    )


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(_cell(part) for part in row)} |" for row in rows]
    return ["\n".join(lines)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

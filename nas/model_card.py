"""The model card of an export: ``export.json`` in words, for people who have only the folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

TITLES = {
    "classification": "classifier",
    "translation": "translation network",
    "language_modelling": "language model",
}
SCORES = {
    "bleu": "BLEU",
    "accuracy": "accuracy",
    "perplexity": "perplexity per token",
    "word_perplexity": "perplexity per word",
    "bits_per_character": "bits per character",
    "loss": "loss (nats)",
}
SPLITS = {"test": "test split", "valid": "validation split"}

RETRAINED = (
    "Trained from scratch on the training split, after the search had chosen the network. The test "
    "split was opened once, after training."
)
INHERITED = (
    "**Inherited from the supernet, not trained further.** A network of this architecture that is "
    "trained from scratch does better: `nas retrain`. Its scores serve to compare networks."
)


def model_card(facts: Mapping[str, Any], usage: str) -> str:
    """The card as Markdown.

    Args:
        facts: the content of ``export.json``.
        usage: how to use the folder, of the format.
    """
    parts = [
        f"# {facts['space']['name']} {TITLES[facts['task']]} {facts['id']}",
        f"Format: {facts['format']}. The network stands in `architecture.json`.",
        "## Use",
        usage.strip(),
        "## Weights",
        INHERITED if facts["weights"] == "inherited" else RETRAINED,
        *_table(("", ""), _origin(facts)),
        "## Quality",
        *_quality(facts["scores"]),
        "## Size and speed",
        *_table(("", ""), _size(facts)),
        "## Check",
        _check(facts),
        "## Licence",
        f"The code in this folder is under {facts['licence_of_code']}. Weights and tokenizer were "
        f"made from the data named above, whose own terms may apply to them.",
    ]
    return "\n\n".join(parts) + "\n"


def _origin(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    space, data = facts["space"], facts["data"]
    yield "search space", f"{space['name']} (sha256 {space['digest'][:12]})"
    if space.get("description"):
        yield "about it", space["description"]
    yield "data", f"{data['name']} (sha256 {str(data['digest'])[:12]})"
    yield "seed", str(facts["seed"])
    if "epochs" in facts["scores"]:
        yield "epochs", str(facts["scores"]["epochs"])
    yield "request", f"sha256 {facts['run'][:12]}"


def _quality(scores: Mapping[str, Any]) -> Iterator[str]:
    splits = [s for s in SPLITS if any(name.startswith(f"{s}_") for name in scores)]
    names = [n for n in SCORES if any(f"{s}_{n}" in scores for s in splits)]
    rows = [
        (SCORES[name], *(_number(scores.get(f"{split}_{name}")) for split in splits))
        for name in names
    ]
    if not rows:
        yield "Nothing was measured."
        return
    yield from _table(("", *(SPLITS[split] for split in splits)), rows)
    if "bleu_signature" in scores:
        yield f"BLEU with a beam of 4, sacreBLEU's signature `{scores['bleu_signature']}`."


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

"""Tables of prepared data for people: splits with their lengths, classes with their balance."""

from __future__ import annotations

from typing import NamedTuple

from supernet.data.manifest import Manifest

UNTOLD = "how well these are told it cannot say"
SHOWN = 10  # largest classes, and as many of the smallest
SIDES = ("source", "target")
EXAMPLES = {
    "pairs": "pairs",
    "stream": "lines",
    "images": "images",
    "texts": "texts",
    "embeddings": "texts",
}


class Sheet(NamedTuple):
    """A table; its columns but the first stand on the right.

    Attributes:
        title: above it; empty for none.
        heads: of the columns.
        rows: as many cells each.
    """

    title: str
    heads: tuple[str, ...]
    rows: list[list[str]]


def split_sheet(manifest: Manifest) -> Sheet:
    """What each split holds: examples, tokens, lengths, and what was left out or cut."""
    heads = ("split", "examples", "tokens", "median", "longest", "left out", "cut")
    rows = []
    for name, split in manifest.splits.items():
        tokens = [f"{n:,}" for key, n in split.counts.items() if key.endswith("tokens")]
        pairs = split.counts.get("pairs")
        rows.append(
            [
                name,
                f"{split.examples:,}" + (f" ({pairs:,} pairs)" if pairs else ""),
                " + ".join(tokens),
                " + ".join(map(str, split.median.values())),
                " + ".join(map(str, split.longest.values())),
                ", ".join(f"{n:,} {why.replace('_', ' ')}" for why, n in split.dropped.items()),
                f"{split.truncated:,}" if split.truncated else "",
            ]
        )
    return Sheet("", heads, rows)


def class_sheet(manifest: Manifest) -> Sheet:
    """How many examples each class has; of many classes the largest and the smallest."""
    train = manifest.splits["train"].classes
    names = sorted(train, key=lambda name: -train[name])
    if len(names) > 2 * SHOWN:
        names = names[:SHOWN] + names[-SHOWN:]
    title = f"the {2 * SHOWN} largest and smallest of {len(train):,} classes"
    total = sum(train.values())
    rows = [
        [
            name,
            *(f"{split.classes.get(name, 0):,}" for split in manifest.splits.values()),
            f"{train[name] / total:.1%}",
        ]
        for name in names
    ]
    heads = ("class", *manifest.splits, "share of train")
    return Sheet(title if len(names) < len(train) else "", heads, rows)


def untold_classes(manifest: Manifest) -> list[str]:
    """For each split without an example of some classes: which these are."""
    notes = []
    for name, split in manifest.splits.items():
        lacking = [one for one in manifest.splits["train"].classes if not split.classes.get(one)]
        if not lacking:
            continue
        more = f" and {len(lacking) - SHOWN:,} more" if len(lacking) > SHOWN else ""
        named = f"{', '.join(lacking[:SHOWN])}{more}"
        why = "networks cannot learn to tell these" if name == "train" else UNTOLD
        notes.append(f"{name} has no example of {named}: {why}")
    return notes


def shared_examples(manifest: Manifest) -> list[str]:
    """For each split with examples that another has too: how many."""
    notes = []
    for name, split in manifest.splits.items():
        for other in dict.fromkeys(key.partition(".")[0] for key in split.overlap):
            sides = [f"{split.overlap.get(f'{other}.{side}', 0):,} {side} lines" for side in SIDES]
            more = f" ({' and '.join(sides)})" if manifest.content == "pairs" else ""
            notes.append(
                f"{split.overlap.get(other, 0):,} of {split.examples:,} "
                f"{EXAMPLES[manifest.content]} of {name} are in {other} too{more}"
            )
    return notes

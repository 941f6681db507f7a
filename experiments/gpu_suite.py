"""What a graphics card does with this project: updates, kernels, latencies, whole searches.

``python -m experiments.gpu_suite`` on a machine with CUDA; ``make test-gpu`` runs the tests marked
`gpu` before it.

* Updates (`experiments.gpu_updates`): the supernet's beside a network alone and torch's own layers.
* Kernels (`experiments.gpu_kernels`): every causal operator, beside fused attention and fla.
* Latencies: ``nas profile`` of a translation space on the card, and how far its predictor is off.
* Searches: ``nas search --device cuda`` from the space to retrained winners, of digits and of a
  decoder's space.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from experiments.gpu_kernels import kernel_numbers, kernel_tables
from experiments.gpu_updates import update_times
from experiments.harness import Options, Study, note, table_of
from search_spaces.errors import UsageError

PARTS = ("updates", "kernels", "latency", "searches")
SPACES = ("wmt14", "wmt14-hat", "wikitext103")
PROFILED = "multi30k"
WORKLOADS = ("dtype=bfloat16", "dtype=bfloat16,runtime=graph")
SAMPLES = 60
SEARCHES: tuple[tuple[str, ...], ...] = (
    ("--space", "digits", "--preset", "quick"),
    ("--space", "recall", "--preset", "smoke"),
)
LEAST_SHARE = 0.4
"""Of the card's rate that `wmt14`'s update is to use."""


def measure(options: Options) -> dict[str, Any]:
    """All parts that are asked for."""
    if not torch.cuda.is_available():
        raise UsageError("this study needs a CUDA device, and this machine has none")
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "device": properties.name,
        "gibibytes": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__,
        "parts": list(options.parts),
    }
    for part in options.parts:
        note(f"{part} …")
        found[part] = _PARTS[part](options)
    return found


def _updates(options: Options) -> list[dict[str, Any]]:
    given = {"max_tokens": options.tokens, "accumulate": options.batches}
    changed = {name: number for name, number in given.items() if number is not None}
    found = []
    for name in options.spaces:
        for one in update_times(name, networks=options.networks, **changed):
            note(one)
            found.append(asdict(one))
        torch.cuda.empty_cache()
    return found


def _kernels(options: Options) -> list[dict[str, Any]]:
    return kernel_numbers()


def _latency(options: Options) -> list[dict[str, Any]]:
    """Networks timed as each workload wants, and how far a predictor is off."""
    found = []
    for workload in WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            where = ("--device", "cuda", "--out", str(Path(folder) / "profile.json"))
            asked = ("--space", PROFILED, "--workload", workload, "--samples", str(SAMPLES))
            found.append({"workload": workload, "told": _run("profile", *asked, *where)})
    return found


def _searches(options: Options) -> list[dict[str, Any]]:
    found = []
    for asked in SEARCHES:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            start = time.perf_counter()
            told = _run("search", *asked, "--device", "cuda", "--out", str(run))
            seconds = time.perf_counter() - start
        found.append({"options": " ".join(asked), "seconds": seconds, "told": told[-2000:]})
    return found


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "nas.console.app", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"nas {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return done.stdout


_PARTS = {
    "updates": _updates,
    "kernels": _kernels,
    "latency": _latency,
    "searches": _searches,
}


def show(numbers: Mapping[str, Any]) -> Iterator[Table | str]:
    """A table for each part."""
    yield f"{numbers['device']}, {numbers['gibibytes']} GiB, torch {numbers['torch']}"
    if "updates" in numbers:
        yield _updates_table(numbers["updates"])
    if "kernels" in numbers:
        yield from kernel_tables(numbers["kernels"])
    for one in numbers.get("latency", ()):
        yield f"nas profile --space {PROFILED} --device cuda --workload {one['workload']}"
        yield one["told"]
    for one in numbers.get("searches", ()):
        yield f"nas search {one['options']} --device cuda: {one['seconds']:.0f} s"
        yield one["told"]


def _updates_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    heads = (
        *("space", "update of", "tokens", "ms", "busy ms", "TFLOP", "share of the rate"),
        *("kernels", "waits", "GiB"),
    )
    return table_of(
        "updates, bf16 autocast",
        heads,
        [
            (
                one["space"],
                one["what"],
                f"{one['batches']} × {one['tokens']:,}",
                f"{one['ms']:.1f}",
                f"{one['busy_ms']:.1f}",
                f"{one['tera_operations']:.2f}",
                "" if one["share"] is None else f"{one['share']:.1%}",
                f"{one['kernels']:,}",
                one["waits"],
                f"{one['gibibytes']:.1f}",
            )
            for one in rows
        ],
    )


def met(numbers: Mapping[str, Any]) -> bool:
    """Whether the supernet of `wmt14` uses enough of the card, with one wait."""
    rows = [one for one in numbers.get("updates", ()) if one["what"].startswith("supernet")]
    return all(one["waits"] <= 1 for one in rows) and all(
        one["share"] is None or one["share"] >= LEAST_SHARE
        for one in rows
        if one["space"] == "wmt14"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all", metavar="PART"
    )
    spaces = "whose updates are timed, of texts; default: all of %(default)s"
    parser.add_argument("--spaces", nargs="+", default=SPACES, help=spaces, metavar="SPACE")
    usual = "of an update, in place of the preset's"
    parser.add_argument("--tokens", type=int, help=f"of a batch {usual}", metavar="N")
    parser.add_argument("--batches", type=int, help=usual, metavar="N")
    parser.add_argument("--networks", type=int, default=2, help="drawn for each supernet")


STUDY = Study(
    "gpu_suite",
    "What does a graphics card do with updates, kernels, latencies and whole searches?",
    add_options,
    measure,
    show,
    met,
    example="--parts updates kernels",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

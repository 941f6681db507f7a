"""What onnxruntime makes of a space's networks: time beside torch, in turns, and time to export.

The same networks do the workload of their space with both, on the CPU, in float32 and with random
weights: torch as `nas profile` times it, onnxruntime as `nas profile --runtime onnxruntime` does.

    python -m experiments.onnx_speed --space multi30k --networks 4
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.table import Table

from experiments.harness import Options, Study, table_of
from latency.timer import time_calls
from latency.workload import Workload
from nas.profiling.onnx_timing import export_random, onnx_call, runtime_name
from nas.profiling.timed_work import timed_call
from nas.request.workloads import check_workload
from search_spaces.architecture import Architecture
from search_spaces.loading import load_space
from search_spaces.space import SearchSpace
from search_spaces.variation import sample_distinct


@dataclass(frozen=True)
class Beside:
    """One network with both.

    Attributes:
        id: of the network.
        export_s: processor seconds to export it.
        file_mb: size of its graphs, 10^6 bytes.
        torch_ms: median of torch.
        onnx_ms: median of onnxruntime.
        ratio: median over the rounds of torch by onnxruntime.
        low: first quartile of the rounds' ratios.
        high: third quartile.
    """

    id: str
    export_s: float
    file_mb: float
    torch_ms: float
    onnx_ms: float
    ratio: float
    low: float
    high: float


def beside(
    space: SearchSpace, architecture: Architecture, workload: Workload, rounds: int
) -> Beside:
    """Export a network, and time it with both in turns, with as many threads as torch has."""
    with TemporaryDirectory() as name:
        start = time.process_time()
        export_random(space, [architecture], Path(name))
        export_s = time.process_time() - start
        folder = Path(name) / architecture.id
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        calls = [
            timed_call(space, architecture, workload, "cpu"),
            onnx_call(space, folder, workload, torch.get_num_threads()),
        ]
        by_torch, by_onnx = time_calls(calls, "cpu", repeats=rounds)
    pairs = zip(by_torch.samples_ms, by_onnx.samples_ms, strict=True)
    low, ratio, high = np.quantile([one / other for one, other in pairs], [0.25, 0.5, 0.75])
    times = by_torch.median_ms, by_onnx.median_ms
    return Beside(architecture.id, export_s, size, *times, float(ratio), float(low), float(high))


def measure(options: Options) -> dict[str, Any]:
    """The workload, the runtimes, and a row for each network."""
    torch.set_num_threads(options.threads)
    space = load_space(options.space)
    workload = Workload.parse(options.workload, space.workload)
    check_workload(space, workload)
    rng = np.random.default_rng(options.seed)
    networks = space.decode(sample_distinct(space, rng, options.networks))
    return {
        "workload": workload.label,
        "threads": options.threads,
        "runtimes": [f"torch {torch.__version__}", runtime_name()],
        "networks": [asdict(beside(space, one, workload, options.rounds)) for one in networks],
    }


def show(found: dict[str, Any]) -> Iterator[Table]:
    """A row for each network."""
    rows = [
        (
            row["id"],
            *(f"{row[name]:.2f}" for name in ("export_s", "file_mb", "torch_ms", "onnx_ms")),
            f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
        )
        for row in found["networks"]
    ]
    title = f"{found['workload']}; {found['threads']} threads; {', '.join(found['runtimes'])}"
    heads = ("network", "export s", "file MB", "torch ms", "onnx ms", "torch / onnx (quartiles)")
    yield table_of(title, heads, rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--space", default="multi30k")
    parser.add_argument("--workload", default="", help="over the space's own")
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)


STUDY = Study(
    "onnx_speed",
    "What does onnxruntime make of a space's networks, beside torch?",
    add_options,
    measure,
    show,
    example="--space multi30k --networks 4",
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

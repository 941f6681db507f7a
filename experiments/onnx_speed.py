"""What onnxruntime makes of a space's networks: time beside torch, in turns, and time to export.

The same networks do the workload of their space with both, on the CPU, in float32 and with random
weights: torch as `nas profile` times it, onnxruntime as `nas profile --runtime onnxruntime` does.

    python -m experiments.onnx_speed --space multi30k --networks 4
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from latency.timer import time_calls
from latency.workload import Workload
from nas.profiling.onnx_timing import export_random, onnx_call, runtime_name
from nas.profiling.timed_work import timed_call
from nas.profiling.workloads import check_workload
from search_spaces.architecture import Architecture
from search_spaces.loading import load_space
from search_spaces.operators import sample_distinct
from search_spaces.space import SearchSpace


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--space", default="multi30k")
    parser.add_argument("--workload", default="", help="over the space's own")
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    space = load_space(given.space)
    workload = Workload.parse(given.workload, space.workload)
    check_workload(space, workload)
    rng = np.random.default_rng(given.seed)
    networks = space.decode(sample_distinct(space, rng, given.networks))
    rows = [beside(space, one, workload, given.rounds) for one in networks]
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{workload.label}; {given.threads} threads; torch {torch.__version__}, {runtime_name()}")
    print("network        export s   file MB   torch ms   onnx ms   torch / onnx (quartiles)")
    for row in rows:
        print(
            f"{row.id}   {row.export_s:8.1f}  {row.file_mb:8.2f}  {row.torch_ms:9.2f}  "
            f"{row.onnx_ms:8.2f}   {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})"
        )


if __name__ == "__main__":
    main()

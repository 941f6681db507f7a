"""How few measurements does the latency predictor need? Answered on HAT's published latencies.

``python -m experiments.latency_predictors``

The predictor of a search is fitted to a few random rows of a CSV and tested on others, beside a
linear model of the ten columns, and decoder depth alone. Every seed draws other rows; the test
rows of a seed are the same for every number of fitted ones, which are nested.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.ndimage import median_filter
from threadpoolctl import threadpool_limits

from experiments.hat_latencies import Floats, Latencies, read_latencies
from latency.predictor import MIN_OBSERVATIONS, LatencyPredictor, score
from latency.regressors import CANDIDATES
from search_spaces.errors import DataError, NasError, UsageError
from search_spaces.files import write_atomically

FOLDER = Path("../shared/data/hat_latency")
RESULTS = Path(__file__).parent / "results" / "latency_predictors.json"
PIPED_WIDTH = 150  # columns, where there is no terminal to ask

# Error in percent of HAT's own predictor, fitted to 2,000 networks; to be reached with 100.
TARGETS = {"wmt14ende_gpu_titanxp_all": 5.9, "wmt14ende_cpu_raspberrypi_all": 3.8}
TARGET_SIZE = 100
NEIGHBOURS = 21  # rows of the running median that shows a device's slow spells

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """How much is fitted and tested.

    Attributes:
        sizes: numbers of rows to fit, at least 8 each.
        num_test: rows to test on, others than the fitted ones.
        num_seeds: random draws to average over.
    """

    sizes: tuple[int, ...] = (50, 100, 400)
    num_test: int = 400
    num_seeds: int = 5

    def check(self, data: Latencies) -> None:
        """Refuse what cannot be done with `data`.

        Raises:
            UsageError: for too few rows to fit or test, or no seed.
            DataError: for a file that is too short.
        """
        if min(self.sizes) < MIN_OBSERVATIONS or self.num_test < 2 or self.num_seeds < 1:
            raise UsageError(
                f"fit at least {MIN_OBSERVATIONS} rows, test on 2 or more and draw once or more; "
                f"given {min(self.sizes)}, {self.num_test} and {self.num_seeds}"
            )
        needed = max(self.sizes) + self.num_test
        if len(data.ms) < needed:
            raise DataError(
                f"{data.name} has {len(data.ms)} networks; fitting {max(self.sizes)} and testing "
                f"on {self.num_test} others needs {needed}: give a longer file, or smaller --train "
                "and --test"
            )


DEFAULT = Plan()


# -- the study --------------------------------------------------------------------------------


def study(data: Latencies, plan: Plan) -> dict[str, Any]:
    """All numbers of one file.

    Returns:
        ``rows``: name → ``mape``, ``median`` (of the relative errors) and ``kendall_tau``, each
        size → one value per seed, errors in percent; ``chosen``: size → candidate per seed;
        ``within``: size → share of tested rows within one and two standard deviations; ``drift``
        as in `drift`.

    Raises:
        UsageError, DataError: as in `Plan.check`.
    """
    plan.check(data)
    rows: dict[str, dict[str, dict[str, list[float]]]] = {}
    chosen: dict[str, list[str]] = {}
    within: dict[str, list[list[float]]] = {}
    with threadpool_limits(1, "blas"):
        for size in plan.sizes:
            for seed in range(plan.num_seeds):
                order = np.random.default_rng(seed).permutation(len(data.ms))
                test, train = order[: plan.num_test], order[plan.num_test :][:size]
                predictor = LatencyPredictor.fit(data.terms[train], data.ms[train])
                mean_N, std_N = predictor.predict(data.terms[test])
                chosen.setdefault(str(size), []).append(predictor.report.chosen)
                within.setdefault(str(size), []).append(_within(mean_N, std_N, data.ms[test]))
                for name, predicted_N in {"predictor": mean_N, **others(data, train, test)}.items():
                    row = rows.setdefault(name, {"mape": {}, "median": {}, "kendall_tau": {}})
                    for metric, value in _metrics(predicted_N, data.ms[test]).items():
                        row[metric].setdefault(str(size), []).append(value)
        shares = {size: np.mean(values, axis=0).tolist() for size, values in within.items()}
        return {"rows": rows, "chosen": chosen, "within": shares, "drift": drift(data, predictor)}


def others(data: Latencies, train: Indices, test: Indices) -> dict[str, Floats]:
    """Predictions of the test rows by the two baselines, and by each candidate for itself."""
    linear, ms_N = CANDIDATES["linear"], data.ms[train]
    features_NF, depth_N1, terms_NT = data.features, data.decoder_depth, data.terms
    return {
        "linear": linear().fit(features_NF[train], ms_N).predict(features_NF[test]),
        "decoder_depth": linear().fit(depth_N1[train], ms_N).predict(depth_N1[test]),
        **{
            f"{name} of terms": make().fit(terms_NT[train], ms_N).predict(terms_NT[test])
            for name, make in CANDIDATES.items()
        },
    }


BASELINES = ("linear", "decoder_depth")


def _metrics(predicted_N: Floats, ms_N: Floats) -> dict[str, float]:
    found = score(predicted_N, ms_N)
    median = 100 * float(np.median(np.abs(predicted_N / ms_N - 1)))
    return {"mape": 100 * found.mape, "median": median, "kendall_tau": found.kendall_tau}


def _within(mean_N: Floats, std_N: Floats, ms_N: Floats) -> list[float]:
    return [float(np.mean(np.abs(mean_N - ms_N) <= times * std_N)) for times in (1, 2)]


def drift(data: Latencies, predictor: LatencyPredictor) -> dict[str, float]:
    """How much of the error is the device's mood, which no feature of a network can know.

    Errors of rows that stand side by side would be unrelated on a steady device.

    Returns:
        ``neighbours``: correlation of the relative errors of neighbouring rows; ``mape``: error
        over all rows in percent; ``mape_steady``: the same after the running median of the
        errors around each row is taken off; ``median``: median error in percent.
    """
    errors_N = predictor.predict(data.terms)[0] / data.ms - 1
    steady_N = errors_N - median_filter(errors_N, NEIGHBOURS, mode="nearest")
    related = 0.0 if np.ptp(errors_N) == 0 else np.corrcoef(errors_N[1:], errors_N[:-1])[0, 1]
    return {
        "neighbours": float(related),
        "mape": 100 * float(np.mean(np.abs(errors_N))),
        "mape_steady": 100 * float(np.mean(np.abs(steady_N))),
        "median": 100 * float(np.median(np.abs(errors_N))),
    }


# -- what is shown ----------------------------------------------------------------------------


def averages(row: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """A row of `study`, averaged over the seeds."""
    return {
        metric: {size: round(float(np.mean(values)), 4) for size, values in row[metric].items()}
        for metric in ("mape", "kendall_tau")
    }


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """What ``--json`` prints of one file."""
    rows = result["rows"]
    return {
        **averages(rows["predictor"]),
        "baselines": {name: averages(rows[name]) for name in BASELINES},
    }


def missed(name: str, result: Mapping[str, Any]) -> bool:
    """Whether the file has a target that was tried and not reached."""
    error = summary(result)["mape"].get(str(TARGET_SIZE))
    return error is not None and error > TARGETS.get(name, np.inf)


def show(name: str, result: Mapping[str, Any], console: Console) -> None:
    """Print the table of one file and what stands behind it."""
    rows = result["rows"]
    sizes = list(rows["predictor"]["mape"])
    title = f"{name}: mean ± standard deviation over seeds, by number of fitted rows"
    table = Table(title=title, title_justify="left")
    table.add_column("predictor", no_wrap=True)
    for heading in ("MAPE %", "median %", "τ-b"):
        for size in sizes:
            table.add_column(f"{heading}\n{size}", justify="right")
    for row_name, row in rows.items():
        errors = [f"{np.mean(row['mape'][s]):.2f} ± {np.std(row['mape'][s]):.2f}" for s in sizes]
        medians = [f"{np.mean(row['median'][s]):.2f}" for s in sizes]
        taus = [f"{np.mean(row['kendall_tau'][s]):.3f}" for s in sizes]
        table.add_row(row_name.replace("_", " "), *errors, *medians, *taus)
    console.print(table)
    for size in sizes:
        one, two = result["within"][size]
        names = ", ".join(dict.fromkeys(result["chosen"][size]))
        console.print(f"at {size}: chosen {names}; {one:.0%} within ±1 std, {two:.0%} within ±2")
    moods = result["drift"]
    console.print(
        f"errors of neighbouring rows correlate at {moods['neighbours']:.2f}\n"
        f"over all rows the mean error is {moods['mape']:.2f} %, the median "
        f"{moods['median']:.2f} %, the mean without drift {moods['mape_steady']:.2f} %"
    )
    if name in TARGETS:
        verdict = "MISSED" if missed(name, result) else "reached"
        console.print(f"wanted at {TARGET_SIZE}: at most {TARGETS[name]} %: {verdict}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; exit code 1 when a target is missed."""
    options = _parser().parse_args(arguments)
    plan = Plan(tuple(options.train), options.test, options.seeds)
    try:
        files = [options.csv] if options.csv else sorted(FOLDER.glob("*.csv"))
        if not files:
            raise DataError(f"no CSV in {FOLDER}; name one with --csv FILE")
        data = [read_latencies(path) for path in files]
        results = {latencies.name: study(latencies, plan) for latencies in data}
    except NasError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        summaries = {name: summary(result) for name, result in results.items()}
        printed = next(iter(summaries.values())) if options.csv else summaries
        print(json.dumps(printed, indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
        for name, result in results.items():
            show(name, result, console)
    if not options.csv and plan == DEFAULT:
        write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")
    return 1 if any(missed(name, result) for name, result in results.items()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.latency_predictors",
        description="How few measurements does the latency predictor need?",
        epilog=f"Without options the numbers are also written to results/{RESULTS.name}.",
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help=f"one file (default: every CSV in {FOLDER})"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object instead; without --csv, one per file by name",
    )
    parser.add_argument(
        "--train",
        type=int,
        nargs="+",
        default=DEFAULT.sizes,
        metavar="N",
        help="rows to fit (default: 50 100 400)",
    )
    parser.add_argument(
        "--test",
        type=int,
        default=DEFAULT.num_test,
        metavar="N",
        help="other rows to test on (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=DEFAULT.num_seeds,
        metavar="N",
        help="draws to average over (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""How few measurements does the latency predictor need? Answered on HAT's published latencies.

``python -m experiments.latency_predictors``

The predictor of a search is fitted to a few random rows of a CSV and tested on others, beside a
linear model of the ten columns, and decoder depth alone. Every seed draws other rows; the test
rows of a seed are the same for every number of fitted ones, which are nested.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from scipy.ndimage import median_filter
from threadpoolctl import threadpool_limits

from experiments.harness import Options, Study, table_of
from latency.predictor import MIN_OBSERVATIONS, LatencyPredictor, score
from latency.regressors import CANDIDATES
from search_spaces.errors import DataError, UsageError

FOLDER = Path("../shared/data/hat_latency")

# Error in percent of HAT's own predictor, fitted to 2,000 networks; to be reached with 100.
TARGETS = {"wmt14ende_gpu_titanxp_all": 5.9, "wmt14ende_cpu_raspberrypi_all": 3.8}
TARGET_SIZE = 100
BASELINES = ("linear", "decoder_depth")
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


def missed(name: str, result: Mapping[str, Any]) -> bool:
    """Whether the file has a target that was tried and not reached."""
    error = averages(result["rows"]["predictor"])["mape"].get(str(TARGET_SIZE))
    return error is not None and error > TARGETS.get(name, np.inf)


def show(results: Mapping[str, Any]) -> Iterator[Table | str]:
    """The table of each file and what stands behind it."""
    for name, result in results.items():
        rows = result["rows"]
        sizes = list(rows["predictor"]["mape"])
        heads = [f"{head}\n{size}" for head in ("MAPE %", "median %", "τ-b") for size in sizes]
        cells = [
            (
                row_name.replace("_", " "),
                *(f"{np.mean(row['mape'][s]):.2f} ± {np.std(row['mape'][s]):.2f}" for s in sizes),
                *(f"{np.mean(row['median'][s]):.2f}" for s in sizes),
                *(f"{np.mean(row['kendall_tau'][s]):.3f}" for s in sizes),
            )
            for row_name, row in rows.items()
        ]
        title = f"{name}: mean ± standard deviation over seeds, by number of fitted rows"
        table = table_of(title, ("predictor", *heads), cells)
        table.columns[0].no_wrap = True
        yield table
        for size in sizes:
            one, two = result["within"][size]
            names = ", ".join(dict.fromkeys(result["chosen"][size]))
            yield f"at {size}: chosen {names}; {one:.0%} within ±1 std, {two:.0%} within ±2"
        moods = result["drift"]
        yield (
            f"errors of neighbouring rows correlate at {moods['neighbours']:.2f}\n"
            f"over all rows the mean error is {moods['mape']:.2f} %, the median "
            f"{moods['median']:.2f} %, the mean without drift {moods['mape_steady']:.2f} %"
        )
        if name in TARGETS:
            verdict = "MISSED" if missed(name, result) else "reached"
            yield f"wanted at {TARGET_SIZE}: at most {TARGETS[name]} %: {verdict}\n"


def summary(options: Options, results: Mapping[str, Any]) -> dict[str, Any]:
    """Errors and agreement of the predictor and of two baselines; of one file without its name."""
    found = {
        name: {
            **averages(result["rows"]["predictor"]),
            "baselines": {one: averages(result["rows"][one]) for one in BASELINES},
        }
        for name, result in results.items()
    }
    return next(iter(found.values())) if options.csv else found


def plan_of(options: Options) -> Plan:
    """What the options ask for."""
    return Plan(tuple(options.train), options.test, options.seeds)


def measure(options: Options) -> dict[str, Any]:
    """File → its numbers."""
    files = [options.csv] if options.csv else sorted(FOLDER.glob("*.csv"))
    if not files:
        raise DataError(f"no CSV in {FOLDER}; name one with --csv FILE")
    data = [read_latencies(path) for path in files]
    return {latencies.name: study(latencies, plan_of(options)) for latencies in data}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help=f"one file (default: every CSV in {FOLDER})"
    )
    parser.add_argument(
        "--train", type=int, nargs="+", default=DEFAULT.sizes, metavar="N", help="rows to fit"
    )
    parser.add_argument(
        "--test", type=int, default=DEFAULT.num_test, metavar="N", help="other rows to test on"
    )
    parser.add_argument(
        "--seeds", type=int, default=DEFAULT.num_seeds, metavar="N", help="draws to average over"
    )


STUDY = Study(
    "latency_predictors",
    "How few measurements does the latency predictor need?",
    add_options,
    measure,
    show,
    lambda results: not any(missed(name, result) for name, result in results.items()),
    lambda options: (
        "latency_predictors" if not options.csv and plan_of(options) == DEFAULT else None
    ),
    width=150,
    summary=summary,
)


# -- HAT's files -------------------------------------------------------------------------------

Floats = NDArray[np.float64]

FEATURES = (
    "encoder_embed_dim",
    "encoder_layer_num",
    "encoder_ffn_embed_dim_avg",
    "encoder_self_attention_heads_avg",
    "decoder_embed_dim",
    "decoder_layer_num",
    "decoder_ffn_embed_dim_avg",
    "decoder_self_attention_heads_avg",
    "decoder_ende_attention_heads_avg",
    "decoder_arbitrary_ende_attn_avg",
)
LATENCIES = ("latency_mean_encoder", "latency_mean_decoder")
LARGEST = 1e6  # a feature beyond this is a slip, and its products would overflow
QKV_DIM = 512  # of every network: more heads are narrower, not more to multiply


@dataclass(frozen=True)
class Latencies:
    """Measured networks, in the order of their file.

    Attributes:
        name: the file's, without its ending.
        features: ``(N, 10)``, columns as in `FEATURES`; averages are over a stack's layers.
        ms: ``(N,)``, encoder and decoder together.
    """

    name: str
    features: Floats
    ms: Floats

    @property
    def decoder_depth(self) -> Floats:
        """Layers of the decoder, ``(N, 1)``."""
        index = FEATURES.index("decoder_layer_num")
        return self.features[:, index : index + 1]

    @property
    def terms(self) -> Floats:
        """See `physical_terms`."""
        return physical_terms(self.features)


def physical_terms(features_NF: Floats) -> Floats:
    """What the ten averages say about the work that is done.

    Decoding makes nearly all of the time, one token after the other. Averages times layers are
    sums over layers, and what a layer multiplies grows with width times inner size.

    Args:
        features_NF: ``(N, 10)``, columns as in `FEATURES`.

    Returns:
        ``(N, 7)``: decoder width (the output layer); layers (kernels started); layers × width
        (attention's projections, norms); the products of all feed-forward blocks; attention
        scores, which cross-attention computes over up to three encoder layers' outputs; keys and
        values of those; multiplications of the encoder.
    """
    columns = iter(features_NF.T)
    width, depth, ffn, _ = (next(columns) for _ in range(4))
    encoder = depth * width * (2 * ffn + 4 * QKV_DIM)
    d_width, d_depth, d_ffn, d_heads, cross_heads, sources = columns
    scores = d_depth * (d_heads + cross_heads * sources)
    return np.column_stack(
        [
            d_width,
            d_depth,
            d_depth * d_width,
            d_depth * d_width * d_ffn,
            scores,
            d_depth * sources * width,
            encoder,
        ]
    )


def read_latencies(path: Path) -> Latencies:
    """Read a CSV of HAT's form; columns in any order, others ignored.

    Raises:
        DataError: for a file that cannot be read, lacks a column or has a value that is not a
            finite number in its range (latencies are positive); names file and line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            absent = [name for name in (*FEATURES, *LATENCIES) if name not in _header(reader)]
            if absent:
                raise DataError(
                    f"{path} lacks the column {absent[0]}; it needs HAT's ten features, "
                    f"{LATENCIES[0]} and {LATENCIES[1]}"
                )
            rows = [_row(path, reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "not a text file of comma-separated values"
        raise DataError(f"{path} cannot be read ({reason}); give a CSV of HAT's form") from error
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(FEATURES) + 1)
    return Latencies(path.stem, values[:, :-1], values[:, -1])


def _header(reader: csv.DictReader[str]) -> list[str]:
    return list(reader.fieldnames or ())


def _row(path: Path, line: int, row: dict[str, str | None]) -> list[float]:
    """Ten features and the total."""
    numbers = {name: _number(path, line, name, row[name]) for name in (*FEATURES, *LATENCIES)}
    for name in LATENCIES:
        if numbers[name] <= 0:
            raise DataError(f"{path}, line {line}: {name} must be positive, not {row[name]}")
    for name in FEATURES:
        if not 0 <= numbers[name] <= LARGEST:
            limits = f"between 0 and {LARGEST:,.0f}"
            raise DataError(f"{path}, line {line}: {name} must be {limits}, not {row[name]}")
    return [*(numbers[name] for name in FEATURES), sum(numbers[name] for name in LATENCIES)]


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        given = repr(text) if text else "empty"
        raise DataError(f"{path}, line {line}: {name} must be a finite number, not {given}")
    return number


if __name__ == "__main__":
    sys.exit(STUDY.main())

"""Can linear attention stand in a decoder?

``python -m experiments.decoder_linear --data DIR``

DIR is Multi30k (English to German), prepared with a joint vocabulary of 4,000::

    nas data prepare --task translation --source train.en --target train.de --valid val.en
        --valid val.de --test test_2016_flickr.en --test test_2016_flickr.de --vocab-size 4000
        --out DIR

The mFormer paper reports BLEU near 0 for linear attention anywhere in a decoder, and left it out of
its search. Here the same small network, 3 + 3 layers of 192, is trained from scratch with softmax
or cosFormer attention in each of {encoder self, decoder self, cross} (eight combinations), with
norm-linear attention in all three places, and with omnidirectional encoder and decoder
self-attention. Finished trainings are kept, those of each data set in a folder of its own, and not
repeated; a whole study, with `--test` and `--times`, goes to the results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from experiments.decoder_measures import LENGTHS, attended_share, time_per_token
from experiments.harness import (
    Options,
    Study,
    add_workers,
    done_jobs,
    journaled,
    note,
    processes,
    table_of,
)
from search_spaces.architecture import (
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.files import append_lines
from search_spaces.settings import LinearKernel, ModelSettings, TokenInput
from supernet.beam_search import BeamSettings
from supernet.data.manifest import read_manifest
from supernet.data.prepared import PAIRS
from supernet.data.text_batches import pair_batches
from supernet.extraction import StandAlone
from supernet.sequence_models import TranslationModel
from supernet.tasks.bleu import corpus_bleu
from supernet.tasks.evaluation import evaluate
from supernet.tasks.translating import StepwiseTranslator, translate_lines
from supernet.tasks.translation import TranslationTask
from supernet.training.checkpoint import load, save
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork
from supernet.training_settings import TrainingSettings

SEEDS = (1, 2, 3)
DECODING_TOKENS = 16_384
ATTENDED_PAIRS = 200
TRAINING = TrainingSettings(
    epochs=4,
    max_tokens=1024,
    learning_rate=2e-3,
    warmup_share=0.1,
    weight_decay=0.05,
    check_every=4,
    bfloat16=True,
)
JOURNAL = "journal.jsonl"


# -- the networks: one shape, with every attention in every place ------------------------------

LAYERS, WIDTH, HEADS, FFN = 3, 192, 4, 384
MAX_LENGTH = 128


@dataclass(frozen=True)
class Variant:
    """Which attention stands where."""

    name: str
    encoder: AttentionKind
    decoder: AttentionKind
    cross: AttentionKind
    kernel: LinearKernel = "cosformer"
    target: float = 0.93

    def settings(self, vocab_size: int, max_length: int = MAX_LENGTH) -> ModelSettings:
        """The fixed part of the network."""
        return ModelSettings(
            TokenInput(vocab_size, vocab_size, share_embeddings=True),
            max_length,
            head_dim=WIDTH // HEADS,
            positions="sinusoidal",
            linear_kernel=self.kernel,
            omni_span=LAYERS,
        )

    @property
    def architecture(self) -> Architecture:
        """The network."""
        encoder = EncoderLayer(self.encoder, HEADS, FFN)
        decoder = DecoderLayer(self.decoder, HEADS, FFN, self.cross, HEADS, 1)
        return Architecture(
            EncoderStack(WIDTH, (encoder,) * LAYERS), DecoderStack(WIDTH, (decoder,) * LAYERS)
        )


def _variants() -> Iterator[Variant]:
    kinds: tuple[AttentionKind, ...] = ("softmax", "linear")
    for encoder in kinds:
        for decoder in kinds:
            for cross in kinds:
                places = {"encoder": encoder, "decoder": decoder, "cross": cross}
                linear = [place for place, kind in places.items() if kind == "linear"]
                name = f"cosFormer: {', '.join(linear)}" if linear else "all softmax"
                yield Variant(name, encoder, decoder, cross)
    yield Variant("norm-linear everywhere", "linear", "linear", "linear", "norm", target=0.85)
    yield Variant("omni: encoder, decoder", "omni", "omni", "softmax", target=0.85)


VARIANTS = {variant.name: variant for variant in _variants()}


# -- the study ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One training."""

    variant: str
    seed: int
    data: str
    work: str

    @property
    def key(self) -> str:
        """Name of its line in the journal."""
        return f"{self.variant} | {self.seed}"

    @property
    def weights(self) -> Path:
        """Where its weights are kept."""
        number = list(VARIANTS).index(self.variant)
        return Path(self.work) / f"weights-{number}-{self.seed}.pt"


def train(job: Job) -> dict[str, Any]:
    """Train one network; its loss and BLEU on the validation split."""
    torch.set_num_threads(1)
    variant = VARIANTS[job.variant]
    torch.manual_seed(job.seed)
    task, network = _untrained(job)
    started = time.perf_counter()
    trainer = Trainer(
        network.network,
        SingleNetwork(variant.architecture),
        [variant.architecture],
        task,
        TRAINING,
        seed=job.seed,
    )
    for _ in trainer.run():
        pass
    seconds = time.perf_counter() - started
    save(job.weights, {"model": network.network.state_dict()})
    found = evaluate(task, network.network, variant.architecture, task.valid)
    return {
        "key": job.key,
        "variant": job.variant,
        "seed": job.seed,
        "params": sum(p.numel() for p in network.parameters()),
        "valid_loss": found.loss,
        "valid_bleu": _bleu(task, network, task.valid.source_lines, task.valid.target_lines),
        "train_seconds": round(seconds),
    }


def score_test(job: Job) -> float:
    """BLEU of a trained network on the test split: asked for once, after all else is settled."""
    torch.set_num_threads(1)
    task, network = _opened(job)
    test = task.open_test()
    return _bleu(task, network, test.source_lines, test.target_lines)


def attended(job: Job) -> float | None:
    """What share of the source a trained network's cross-attention looks at, see `attended_share`.

    None for norm-linear attention, whose outputs are no means.
    """
    if VARIANTS[job.variant].kernel == "norm":
        return None
    task, network = _opened(job)
    batches = pair_batches(task.with_valid(ATTENDED_PAIRS).valid, DECODING_TOKENS, shuffle=False)
    return attended_share(network, batches)


def _opened(job: Job) -> tuple[TranslationTask, StandAlone]:
    """The task and the trained network."""
    task, network = _untrained(job)
    network.network.load_state_dict(load(job.weights)["model"])
    return task, network


def _untrained(job: Job) -> tuple[TranslationTask, StandAlone]:
    """The task and the network as it is before training."""
    variant, folder = VARIANTS[job.variant], Path(job.data)
    data = PAIRS.open(folder)
    assert data.target_tokenizer is not None
    settings = variant.settings(data.target_tokenizer.vocab_size)
    task = TranslationTask(data, settings, lambda: PAIRS.open_test(folder))
    network = StandAlone(TranslationModel, settings, variant.architecture, TRAINING.dropout)
    return task, network


def _bleu(
    task: TranslationTask,
    network: StandAlone,
    sources: Sequence[str],
    references: Sequence[str],
) -> float:
    lines = translate_lines(
        StepwiseTranslator.of(network),
        sources,
        task.source_tokenizer,
        task.target_tokenizer,
        BeamSettings(),
        max_tokens=DECODING_TOKENS,
        device="cpu",
    )
    return corpus_bleu(lines, references).score


def kept_in(work: Path, data: Path) -> Path:
    """The folder of the trainings with these data and today's settings."""
    text = f"{read_manifest(data).request}:{asdict(TRAINING)}"
    return work / hashlib.sha256(text.encode()).hexdigest()[:12]


def add_scores(
    jobs: Sequence[Job], results: Sequence[dict[str, Any]], workers: int, test: bool
) -> None:
    """Add to each result what is asked for and not known of it yet, and keep it."""
    asked: dict[str, Callable[[Job], float | None]] = {"attended": attended}
    asked |= {"test_bleu": score_test} if test else {}
    with processes(workers) as pool:
        for name, score in asked.items():
            pairs = zip(jobs, results, strict=True)
            unseen = [(job, result) for job, result in pairs if name not in result]
            scores = pool.map(score, [job for job, _ in unseen])
            for (job, result), value in zip(unseen, scores, strict=True):
                result[name] = value
                append_lines(Path(job.work) / JOURNAL, [json.dumps(result)])


def tokens_and_words(data: Path) -> tuple[int, int]:
    """What is predicted of the validation split: tokens, and words; ends of lines are both."""
    valid = PAIRS.open(data).valid
    lines = len(valid)
    words = sum(len(line.split()) for line in valid.target_lines)
    return int(valid.target.lengths.sum()) + lines, words + lines


def summary(
    results: Sequence[Mapping[str, Any]],
    times: Mapping[str, list[float]],
    num_tokens: int,
    num_words: int,
) -> list[Any]:
    """One row for each variant: means over seeds, and the share of the all-softmax BLEU.

    Perplexities are those of the mean loss, per token and per word of the validation split.
    """
    metric = "test_bleu" if all("test_bleu" in result for result in results) else "valid_bleu"
    rows = []
    for name in dict.fromkeys(result["variant"] for result in results):
        mine = [result for result in results if result["variant"] == name]
        bleu = [result[metric] for result in mine]
        loss = float(np.mean([result["valid_loss"] for result in mine]))
        rows.append(
            {
                "variant": name,
                "params": mine[0]["params"],
                "seeds": len(mine),
                "valid_loss": loss,
                "valid_perplexity": math.exp(loss),
                "valid_perplexity_per_word": math.exp(loss * num_tokens / num_words),
                "valid_bleu": float(np.mean([result["valid_bleu"] for result in mine])),
                metric: float(np.mean(bleu)),
                "spread": float(np.std(bleu, ddof=1)) if len(bleu) > 1 else None,
                "attended": _mean([result["attended"] for result in mine]),
                "target": VARIANTS[name].target,
                "ms_per_token": dict(zip(map(str, LENGTHS), times.get(name, []), strict=False)),
            }
        )
    best = {row["variant"]: row[metric] for row in rows}
    for row in rows:
        row["share"] = row[metric] / best["all softmax"] if "all softmax" in best else None
    return rows


def _mean(shares: Sequence[float | None]) -> float | None:
    """That of several seeds; None where there is nothing to look at."""
    there = [share for share in shares if share is not None]
    return float(np.mean(there)) if there else None


def tables(content: Mapping[str, Any]) -> list[Table]:
    """The table of all variants."""
    rows = []
    for row in content["variants"]:
        share = row["share"]
        rows.append(
            (
                row["variant"],
                row["seeds"],
                f"{row['valid_loss']:.3f}",
                f"{row['valid_perplexity']:.2f}",
                f"{row['valid_perplexity_per_word']:.1f}",
                f"{row['valid_bleu']:.1f}",
                f"{row['test_bleu']:.1f}" if "test_bleu" in row else "",
                f"{row['spread']:.1f}" if row["spread"] is not None else "",
                f"{share:.1%}{'' if share >= row['target'] else ' missed'}" if share else "",
                "" if row["attended"] is None else f"{row['attended']:.2f}",
                *(f"{ms:.2f}" for ms in row["ms_per_token"].values()),
                *[""] * (len(LENGTHS) - len(row["ms_per_token"])),
            )
        )
    heads = ("attention", "seeds", "valid loss", "ppl/token", "ppl/word", "valid BLEU", "test BLEU")
    times = [f"ms @{length}" for length in LENGTHS]
    title = "Multi30k English-German, 3 + 3 layers of 192, 4 epochs, beam 4"
    return [table_of(title, (*heads, "± seeds", "share", "attended", *times), rows)]


def measure(options: Options) -> dict[str, Any]:
    """Train, score and time."""
    torch.set_num_threads(1)
    work = kept_in(Path(options.work), Path(options.data))
    jobs = [
        Job(variant, int(seed), options.data, str(work))
        for seed in options.seeds.split(",")
        for variant in options.variants
    ]
    journal = work / JOURNAL
    done = done_jobs(journal)
    if options.finished:
        jobs = [job for job in jobs if job.key in done]
    for result in journaled(train, jobs, done, journal, options.workers):
        note(
            f"{result['key']}: loss {result['valid_loss']:.3f}, "
            f"BLEU {result['valid_bleu']:.1f}, {result['train_seconds']} s"
        )
    results = [done[job.key] for job in jobs]
    add_scores(jobs, results, options.workers, options.test)
    times: dict[str, list[float]] = {}
    if options.times:
        chosen = [VARIANTS[name] for name in options.variants]
        pairs = [(v.settings(4000, 2 * LENGTHS[-1]), v.architecture) for v in chosen]
        times = dict(zip(options.variants, time_per_token(pairs), strict=True))
    num_tokens, num_words = tokens_and_words(Path(options.data))
    return {
        "training": asdict(TRAINING),
        "valid_tokens": num_tokens,
        "valid_words": num_words,
        "variants": summary(results, times, num_tokens, num_words),
        "trainings": sorted(results, key=lambda result: str(result["key"])),
    }


def met(content: Mapping[str, Any]) -> bool:
    """Whether every variant keeps the share of softmax's BLEU that is asked of it."""
    rows = content["variants"]
    return bool(rows) and all(row["share"] and row["share"] >= row["target"] for row in rows)


def results_of(options: Options) -> str | None:
    """The file that keeps a whole study; what is a part of one would replace it."""
    seeds = {int(seed) for seed in options.seeds.split(",")}
    all_there = seeds == set(SEEDS) and set(options.variants) == set(VARIANTS)
    whole = all_there and options.test and options.times and not options.finished
    return "decoder_linear" if whole else None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--data", required=True, help="Multi30k, prepared with 4,000 tokens")
    parser.add_argument("--work", default="runs/decoder_linear", help="journal and weights")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=list(VARIANTS),
        default=list(VARIANTS),
        metavar="NAME",
        help=f"default: all of {'; '.join(VARIANTS)}",
    )
    add_workers(parser)
    parser.add_argument("--test", action="store_true", help="score the test split, at the very end")
    parser.add_argument("--finished", action="store_true", help="only what is trained already")
    parser.add_argument("--times", action="store_true", help="time decoding at each length")


STUDY = Study(
    "decoder_linear",
    "Can linear attention stand in a decoder?",
    add_options,
    measure,
    tables,
    met,
    results_of,
    width=190,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

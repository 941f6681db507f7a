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
self-attention. Finished trainings are kept, in a journal and in the results, and not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from experiments.decoder_measures import LENGTHS, attended_share, time_per_token
from experiments.harness import RESULTS, Options, Study, done_jobs, journaled, note, table_of
from search_spaces.architecture import (
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.settings import LinearKernel, ModelSettings, TokenInput
from supernet.beam_search import BeamSettings
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
PUBLISHED = RESULTS / "decoder_linear.json"


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
    batches = pair_batches(task.first_valid(ATTENDED_PAIRS).valid, DECODING_TOKENS, shuffle=False)
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


def finished(journal: Path, anew: bool = False) -> dict[str, Any]:
    """What was trained before, by key: in this journal, or, alike, for the published results.

    Args:
        journal: of this work folder.
        anew: leave the published results out.
    """
    done = {}
    if PUBLISHED.exists() and not anew:
        published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
        # What settings were added since was as it is by default.
        if asdict(TRAINING) | published["training"] == asdict(TRAINING):
            done = {line["key"]: line for line in published["trainings"]}
    return done_jobs(journal) | done


def published_times() -> dict[str, list[float]]:
    """Milliseconds per token of each variant in the published results, where there are any."""
    if not PUBLISHED.exists():
        return {}
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))["variants"]
    return {row["variant"]: list(row["ms_per_token"].values()) for row in rows}


def add_scores(
    jobs: Sequence[Job], results: Sequence[dict[str, Any]], workers: int, test: bool
) -> None:
    """Add to each result what is asked for and not known of it yet; needs its weights."""
    pairs = list(zip(jobs, results, strict=True))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        unseen = [pair for pair in pairs if "attended" not in pair[1]]
        shares = pool.map(attended, [job for job, _ in unseen])
        for (_, result), share in zip(unseen, shares, strict=True):
            result["attended"] = share
        untested = [pair for pair in pairs if test and "test_bleu" not in pair[1]]
        scores = pool.map(score_test, [job for job, _ in untested])
        for (_, result), score in zip(untested, scores, strict=True):
            result["test_bleu"] = score


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
                "attended": mine[0]["attended"],
                "target": VARIANTS[name].target,
                "ms_per_token": dict(zip(map(str, LENGTHS), times.get(name, []), strict=False)),
            }
        )
    best = {row["variant"]: row[metric] for row in rows}
    for row in rows:
        row["share"] = row[metric] / best["all softmax"] if "all softmax" in best else None
    return rows


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
    jobs = [
        Job(variant, int(seed), options.data, options.work)
        for seed in options.seeds.split(",")
        for variant in options.variants
    ]
    journal = Path(options.work) / "journal.jsonl"
    done = finished(journal, options.anew)
    if options.finished:
        jobs = [job for job in jobs if job.key in done]
    for result in journaled(train, jobs, done, journal, options.workers):
        note(
            f"{result['key']}: loss {result['valid_loss']:.3f}, "
            f"BLEU {result['valid_bleu']:.1f}, {result['train_seconds']} s"
        )
    results = [done[job.key] for job in jobs]
    add_scores(jobs, results, options.workers, options.test)
    times = {} if options.anew else published_times()
    if options.times:
        chosen = [VARIANTS[name] for name in options.variants]
        pairs = [(v.settings(4000, 2 * LENGTHS[-1]), v.architecture) for v in chosen]
        times |= dict(zip(options.variants, time_per_token(pairs), strict=True))
    num_tokens, num_words = tokens_and_words(Path(options.data))
    return {
        "training": asdict(TRAINING),
        "valid_tokens": num_tokens,
        "valid_words": num_words,
        "variants": summary(results, times, num_tokens, num_words),
        "trainings": [done[key] for key in sorted(done)],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the study."""
    parser.add_argument("--data", required=True, help="Multi30k, prepared with 4,000 tokens")
    parser.add_argument("--work", default="runs/decoder_linear", help="journal and weights")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), help="names; default all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--test", action="store_true", help="score the test split, at the very end")
    parser.add_argument("--finished", action="store_true", help="only what is trained already")
    parser.add_argument("--anew", action="store_true", help="use no published training")
    parser.add_argument("--times", action="store_true", help="time decoding at each length")


STUDY = Study(
    "decoder_linear",
    "Can linear attention stand in a decoder?",
    add_options,
    measure,
    tables,
    results=lambda options: "decoder_linear",
    width=190,
)

if __name__ == "__main__":
    sys.exit(STUDY.main())

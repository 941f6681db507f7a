"""A small checkpoint in Llama's form that recalls, trained by nobody's code but `transformers`'.

``python -m experiments.small_llama --text DIR --out ./llama8``

Searches around a checkpoint of a decoder need one, and none can be fetched without a network: this
trains one from scratch on a folder of text (``train.txt``, ``valid.txt``), with a vocabulary of its
own, and saves it as `transformers` does. Whether it recalls is told by its loss on tokens that
repeat a pair of neighbours from beyond a window (`supernet.data.repeated_bigrams`) beside the same
loss where no more than the window is read.

Shapes: B segments, N tokens of each.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from experiments.harness import Options, Study, note, table_of
from search_spaces.errors import UsageError
from supernet.data.repeated_bigrams import repeats_beyond

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

SPLITS = ("train", "valid")
CHECKS = 5  # of a training
WARMUP_SHARE = 0.05
VALID_SEGMENTS = 32
RECALLED = 0.5  # of what a recalled token costs without recall
SHORT = 500  # recalled tokens that are read with their window alone


def lines_of(text: Path) -> list[str]:
    """The lines of a file that are not blank, as `nas data prepare` reads them.

    Raises:
        UsageError: where there is no such file.
    """
    if not text.is_file():
        raise UsageError(f"no such file: {text}; the folder holds train.txt and valid.txt")
    return [line for line in text.read_text(encoding="utf-8").split("\n") if line.strip()]


def tokenizer_of(lines: list[str], vocab_size: int) -> Tokenizer:
    """Byte pairs of the lines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # of `export`

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((f"{line}\n" for line in lines), trainer)
    return tokenizer


def stream(tokenizer: Tokenizer, lines: list[str], split: str, length: int) -> Tensor:
    """All tokens of a split's lines, one after the other.

    Raises:
        UsageError: where they are no segment of that length with the token that follows.
    """
    tokens_N = torch.tensor(tokenizer.encode("\n".join(lines)).ids, dtype=torch.long)
    if len(tokens_N) <= length:
        raise UsageError(
            f"{split}.txt has {len(tokens_N)} tokens, and a segment is {length + 1}: give more "
            "text, or a smaller --length"
        )
    return tokens_N


def segments(tokens_N: Tensor, length: int, count: int) -> Tensor:
    """Evenly spaced segments of a text, ``(count, length + 1)``."""
    starts = np.linspace(0, len(tokens_N) - length - 1, count).astype(int)
    return torch.stack([tokens_N[start : start + length + 1] for start in starts])


@torch.inference_mode()
def losses(model: LlamaForCausalLM, given_BN: Tensor, window: int) -> dict[str, float]:
    """Nats of all tokens, of those that are recalled, and of these where no more is read.

    Args:
        model: in evaluation.
        given_BN: segments with the token that follows.
        window: beyond which a token counts as recalled.
    """
    nats_BN = torch.cat([_nats(model, given) for given in given_BN.split(8)])
    recalled_BN = recalled_in(given_BN, window)
    places = recalled_BN.nonzero()
    places = places[places[:, 1] >= window][:: max(1, len(places) // SHORT)]
    short = torch.stack([given_BN[row, end - window + 1 : end + 2] for row, end in places.tolist()])
    return {
        "nats": float(nats_BN.mean()),
        "recall_nats": float(nats_BN[recalled_BN].mean()),
        "recall_nats_of_window": float(
            torch.cat([_nats(model, given)[:, -1] for given in short.split(64)]).mean()
        ),
        "recalled_share": float(recalled_BN.double().mean()),
    }


def recalled_in(given_BN: Tensor, window: int) -> Tensor:
    """Which tokens behind the first are recalled from beyond a window, bool ``(B, N)``.

    Raises:
        UsageError: where none is.
    """
    before, after = given_BN[:, :-1].numpy(), given_BN[:, 1:].numpy()
    number = np.repeat(np.arange(len(before)), before.shape[1])
    found = torch.from_numpy(repeats_beyond(before.ravel(), after.ravel(), number, window))
    recalled_BN = found.view(before.shape)
    if not recalled_BN[:, window:].any():
        raise UsageError(
            f"no segment of {before.shape[1]} tokens of valid.txt repeats a pair of neighbours "
            f"from beyond {window} tokens: give longer segments with --length, a smaller --window, "
            "or another text"
        )
    return recalled_BN


def _nats(model: LlamaForCausalLM, given_BN: Tensor) -> Tensor:
    """Cross-entropy of every token but the first, ``(B, N)``."""
    logits_BNV = model(given_BN[:, :-1]).logits.float()
    return F.cross_entropy(logits_BNV.transpose(1, 2), given_BN[:, 1:], reduction="none")


def train(model: LlamaForCausalLM, tokens_N: Tensor, options: Options) -> Iterator[int]:
    """Train a model on segments from anywhere in a text; yields the updates done at each check."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=options.rate,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        fused=True,
    )
    warmup = max(1, round(WARMUP_SHARE * options.updates))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda done: min(
            (done + 1) / warmup, 0.5 * (1.0 + math.cos(math.pi * done / options.updates))
        ),
    )
    rng = np.random.default_rng(options.seed)
    every = max(1, options.updates // CHECKS)
    for done in range(1, options.updates + 1):
        starts = rng.integers(0, len(tokens_N) - options.length, options.batch)
        given_BN = torch.stack([tokens_N[at : at + options.length + 1] for at in starts])
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
            logits_BNV = model(given_BN[:, :-1]).logits
        loss = F.cross_entropy(logits_BNV.flatten(0, 1).float(), given_BN[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if done % every == 0 or done == options.updates:
            yield done


def new_model(options: Options) -> LlamaForCausalLM:
    """The network with its first weights: six million parameters with the usual options."""
    from transformers import LlamaConfig, LlamaForCausalLM  # of `export`

    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=options.vocab_size,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def measure(options: Options) -> dict[str, Any]:
    """Train the checkpoint, save it, and tell what it has learnt."""
    lines = {split: lines_of(options.text / f"{split}.txt") for split in SPLITS}
    tokenizer = tokenizer_of(lines["train"], options.vocab_size)
    tokens_N, valid_N = (stream(tokenizer, lines[split], split, options.length) for split in SPLITS)
    given_BN = segments(valid_N, options.length, VALID_SEGMENTS)
    recalled_in(given_BN, options.window)
    note(f"{len(tokens_N):,} tokens to learn from")
    model, begin = new_model(options), time.monotonic()
    curve = []
    for done in train(model.train(), tokens_N, options):
        found = losses(model.eval(), given_BN, options.window)
        model.train()
        curve.append({"updates": done, "seconds": time.monotonic() - begin, **found})
        note(json.dumps(curve[-1]))
    options.out.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(options.out)
    tokenizer.save(str(options.out / "tokenizer.json"))
    marks = {"bos_token": "<s>", "eos_token": "</s>"}
    (options.out / "tokenizer_config.json").write_text(json.dumps(marks), encoding="utf-8")
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": len(tokens_N),
        "length": options.length,
        "batch": options.batch,
        "window": options.window,
        "threads": torch.get_num_threads(),
        "bfloat16": options.bfloat16,
        "curve": curve,
    }


def show(numbers: dict[str, Any]) -> Iterator[Table]:
    """A table of the training."""
    yield table_of(
        f"{numbers['parameters']:,} parameters, {numbers['tokens']:,} tokens, batches of "
        f"{numbers['batch']} × {numbers['length']}, {numbers['threads']} threads"
        f"{', bfloat16' if numbers['bfloat16'] else ''}: validation, nats",
        [
            "updates",
            "minutes",
            "all tokens",
            f"recalled from beyond {numbers['window']}",
            f"the same, reading {numbers['window']} alone",
        ],
        [
            [
                f"{one['updates']:,}",
                f"{one['seconds'] / 60:.1f}",
                f"{one['nats']:.3f}",
                f"{one['recall_nats']:.3f}",
                f"{one['recall_nats_of_window']:.3f}",
            ]
            for one in numbers["curve"]
        ],
    )


def met(numbers: dict[str, Any]) -> bool:
    """Whether it recalls: far text is worth half of what such tokens cost without it."""
    last = numbers["curve"][-1]
    return bool(last["recall_nats"] <= RECALLED * last["recall_nats_of_window"])


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Study.add_options`."""
    parser.add_argument("--text", type=Path, required=True, help="with train.txt and valid.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--updates", type=int, default=2_500)
    parser.add_argument("--batch", type=int, default=8, help="segments of an update")
    parser.add_argument("--length", type=int, default=512, help="tokens of a segment")
    parser.add_argument("--rate", type=float, default=2e-3, help="at the peak of a cosine")
    parser.add_argument("--vocab-size", type=int, default=2_048)
    parser.add_argument("--window", type=int, default=64, help="beyond which tokens are recalled")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="products in bfloat16: thrice as fast where a processor has tiles for them (AMX)",
    )


STUDY = Study(
    name="small_llama",
    question="Does a small Llama, trained on text, recall what it read long before?",
    add_options=add_options,
    measure=measure,
    show=show,
    met=met,
    results=lambda options: "small_llama",
    example="--text text --out ./llama8 --bfloat16",
)

if __name__ == "__main__":
    raise SystemExit(STUDY.main())

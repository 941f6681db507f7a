"""Tiny texts with vectors to embed them as, and a space of encoders."""

from __future__ import annotations

import numpy as np
import torch

from search_spaces.loading import parse_space
from supernet.data.prepared import EmbeddingSplit, PreparedData
from supernet.data.synthetic import generate, words
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import WordTokenizer
from supernet.tasks.embedding import EmbeddingTask

WIDTH, TRAIN, VALID, TEST = 8, 40, 15, 12
TOKENIZER = WordTokenizer(words())
SPACE = parse_space(
    f"""
[space]
name = "encoders"
task = "embedding"

[model]
max_length = 64
head_dim = 4
unit_length = true

[model.input]
kind = "tokens"
vocab_size = {TOKENIZER.vocab_size}

[encoder]
embed_dim = [{WIDTH}]
num_layers = [1, 2]
attention = ["softmax", "linear"]
num_heads = [1, 2]
ffn_dim = [4, 8]

[workload]
batch = 1
source = 16
""",
    "space",
)


def split_of(count: int, seed: int) -> EmbeddingSplit:
    """Sentences, and random vectors for them."""
    rows = TOKENIZER.encode([one.source for one in generate(count, seed)])
    targets = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    return EmbeddingSplit(TokenRows.of(rows), np.asarray(targets.numpy(), dtype=np.float32))


def embedding_task(opened: list[str] | None = None) -> EmbeddingTask:
    """The tiny task; opening its test split is noted in `opened`."""
    noted = [] if opened is None else opened

    def test() -> EmbeddingSplit:
        noted.append("test")
        return split_of(TEST, 2)

    data = PreparedData("texts", split_of(TRAIN, 0), split_of(VALID, 1), "digest", TOKENIZER)
    return EmbeddingTask(data, test)

"""Embeddings of texts: vectors that are searched, learnt from those of a checkpoint.

The target of a text is the checkpoint's own embedding, so that a loss of 0 is the checkpoint. Only
directions count: vectors are compared by their cosines.

Shapes: B texts of a batch, P texts of a split, D width of the embeddings, Q queries, M passages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.errors import DataError
from search_spaces.space import SearchSpace
from search_spaces.wording import mark
from supernet.beam_search import BeamSettings
from supernet.data.embedding_batches import EmbeddingBatch, embedding_batches, evaluation_order
from supernet.data.manifest import read_manifest
from supernet.data.prepared import (
    EMBEDDINGS,
    EmbeddingSplit,
    PreparedData,
    check_embeddings_fit,
)
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import Tokenizer
from supernet.extraction import Supernet
from supernet.tasks.base import Evaluation, Predictions, Scores, Task, spread
from supernet.training_settings import TrainingSettings

EVALUATION_BATCH = 32  # texts of like lengths; more at once are no faster on a CPU
MOST_PAIRS = 20_000
MOST_QUERIES = 2_000
NEIGHBOURS = 10
DRAW_SEED = 10  # of pairs and queries: another one gives other scores
CHUNK = 256  # queries at a time
MADE_BY = (
    "--data TEXTS, or with the folder that nas data prepare --task embedding --tokenizer MODEL "
    "--source TEXTS --out DIR makes"
)


class EmbeddingTask(Task[EmbeddingBatch, EmbeddingSplit]):
    """Find for each text the vector that the checkpoint gives it.

    Args:
        data: the splits of a search, and the tokenizer.
        open_test: reads the test split.

    Attributes:
        tokenizer: of the checkpoint.
        reading: what else becomes of a text: ``prompt`` stands before it, ``lower_case`` says
            whether it is written so, ``max_tokens`` where it is cut, marks included.
    """

    kind = "embedding"
    compares = True
    one_each = True

    def __init__(
        self, data: PreparedData[EmbeddingSplit], open_test: Callable[[], EmbeddingSplit]
    ) -> None:
        assert data.source_tokenizer is not None
        self.name, self.digest = data.name, data.digest
        self.train, self.valid = data.train, data.valid
        self.num_outcomes = data.train.targets.shape[1]
        self.tokenizer: Tokenizer = data.source_tokenizer
        named = (("prompt", "prompt"), ("lower_case", "lower_case"), ("max_tokens", "max_length"))
        self.reading = {ours: data.settings[set_] for ours, set_ in named if set_ in data.settings}
        self._open_test = open_test

    @classmethod
    def open(cls, space: SearchSpace, dataset: str, path: str | None, seed: int) -> EmbeddingTask:
        """See `Task.open`."""
        del seed
        if path is None:
            raise DataError(
                f"networks of the space {space.name} learn the embeddings that a checkpoint gives "
                f"to texts, and the data {dataset} have none: name your own texts with "
                f"{mark('dataset', MADE_BY)}"
            )
        folder = Path(path).expanduser()
        data = EMBEDDINGS.open(folder)
        check_embeddings_fit(data.name, read_manifest(folder), space)
        return cls(data, partial(EMBEDDINGS.open_test, folder))

    def describe(self) -> Mapping[str, int]:
        """Texts, tokens, vocabulary, and the width of the vectors."""
        return {
            "num_train": len(self.train),
            "num_valid": len(self.valid),
            "num_tokens": self.train.texts.num_tokens,
            "vocab_size": self.tokenizer.vocab_size,
            "width": self.num_outcomes,
        } | ({} if self.valid.pairs is None else {"num_valid_pairs": len(self.valid.pairs)})

    def with_valid(self, count: int) -> EmbeddingTask:
        """See `Task.with_valid`; two at least, because texts are compared with each other.

        Where there are pairs, the texts of as many of them as have that many texts at most.
        """
        count = max(count, 2)
        if count >= len(self.valid):
            return self
        task, valid = copy.copy(self), self.valid
        if valid.pairs is None:
            rows = spread(count, len(valid))
            task.valid = replace(valid, texts=valid.texts.taken(rows), targets=valid.targets[rows])
            return task
        chosen = spread(count // 2, len(valid.pairs))
        rows, pairs = np.unique(valid.pairs[chosen], return_inverse=True)
        texts = TokenRows.of([valid.texts[row].tolist() for row in rows])
        task.valid = EmbeddingSplit(texts, valid.targets[rows], pairs.reshape(-1, 2))
        return task

    def num_batches(self, settings: TrainingSettings) -> int:
        """Batches of every pass."""
        return -(-len(self.train) // settings.batch_size)

    def batches(
        self, settings: TrainingSettings, *, seed: int, epoch: int, device: str
    ) -> Iterator[EmbeddingBatch]:
        """Texts of similar lengths, in random order."""
        return embedding_batches(
            self.train,
            settings.batch_size,
            seed,
            epoch,
            device=device,
            states=settings.distillation > 0.0,
        )

    def inputs(self, batch: EmbeddingBatch) -> Tensor:
        """Tokens."""
        return batch.tokens

    def predict(self, model: Any, batch: EmbeddingBatch, architecture: Architecture) -> Predictions:
        """Embeddings ``(B, D)``, and those of the checkpoint in the place of labels."""
        states_BND, embeddings_BD = model(batch.tokens, architecture)
        real_BN1 = model.real_positions(batch.tokens).unsqueeze(-1)
        return Predictions(embeddings_BD, batch.targets, states=states_BND * real_BN1)

    def loss(self, found: Predictions, soft: Tensor | None, settings: TrainingSettings) -> Tensor:
        """1 − cosine to the checkpoint's embedding, the mean over the texts.

        Beside a teacher also 1 − cosine to its states, the mean over the tokens of a text: they say
        more of it than its one embedding (experiments/LOG.md, 2026-11-26).
        """
        near = F.cosine_similarity(found.logits.float(), found.labels, dim=-1).mean()
        if soft is None:
            return 1.0 - near
        assert found.states is not None
        cosines_B = (_units(found.states) * soft).sum(dim=(1, 2))
        tokens_B = soft.square().sum(dim=(1, 2))  # of length 1, those of padding of length 0
        share = settings.distillation
        return 1.0 - (1.0 - share) * near - share * (cosines_B / tokens_B).mean()

    def soft_labels(self, found: Predictions) -> Tensor:
        """The states of all tokens ``(B, N, D)`` at length 1; 0 at padding."""
        assert found.states is not None
        return _units(found.states)

    def kept_labels(self, batch: EmbeddingBatch) -> Tensor | None:
        """See `Task.kept_labels`: the states that were written when the texts were prepared."""
        return None if batch.states is None else batch.states.float()

    def summed_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """See `Task.summed_loss`: 1 − cosine to the checkpoint's embedding."""
        near_P = F.cosine_similarity(logits.double(), labels.double(), dim=-1)
        return (1.0 - near_P).clamp(min=0.0).sum()

    def num_labels(self, labels: Tensor) -> Tensor:
        """Texts."""
        return labels.new_tensor(len(labels), dtype=torch.int64)

    def num_right(self, logits: Tensor, labels: Tensor) -> None:
        """None: an embedding is near or far."""

    def compared(
        self, split: EmbeddingSplit, logits: Tensor, labels: Tensor
    ) -> Mapping[str, float]:
        """``similarity`` and ``recall_at_10``.

        See `similarity` and, of pairs, `passages_found`, of other texts `neighbours_found`.
        """
        if split.pairs is None:
            recall = neighbours_found(logits, labels)
        else:
            found_PD = torch.empty_like(logits)
            found_PD[torch.from_numpy(evaluation_order(split)).to(logits.device)] = logits
            recall = passages_found(found_PD, split.pairs)
        return {"similarity": similarity(logits, labels), "recall_at_10": recall}

    def evaluation(
        self, model: Supernet, architecture: Architecture, split: EmbeddingSplit, device: str
    ) -> Iterator[Predictions]:
        """See `Task.evaluation`; texts come shortest first, so that little is padding."""
        parts = embedding_batches(split, EVALUATION_BATCH, shuffle=False, device=device)
        return (self.predict(model, batch, architecture) for batch in parts)

    def scores(
        self,
        found: Evaluation,
        model: Supernet,
        architecture: Architecture,
        split: EmbeddingSplit,
        *,
        device: str,
        beam: BeamSettings,
        max_tokens: int | None,
    ) -> Scores:
        """See `Task.scores`; of pairs also ``checkpoint_recall_at_10``, the checkpoint's own."""
        scores = found.scores
        if split.pairs is not None:
            own = passages_found(torch.from_numpy(np.array(split.targets)), split.pairs)
            scores["checkpoint_recall_at_10"] = own
        return Scores(scores, "similarity", found.count)


def _units(states_BND: Tensor) -> Tensor:
    return F.normalize(states_BND.float(), dim=-1)


def similarity(found_PD: Tensor, right_PD: Tensor) -> float:
    """Whether a network finds the same pairs of texts alike as the checkpoint does.

    Spearman's correlation, over pairs of texts, of the cosines of the two texts' embeddings with
    those of the checkpoint's: over all pairs, or over `MOST_PAIRS` of them that their number alone
    decides. 1 is the same order; a network to which all texts are equally alike has 0.

    Args:
        found_PD: the network's embeddings ``(P, D)``, P at least 2.
        right_PD: the checkpoint's, of the same texts.

    Returns:
        -1 to 1; not a number where an embedding is not finite.

    Source: Reimers and Gurevych, "Sentence-BERT" (2019), section 4.1, who score cosines by
    Spearman's correlation too, with people's scores in the checkpoint's place.
    """
    first, second = _pairs(len(found_PD))
    cosines = []
    for vectors_PD in (found_PD, right_PD):
        unit_PD = F.normalize(vectors_PD.float(), dim=-1)
        cosines.append((unit_PD[first] * unit_PD[second]).sum(dim=-1).double().cpu().numpy())
    if not all(np.isfinite(one).all() for one in cosines):
        return float("nan")
    if any(np.ptp(one) == 0.0 for one in cosines):
        return 0.0
    from scipy.stats import spearmanr  # late: it takes long to load

    found = float(spearmanr(cosines[0], cosines[1]).statistic)
    return min(1.0, max(-1.0, found))  # which rounding may pass


def _pairs(count: int) -> tuple[Tensor, Tensor]:
    """Numbers of the first and of the second text of each pair."""
    if count * (count - 1) // 2 <= MOST_PAIRS:
        first, second = np.triu_indices(count, 1)
    else:
        rng = np.random.default_rng(DRAW_SEED)
        first = rng.integers(count, size=MOST_PAIRS)
        second = (first + rng.integers(1, count, size=MOST_PAIRS)) % count
    return torch.from_numpy(first), torch.from_numpy(second)


def neighbours_found(found_PD: Tensor, right_PD: Tensor) -> float:
    """The share of each text's ten nearest that a network has among its ten nearest too.

    Nearest are the other texts with the highest cosines, by the checkpoint's embeddings and by the
    network's; all others, where there are fewer than ten. Looked up for every text, or for
    `MOST_QUERIES` of them that their number alone decides, always among all.

    Args:
        found_PD: the network's embeddings ``(P, D)``, P at least 2.
        right_PD: the checkpoint's, of the same texts.

    Returns:
        0 to 1; not a number where an embedding is not finite.
    """
    if not bool(found_PD.isfinite().all()):
        return float("nan")
    count = len(found_PD)
    queries = np.arange(count)
    if count > MOST_QUERIES:
        queries = np.random.default_rng(DRAW_SEED).choice(count, MOST_QUERIES, replace=False)
    queries_Q = torch.from_numpy(queries).to(found_PD.device)
    units = [F.normalize(vectors_PD.float(), dim=-1) for vectors_PD in (found_PD, right_PD)]
    both = 0
    for some_Q in queries_Q.split(CHUNK):
        found_QK, right_QK = (_nearest(unit_PD, some_Q) for unit_PD in units)
        both += int((found_QK[:, :, None] == right_QK[:, None, :]).sum())
    return both / (len(queries) * min(NEIGHBOURS, count - 1))


def passages_found(found_PD: Tensor, pairs_Q2: NDArray[np.int64]) -> float:
    """The share of queries whose own passage is among the ten passages nearest to them.

    Nearest are the passages of the split with the highest cosines; the query's own text is none. A
    passage that is as near as its neighbour does not come before it, so that a network to which all
    texts are alike finds nothing. Looked up for every pair, or for `MOST_QUERIES` of them that
    their number alone decides, always among all passages.

    Args:
        found_PD: embeddings ``(P, D)``, in the order of the split.
        pairs_Q2: rows of query and passage.

    Returns:
        0 to 1; not a number where an embedding is not finite.

    Source: recall at k of dense retrieval, Karpukhin et al., "Dense Passage Retrieval" (2020),
    section 5, with one right passage for each query.
    """
    if not bool(found_PD.isfinite().all()):
        return float("nan")
    if len(pairs_Q2) > MOST_QUERIES:
        rng = np.random.default_rng(DRAW_SEED)
        drawn = pairs_Q2[rng.choice(len(pairs_Q2), MOST_QUERIES, replace=False)]
    else:
        drawn = pairs_Q2
    unit_PD = F.normalize(found_PD.float(), dim=-1)
    rows_M, columns = np.unique(pairs_Q2[:, 1], return_inverse=True)
    column_of = dict(zip(pairs_Q2[:, 1].tolist(), columns.reshape(-1).tolist(), strict=True))
    passages_M = torch.from_numpy(rows_M).to(found_PD.device)
    found = 0
    for queries_Q, own_Q in (part.T for part in torch.from_numpy(drawn).split(CHUNK)):
        own_Q1 = torch.tensor([[column_of[row]] for row in own_Q.tolist()]).to(found_PD.device)
        queries_Q = queries_Q.to(found_PD.device)
        cosines_QM = unit_PD[queries_Q] @ unit_PD[passages_M].T
        cosines_QM[queries_Q[:, None] == passages_M] = -2.0
        nearer_Q = (cosines_QM >= cosines_QM.gather(1, own_Q1)).sum(dim=1) - 1
        found += int((nearer_Q < NEIGHBOURS).sum())
    return found / len(drawn)


def _nearest(unit_PD: Tensor, queries_Q: Tensor) -> Tensor:
    """Numbers of the texts with the highest cosines to each query, itself left out."""
    cosines_QP = unit_PD[queries_Q] @ unit_PD.T
    cosines_QP.scatter_(1, queries_Q[:, None], -2.0)
    return cosines_QP.topk(min(NEIGHBOURS, len(unit_PD) - 1), dim=1).indices

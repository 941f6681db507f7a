"""Translation of sentence pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings, TokenInput
from supernet.data.prepared import PairSplit, PreparedData
from supernet.data.text_batches import PairBatch, pair_batches, plan_pair_batches
from supernet.data.tokenizer import Tokenizer
from supernet.extraction import Supernet
from supernet.loss import IGNORED
from supernet.tasks.base import Predictions, Task
from supernet.training_settings import TrainingSettings

EVALUATION_TOKENS = 4096


class TranslationTask(Task[PairBatch, PairSplit]):
    """Predict each token of a translation from the source and the tokens before it.

    Args:
        data: the splits of a search, and the tokenizers.
        model: the networks' settings.
        open_test: reads the test split.

    Attributes:
        source_tokenizer: of the source.
        target_tokenizer: of the target; the same object where the vocabulary is joint.
        post_process: how words of a translation are joined before BLEU is counted.
    """

    kind = "translation"

    def __init__(
        self,
        data: PreparedData[PairSplit],
        model: ModelSettings,
        open_test: Callable[[], PairSplit],
    ) -> None:
        assert isinstance(model.input, TokenInput)
        assert data.source_tokenizer is not None and data.target_tokenizer is not None
        self.name, self.digest = data.name, data.digest
        self.train, self.valid = data.train, data.valid
        self.num_outcomes = model.input.target_vocab_size or model.input.vocab_size
        self.source_tokenizer: Tokenizer = data.source_tokenizer
        self.target_tokenizer: Tokenizer = data.target_tokenizer
        self.post_process = data.post_process
        self._open_test = open_test

    def describe(self) -> Mapping[str, int]:
        """Pairs, tokens and vocabularies."""
        return {
            "num_train": len(self.train),
            "num_valid": len(self.valid),
            "num_source_tokens": self.train.source.num_tokens,
            "num_target_tokens": self.train.target.num_tokens,
            "source_vocab_size": self.source_tokenizer.vocab_size,
            "target_vocab_size": self.target_tokenizer.vocab_size,
        }

    def first_valid(self, count: int) -> TranslationTask:
        """See `Task.first_valid`."""
        task, split = copy.copy(self), self.valid
        task.valid = replace(
            split,
            source=split.source.first(count),
            target=split.target.first(count),
            source_lines=split.source_lines[:count],
            target_lines=split.target_lines[:count],
        )
        return task

    def check(self, settings: TrainingSettings) -> None:
        """See that the longest pair fits into a batch."""
        plan_pair_batches(self.train, settings.max_tokens)

    def num_batches(self, settings: TrainingSettings) -> int:
        """Batches of the first pass."""
        return len(plan_pair_batches(self.train, settings.max_tokens))

    def batches(
        self, settings: TrainingSettings, *, seed: int, epoch: int, device: str
    ) -> Iterator[PairBatch]:
        """Pairs of similar lengths, in random order."""
        return pair_batches(self.train, settings.max_tokens, seed, epoch, device=device)

    def predict(self, model: Supernet, batch: PairBatch, architecture: Architecture) -> Predictions:
        """One prediction for each target token, end marks included."""
        logits_BNV = model(batch.source, batch.inputs, architecture)
        labels_BN = batch.targets.masked_fill(~batch.target_mask, IGNORED)
        return Predictions(logits_BNV.flatten(0, 1), labels_BN.flatten())

    def evaluation(
        self, model: Supernet, architecture: Architecture, split: PairSplit, device: str
    ) -> Iterator[Predictions]:
        """See `Task.evaluation`."""
        longest = max(int(side.lengths.max(initial=0)) for side in (split.source, split.target))
        most = max(EVALUATION_TOKENS, longest + 1)
        parts = pair_batches(split, most, shuffle=False, device=device)
        return (self.predict(model, batch, architecture) for batch in parts)

    def open_test(self) -> PairSplit:
        """See `Task.open_test`."""
        return self._open_test()

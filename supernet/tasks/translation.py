"""Translation of sentence pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.space import SearchSpace
from supernet.beam_search import BeamSettings
from supernet.data.prepared import PAIRS, PairSplit, PreparedData, check_fits, pair_format
from supernet.data.synthetic import NAME as SYNTHETIC
from supernet.data.synthetic import SYNTHETIC_PAIRS
from supernet.data.text_batches import PairBatch, pair_batches, plan_pair_batches
from supernet.data.text_files import LONGEST_PAIR
from supernet.data.tokenizer import Tokenizer, join_words
from supernet.extraction import Supernet
from supernet.loss import IGNORED
from supernet.sequence_models import TranslationModel
from supernet.tasks.base import Evaluation, Predictions, Scores, States, Task, spread
from supernet.tasks.bleu import Bleu, corpus_bleu
from supernet.tasks.texts import (
    EVALUATION_TOKENS,
    SYNTHETIC_SEED,
    check_generated,
    data_folder,
    perplexity,
)
from supernet.tasks.translating import StepwiseTranslator, translate_tokens
from supernet.training_settings import TrainingSettings


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

    @classmethod
    def open(cls, space: SearchSpace, dataset: str, path: str | None, seed: int) -> TranslationTask:
        """See `Task.open`; data of another program's are opened by its `PairFormat`."""
        del seed
        folder = data_folder(space, dataset, path, _how_to_prepare, (SYNTHETIC,))
        if folder is not None and (form := pair_format(folder)):
            found = form.open(folder, space)
            return cls(found, space.model, lambda: form.open_test(folder, space))
        if folder is None:
            data = SYNTHETIC_PAIRS.open(SYNTHETIC_SEED)
            check_generated(data, space)
            test = partial(SYNTHETIC_PAIRS.open_test, SYNTHETIC_SEED)
        else:
            data, test = PAIRS.open(folder), partial(PAIRS.open_test, folder)
        check_fits(data, space.model)
        return cls(data, space.model, test)

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

    def with_valid(self, count: int) -> TranslationTask:
        """See `Task.with_valid`."""
        task, split = copy.copy(self), self.valid
        if count >= len(split.source):
            return self
        rows = spread(count, len(split.source))
        task.valid = replace(
            split,
            source=split.source.taken(rows),
            target=split.target.taken(rows),
            source_lines=tuple(split.source_lines[row] for row in rows),
            target_lines=tuple(split.target_lines[row] for row in rows),
        )
        return task

    def check(self, settings: TrainingSettings) -> None:
        """See `Task.check`, and that the longest pair fits into a batch."""
        super().check(settings)
        plan_pair_batches(self.train, settings.max_tokens)

    def num_batches(self, settings: TrainingSettings) -> int:
        """Batches of the first pass."""
        return len(plan_pair_batches(self.train, settings.max_tokens))

    def batches(
        self, settings: TrainingSettings, *, seed: int, epoch: int, device: str
    ) -> Iterator[PairBatch]:
        """Pairs of similar lengths, in random order."""
        return pair_batches(self.train, settings.max_tokens, seed, epoch, device=device)

    def inputs(self, batch: PairBatch) -> Tensor:
        """The sources."""
        return batch.source

    def predict(self, model: Supernet, batch: PairBatch, architecture: Architecture) -> Predictions:
        """One prediction for each target token, end marks included."""
        logits_BNV = model(batch.source, batch.inputs, architecture)
        labels_BN = batch.targets.masked_fill(~batch.target_mask, IGNORED)
        return Predictions(logits_BNV.flatten(0, 1), labels_BN.flatten())

    def states(self, model: Supernet, batch: PairBatch, architecture: Architecture) -> States:
        """See `Task.states`."""
        assert isinstance(model, TranslationModel)
        x_BND = model.read(batch.source, batch.inputs, architecture)
        labels_BN = batch.targets.masked_fill(~batch.target_mask, IGNORED)
        return States(x_BND.flatten(0, 1), model.tell, labels_BN.flatten())

    def evaluation(
        self, model: Supernet, architecture: Architecture, split: PairSplit, device: str
    ) -> Iterator[Predictions]:
        """See `Task.evaluation`."""
        longest = max(int(side.lengths.max(initial=0)) for side in (split.source, split.target))
        most = max(EVALUATION_TOKENS, longest + 1)
        parts = pair_batches(split, most, shuffle=False, device=device)
        return (self.predict(model, batch, architecture) for batch in parts)

    def scores(
        self,
        found: Evaluation,
        model: Supernet,
        architecture: Architecture,
        split: PairSplit,
        *,
        device: str,
        beam: BeamSettings,
        max_tokens: int | None,
    ) -> Scores:
        """See `Task.scores`.

        Raises:
            DivergedError: when the network's outputs are not finite numbers.
        """
        bleu = split_bleu(self, model, architecture, split, device, beam, max_tokens)
        values = found.scores
        values |= {"perplexity": perplexity(found.loss), "bleu": bleu.score}
        return Scores(values, "bleu", found.count, bleu.signature)


def _how_to_prepare(space: SearchSpace) -> str:
    """Options that make a vocabulary and rows which the networks of a space can read."""
    model, (source, target) = space.model, space.data.get("languages", ("en", "de"))
    assert isinstance(model.input, TokenInput)
    size, other = model.input.vocab_size, model.input.target_vocab_size
    separate = "" if other is None or model.input.share_embeddings else "--separate "
    return (
        f"--source train.{source} --target train.{target} --valid valid.{source} "
        f"--valid valid.{target} --test test.{source} --test test.{target} "
        f"{separate}--vocab-size {min(size, other or size)} "
        f"--max-length {min(model.max_length, LONGEST_PAIR)}"
    )


def split_bleu(
    task: TranslationTask,
    model: Supernet,
    architecture: Architecture,
    split: PairSplit,
    device: str,
    beam: BeamSettings | None = None,
    max_tokens: int | None = None,
) -> Bleu:
    """BLEU of a network's translations of a split, which has to have its text.

    Sources are cut where the data were, as in training; references are whole.

    Arguments and errors as for `score`.
    """
    assert isinstance(model, TranslationModel)
    lines = translate_tokens(
        StepwiseTranslator(model, architecture),
        [split.source[number].tolist() for number in range(len(split))],
        task.source_tokenizer,
        task.target_tokenizer,
        beam or BeamSettings(),
        max_tokens=max_tokens,
        device=device,
    )
    return corpus_bleu([join_words(line, task.post_process) for line in lines], split.target_lines)

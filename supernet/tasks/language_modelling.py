"""Language modelling: a text, token by token."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from search_spaces.architecture import Architecture
from search_spaces.data_keys import RECALL
from search_spaces.errors import UsageError
from search_spaces.recall import recall_window
from search_spaces.recall_form import RecallSettings
from search_spaces.settings import ModelSettings, TokenInput
from search_spaces.space import SearchSpace
from supernet.beam_search import BeamSettings
from supernet.data.prepared import STREAM, PreparedData, StreamSplit, check_fits
from supernet.data.recall import open_recall, open_recall_test
from supernet.data.repeated_bigrams import Ints, distances, with_recalled
from supernet.data.synthetic import NAME as SYNTHETIC
from supernet.data.synthetic import SYNTHETIC_STREAM
from supernet.data.text_batches import StreamBatch, recurrent_batches, stream_batches
from supernet.data.tokenizer import Tokenizer
from supernet.decoding_state import DecodingState
from supernet.extraction import Supernet
from supernet.loss import IGNORED
from supernet.plan import decoder_of
from supernet.sequence_models import LanguageModel
from supernet.tasks.base import Evaluation, Predictions, Scores, States, Stretch, Task, spread
from supernet.tasks.teacher import Teacher
from supernet.tasks.texts import (
    EVALUATION_TOKENS,
    SYNTHETIC_SEED,
    check_generated,
    data_folder,
    perplexity,
)
from supernet.training_settings import TrainingSettings

DISTANCES = (8, 32, 128, 512, 2048, 8192, 32768)  # that end a stretch
STRETCHES = 16  # of a text, where networks are compared on a part of it
SEGMENT_LENGTH = 128  # of a space whose workload names no length


class LanguageModellingTask(Task[StreamBatch, StreamSplit]):
    """Predict each token of a text from those before it.

    Args:
        data: the splits of a search, and the tokenizer.
        model: the networks' settings.
        segment_length: tokens that are read at once in evaluation.
        memory_length: the longest memory that a network may have, in tokens.
        open_test: reads the test split.
        recall_window: tokens beyond which repeated bigrams count as recall; None where that is
            not measured.

    Attributes:
        tokenizer: of the text.

    Raises:
        UsageError: where networks have a memory and the data are lines that stand alone, or of the
            vocabulary of a checkpoint.
    """

    kind = "language_modelling"

    def __init__(
        self,
        data: PreparedData[StreamSplit],
        model: ModelSettings,
        segment_length: int,
        memory_length: int,
        open_test: Callable[[], StreamSplit],
        recall_window: int | None = None,
    ) -> None:
        assert isinstance(model.input, TokenInput) and data.source_tokenizer is not None
        if memory_length and data.train.alone:
            raise UsageError(
                f"the sequences of {data.name} stand alone, so that there is nothing to remember "
                "before them: remove memory_length from the space"
            )
        if memory_length and data.train.begin is None:
            raise UsageError(
                f"networks with a memory take token 0 for the place before a text, but in the data "
                f"{data.name} it may be a word of the checkpoint's tokenizer: remove memory_length "
                "from the space"
            )
        self.name, self.digest = data.name, data.digest
        self._segment_length, self._recall_window = segment_length, recall_window
        self.train, self.valid = data.train, self._compared(data.valid)
        self.num_outcomes = model.input.vocab_size
        self.tokenizer: Tokenizer = data.source_tokenizer
        self._memory_length = memory_length
        self._teacher: Teacher | None = None
        self._max_length = model.max_length
        self._open_test = lambda: self._compared(open_test())

    def _compared(self, split: StreamSplit) -> StreamSplit:
        """A split as networks are scored on it."""
        if self._recall_window is None:
            return split
        return with_recalled(split, self._segment_length, self._recall_window)

    @classmethod
    def open(
        cls, space: SearchSpace, dataset: str, path: str | None, seed: int
    ) -> LanguageModellingTask:
        """See `Task.open`."""
        del seed
        model = space.model
        length = min(int(space.workload.get("source", SEGMENT_LENGTH)), model.max_length)
        memory = max(
            (int(c) for s in space.slots if s.gene == "memory_length" for c in s.choices), default=0
        )
        folder = data_folder(space, dataset, path, _how_to_prepare, (SYNTHETIC, RECALL))
        if folder is None and dataset == RECALL:
            assert isinstance(model.input, TokenInput)
            form = RecallSettings.read(space.data, model.input.vocab_size, model.max_length)
            data = open_recall(form, SYNTHETIC_SEED)
            test = partial(open_recall_test, form, SYNTHETIC_SEED)
        elif folder is None:
            data = SYNTHETIC_STREAM.open(SYNTHETIC_SEED)
            check_generated(data, space, RECALL)
            test = partial(SYNTHETIC_STREAM.open_test, SYNTHETIC_SEED)
        else:
            data, test = STREAM.open(folder), partial(STREAM.open_test, folder)
        check_fits(data, model)
        return cls(data, model, length, memory, test, recall_window(space))

    def beside(self, teacher: Teacher) -> Self:
        """See `Task.beside`."""
        if self._memory_length:
            raise UsageError(
                "networks with a memory are not compared with a teacher's predictions: remove "
                "memory_length from the space"
            )
        task = copy.copy(self)
        task._teacher = teacher
        return task

    @property
    def has_recall(self) -> bool:
        """See `Task.has_recall`."""
        return self.valid.recalled is not None and bool(self.valid.recalled.any())

    @property
    def cuts_texts(self) -> bool:
        """See `Task.cuts_texts`; lines that stand alone stay whole."""
        return not self.train.alone

    def describe(self) -> Mapping[str, int]:
        """Lines, tokens and vocabulary."""
        return {
            "num_train": len(self.train.rows),
            "num_valid": len(self.valid.rows),
            "num_tokens": len(self.train),
            "vocab_size": self.tokenizer.vocab_size,
        }

    def with_valid(self, count: int) -> LanguageModellingTask:
        """See `Task.with_valid`; words and characters are counted in the decoded lines.

        Of a text that goes on they lie in `STRETCHES` from its beginning to its end.
        """
        total = len(self.valid.rows)
        if count >= total:
            return self
        numbers = spread(count, total) if self.valid.alone else _in_stretches(count, total)
        rows = self.valid.rows.taken(numbers)
        lines = self.tokenizer.decode([rows[number].tolist() for number in range(count)])
        scored = self.valid.scored
        assert scored is None or self.valid.alone
        part = replace(
            self.valid,
            rows=rows,
            num_words=sum(len(line.split()) for line in lines),
            num_characters=sum(map(len, lines)),
            scored=None if scored is None else self._of_lines(scored, numbers),
            recalled=None,
        )
        task = copy.copy(self)
        task.valid = self._compared(part)
        return task

    def _of_lines(self, marks: NDArray[np.bool_], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """What is marked of each token of the validation split, of some of its lines."""
        return replace(self.valid.rows, tokens=marks).taken(numbers).tokens

    def check(self, settings: TrainingSettings) -> None:
        """See `Task.check`; networks have to read a segment, and it has to fit into a batch."""
        super().check(settings)
        if settings.segment_length > self._max_length and not self.train.alone:
            raise UsageError(
                f"segment_length is {settings.segment_length}, but the networks read at most "
                f"{self._max_length} tokens, the space's max_length: set segment_length to that "
                "or less"
            )
        self.num_batches(settings)

    def num_batches(self, settings: TrainingSettings) -> int:
        """Batches of the first pass."""
        length = settings.segment_length
        return sum(1 for _ in stream_batches(self.train, settings.max_tokens, length))

    def batches(
        self, settings: TrainingSettings, *, seed: int, epoch: int, device: str
    ) -> Iterator[StreamBatch]:
        """Segments in random order, with what stands before them where networks have a memory."""
        return stream_batches(
            self.train,
            settings.max_tokens,
            settings.segment_length,
            seed,
            epoch,
            device=device,
            context=self._memory_length or None,
        )

    def inputs(self, batch: StreamBatch) -> Tensor:
        """Tokens."""
        return batch.inputs

    def predict(
        self, model: Supernet, batch: StreamBatch, architecture: Architecture
    ) -> Predictions:
        """One prediction for each token."""
        return _predictions(model(batch.inputs, architecture, batch.context), batch)

    def states(self, model: Supernet, batch: StreamBatch, architecture: Architecture) -> States:
        """See `Task.states`."""
        assert isinstance(model, LanguageModel)
        x_BND = model.read(batch.inputs, architecture, batch.context)
        labels_BN = batch.targets.masked_fill(~batch.mask, IGNORED)
        return States(x_BND.flatten(0, 1), model.tell, labels_BN.flatten())

    def evaluation(
        self, model: Supernet, architecture: Architecture, split: StreamSplit, device: str
    ) -> Iterator[Predictions]:
        """See `Task.evaluation`; a network with a memory reads the text in order.

        Outputs of a layer depend on the memory, that is on so many segments of the layer below; so
        those of the last depend on as many for each layer, and lanes begin that much earlier.
        """
        length = self._segment_length
        most = max(EVALUATION_TOKENS, split.longest_segment(length))
        decoder = decoder_of(architecture)
        if decoder.memory_length:
            assert isinstance(model, LanguageModel)
            warm_up = len(decoder.layers) * -(-decoder.memory_length // length)
            batches = recurrent_batches(split, most, length, warm_up, device)
            return _recurrent(model, architecture, batches)
        parts = stream_batches(split, most, length, shuffle=False, device=device)
        if self._teacher is None:
            return (self.predict(model, batch, architecture) for batch in parts)
        again = split is self.valid
        taught = self._teacher.beside(split, parts, self._said, len(split), device, again)
        return (
            self.predict(model, batch, architecture)._replace(teacher=logits_PC)
            for batch, logits_PC in taught
        )

    def by_distance(
        self, model: Supernet, architecture: Architecture, split: StreamSplit, device: str
    ) -> Mapping[str, Sequence[Stretch]]:
        """See `Task.by_distance`; of networks with a memory nothing is told."""
        if decoder_of(architecture).memory_length:
            return {}
        length = self._segment_length
        repeats_N, places_N = distances(split, length)
        groups = [("repeats", *one) for one in _stretches(repeats_N)]
        groups += [("positions", *one) for one in _stretches(places_N)]
        most = max(EVALUATION_TOKENS, split.longest_segment(length))
        marked = [
            stream_batches(replace(split, recalled=marks_N), most, length, shuffle=False)
            for *_, marks_N in groups
        ]
        sums, counts = [0.0] * len(groups), [0] * len(groups)
        plain = copy.copy(self)
        plain._teacher = None
        said = plain.evaluation(model, architecture, split, device)
        for one, *batches in zip(said, *marked, strict=True):
            losses_P = F.cross_entropy(one.logits.float(), one.labels, reduction="none").cpu()
            for number, batch in enumerate(batches):
                assert batch.recalled is not None
                chosen_R = losses_P[batch.recalled.flatten()]
                sums[number] += chosen_R.double().sum().item()
                counts[number] += len(chosen_R)
        found: dict[str, list[Stretch]] = {"repeats": [], "positions": []}
        for (name, first, last, _), total, count in zip(groups, sums, counts, strict=True):
            if count:
                found[name].append(Stretch(first, last, count, total / count))
        return found

    def _said(self, model: Supernet, batch: StreamBatch, architecture: Architecture) -> Tensor:
        return self.predict(model, batch, architecture).logits

    def scores(
        self,
        found: Evaluation,
        model: Supernet,
        architecture: Architecture,
        split: StreamSplit,
        *,
        device: str,
        beam: BeamSettings,
        max_tokens: int | None,
    ) -> Scores:
        """See `Task.scores`."""
        if split.scored is not None:
            return Scores(found.scores, "accuracy", found.count)
        nats = found.loss * found.count
        values = {
            **found.scores,
            "perplexity": perplexity(found.loss),
            "perplexity_per_word": perplexity(nats / (split.num_words + len(split.rows))),
            "word_perplexity": perplexity(nats / max(split.num_words, 1)),
            "bits_per_character": nats / math.log(2.0) / max(split.num_characters, 1),
        }
        return Scores(values, "perplexity", found.count)


def _stretches(distances_N: Ints) -> list[tuple[int, int | None, NDArray[np.bool_]]]:
    """Ranges of distances, each with its tokens; 0 is a range of its own."""
    ends = (-1, 0, *DISTANCES)
    found: list[tuple[int, int | None, NDArray[np.bool_]]] = [
        (before + 1, end, (distances_N > before) & (distances_N <= end))
        for before, end in itertools.pairwise(ends)
    ]
    found.append((ends[-1] + 1, None, distances_N > ends[-1]))
    return [one for one in found if one[2].any()]


def _how_to_prepare(space: SearchSpace) -> str:
    """Options that make a vocabulary which the networks of a space can read."""
    assert isinstance(space.model.input, TokenInput)
    files = "--source train.txt --valid valid.txt --test test.txt"
    return f"{files} --vocab-size {space.model.input.vocab_size}"


def _recurrent(
    model: LanguageModel, architecture: Architecture, batches: Iterator[StreamBatch]
) -> Iterator[Predictions]:
    """Every batch goes on with the memory of the one before."""
    state: DecodingState | None = None
    for batch in batches:
        begun = model.start(architecture) if state is None else state.next_segment()
        logits_BNV, state = model.step(batch.inputs, begun)
        yield _predictions(logits_BNV, batch)


def _predictions(logits_BNV: Tensor, batch: StreamBatch) -> Predictions:
    labels_BN = batch.targets.masked_fill(~batch.mask, IGNORED)
    recalled = None if batch.recalled is None else batch.recalled.flatten()
    return Predictions(logits_BNV.flatten(0, 1), labels_BN.flatten(), recalled)


def _in_stretches(count: int, total: int) -> NDArray[np.int64]:
    """Numbers of `count` of `total` lines that lie in `STRETCHES` from the first to the last."""
    numbers: NDArray[np.int64] = np.arange(count)
    places = numbers * min(STRETCHES, count) // count  # the stretch of each line
    numbers += places * (total - count) // max(1, places[-1])
    return numbers

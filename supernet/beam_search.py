"""Batched beam search over any model that decodes step by step.

A graphics card is waited for as rarely as the rules allow: not at all while no hypothesis may end,
and once for each token after that.

Shapes: S sentences, K beams, V vocabulary, T tokens written so far; rows are sentence-major, so
that the K rows of a sentence are neighbours.

Source: the rules are those of fairseq's sequence generator, so that numbers can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from search_spaces.errors import UsageError


class Reorderable(Protocol):
    """What a model remembers between two tokens, for a batch of rows."""

    def reorder(self, rows: Tensor) -> Self:
        """The state of these rows."""
        ...

    def keep_sources(self, sources: Tensor) -> Self:
        """The state with these sentences' sources only."""
        ...


StateT = TypeVar("StateT", bound=Reorderable)
Step = Callable[[Tensor, StateT], tuple[Tensor, StateT]]

MOST_PENALTY = 10.0
"""Of a length penalty: a text of any length has a score then, a power of it being a number."""


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """How to search.

    Attributes:
        beam_size: hypotheses that are followed at once, at least 1; 1 is greedy decoding.
        length_penalty: a hypothesis of L tokens, end symbol included, scores its log-probability
            divided by ``L ** length_penalty``. This is fairseq's (and HAT's) convention; the
            ``((5 + L) / 6) ** penalty`` of GNMT is another one. 0 favours short texts, 1 is the
            mean per token. At most `MOST_PENALTY`.
        max_length_factor: a in the longest output ``a * source_length + b``, end symbol included.
        max_length_offset: b.
        min_length: tokens before the end symbol may come.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    max_length_factor: float = 1.2
    max_length_offset: int = 10
    min_length: int = 1

    def __post_init__(self) -> None:
        if self.beam_size < 1 or self.min_length < 0:
            raise UsageError(
                f"beam_size is {self.beam_size} and min_length {self.min_length}; "
                "they must be at least 1 and 0"
            )
        if not abs(self.length_penalty) <= MOST_PENALTY:
            raise UsageError(
                f"the length penalty (--lenpen) is {self.length_penalty:g}; give a number from 0 "
                f"to {MOST_PENALTY:g}, for example 0.6"
            )

    def longest(self, source_length: int, limit: int) -> int:
        """Most tokens of an output, end symbol included, at least 1 and at most `limit`."""
        wanted = int(self.max_length_factor * source_length) + self.max_length_offset
        return max(1, min(wanted, limit))

    def score(self, log_probability: float, length: int) -> float:
        """What hypotheses are compared by; larger is better."""
        return float(log_probability / length**self.length_penalty)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished text: its tokens without start and end symbol, and its score."""

    tokens: tuple[int, ...]
    score: float
    log_probability: float


@dataclass(frozen=True, slots=True)
class _Marks:
    """Tokens with a meaning of their own: the end symbol, and padding, which is never written."""

    eos: int
    pad: int


@dataclass(frozen=True, slots=True)
class _Beams:
    """The hypotheses that go on.

    Attributes:
        sentences: numbers of the sentences that are not done.
        tokens: the start symbol and what they wrote, ``(S, K, T + 1)``.
        scores: their log-probabilities ``(S, K)``; -inf where there is none.
    """

    sentences: list[int]
    tokens: Tensor
    scores: Tensor

    @property
    def written(self) -> int:
        """Tokens of each hypothesis."""
        return self.tokens.shape[2] - 1


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The 2K best continuations of each sentence, best first, each ``(S, 2K)``.

    Attributes:
        values: their log-probabilities.
        beams: the hypotheses that they continue.
        tokens: what they write.
    """

    values: Tensor
    beams: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class _Ended:
    """A hypothesis that has ended, whose tokens have not been read from the device.

    Attributes:
        score: what hypotheses are compared by.
        log_probability: with that of the end symbol.
        place: of the sentence among those of `beams`.
        beam: its number there.
        beams: as they were before the end symbol.
    """

    score: float
    log_probability: float
    place: int
    beam: int
    beams: _Beams


@torch.inference_mode()
def beam_search(
    step: Step[StateT],
    state: StateT,
    source_lengths: Sequence[int],
    *,
    bos: int,
    eos: int,
    pad: int = 0,
    max_length: int,
    settings: BeamSettings | None = None,
    device: str | torch.device = "cpu",
) -> list[list[Hypothesis]]:
    """The best texts for every sentence, best first, up to `beam_size` of them.

    Args:
        step: tokens ``(rows, 1)`` and state → logits ``(rows, 1, V)`` and the next state. Rows are
            S * K; the state comes from S sources.
        state: before the first token, one source for each sentence. (A state with rows of its own,
            as after a prompt, is first brought to `beam_size` rows a sentence with `reorder`.)
        source_lengths: real tokens of each source, which bound the output.
        bos: start symbol, the first token a model is given.
        eos: end symbol.
        pad: never written.
        max_length: most positions the model can decode.
        settings: how to search; the defaults where left out.
        device: where the tokens go.

    Raises:
        FloatingPointError: when a log-probability is not a number; of tokens before `min_length`
            it is noticed with the first one that may end.

    Source: fairseq's SequenceGenerator: of the 2K best continuations those among the first K that
    end are finished, and the first K that do not end go on. A sentence is done once K have ended.
    """
    settings = settings or BeamSettings()
    marks, width = _Marks(eos, pad), settings.beam_size
    longest = [settings.longest(length, max_length) for length in source_lengths]
    finished: list[list[_Ended]] = [[] for _ in source_lengths]
    beams = _first_beams(len(source_lengths), width, bos, device)
    while beams.sentences:
        least = min(settings.min_length, min(longest[one] for one in beams.sentences) - 1)
        beams, state = _write(step, state, beams, least - beams.written, marks)
        next_SKV, state = _next(step, state, beams)
        before, ending = beams, beams.written >= settings.min_length
        last = [place for place, s in enumerate(beams.sentences) if beams.written + 1 >= longest[s]]
        found = _candidates(beams, _allowed(next_SKV, marks, ending, last))
        beams, rows_SK = _going_on(beams, found, marks)
        best_S, ended = _read(before, beams, found, marks, settings)
        for one in ended:
            finished[beams.sentences[one.place]].append(one)
        keep = [
            place
            for place, (sentence, best) in enumerate(zip(beams.sentences, best_S, strict=True))
            if best > -math.inf and len(finished[sentence]) < width
        ]
        if len(keep) == len(beams.sentences):
            state = state.reorder(rows_SK.flatten())
        elif keep:
            index = _index(keep, rows_SK.device)
            state = state.reorder(rows_SK[index].flatten()).keep_sources(index)
            beams = _kept(beams, keep, index)
        else:
            break
    return _texts([_best(ended, width) for ended in finished])


def write_exactly(
    step: Step[StateT],
    state: StateT,
    count: int,
    length: int,
    *,
    bos: int,
    eos: int,
    pad: int = 0,
    beam_size: int,
    device: str | torch.device = "cpu",
) -> tuple[Tensor, Tensor]:
    """The best texts of one length, without waiting for the device once.

    They are those of `beam_search` where `length` is both the least and the most. Call it without
    gradients; under autocast with ``no_grad``, for in inference mode that casts weights anew for
    every token.

    Args:
        step: as for `beam_search`, and so the rest.
        state: before the first token.
        count: of the sentences S.
        length: tokens of each text, end symbol included, at least 1.
        bos: start symbol.
        eos: end symbol.
        pad: never written.
        beam_size: hypotheses K that are followed at once.
        device: where the tokens go.

    Returns:
        The tokens before the end symbol, ``(S, K, length - 1)``, and the log-probabilities with it,
        ``(S, K)``, best first; -inf where there are fewer texts than K.
    """
    marks = _Marks(eos, pad)
    beams = _first_beams(count, beam_size, bos, device)
    beams, state = _write(step, state, beams, length - 1, marks)
    next_SKV, _ = _next(step, state, beams)
    found = _candidates(beams, _allowed(next_SKV, marks, True, range(count)))
    tokens_SKT = beams.tokens[_places(beams), found.beams[:, :beam_size], 1:]
    return tokens_SKT, found.values[:, :beam_size]


def _first_beams(count: int, width: int, bos: int, device: str | torch.device) -> _Beams:
    scores_SK = torch.full((count, width), -torch.inf, device=device)
    scores_SK[:, 0] = 0.0  # All beams are the same at first, so only one of them counts.
    tokens_SKT = torch.full((count, width, 1), bos, dtype=torch.int64, device=device)
    return _Beams(list(range(count)), tokens_SKT, scores_SK)


def _write(
    step: Step[StateT], state: StateT, beams: _Beams, count: int, marks: _Marks
) -> tuple[_Beams, StateT]:
    """So many tokens none of which may be the end; the device is not waited for.

    A sentence for which nothing else is possible goes on with a score of -inf.
    """
    for _ in range(count):
        next_SKV, state = _next(step, state, beams)
        found = _candidates(beams, _allowed(next_SKV, marks, False))
        beams, rows_SK = _going_on(beams, found, marks)
        state = state.reorder(rows_SK.flatten())
    return beams, state


def _next(step: Step[StateT], state: StateT, beams: _Beams) -> tuple[Tensor, StateT]:
    """Log-probabilities of the next token ``(S, K, V)``, and the next state."""
    logits, state = step(beams.tokens[:, :, -1].reshape(-1, 1), state)
    return logits[:, -1].float().log_softmax(dim=-1).view(*beams.scores.shape, -1), state


def _allowed(next_SKV: Tensor, marks: _Marks, ending: bool, last: Sequence[int] = ()) -> Tensor:
    """The log-probabilities, -inf where a token is not allowed.

    Args:
        next_SKV: of the next token; changed in place.
        marks: whose tokens may not be written.
        ending: whether hypotheses may end.
        last: places of sentences that have to, also where others may not.
    """
    end_SK = next_SKV[:, :, marks.eos].clone()
    next_SKV[:, :, marks.pad] = -torch.inf
    if not ending:
        next_SKV[:, :, marks.eos] = -torch.inf
    if len(last) == len(next_SKV):
        next_SKV.fill_(-torch.inf)
        next_SKV[:, :, marks.eos] = end_SK
    elif last:
        index = _index(last, next_SKV.device)
        next_SKV[index] = -torch.inf
        next_SKV[index, :, marks.eos] = end_SK[index]
    return next_SKV


def _candidates(beams: _Beams, next_SKV: Tensor) -> _Candidates:
    _, width, vocab = next_SKV.shape
    total = (beams.scores[:, :, None] + next_SKV).flatten(1)
    top = total.topk(min(2 * width, width * vocab), dim=1)
    return _Candidates(top.values, top.indices // vocab, top.indices % vocab)


def _going_on(beams: _Beams, found: _Candidates, marks: _Marks) -> tuple[_Beams, Tensor]:
    """The hypotheses one token further, and the rows ``(S, K)`` that they continue."""
    width, is_end_SC = beams.scores.shape[1], found.tokens == marks.eos
    # Those that end go to the back; the order of the others stays.
    order_SK = is_end_SC.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    beam_SK, token_SK = found.beams.gather(1, order_SK), found.tokens.gather(1, order_SK)
    score_SK = found.values.gather(1, order_SK).masked_fill(token_SK == marks.eos, -torch.inf)
    place_S1 = _places(beams)
    tokens_SKT = torch.cat((beams.tokens[place_S1, beam_SK], token_SK[:, :, None]), dim=2)
    return _Beams(beams.sentences, tokens_SKT, score_SK), place_S1 * width + beam_SK


def _places(beams: _Beams) -> Tensor:
    """Of the sentences, ``(S, 1)``."""
    return torch.arange(len(beams.sentences), device=beams.scores.device)[:, None]


def _read(
    before: _Beams, beams: _Beams, found: _Candidates, marks: _Marks, settings: BeamSettings
) -> tuple[list[float], list[_Ended]]:
    """What has to be known of a token before the next one, in one transfer.

    Args:
        before: the hypotheses before it.
        beams: those that go on.
        found: its candidates.
        marks: tells those that end.
        settings: how they are compared.

    Returns:
        The largest log-probability among those of a sentence that go on, for each sentence, and the
        hypotheses that ended.

    Raises:
        FloatingPointError: when one is not a number, as of a network that says no numbers.
    """
    width = settings.beam_size
    value_SK, beam_SK = found.values[:, :width], found.beams[:, :width]
    ended_SK = value_SK.masked_fill(found.tokens[:, :width] != marks.eos, -torch.inf)
    best_S1 = beams.scores.amax(dim=1, keepdim=True)
    told = torch.cat((best_S1, ended_SK, beam_SK.to(best_S1.dtype)), dim=1).tolist()
    if any(map(math.isnan, chain.from_iterable(told))):  # which the 2K best always show
        raise FloatingPointError("log-probabilities are not numbers")
    ended = [
        _Ended(
            settings.score(value, beams.written), value, place, int(row[1 + width + rank]), before
        )
        for place, row in enumerate(told)
        for rank, value in enumerate(row[1 : 1 + width])
        if math.isfinite(value)
    ]
    return [row[0] for row in told], ended


def _kept(beams: _Beams, places: list[int], index: Tensor) -> _Beams:
    sentences = [beams.sentences[place] for place in places]
    return _Beams(sentences, beams.tokens[index], beams.scores[index])


def _index(places: Sequence[int], device: torch.device) -> Tensor:
    """Places as a tensor, without waiting for what the device still has to do."""
    return torch.tensor(places).to(device, non_blocking=True)


def _best(ended: list[_Ended], count: int) -> list[_Ended]:
    return sorted(ended, key=lambda one: -one.score)[:count]


def _texts(ended: list[list[_Ended]]) -> list[list[Hypothesis]]:
    """The hypotheses with their tokens, which are read from the device only now."""
    there = {id(one.beams): one.beams.tokens for ones in ended for one in ones}
    here = {key: tokens_SKT.cpu() for key, tokens_SKT in there.items()}

    def text(one: _Ended) -> Hypothesis:
        tokens = here[id(one.beams)][one.place, one.beam, 1:].tolist()
        return Hypothesis(tuple(tokens), one.score, one.log_probability)

    return [[text(one) for one in ones] for ones in ended]

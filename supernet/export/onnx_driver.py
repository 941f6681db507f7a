"""Writes text with the ONNX graphs that lie beside this file.

Translates standard input, one sentence a line, or goes on with each line where the network is a
language model::

    python decode.py --beam 4 < sentences.txt

It needs numpy and onnxruntime, and sentencepiece or tokenizers where the vocabulary is one of
theirs. The parts are for your own code, too: `Decoder` runs the graphs, `beam_search` chooses the
tokens.

A step graph takes new tokens, their position and what was remembered, and returns logits and what
to remember: names ``state.…`` go in, ``next.state.…`` come out. What begins with ``memory.`` comes
from the graph of the source, once for each sentence.

Shapes: S sentences, K beams, N new positions, M source positions, V target vocabulary.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Array = NDArray[Any]
Rows = Sequence[Sequence[int]]

PAD, BOS, EOS, UNKNOWN = range(4)
PROMPT_PART = 64  # new positions meet each other in products of all pairs, so not all at once
MOST_PENALTY = 10.0  # as of nas translate; powers of long texts would be no numbers
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


@dataclass(frozen=True)
class State:
    """What is remembered between two steps.

    Attributes:
        position: how many positions were read.
        states: by name; ``(S, K, …)``, in a language model ``(S, …)``.
        memories: what the decoder reads of the sources, by name, ``(S, …)``.
    """

    position: int
    states: Mapping[str, Array]
    memories: Mapping[str, Array]

    def take(self, sentences: Array, beams: Array) -> State:
        """Of these sentences ``(S',)`` these beams ``(S', K)``."""
        states = {name: part[sentences[:, None], beams] for name, part in self.states.items()}
        memories = self.memories
        if any(len(part) != len(sentences) for part in memories.values()):
            memories = {name: part[sentences] for name, part in memories.items()}
        return State(self.position, states, memories)

    def next_segment(self, length: int) -> State:
        """Positions from 0 again, with the last `length` keys and values (Transformer-XL)."""
        states = {name: part[:, :, -length:] for name, part in self.states.items()}
        return State(0, states, self.memories)


class Decoder:
    """The graphs of one network that writes text.

    Attributes:
        max_length: most tokens of a source, and positions of a text.
        memory_length: positions of earlier segments that a language model remembers; 0 for none.
    """

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Open the graphs.

        Args:
            folder: where ``step.onnx`` lies and, of a translation network, ``source.onnx``.
            threads: of the processor; 0 leaves them to onnxruntime.
        """
        source = folder / "source.onnx"
        self._step = session(folder / "step.onnx", threads)
        self._source = session(source, threads) if source.exists() else None
        self._outputs = [out.name.removeprefix("next.") for out in self._step.get_outputs()]
        self._empty = [one for one in self._step.get_inputs() if one.name.startswith("state.")]
        about = self._step.get_modelmeta().custom_metadata_map
        self.max_length = int(about["max_length"])
        self.memory_length = int(about["memory_length"])

    def start(self, source: Array, beams: int = 1) -> State:
        """Read sources ``(S, M)``, padded with 0 at their ends: the state before the first token.

        Of a language model only the number of rows counts.
        """
        memories: dict[str, Array] = {}
        if self._source is not None:
            self._check_length("source", source.shape[1])
            names = [out.name for out in self._source.get_outputs()]
            memories = dict(zip(names, self._source.run(None, {"source": source}), strict=True))
        sizes = {"batch": len(source), "beams": beams}
        states = {one.name: _empty(one, sizes) for one in self._empty}
        return State(0, states, memories)

    def step(self, tokens: Array, state: State) -> tuple[Array, State]:
        """New tokens ``(S, K, N)`` → logits of what follows each, ``(S, K, N, V)``, and the state.

        In a language model both are without K.
        """
        new = tokens.shape[-1]
        self._check_length("text", state.position + new)
        fed = {"tokens": tokens, "position": np.array(state.position), **state.states}
        found = self._step.run(None, fed | dict(state.memories))
        after = dict(zip(self._outputs, found, strict=True))
        logits = after.pop("logits")
        return logits, State(state.position + new, after, state.memories)

    def read(self, tokens: Array, state: State) -> tuple[Array, State]:
        """As `step`, a part after the other: a long prompt then takes time as its length does."""
        parts = []
        for start in range(0, tokens.shape[-1], PROMPT_PART):
            logits, state = self.step(tokens[..., start : start + PROMPT_PART], state)
            parts.append(logits)
        return np.concatenate(parts, axis=-2), state

    def remember(self, tokens: Array, state: State) -> State:
        """The state before a segment that follows these tokens; as it was without a memory."""
        if not self.memory_length:
            return state
        for start in range(0, tokens.shape[-1], self.max_length):
            _, state = self.read(tokens[..., start : start + self.max_length], state)
            state = state.next_segment(self.memory_length)
        return state

    def _check_length(self, what: str, length: int) -> None:
        if length > self.max_length:
            raise ValueError(
                f"the {what} has {length} tokens, but the network's max_length is {self.max_length}"
            )


def session(graph: Path, threads: int = 0) -> Any:
    """Open a graph on the CPU, with so many threads; 0 leaves that to onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    # Threads that go on turning after a call would be in the way of whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def _empty(wanted: Any, sizes: Mapping[str, int]) -> Array:
    """What is remembered before the first token: sums of nothing, keys of no positions."""
    shape = [sizes.get(size, 0) if isinstance(size, str) else size for size in wanted.shape]
    return np.zeros(shape, TYPES[wanted.type])


# -- choosing tokens ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """How to search: the rules of fairseq's sequence generator.

    Attributes:
        beam: texts followed at once; 1 is greedy.
        length_penalty: a text of L tokens, end mark included, scores its log-probability divided
            by ``L ** length_penalty``, at most `MOST_PENALTY`.
        factor: a in the longest text ``a * source length + b``, end mark included.
        offset: b.
        min_length: tokens before the end mark may come.
    """

    beam: int = 4
    length_penalty: float = 0.6
    factor: float = 1.2
    offset: int = 10
    min_length: int = 1

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"the beam is {self.beam}; it must be at least 1")
        if not abs(self.length_penalty) <= MOST_PENALTY:
            raise ValueError(
                f"the length penalty (--lenpen) is {self.length_penalty:g}; give a number from 0 "
                f"to {MOST_PENALTY:g}, for example 0.6"
            )

    def longest(self, source_length: int, limit: int) -> int:
        """Most tokens of a text, end mark included."""
        return max(1, min(int(self.factor * source_length) + self.offset, limit))


@dataclass(frozen=True)
class Hypothesis:
    """A finished text: its tokens without marks, and its score."""

    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class Beams:
    """The texts that go on.

    Attributes:
        sentences: numbers of the sentences that are not done, ``(S,)``.
        tokens: the begin mark and what was written, ``(S, K, T + 1)``.
        scores: log-probabilities ``(S, K)``; -inf where there is no text.
    """

    sentences: Array
    tokens: Array
    scores: Array

    def keep(self, places: Array) -> Beams:
        """These sentences only."""
        return Beams(self.sentences[places], self.tokens[places], self.scores[places])


def beam_search(
    decoder: Decoder, source: Array, search: Search, num_words: int | None = None
) -> list[list[Hypothesis]]:
    """The best texts for every source, best first.

    Args:
        decoder: the network.
        source: ``(S, M)``, end marks included, padded with 0.
        search: how.
        num_words: only the first so many tokens of the vocabulary are written; None for all.
    """
    count, width = len(source), search.beam
    lengths = (source != PAD).sum(axis=1).tolist()
    longest_S = np.array([search.longest(length, decoder.max_length) for length in lengths])
    scores_SK = np.full((count, width), -np.inf, np.float32)
    scores_SK[:, 0] = 0.0  # all beams are the same at first, so only one of them counts
    beams = Beams(np.arange(count), np.full((count, width, 1), BOS), scores_SK)
    finished: list[list[Hypothesis]] = [[] for _ in range(count)]
    state = decoder.start(source, width)
    while len(beams.sentences):
        written = beams.tokens.shape[2] - 1
        logits, state = decoder.step(beams.tokens[:, :, -1:], state)
        next_SKV = log_softmax(logits[:, :, -1, :num_words])
        _forbid(next_SKV, written, longest_S[beams.sentences], search)
        beams, before_SK, ended = _advance(beams, next_SKV)
        for sentence, tokens, log_probability in ended:
            score = log_probability / (written + 1) ** search.length_penalty
            finished[sentence].append(Hypothesis(tokens, score))
        wanted = [len(finished[sentence]) < width for sentence in beams.sentences]
        kept = np.flatnonzero(np.isfinite(beams.scores.max(axis=1)) & wanted)
        beams, state = beams.keep(kept), state.take(kept, before_SK[kept])
    return [sorted(texts, key=lambda one: -one.score)[:width] for texts in finished]


def _forbid(next_SKV: Array, written: int, longest_S: Array, search: Search) -> None:
    """Take out, in place, what may not come next: padding, an early end, and no end at last."""
    end_SK = next_SKV[:, :, EOS].copy()
    next_SKV[:, :, PAD] = -np.inf
    if written < search.min_length:
        next_SKV[:, :, EOS] = -np.inf
    last_S = written + 1 >= longest_S
    next_SKV[last_S] = -np.inf
    next_SKV[last_S, :, EOS] = end_SK[last_S]


Ended = list[tuple[int, tuple[int, ...], float]]


def _advance(beams: Beams, next_SKV: Array) -> tuple[Beams, Array, Ended]:
    """One token further.

    Returns:
        The texts that go on, the beams ``(S, K)`` they come from, and of those that ended the
        sentence, the tokens and the log-probability.
    """
    width, vocab = next_SKV.shape[1:]
    total_SC = (beams.scores[:, :, None] + next_SKV).reshape(len(next_SKV), -1)
    score_SC, index_SC = top(total_SC, 2 * width)
    beam_SC, token_SC = np.divmod(index_SC, vocab)
    # Of the 2K best continuations those among the first K that end are finished …
    ends_SC = (token_SC == EOS) & np.isfinite(score_SC)
    ended: Ended = []
    for place, rank in np.argwhere(ends_SC[:, :width]).tolist():
        tokens = beams.tokens[place, beam_SC[place, rank], 1:].tolist()
        ended.append((int(beams.sentences[place]), tuple(tokens), float(score_SC[place, rank])))
    # … and the first K that do not end go on.
    order_SK = np.argsort(token_SC == EOS, axis=1, kind="stable")[:, :width]
    beam_SK, token_SK, score_SK = (
        np.take_along_axis(part, order_SK, axis=1) for part in (beam_SC, token_SC, score_SC)
    )
    past_SKT = np.take_along_axis(beams.tokens, beam_SK[:, :, None], axis=1)
    tokens_SKT = np.concatenate((past_SKT, token_SK[:, :, None]), axis=2)
    score_SK = np.where(token_SK == EOS, -np.inf, score_SK).astype(np.float32)
    return Beams(beams.sentences, tokens_SKT, score_SK), beam_SK, ended


def log_softmax(logits: Array) -> Array:
    """Logits ``(…, V)`` → log-probabilities, a new array.

    Raises:
        ValueError: when they are not finite numbers: no search among such would end.
    """
    if not np.isfinite(logits).all():
        raise ValueError("the network cannot write: its outputs are not finite numbers")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def top(values_SC: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest of each row and where they stand, largest first."""
    count = min(count, values_SC.shape[1])
    index = np.argpartition(-values_SC, count - 1, axis=1)[:, :count]
    found = np.take_along_axis(values_SC, index, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(index, order, axis=1)


def continue_text(
    decoder: Decoder,
    prompt: Array,
    length: int,
    num_words: int | None = None,
    first: int = PAD + 1,
) -> Array:
    """Greedy tokens ``(S, length)`` behind a prompt ``(S, N)`` of a language model.

    What is longer than the network reads at once is remembered, where the network has a memory.
    Only the first `num_words` tokens of the vocabulary are written, None for all, and of these none
    before `first`.
    """
    state = decoder.start(prompt)
    room = max(1, decoder.max_length - length)
    if decoder.memory_length and prompt.shape[1] > room:
        state = decoder.remember(prompt[:, :-room], state)
        prompt = prompt[:, -room:]
    return write_on(decoder, prompt, state, length, num_words, first)


def write_on(
    decoder: Decoder,
    prompt: Array,
    state: State,
    length: int,
    num_words: int | None = None,
    first: int = PAD + 1,
) -> Array:
    """As `continue_text`, from a state; a full segment becomes memory, where there is one."""
    logits, state = decoder.read(prompt, state)
    written: list[Array] = []
    for _ in range(length):
        if written:
            if decoder.memory_length and state.position == decoder.max_length:
                state = state.next_segment(decoder.memory_length)
            logits, state = decoder.step(written[-1], state)
        written.append(logits[:, -1:, first:num_words].argmax(axis=-1) + first)
    return np.concatenate(written, axis=1)


# -- text -----------------------------------------------------------------------------------------


class Vocabulary:
    """Turns lines into token numbers and back, as the network's data were made.

    Attributes:
        size: tokens.
        begin: with which texts begin.
        first: the lowest token that is written.
    """

    def __init__(self, folder: Path, side: str) -> None:
        """Open the vocabulary of ``source`` or ``target``, which ``reading.json`` names."""
        facts = json.loads((folder / "reading.json").read_text(encoding="utf-8"))
        file = folder / facts[side]
        self._pieces: Any = None
        self._pipeline: Any = None
        self.begin: list[int] = facts.get("begin", [BOS])
        self.first = PAD if facts.get("padding", PAD) is None else PAD + 1
        if facts["kind"] == "tokenizer_json":
            import tokenizers

            self._pipeline = tokenizers.Tokenizer.from_file(str(file))
            self.size = facts["num_words"]
            return
        if facts["kind"] == "sentencepiece":
            import sentencepiece

            self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))
            self.size = self._pieces.get_piece_size()
            return
        self._words: list[str] = json.loads(file.read_text(encoding="utf-8"))
        self._numbers = {word: number for number, word in enumerate(self._words)}
        self.size = len(self._words)

    def encode(self, line: str) -> list[int]:
        """Token numbers of a line, without marks."""
        if self._pipeline is not None:
            return list(self._pipeline.encode(line, add_special_tokens=False).ids)
        if self._pieces is not None:
            return list(self._pieces.encode(line))
        return [self._numbers.get(word, UNKNOWN) for word in line.split()]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token numbers, without marks."""
        if self._pipeline is not None:
            return str(self._pipeline.decode([int(token) for token in tokens]))
        plain = [int(token) for token in tokens if token not in (PAD, BOS, EOS)]
        if self._pieces is not None:
            return str(self._pieces.decode(plain))
        return " ".join(self._words[token] for token in plain)


def translate(folder: Path, lines: Sequence[str], search: Search, batch: int = 16) -> list[str]:
    """Translate lines, in their order; empty ones stay empty."""
    decoder = Decoder(folder)
    read, write = Vocabulary(folder, "source"), Vocabulary(folder, "target")
    rows = [[*read.encode(line), EOS] for line in lines]
    for number, row in enumerate(rows, start=1):
        if len(row) > decoder.max_length:
            raise ValueError(
                f"line {number} has {len(row)} tokens with its end mark, but the network reads at "
                f"most {decoder.max_length}: split the line"
            )
    texts = [""] * len(lines)
    order = sorted((n for n, row in enumerate(rows) if len(row) > 1), key=lambda n: -len(rows[n]))
    for start in range(0, len(order), batch):  # lines of similar lengths need little padding
        numbers = order[start : start + batch]
        found = beam_search(decoder, padded([rows[n] for n in numbers]), search, write.size)
        for number, hypotheses in zip(numbers, found, strict=True):
            texts[number] = write.decode(hypotheses[0].tokens)
    return texts


def padded(rows: Rows) -> Array:
    """Rows of tokens as one matrix, filled up with 0."""
    matrix = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for place, row in enumerate(rows):
        matrix[place, : len(row)] = row
    return matrix


def go_on(folder: Path, lines: Sequence[str], length: int) -> list[str]:
    """Go on with each line by so many tokens, greedily; the line itself is repeated."""
    if length < 1:
        raise ValueError(f"--tokens must be at least 1; given {length}")
    decoder, words = Decoder(folder), Vocabulary(folder, "target")
    texts = []
    for number, line in enumerate(lines, start=1):
        prompt = np.array([[*words.begin, *words.encode(line)]], np.int64)
        if not prompt.size:
            raise ValueError(
                f"line {number} is empty, and texts have no begin mark: give its first word"
            )
        (written,) = continue_text(decoder, prompt, length, words.size, words.first)
        texts.append(words.decode([*prompt[0], *written]))
    return texts


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--beam", type=int, default=4, help="texts followed at once; 1 is greedy")
    parser.add_argument("--lenpen", type=float, default=0.6, help="0 favours short texts")
    parser.add_argument("--tokens", type=int, default=50, help="that a language model writes")
    given = parser.parse_args(arguments)
    folder = Path(__file__).resolve().parent
    try:
        lines = [
            # The first line may begin with a byte order mark, which is no text.
            raw.decode("utf-8" if number else "utf-8-sig").removesuffix("\n").removesuffix("\r")
            for number, raw in enumerate(sys.stdin.buffer)
        ]
        if (folder / "source.onnx").exists():
            texts = translate(folder, lines, Search(given.beam, given.lenpen))
        else:
            texts = go_on(folder, lines, given.tokens)
    except ValueError as error:
        sys.exit(f"error: {error}")
    sys.stdout.buffer.write("".join(f"{text}\n" for text in texts).encode())


if __name__ == "__main__":
    main()

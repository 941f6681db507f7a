"""Multi-query associative recall, generated: pairs of a key and a value, then the keys again.

A sequence of the default form, with two pairs and a gap of 2::

    k7 v2 k3 v9 . . . k3 v9 . . k7 v2 .

It begins with the pairs. Behind them the keys come back, each once, in another order and at random
places; each is followed by its value, and these values alone are to be predicted. All other places
hold a full stop. Keys, values and their order are drawn anew for every sequence, so that nothing
but looking a key up tells its value; no statistics of the text do.

No two sequences of any splits have the same keys in the same order, nor the same values in the same
order.

Source: Arora et al., "Zoology" (2023, arXiv 2312.04927), section 4 and appendix E. We differ in
writing the value behind a key that comes back, so that a sequence is a text as others are; in
places drawn evenly, not by a power law, behind a gap of a given size; and in values that may come
twice in a sequence.

Shapes: N sequences, P pairs, L tokens of a sequence.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.data_keys import RECALL
from search_spaces.errors import UsageError
from search_spaces.recall_form import FILLER, FIRST_KEY, SEQUENCES_PER_DRAW, RecallSettings
from supernet.data.prepared import PreparedData, StreamSplit
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import WordTokenizer

MAX_DRAWS_WITHOUT_GAIN = 20


class Sequences(NamedTuple):
    """Drawn sequences: tokens int32 ``(N, L)``, and whether each is to be predicted, bool."""

    tokens: NDArray[np.int32]
    scored: NDArray[np.bool_]


@lru_cache(maxsize=2)
def generate(settings: RecallSettings, seed: int) -> Sequences:
    """The sequences of all splits: those to learn from first, then validation, then test.

    Raises:
        UsageError: on a negative seed, or when there are not so many different sequences.
    """
    if seed < 0:
        raise UsageError(f"seed must be at least 0; given {seed}")
    rng = np.random.default_rng(seed)
    wanted = settings.sequences
    seen_keys, seen_values = set[bytes](), set[bytes]()
    parts, count, in_vain = list[Sequences](), 0, 0
    while count < wanted:
        keys_NP, values_NP, drawn = _draw(settings, rng)
        new = list[int]()
        for row, (keys, values) in enumerate(zip(keys_NP, values_NP, strict=True)):
            names = keys.tobytes(), values.tobytes()
            if names[0] not in seen_keys and names[1] not in seen_values:
                seen_keys.add(names[0])
                seen_values.add(names[1])
                new.append(row)
        in_vain = 0 if new else in_vain + 1
        if in_vain == MAX_DRAWS_WITHOUT_GAIN:
            raise UsageError(
                f"there are fewer than {wanted} sequences of {settings.pairs} pairs with keys and "
                f"values in another order each; ask for fewer, more pairs or a larger vocabulary"
            )
        parts.append(Sequences(drawn.tokens[new], drawn.scored[new]))
        count += len(new)
    tokens = np.concatenate([part.tokens for part in parts])[:wanted]
    scored = np.concatenate([part.scored for part in parts])[:wanted]
    tokens.flags.writeable = scored.flags.writeable = False  # it is handed out more than once
    return Sequences(tokens, scored)


def _draw(
    settings: RecallSettings, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], Sequences]:
    """Keys and values, ``(N, P)`` each, and the sequences with them."""
    count, pairs = SEQUENCES_PER_DRAW, settings.pairs
    rows = np.arange(count)[:, None]
    keys_NP = FIRST_KEY + rng.random((count, settings.num_keys)).argsort(axis=1)[:, :pairs]
    first_value = FIRST_KEY + settings.num_keys
    values_NP = first_value + rng.integers(settings.num_values, size=(count, pairs))
    order_NP = rng.random((count, pairs)).argsort(axis=1)
    # A question and its answer count as one place, so that places may be chosen without overlap.
    places = settings.length - settings.gap - 3 * pairs
    chosen_NP = np.sort(rng.random((count, places)).argsort(axis=1)[:, :pairs], axis=1)
    asked_NP = 2 * pairs + settings.gap + chosen_NP + np.arange(pairs)
    tokens = np.full((count, settings.length), FILLER, dtype=np.int32)
    tokens[:, 0 : 2 * pairs : 2] = keys_NP
    tokens[:, 1 : 2 * pairs : 2] = values_NP
    tokens[rows, asked_NP] = keys_NP[rows, order_NP]
    tokens[rows, asked_NP + 1] = values_NP[rows, order_NP]
    scored = np.zeros(tokens.shape, dtype=np.bool_)
    scored[rows, asked_NP + 1] = True
    return keys_NP, values_NP, Sequences(tokens, scored)


def open_recall(settings: RecallSettings, seed: int) -> PreparedData[StreamSplit]:
    """Training and validation split; raises what `generate` does."""
    drawn, tokenizer = generate(settings, seed), _tokenizer(settings)
    end = settings.train + settings.valid
    form = {name: value for name, value in asdict(settings).items() if name != "test"}
    digest = hashlib.sha256(f"{RECALL} {sorted(form.items())} {seed}".encode())
    digest.update(np.ascontiguousarray(drawn.tokens[:end], dtype="<i4").tobytes())
    return PreparedData(
        name=RECALL,
        train=_split(drawn, slice(settings.train), tokenizer),
        valid=_split(drawn, slice(settings.train, end), tokenizer),
        digest=digest.hexdigest(),
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        longest=settings.length,
    )


def open_recall_test(settings: RecallSettings, seed: int) -> StreamSplit:
    """The test split; raises what `generate` does."""
    rows = slice(settings.train + settings.valid, None)
    return _split(generate(settings, seed), rows, _tokenizer(settings))


def _tokenizer(settings: RecallSettings) -> WordTokenizer:
    keys = (f"k{number}" for number in range(settings.num_keys))
    values = (f"v{number}" for number in range(settings.num_values))
    return WordTokenizer([".", *keys, *values])


def _split(drawn: Sequences, rows: slice, tokenizer: WordTokenizer) -> StreamSplit:
    tokens, scored = drawn.tokens[rows], drawn.scored[rows]
    count, length = tokens.shape
    sizes = np.array([len(symbol) for symbol in tokenizer.symbols])
    return StreamSplit(
        TokenRows(tokens.ravel(), np.arange(count + 1, dtype=np.int64) * length),
        num_words=tokens.size,
        num_characters=int(sizes[tokens].sum()) + count * (length - 1),
        scored=scored.ravel(),
        alone=True,
    )

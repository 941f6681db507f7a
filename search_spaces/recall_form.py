"""The form of generated recall sequences (`supernet.data.recall`), and which forms can be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, Self

from search_spaces.errors import SettingError
from search_spaces.toml.source import shown

FILLER = 4  # the token between what matters, behind the four marks of a vocabulary
FIRST_KEY = FILLER + 1
SEQUENCES_PER_DRAW = 4096
MOST_BYTES = 4 * 2**30
"""Of memory while sequences are drawn."""
MOST = 10**15  # of anything; what it is for is bounded besides
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True)
class RecallSettings:
    """The form of the sequences, and how many there are.

    Attributes:
        vocabulary: tokens, the four marks and the filler among them; of the others half are keys.
        length: tokens of a sequence.
        pairs: of a sequence.
        gap: fillers at least between the last pair and the first key that comes back.
        train: sequences to learn from.
        valid: sequences to compare networks by.
        test: sequences for the last step of retraining.

    Raises:
        SettingError: for numbers that do not go together, or more than can be drawn.
    """

    vocabulary: int
    length: int
    pairs: int = 16
    gap: int = 0
    train: int = 20_000
    valid: int = 500
    test: int = 1000

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_form()
        self._check_count()

    @property
    def num_keys(self) -> int:
        """Tokens that are keys."""
        return (self.vocabulary - FIRST_KEY) // 2

    @property
    def num_values(self) -> int:
        """Tokens that are values."""
        return self.vocabulary - FIRST_KEY - self.num_keys

    @property
    def shortest(self) -> int:
        """Tokens of a sequence without more fillers than the gap."""
        return 4 * self.pairs + self.gap

    @property
    def sequences(self) -> int:
        """Of all splits."""
        return self.train + self.valid + self.test

    def _check_numbers(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "gap" else 1
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not least <= value <= MOST:
                raise SettingError(
                    f"{field.name} of the recall data is a whole number of at least {least} and at "
                    f"most {MOST:,}; found {shown(value)}",
                    (field.name,),
                )

    def _check_form(self) -> None:
        if self.num_keys < self.pairs:
            raise SettingError(
                f"{self.pairs} pairs need as many keys, and a vocabulary of {self.vocabulary} has "
                f"{max(0, self.num_keys)}: set vocabulary to {FIRST_KEY + 2 * self.pairs} or more",
                ("pairs", "vocabulary"),
            )
        if self.length < self.shortest:
            raise SettingError(
                f"{self.pairs} pairs that come back behind a gap of {self.gap} need sequences of "
                f"{self.shortest} tokens; length is {self.length}",
                ("length", "pairs", "gap"),
            )

    def _check_count(self) -> None:
        """So many sequences with keys and values in another order each, within the memory."""
        most = max(SPLITS, key=lambda name: int(getattr(self, name)))
        splits = (most, *(name for name in SPLITS if name != most))
        # A value may come twice in a sequence, a key may not.
        possible = min(
            _product(range(self.num_keys, self.num_keys - self.pairs, -1), self.sequences),
            _product(repeat(self.num_values, self.pairs), self.sequences),
        )
        if possible < self.sequences:
            raise SettingError(
                f"there are only {possible:,} sequences of {self.pairs} pairs with keys and values "
                f"in another order each, fewer than the {self.sequences:,} of all splits; ask for "
                "fewer, more pairs or a larger vocabulary",
                splits,
            )
        # Random numbers and their order, in 8 bytes each.
        drawing = SEQUENCES_PER_DRAW * 16 * (self.num_keys + self.length)
        if drawing > MOST_BYTES:
            room = MOST_BYTES // (SEQUENCES_PER_DRAW * 16)
            raise SettingError(
                f"sequences of {self.num_keys:,} keys and {self.length:,} tokens need more memory "
                f"to be drawn than {MOST_BYTES / 2**30:.0f} GB: half the vocabulary and length "
                f"are {room:,} together at most",
                ("length", "vocabulary")
                if self.length > self.num_keys
                else ("vocabulary", "length"),
            )
        # Tokens and marks twice while parts are joined; and names of keys and values in two sets.
        each = 2 * 5 * self.length + 2 * (8 * self.pairs + 150)
        if drawing + self.sequences * each > MOST_BYTES:
            raise SettingError(
                f"{self.sequences:,} sequences of {self.length:,} tokens over all splits need more "
                f"memory to be drawn than {MOST_BYTES / 2**30:.0f} GB: ask for at most "
                f"{(MOST_BYTES - drawing) // each:,}, or for shorter ones",
                splits,
            )

    @classmethod
    def read(cls, table: Mapping[str, Any], vocab_size: int, max_length: int) -> Self:
        """The settings of a space's ``[data]`` table.

        Args:
            table: the settings by name (`RECALL_FORM`), all optional, beside keys of other uses.
            vocab_size: of the space's networks, and the vocabulary unless told otherwise.
            max_length: positions that they read at most, and the length unless told otherwise.

        Raises:
            SettingError: for wrong numbers.
        """
        given = {name: table[name] for name in RECALL_FORM if name in table}
        found = cls(**{"vocabulary": vocab_size, "length": max_length, **given})
        if found.vocabulary > vocab_size:
            raise SettingError(
                f"recall sequences of a vocabulary of {found.vocabulary} hold more tokens than the "
                f"networks of this space have: set vocab_size of [model.input] to "
                f"{found.vocabulary} or more",
                ("vocabulary",),
            )
        if found.length > max_length:
            raise SettingError(
                f"recall sequences of length {found.length} are longer than the networks of this "
                f"space read: set max_length of [model] to {found.length} or more",
                ("length",),
            )
        return found


RECALL_FORM = tuple(field.name for field in fields(RecallSettings))
"""Keys of a space's ``[data]`` table that say what the sequences are like."""


def _product(factors: Iterable[int], enough: int) -> int:
    """Of positive numbers, or some number of at least `enough` as soon as it is reached."""
    product = 1
    for factor in factors:
        if product >= enough:
            break
        product *= factor
    return product

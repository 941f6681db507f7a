"""Byte pairs that are learnt from labelled texts, as a ``tokenizer.json``.

That is the form in which texts are read with a checkpoint's tokenizer, so that everything behind
knows it. Every byte is a token, so that any text can be written; 0 is padding, which no text gives.

Source: Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, 2016, over
bytes as in Radford et al., Language Models are Unsupervised Multitask Learners, 2019, part 2.2. We
normalise text by NFKC first, as the vocabularies of translation and language models do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from search_spaces.errors import UsageError
from search_spaces.wording import mark
from supernet.data.checkpoint_tokenizer import CheckpointTokenizer
from supernet.data.tokenizer import BYTE_VOCAB_SIZE, MARKS, PAD, too_large
from supernet.pretrained.padding import TOKENIZER_FILE

LEAST_SEEN = 2  # times of a pair that becomes a token


def learn_byte_pairs(
    texts: Iterable[str], vocab_size: int, source: str, exact: bool = True
) -> CheckpointTokenizer:
    """Learn a vocabulary.

    Args:
        texts: what to learn from.
        vocab_size: number of tokens, padding and the 256 bytes among them.
        source: where the texts come from, for messages.
        exact: whether texts that give fewer tokens are refused.

    Raises:
        UsageError: when the vocabulary is larger than the texts can give, or has no room for bytes.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if vocab_size < BYTE_VOCAB_SIZE:
        raise UsageError(
            f"a vocabulary of {vocab_size} is too small: bytes and padding alone need "
            f"{BYTE_VOCAB_SIZE}; pass {mark('vocab_size')} {BYTE_VOCAB_SIZE} or more"
        )
    pipeline = Tokenizer(models.BPE())
    pipeline.normalizer = normalizers.NFKC()
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel()
    pipeline.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST_SEEN,
        special_tokens=[MARKS[PAD]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pipeline.train_from_iterator(texts, trainer)
    found = pipeline.get_vocab_size()
    if exact and found < vocab_size:
        raise too_large(vocab_size, source, found)
    # As a word like others padding is what no text gives: bytes join within words or signs alone.
    values = json.loads(pipeline.to_str()) | {"added_tokens": []}
    return CheckpointTokenizer(
        json.dumps(values).encode(), {"pad_token": MARKS[PAD]}, f"the {TOKENIZER_FILE} of {source}"
    )

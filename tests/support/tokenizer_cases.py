"""Small tokenizers of checkpoints, trained where a test needs them, and texts for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supernet.data.prepare import Prepared, prepare
from supernet.data.prepare.plan import PrepareRequest
from tests.support.prepare_cases import silent

LINES = ("The cat sat! On a mat.", "!?!", "", "  a = [1, 2]", "Dogs run at 7 o'clock; why?")
TEXTS = {"train": LINES * 3, "valid": LINES, "test": LINES[::-1]}


def byte_level(marked: bool = False) -> Any:
    """As GPT-2's or, with a begin mark, Llama's 3: every byte is known, and token 0 is a word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(LINES, trainer)
    if marked:
        made.add_special_tokens(["<begin>"])
        marks = [("<begin>", made.token_to_id("<begin>"))]
        made.post_processor = processors.TemplateProcessing("<begin> $A", None, marks)
    assert made.token_to_id("!") == 0
    return made


def word_pieces() -> Any:
    """As BERT's: token 0 is padding, a text has marks on both sides."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=marks, show_progress=False)
    made.train_from_iterator(LINES, trainer)
    around = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, around)
    return made


def bounded(tokenizer: Any, **filled: Any) -> Any:
    """The same, cutting texts to 4 tokens and filling them up, as MiniLM's does with 128."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(tokenizer.to_str())
    made.enable_truncation(4)
    made.enable_padding(length=4, **filled)
    return made


def write_checkpoint(folder: Path, tokenizer: Any, **settings: Any) -> Path:
    """The folder of a checkpoint, as far as texts are concerned."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_texts(folder: Path) -> dict[str, Path]:
    """A text file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in TEXTS.items():
        (folder / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))
    return {split: folder / f"{split}.txt" for split in TEXTS}


def write_labelled(folder: Path) -> Path:
    """Texts with labels, enough to hold some out."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"{LINES[n % 2]} {n}" for n in range(40)]
    objects = [{"text": text, "label": n % 2} for n, text in enumerate(texts)]
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return file


def prepared_stream(folder: Path, tokenizer: Any, **settings: Any) -> Prepared:
    """The data of `write_texts`, in ``folder/data``, with a tokenizer of ``folder/model``."""
    model = write_checkpoint(folder / "model", tokenizer, **settings)
    files = {split: (path,) for split, path in write_texts(folder / "texts").items()}
    source = files.pop("train")
    request = PrepareRequest(
        "language_modelling", source, folder / "data", tokenizer=model, allow_overlap=True, **files
    )
    return prepare(request, silent)


def prepared_examples(folder: Path, tokenizer: Any, **changes: Any) -> Prepared:
    """The data of `write_labelled`, in ``folder/data``."""
    model = write_checkpoint(folder / "model", tokenizer, pad_token="[PAD]")
    source = (write_labelled(folder / "texts"),)
    request = PrepareRequest(
        "classification", source, folder / "data", tokenizer=model, allow_overlap=True, **changes
    )
    return prepare(request, silent)

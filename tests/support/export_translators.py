"""How each format's folder translates token numbers, without anything of ours in between.

A new format adds a line to `TRANSLATORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.support.export_cases import as_module, module_of

Rows = Sequence[Sequence[int]]
Texts = list[list[int]]


def by_modeling(folder: Path, rows: Rows, beam: int) -> Texts:
    """With the functions of `modeling.py`."""
    module = module_of(folder)
    network = module.load_network()
    return [module.translate(network, list(row), beam) for row in rows]


def by_transformers(folder: Path, rows: Rows, beam: int) -> Texts:
    """With `generate`, all rows in one batch."""
    from transformers import AutoModelForSeq2SeqLM

    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    width = max(map(len, rows)) + 1
    padded = torch.tensor([[*row, 2, *[0] * (width - len(row) - 1)] for row in rows])
    made = model.generate(padded, attention_mask=(padded != 0).long(), num_beams=beam)
    return [_until_the_end(row[1:]) for row in made.tolist()]


def by_decode(folder: Path, rows: Rows, beam: int) -> Texts:
    """With the functions of `decode.py`, which run the ONNX graphs, all rows in one batch."""
    file = folder / "decode.py"
    module = as_module(file.read_text(encoding="utf-8"), file)
    known = module.Vocabulary(folder, "target").size
    source = module.padded([[*row, module.EOS] for row in rows])
    search = module.Search(beam)
    found = module.beam_search(module.Decoder(folder, 1), source, search, known)
    return [list(texts[0].tokens) for texts in found]


def _until_the_end(row: list[int]) -> list[int]:
    return row[: row.index(2)] if 2 in row else row


TRANSLATORS: dict[str, Callable[[Path, Rows, int], Texts]] = {
    "safetensors": by_modeling,
    "torch": by_modeling,
    "huggingface": by_transformers,
    "onnx": by_decode,
}

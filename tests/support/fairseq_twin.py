"""Run by an interpreter that has fairseq: what fairseq computes with checkpoints of the plug-in.

    python fairseq_twin.py USER_DIR DATA CHECKPOINT...    # writes CHECKPOINT.npz

Sources are padded on the left, as fairseq does; targets are read at once, and again token by token
with the rows changing places in between.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import data_utils
from fairseq_cases import ROWS, TARGETS


def batch(dictionary: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, targets = (list(map(torch.tensor, part)) for part in (ROWS, TARGETS))
    pad, eos = dictionary.pad(), dictionary.eos()
    source = data_utils.collate_tokens(rows, pad, eos, left_pad=True)
    previous = data_utils.collate_tokens(targets, pad, eos, False, move_eos_to_beginning=True)
    return source, torch.tensor([len(row) for row in ROWS]), previous


def step_by_step(model: Any, encoded: Any, previous: torch.Tensor) -> torch.Tensor:
    """The same logits from single steps; after each, all rows change places."""
    state: dict[str, Any] = {}
    order, parts = torch.arange(len(previous)), []
    turn = order.roll(1)
    for count in range(1, previous.shape[1] + 1):
        logits, _ = model.decoder(previous[order, :count], encoded, state)
        parts.append(logits[order.argsort()])
        model.decoder.reorder_incremental_state_scripting(state, turn)
        encoded = model.encoder.reorder_encoder_out(encoded, turn)
        order = order[turn]
    return torch.cat(parts, dim=1)


def compute(checkpoint: str, data: str) -> dict[str, Any]:
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [checkpoint], arg_overrides={"data": data, "source_lang": None, "target_lang": None}
    )
    model.eval()
    source, lengths, previous = batch(task.target_dictionary)
    with torch.no_grad():
        whole, _ = model(source, lengths, previous)
        steps = step_by_step(model, model.encoder(source, lengths), previous)
    return {"whole": whole.numpy(), "steps": steps.numpy()}


def main(user_dir: str, data: str, *checkpoints: str) -> None:
    utils.import_user_module(Namespace(user_dir=user_dir))
    import supernet

    for checkpoint in checkpoints:
        found = compute(checkpoint, data)
        np.savez(f"{checkpoint}.npz", code=np.array(supernet.__file__), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])

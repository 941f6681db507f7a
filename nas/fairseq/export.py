"""Exports of translation networks for fairseq: checkpoint, dictionaries and the plug-in.

The plug-in brings the modules along that it needs, so that the folder works wherever fairseq does.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from nas.fairseq.binarised import dictionary_text
from nas.fairseq.checkpoint import ARCH, network_of_checkpoint, write_checkpoint
from nas.fairseq.plugin import USER_DIR, write_plugin
from search_spaces.files import write_atomically
from supernet.blueprint import ARCHITECTURE_FILE, Blueprint
from supernet.data.tokenizer import SentencePieceTokenizer
from supernet.export.contents import Preprocessing, ReferenceOutputs
from supernet.export.formats import ExportFormat, ExportSource

CHECKPOINT = "checkpoint.pt"
LANGUAGES = ("source", "target")


class FairseqExport(ExportFormat):
    """A folder for `fairseq-generate`, `fairseq-interactive` and `fairseq-train`."""

    name = "fairseq"
    tolerance = 1e-5
    reference_file = "check.pt"

    def problem(self, blueprint: Blueprint) -> str | None:
        """See `ExportFormat.problem`."""
        if blueprint.task == "translation":
            return None
        return (
            f"--format fairseq is for translation, and this network is for "
            f"{blueprint.task.replace('_', ' ')}; choose safetensors"
        )

    def write(self, source: ExportSource, folder: Path) -> list[str]:
        """See `ExportFormat.write`."""
        weights = source.network.network.state_dict()
        write_checkpoint(folder / CHECKPOINT, source.blueprint, weights, LANGUAGES)
        names = [CHECKPOINT]
        for language in LANGUAGES:
            symbols = symbols_of(source.preprocessing, language)
            name = f"dict.{language}.txt"
            write_atomically(folder / name, dictionary_text(symbols, [1] * len(symbols)))
            names.append(name)
        (folder / USER_DIR.name).mkdir()
        plugin = write_plugin(folder / USER_DIR.name)
        return names + [file.relative_to(folder).as_posix() for file in plugin]

    @torch.inference_mode()
    def parity(self, folder: Path, blueprint: Blueprint, reference: ReferenceOutputs) -> float:
        """See `ExportFormat.parity`."""
        network = network_of_checkpoint(folder / CHECKPOINT, blueprint.architecture)
        return reference.difference({"logits": network(*reference.arguments)})

    def usage(self, source: ExportSource) -> str:
        """See `ExportFormat.usage`."""
        del source
        return (
            "With fairseq (`pip install fairseq-fixed`; nothing of ours is needed), in this "
            "folder, symbols with spaces between them on standard input:\n\n"
            "```\n"
            f"fairseq-interactive . --user-dir {USER_DIR.name} --path {CHECKPOINT} \\\n"
            "    --source-lang source --target-lang target \\\n"
            "    --beam 4 --lenpen 0.6 --max-len-a 1.2 --max-len-b 9\n"
            "```\n\n"
            "Where the tokenizer is a sentencepiece model, fairseq can split and join words: add "
            "`--bpe sentencepiece --sentencepiece-model FILE`. Training from scratch: "
            f"`fairseq-train DATA --user-dir {USER_DIR.name} --arch {ARCH} --nas-architecture "
            f"{ARCHITECTURE_FILE} …`; further training of these weights: the same with "
            f"`--finetune-from-model {CHECKPOINT}`.\n"
        )


def symbols_of(preprocessing: Preprocessing, side: str) -> tuple[str, ...]:
    """How each token of a side is written, by number."""
    content = preprocessing.files[str(preprocessing.facts[side])]
    if preprocessing.facts["kind"] == "sentencepiece":
        return SentencePieceTokenizer(content).symbols
    return tuple(json.loads(content))

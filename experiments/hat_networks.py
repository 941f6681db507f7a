"""HAT's released WMT'14 En-De networks, read from its configuration files.

Source: HAT, Hardware-Aware Transformers (Wang et al. 2020), table 1 and its released code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from experiments.paper_rows import PaperTable, Row, priced
from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.errors import ArchitectureError, DataError
from search_spaces.hat import from_hat
from search_spaces.settings import ModelSettings, TokenInput

TABLE = PaperTable("HAT, WMT'14 En-De", "translation", "hat")
TOLERANCES = (0.0005, 0.005)

MODEL = ModelSettings(
    input=TokenInput(vocab_size=32_768, share_embeddings=True),
    max_length=1024,
    qkv_dim=512,
    norm="post",
    positions="sinusoidal",
)

# File → name, parameters in millions, GFLOPs.
RELEASED = {
    "HAT_wmt14ende_raspberrypi_3.5s_bleu_25.8.yml": ("Raspberry Pi 3.5 s", 25.22, 1.53),
    "HAT_wmt14ende_titanxp_57.1ms_bleu_25.8.yml": ("Titan Xp 57.1 ms", 30.47, 1.87),
    "HAT_wmt14ende_titanxp_91.2ms_bleu_27.6.yml": ("Titan Xp 91.2 ms", 35.72, 2.19),
    "HAT_wmt14ende_titanxp_126.0ms_bleu_27.9.yml": ("Titan Xp 126.0 ms", 40.97, 2.54),
    "HAT_wmt14ende_titanxp_208.1ms_bleu_28.5.yml": ("Titan Xp 208.1 ms", 49.38, 3.09),
    "HAT_wmt14ende_xeon_450.9ms_bleu_28.5.yml": ("Xeon 450.9 ms", 56.73, 3.53),
}


def hat_rows(folder: Path) -> Iterator[Row]:
    """The released networks in `folder`, and Transformer-Big.

    Raises:
        DataError: for a file that is missing or of another form.
    """
    for file, (name, millions, gflops) in RELEASED.items():
        network = read_network(folder / file)
        yield priced(TABLE, name, MODEL, network, (millions, gflops), TOLERANCES)
    big = Architecture(
        EncoderStack(1024, (EncoderLayer("softmax", 16, 4096),) * 6),
        DecoderStack(1024, (DecoderLayer("softmax", 16, 4096, "softmax", 16, 1),) * 6),
    )
    wide = replace(MODEL, qkv_dim=1024)
    yield priced(TABLE, "Transformer-Big", wide, big, (176.4, 10.64), TOLERANCES)


def read_network(path: Path) -> Architecture:
    """A network in HAT's format.

    Raises:
        DataError: for a file that is missing or does not describe a network.
    """
    try:
        return from_hat(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: name the folder that holds it with --data") from error
    except ArchitectureError as error:
        raise DataError(f"{path} does not describe a network: {error}") from error

"""What a network that was trained from scratch says about inputs as a user has them.

Pictures are files, texts are lines. Each becomes what the network learnt from in the way that
`nas data prepare` and an export's ``reading.json`` describe (`Preprocessing`).

Shapes: N tokens, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.results.networks import OpenedData, TrainedNetwork, translate_text
from search_spaces.errors import DataError, UsageError
from search_spaces.settings import ImageInput, ModelSettings

if TYPE_CHECKING:
    from torch import Tensor

    from supernet.tasks.classification import ClassificationTask
    from supernet.tasks.language_modelling import LanguageModellingTask

BATCH_TOKENS = 16_384


@dataclass(frozen=True)
class Prediction:
    """An answer.

    Attributes:
        given: the picture's path, or the text.
        answer: name of the likeliest class, the translation, or how the text goes on.
        chances: name of each class → its probability, the likeliest first; empty where there are
            no classes.
    """

    given: str
    answer: str
    chances: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        chances = {"chances": dict(self.chances)} if self.chances else {}
        return {"input": self.given, "answer": self.answer, **chances}


def reads_pictures(settings: ModelSettings) -> bool:
    """Whether inputs are files of pictures; else they are texts."""
    return isinstance(settings.input, ImageInput)


def predict(
    network: TrainedNetwork,
    data: OpenedData,
    settings: ModelSettings,
    inputs: Sequence[str],
    tokens: int,
) -> Iterator[Prediction]:
    """The answers to inputs, in their order.

    Args:
        network: of a run.
        data: that it learnt from, of which only the preprocessing is used.
        settings: of the run's space.
        inputs: paths of pictures, or texts.
        tokens: that a language model writes behind each text.

    Raises:
        DataError: for what is no picture, or no text of the network's symbols; with its name.
        UsageError: for a text that is empty or too long, and networks that answer nothing that is
            written (embeddings).
    """
    from latency.turns import computing
    from supernet.beam_search import BeamSettings
    from supernet.tasks.classification import ClassificationTask
    from supernet.tasks.language_modelling import LanguageModellingTask
    from supernet.tasks.translation import TranslationTask

    task = data.task
    if isinstance(task, TranslationTask):
        found = translate_text(network, data, inputs, BeamSettings(), BATCH_TOKENS)
        yield from map(Prediction, inputs, found)
        return
    with computing(network.device):
        if isinstance(task, ClassificationTask):
            for given, row in zip(inputs, _read(task, settings, inputs), strict=True):
                yield _classified(network, task, given, row)
        elif isinstance(task, LanguageModellingTask):
            for given in inputs:
                yield Prediction(given, _continued(network, task, settings, given, tokens))
        else:
            raise UsageError(
                "networks that embed texts answer with vectors: nas export writes them in the form "
                "of sentence-transformers"
            )


def _classified(
    network: TrainedNetwork, task: ClassificationTask, given: str, inputs: Tensor
) -> Prediction:
    import torch

    with torch.inference_mode():
        logits_1K = network.model(inputs.to(network.device), network.architecture)
    chances_K = logits_1K[0].double().softmax(dim=-1)
    order = chances_K.argsort(descending=True, stable=True).tolist()
    chances = {task.label_names[k]: float(chances_K[k]) for k in order}
    return Prediction(given, next(iter(chances)), chances)


def _read(
    task: ClassificationTask, settings: ModelSettings, inputs: Iterable[str]
) -> Iterator[Tensor]:
    """Inputs as the network takes them, one at a time: ``(1, C, H, W)`` or ``(1, N)``."""
    import torch

    facts, form = task.reading, settings.input
    for given in inputs:
        if isinstance(form, ImageInput):
            yield _picture(Path(given), form, facts)
        else:
            row = _row(task, settings, given)
            if not row:
                raise UsageError("a text is empty: give at least one word of it")
            yield torch.tensor([row])


def _picture(path: Path, form: ImageInput, facts: Mapping[str, Any]) -> Tensor:
    """A picture's middle square, scaled and normalised, ``(1, C, H, W)``."""
    import torch

    from supernet.data.prepare.image_files import read_picture

    if facts["kind"] != "images":
        raise DataError("this network reads numbers, not pictures: its data had no pixels")
    pixels_HWC = torch.tensor(
        read_picture(path, form.channels, form.image_size), dtype=torch.float32
    )
    black, white = (torch.tensor(facts[name]) for name in ("black", "white"))
    scaled_HWC = black + (white - black) * pixels_HWC / 255
    return scaled_HWC.permute(2, 0, 1)[None]


def _row(task: ClassificationTask, settings: ModelSettings, text: str) -> list[int]:
    """The tokens of a text, cut to what the network reads."""
    most, kind = settings.max_length - settings.class_token, task.reading["kind"]
    if task.tokenizer is not None:
        return task.tokenizer.encode_cut(text, most)[0]
    if kind == "bytes":
        return [byte + 1 for byte in text.encode()[:most]]
    if kind != "symbols":
        raise DataError("this network reads numbers, not texts: its data had no words")
    symbols = list(task.reading["symbols"])  # the first of which is padding
    words = text.split()
    for word in words:
        if word not in symbols[1:]:
            raise DataError(
                f"{word!r} is none of the symbols that the network knows: {' '.join(symbols[1:])}"
            )
    if len(words) > most:
        raise UsageError(f"a text has {len(words)} symbols, and the network reads {most}")
    return [symbols.index(word) for word in words]


def _continued(
    network: TrainedNetwork,
    task: LanguageModellingTask,
    settings: ModelSettings,
    text: str,
    tokens: int,
) -> str:
    """A text's greedy continuation; of a long text the network reads the end."""
    import torch

    from supernet.data.tokenizer import BOS, PAD

    tokenizer = task.tokenizer
    begin = list(getattr(tokenizer, "begin", (BOS,)))
    prompt = [*begin, *tokenizer.encode([text])[0]]
    if not prompt:
        raise UsageError("a text is empty, and texts have no begin mark: give its first word")
    room = settings.max_length - tokens
    if room < 1:
        raise UsageError(
            f"--tokens {tokens} is too many: the network reads {settings.max_length} with the text"
        )
    new, written = prompt[-room:], list[int]()
    model: Any = network.model
    with torch.inference_mode():
        state = model.start(network.architecture)
        for _ in range(tokens):
            logits_1NV, state = model.step(torch.tensor([new], device=network.device), state)
            following_V = logits_1NV[0, -1, : tokenizer.vocab_size].float()
            if getattr(tokenizer, "padding", PAD) is not None:
                following_V[PAD] = -torch.inf
            new = [int(following_V.argmax())]
            written += new
    return tokenizer.decode([written])[0]

"""What a network that was trained from scratch says about inputs as a user has them.

Pictures are files or lie in tables, texts are lines. Each becomes what the network learnt from in
the way that `nas data prepare` and an export's ``reading.json`` describe (`Preprocessing`). The
network is one of a run, or an export, of which nothing is executed.

Shapes: N tokens, H height, W width, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nas.results.networks import OpenedData, TrainedNetwork
from search_spaces.errors import DataError, UsageError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TaskName
from search_spaces.wording import mark

if TYPE_CHECKING:
    from torch import Tensor

    from supernet.data.images import Pixels
    from supernet.data.tokenizer import Tokenizer

USUAL_TOKENS = 50  # that a language model writes behind a text where nothing is said
# Tasks whose networks answer with something that can be written on a line.
WRITTEN: tuple[TaskName, ...] = ("classification", "language_modelling", "translation")


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """How inputs become what a network reads, and its answers words.

    Attributes:
        task: of the network.
        settings: that all networks of its space share.
        facts: as `Preprocessing.facts`; empty where vocabularies say all.
        labels: names of the classes.
        source: the vocabulary of texts that are read; None where there is none.
        target: of those that are written.
        columns: role → column of the data that the network learnt from, where that was told.
    """

    task: TaskName
    settings: ModelSettings
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[str] = ()
    source: Tokenizer | None = None
    target: Tokenizer | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def pictures(self) -> bool:
        """Whether inputs are files of pictures; else they are texts."""
        return isinstance(self.settings.input, ImageInput)


@dataclass(frozen=True, eq=False, slots=True)
class Exported:
    """The network of an export, as `TrainedNetwork`."""

    architecture: Any
    model: Any
    device: str


class Asked(NamedTuple):
    """An input.

    Attributes:
        given: a picture's path, or a text; of a picture in a table the place where it stands.
        place: where the text stands, for messages; empty where that is not known.
        picture: the bytes of its file, where it stands in a table; else empty.
    """

    given: str
    place: str = ""
    picture: bytes = b""


@dataclass(frozen=True)
class Prediction:
    """An answer.

    Attributes:
        given: as `Asked.given`.
        answer: name of the likeliest class, the translation, or how the text goes on.
        chances: name of each class → its probability, the likeliest first; empty where there are
            no classes.
        cut_at: of a text that was cut the tokens that were read: its first ones, or its last ones
            where it goes on; None where all of it was read.
    """

    given: str
    answer: str
    chances: Mapping[str, float] = field(default_factory=dict)
    cut_at: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        chances = {"chances": dict(self.chances)} if self.chances else {}
        cut = {} if self.cut_at is None else {"cut_at": self.cut_at}
        return {"input": self.given, "answer": self.answer, **chances, **cut}


def reading_of(data: OpenedData, settings: ModelSettings) -> Reading:
    """How the networks of a run read.

    Args:
        data: that they learnt from, of which only the preprocessing is used.
        settings: of the run's space.

    Raises:
        UsageError: for networks whose answers are not written down, such as embeddings.
    """
    from supernet.tasks.classification import ClassificationTask
    from supernet.tasks.language_modelling import LanguageModellingTask
    from supernet.tasks.translation import TranslationTask

    task = data.task
    if isinstance(task, ClassificationTask):
        facts, labels = task.reading, task.label_names
        return Reading("classification", settings, facts, labels, task.tokenizer)
    if isinstance(task, LanguageModellingTask):
        words = task.tokenizer
        return Reading("language_modelling", settings, source=words, target=words)
    if isinstance(task, TranslationTask):
        words, written = task.source_tokenizer, task.target_tokenizer
        return Reading("translation", settings, source=words, target=written)
    raise _no_words(task.kind)


def cut_words(reading: Reading, length: int) -> str:
    """How a text was cut that is too long: the end of a sentence, without its full stop.

    Args:
        reading: how its network reads.
        length: tokens that were read, as `Prediction.cut_at`.
    """
    if reading.task == "language_modelling":
        return f"cut: the network read the last {length:,} tokens and nothing before"
    return f"cut at {length:,} tokens: the network read nothing behind them"


def open_exported(folder: Path, device: str) -> tuple[Exported, Reading]:
    """The network of an export and how it reads.

    Args:
        folder: made by `nas export`; nothing in it is executed.
        device: where to compute; graphs of ONNX always do on the processor.

    Raises:
        DataError: when a file is missing or damaged.
        UsageError: for exports that this does not open, networks of embeddings, and a device that
            is not there.
    """
    from latency.device import describe_device
    from supernet.export.opening import open_package

    package = open_package(folder)
    facts, blueprint = package.preprocessing.facts, package.blueprint
    if blueprint.task not in WRITTEN:
        raise _no_words(blueprint.task, folder)
    reading = Reading(
        blueprint.task,
        blueprint.settings,
        facts,
        package.preprocessing.labels,
        package.source,
        package.target,
    )
    model = package.model
    if package.runs_on_cpu:
        device = "cpu"
    else:
        describe_device(device)  # refuses one that is not there
        model = model.to(device)
    return Exported(blueprint.architecture, model, device), reading


def _no_words(task: str, export: Path | None = None) -> UsageError:
    """What to say of networks whose answers are no words.

    Args:
        task: of the networks.
        export: the folder that was given, if it was none of a run.
    """
    if task != "embedding":
        return UsageError(f"nas predict knows no way to write down what networks of {task} answer")
    card = f"{export / 'README.md'} has" if export else "the README.md of what nas export makes has"
    return UsageError(
        "networks that embed texts answer with vectors, which nas predict does not write down: "
        f"{card} the lines that make a vector of a text"
    )


def predict(
    network: TrainedNetwork | Exported,
    reading: Reading,
    inputs: Iterable[str | Asked],
    tokens: int,
) -> Iterator[Prediction]:
    """The answers to inputs, in their order.

    Args:
        network: of a run or an export.
        reading: how it reads.
        inputs: paths of pictures, or texts, or either with where it stands.
        tokens: that a language model writes behind each text.

    Raises:
        DataError: for what is no picture, or no text of the network's symbols; with its name.
        UsageError: for a text that is empty or too long, or too many tokens.
    """
    from latency.turns import computing

    asked = (Asked(one) if isinstance(one, str) else one for one in inputs)
    with computing(network.device):
        if reading.task == "translation":
            yield from _translated(network, reading, list(asked))
            return
        room = reading.settings.max_length - tokens
        if reading.task == "language_modelling" and room < 1:
            raise UsageError(
                f"{mark('tokens')} {tokens} is too many: the network reads "
                f"{reading.settings.max_length} with the text"
            )
        for one in asked:
            with _naming(one.place):
                if reading.task == "classification":
                    found = _classified(network, reading, one)
                else:
                    found = _continued(network, reading, one.given, tokens)
            yield found


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Let a refusal of a text name where it stands."""
    try:
        yield
    except (DataError, UsageError) as error:
        if not place:
            raise
        kind = DataError if isinstance(error, DataError) else UsageError
        raise kind(f"{place}: {error.marked}") from error


def _translated(
    network: TrainedNetwork | Exported,
    reading: Reading,
    asked: Sequence[Asked],
) -> Iterator[Prediction]:
    from supernet.beam_search import BeamSettings
    from supernet.tasks.translating import StepwiseTranslator, check_fits, translate_tokens

    assert reading.source is not None and reading.target is not None
    lines = [one.given for one in asked]
    rows = reading.source.encode(lines)
    for one, row in zip(asked, rows, strict=True):
        check_fits(one.place or "a text", row, reading.settings.max_length)
    model: Any = network.model
    if hasattr(model, "translated"):  # graphs have a search of their own
        return map(Prediction, lines, model.translated(lines))
    found = translate_tokens(
        StepwiseTranslator(model, network.architecture),
        rows,
        reading.source,
        reading.target,
        BeamSettings(),
        max_tokens=None,
        device=network.device,
    )
    return map(Prediction, lines, found)


def _classified(network: TrainedNetwork | Exported, reading: Reading, asked: Asked) -> Prediction:
    import torch

    form, cut_at = reading.settings.input, None
    model: Any = network.model
    if isinstance(form, ImageInput):
        inputs = _picture(asked, form, reading.facts)
    else:
        row, cut_at = _row(reading, asked.given)
        inputs = torch.tensor([row])
    with torch.inference_mode():
        logits_1K = model(inputs.to(network.device), network.architecture)
    chances_K = logits_1K[0].double().softmax(dim=-1)
    order = chances_K.argsort(descending=True, stable=True).tolist()
    names = reading.labels or tuple(map(str, range(len(order))))
    chances = {names[k]: float(chances_K[k]) for k in order}
    return Prediction(asked.given, next(iter(chances)), chances, cut_at)


def _picture(asked: Asked, form: ImageInput, facts: Mapping[str, Any]) -> Tensor:
    """A picture's middle square, scaled as the data were, and normalised, ``(1, C, H, W)``."""
    import torch

    from supernet.data.examples import enlarge

    if facts["kind"] != "images":
        raise DataError("this network reads numbers, not pictures: its data had no pixels")
    if form.channels not in (1, 3):
        raise DataError(
            f"this network reads {form.channels} channels, and no file of a picture has so many: "
            "only 1 and 3 can be read from PNG and JPEG"
        )
    pixels_HWC = torch.tensor(
        _pixels(asked, form.channels, facts.get("side", form.image_size)), dtype=torch.float32
    )
    black, white = (torch.tensor(facts[name]) for name in ("black", "white"))
    scaled_HWC = black + (white - black) * pixels_HWC / 255
    return enlarge(scaled_HWC.permute(2, 0, 1)[None], form.image_size)


def _pixels(asked: Asked, channels: int, side: int) -> Pixels:
    """A picture as data are prepared, ``(side, side, C)``."""
    import numpy as np

    from supernet.data.prepare.image_files import EncodedImages, read_picture

    if not asked.picture:
        return read_picture(Path(asked.given), channels, side)
    alone, none = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint64)

    def pictures() -> Iterator[tuple[str, bytes | Path]]:
        yield asked.given, asked.picture

    images = EncodedImages(pictures, alone, alone, (), "", channels, none, {}, none)
    (pixels_1HWC,) = images.read(alone, side)
    pixels_HWC: Pixels = pixels_1HWC[0]
    return pixels_HWC


def _row(reading: Reading, text: str) -> tuple[list[int], int | None]:
    """The tokens of a text, and where it was cut: as the data were, and to what is read."""
    row, cut_at = _tokens(reading, text)
    if not row:
        raise UsageError("a text is empty: give at least one word of it")
    return row, cut_at


def _tokens(reading: Reading, text: str) -> tuple[list[int], int | None]:
    from supernet.data.checkpoint_tokenizer import CheckpointTokenizer

    settings, kind = reading.settings, reading.facts["kind"]
    most = settings.max_length - settings.class_token
    most = min(most, reading.facts.get("max_tokens", most))
    if isinstance(reading.source, CheckpointTokenizer):
        row, cut = reading.source.encode_cut(text, most)
        return row, most if cut else None
    if kind == "bytes":
        row = [byte + 1 for byte in text.encode()]
        return row[:most], most if len(row) > most else None
    if kind != "symbols":
        raise DataError("this network reads numbers, not texts: its data had no words")
    symbols = list(reading.facts["symbols"])  # the first of which is padding
    words = text.split()
    for word in words:
        if word not in symbols[1:]:
            raise DataError(
                f"{word!r} is none of the symbols that the network knows: {' '.join(symbols[1:])}"
            )
    if len(words) > most:
        raise UsageError(f"a text has {len(words)} symbols, and the network reads {most}")
    return [symbols.index(word) for word in words], None


def _continued(
    network: TrainedNetwork | Exported, reading: Reading, text: str, tokens: int
) -> Prediction:
    """A text's greedy continuation; of a long text the network reads the end."""
    import torch

    from supernet.data.tokenizer import BOS, PAD

    tokenizer, longest = reading.target, reading.settings.max_length
    assert tokenizer is not None
    begin = list(getattr(tokenizer, "begin", (BOS,)))
    prompt = [*begin, *tokenizer.encode([text])[0]]
    if not prompt:
        raise UsageError("a text is empty, and texts have no begin mark: give its first word")
    room = longest - tokens
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
    cut_at = room if len(prompt) > room else None
    return Prediction(text, tokenizer.decode([written])[0], cut_at=cut_at)

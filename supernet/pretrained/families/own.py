"""Networks that were found here and that no family of transformers has: their own exports.

Such a folder comes with its code, of which nothing is run: what the network is stands in its
``config.json``, in the form of ``architecture.json``.
"""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.architecture import SKIP, Architecture, base_kind
from search_spaces.errors import DataError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TaskName
from supernet.blueprint import TASK_FORMS, Blueprint
from supernet.exported_names import plain_names
from supernet.pretrained.config import Config
from supernet.pretrained.families.base import Family
from supernet.pretrained.names import NamePair, layer_kinds
from supernet.pretrained.shapes import bare_network

OWN_MODEL_TYPE = "nas_network"
PREFIX = "network."
"""Of the names of tensors."""
KINDS = ("softmax", "window", "linear", SKIP)
KNOWN_TASKS = "checkpoints write texts, embed them or classify images"
# What is told to transformers beside the description, which has it too or does without.
TOLD = (
    "auto_map",
    "decoder_start_token_id",
    "hidden_size",
    "image_size",
    "max_position_embeddings",
    "mean",
    "network",
    "num_hidden_layers",
    "std",
    "tie_word_embeddings",
    "vocab_size",
)


class OwnFamily(Family):
    """``nas_network``: layers of any sizes, with softmax, windows, linear attention or none."""

    model_type = OWN_MODEL_TYPE
    classes = tuple(form.model_class for form in TASK_FORMS.values())
    base = PREFIX

    def task_of(self, settings: ModelSettings, architecture: Architecture) -> TaskName:
        """See `Family.task_of`."""
        if architecture.decoder is not None:
            return "language_modelling"
        return "classification" if isinstance(settings.input, ImageInput) else "embedding"

    def read(self, config: Config) -> tuple[ModelSettings, Architecture]:
        """See `Family.read`."""
        for key in TOLD:
            config.get(key)
        found = Blueprint.from_json(config.get("description"), f"description of {config.file}")
        if (problem := self._problem_of(found)) is not None:
            raise DataError(f"no search begins with the export in {config.file.parent}: {problem}")
        return found.settings, found.architecture

    def pairs(self, settings: ModelSettings, architecture: Architecture) -> Iterator[NamePair]:
        """See `Family.pairs`."""
        network = bare_network(self.task_of(settings, architecture), settings, architecture)
        for ours, theirs in plain_names(network).items():
            yield NamePair(PREFIX + theirs, (ours,))

    def _problem_of(self, found: Blueprint) -> str | None:
        """What no checkpoint has, as half a sentence; None where there is nothing."""
        whole = found.architecture
        if whole.encoder is not None and whole.decoder is not None:
            return f"it translates, and {KNOWN_TASKS}"
        if self.task_of(found.settings, whole) != found.task:
            return f"it classifies texts, and {KNOWN_TASKS}"
        if whole.decoder is not None and whole.decoder.memory_length:
            return "it has a memory of earlier segments"
        odd = [kind for kind in layer_kinds(whole) if base_kind(kind) not in KINDS]
        if odd:
            return f"layers of checkpoints are {', '.join(KINDS)}; one of its is {odd[0]}"
        return None

"""What may stand in the ``[data]`` table of a space, by its task and its data set."""

from __future__ import annotations

from search_spaces.recall import SETTING as RECALL_WINDOW
from search_spaces.recall_form import RECALL_FORM
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.tasks import TaskName

DATASET = "dataset"
RECALL = "recall"

_OF_TASK: dict[TaskName, tuple[str, ...]] = {
    "classification": (),
    "translation": ("languages", "post_process"),
    "language_modelling": (RECALL_WINDOW,),
    "embedding": (),
}
_OF_IMAGES = ("mean", "std")


def data_keys(task: TaskName, model: ModelSettings, dataset: object) -> tuple[str, ...]:
    """The keys that a space may have in ``[data]``.

    Args:
        task: of the space.
        model: its settings; images are normalised as the table says.
        dataset: what the table names as its data set; None where it names none, and then a
            language model's may be any.
    """
    keys = (DATASET, *_OF_TASK[task])
    if isinstance(model.input, ImageInput):
        keys += _OF_IMAGES
    if task == "language_modelling" and dataset in (None, RECALL):
        keys += RECALL_FORM
    return keys

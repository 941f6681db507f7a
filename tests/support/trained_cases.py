"""Runs with random networks in place of trained ones, and of the files only those that matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.objectives import OBJECTIVES
from nas.request.presets import budget_for
from nas.request.spec import build_spec
from nas.run.folder import RunFolder
from nas.search.front import FrontEntry, build_front
from search_spaces.architecture import Architecture
from search_spaces.loading import dump_space, parse_space
from search_spaces.space import SearchSpace
from search_spaces.variation import sample_distinct
from supernet.building import build_network
from supernet.data import synthetic
from supernet.tasks.opening import open_task
from supernet.training.checkpoint import save
from tests.support.pipeline_cases import TINY

TRANSLATION = """
[space]
name = "tiny-translation"
task = "translation"
[model]
max_length = 64
head_dim = 4
[model.input]
kind = "tokens"
vocab_size = 160
share_embeddings = true
[encoder]
embed_dim = [8, 12]
num_layers = [1, 2]
attention = ["softmax", "linear"]
num_heads = [1, 2]
ffn_dim = [8, 16]
[decoder]
embed_dim = [8, 12]
num_layers = [1, 2]
self_attention = ["softmax", "linear"]
self_num_heads = [1, 2]
ffn_dim = [8, 16]
cross_attention = ["softmax", "linear"]
cross_num_heads = [1, 2]
ende_connect = [1]
[data]
dataset = "synthetic"
"""
LANGUAGE = """
[space]
name = "tiny-language"
task = "language_modelling"
[model]
max_length = 64
head_dim = 4
[model.input]
kind = "tokens"
vocab_size = 100
[decoder]
embed_dim = [8, 12]
num_layers = [1, 2]
self_attention = ["softmax", "linear"]
self_num_heads = [1, 2]
ffn_dim = [8, 16]
[data]
dataset = "synthetic"
"""
SPACES = {"translation": TRANSLATION, "language_modelling": LANGUAGE, "classification": TINY}


@pytest.fixture(scope="module", autouse=True)
def small_corpus() -> Iterator[None]:
    """A part of the generated corpus: an epoch of it is eight updates or so."""
    with pytest.MonkeyPatch.context() as patch:
        for name, count in (("TRAIN", 150), ("VALID", 12), ("TEST", 12)):
            patch.setattr(synthetic, name, count)
        yield


def networks(space: SearchSpace, count: int) -> list[Architecture]:
    """Some networks of a space, always the same."""
    return space.decode(sample_distinct(space, np.random.default_rng(1), count))


def begun(path: Path, text: str = TRANSLATION, **values: Any) -> RunFolder:
    """A run whose data are known, and nothing else."""
    space = parse_space(text, "a space of the tests")
    given: dict[str, Any] = {
        "space_toml": dump_space(space),
        "dataset": space.data.get("dataset"),
        "budget": budget_for(space, "smoke", {"threads": "1"}),
        "objectives": ("quality", "flops"),
    }
    folder = RunFolder.create(path, build_spec(**(given | values)))
    spec = folder.spec
    task = open_task(space, spec.dataset, spec.data, spec.seed)
    folder.write_json("data.json", {"dataset": task.name, "digest": task.digest, **task.describe()})
    return folder


def with_front(folder: RunFolder, count: int = 3) -> list[str]:
    """Write a front of `count` networks; their ids."""
    entries = [
        FrontEntry(one.id, one, {"quality": 1.0 + n, "flops": 10.0 - n}, {})
        for n, one in enumerate(networks(folder.spec.space, count))
    ]
    objectives = [OBJECTIVES[name] for name in folder.spec.objectives]
    folder.write_json("pareto.json", build_front(entries, objectives, (9.0, 99.0), {}).to_json())
    return [entry.id for entry in entries]


def train(folder: RunFolder, number: int = 0) -> str:
    """Pretend that a network of the space was trained from scratch; its id."""
    space, architecture = folder.spec.space, networks(folder.spec.space, number + 1)[number]
    model = build_network(space.model, space.task, architecture).network
    state = {name: value.clone() for name, value in model.state_dict().items()}
    # At birth a network writes one word again and again: the one that it is given. The layers of
    # these count for more than the words they are given.
    rng = torch.Generator().manual_seed(number)
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.dim() == 2:
            scale = 0.1 if "table" in name else 1.0
            state[name] = scale * torch.randn(parameter.shape, generator=rng)
    where = f"retrained/{architecture.id}"
    save(
        folder.path / where / "weights.pt", {"model": state, "architecture": architecture.to_json()}
    )
    folder.write_json(f"{where}/result.json", {"id": architecture.id})
    outputs = [f"{where}/result.json", f"{where}/weights.pt"]
    folder.finish(f"retrain-{architecture.id}", "digest", outputs, 1.0)
    return architecture.id


def trained(path: Path, text: str = TRANSLATION, **values: Any) -> RunFolder:
    """A run with a front and one network trained from scratch."""
    folder = begun(path, text, **values)
    with_front(folder)
    train(folder)
    return folder

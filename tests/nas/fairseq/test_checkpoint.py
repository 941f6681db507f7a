"""Checkpoints for fairseq and of fairseq's: written, read, refused when they are something else."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.fairseq.checkpoint import (
    average_weights,
    network_of_checkpoint,
    packed_blueprint,
    read_blueprint,
    read_checkpoint,
    read_trained,
    write_checkpoint,
)
from search_spaces.errors import ArchitectureError, DataError, UnknownNameError, UsageError
from search_spaces.loading import load_space, parse_space
from search_spaces.notation import to_text
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.extraction import StandAlone
from supernet.sequence_models import TranslationModel
from supernet.training.checkpoint import save
from tests.support.trained_cases import LANGUAGE, TRANSLATION, networks

SPACE = parse_space(TRANSLATION, "a space of the tests")
NETWORK, OTHER = networks(SPACE, 2)
BLUEPRINT = Blueprint("translation", SPACE.model, NETWORK)


def build(seed: int = 0) -> StandAlone:
    torch.manual_seed(seed)
    network = build_network(SPACE.model, "translation", NETWORK)
    assert isinstance(network.network, TranslationModel)
    return network.eval()


def written(path: Path, network: StandAlone) -> Path:
    write_checkpoint(path, BLUEPRINT, network.network.state_dict(), ("en", "de"))
    return path


def as_fairseq_saves(path: Path, **changes: Any) -> Path:
    """With its arguments as a Namespace, arrays among its meters, and half precision."""
    state = read_checkpoint(written(path, build()))
    model = {name: tensor.half() for name, tensor in state["model"].items()}
    arguments = argparse.Namespace(
        arch="nas_transformer", nas_architecture=packed_blueprint(BLUEPRINT)
    )
    state |= {"model": model, "cfg": {"model": arguments}}
    state["extra_state"] |= {"metrics": {"bleu": np.arange(4), "mean": np.float64(0.5)}}
    state["extra_state"]["train_iterator"]["epoch"] = 7
    torch.save({**state, **changes}, path)
    return path


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    network = build()
    found = read_trained(written(tmp_path / "c.pt", network))
    assert found.blueprint == BLUEPRINT and (found.epochs, found.updates) == (1, 0)
    own, back = network.network.state_dict(), found.network.network.state_dict()
    assert all(torch.equal(own[name], back[name]) for name in own)


def test_a_checkpoint_of_ours_is_made_of_plain_values(tmp_path: Path) -> None:
    path = written(tmp_path / "c.pt", build())
    assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []


def test_a_checkpoint_as_fairseq_saves_it_is_read(tmp_path: Path) -> None:
    path = as_fairseq_saves(tmp_path / "c.pt")
    with pytest.raises(pickle.UnpicklingError, match="Namespace"):
        torch.load(path)
    found = read_trained(path)
    assert found.epochs == 7 and not found.network.training
    assert next(found.network.parameters()).dtype == torch.float32


def test_the_mean_of_several(tmp_path: Path) -> None:
    nets = [build(seed) for seed in range(3)]
    mean = average_weights(nets)
    for name, tensor in mean.items():
        stacked = torch.stack([net.network.state_dict()[name] for net in nets])
        torch.testing.assert_close(tensor, stacked.mean(0))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = as_fairseq_saves(tmp_path / "c.pt", bomb=Bomb())
    with pytest.raises(DataError, match="cannot be read as a checkpoint of fairseq's"):
        read_trained(path)
    assert not Path("exploded").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "cannot be read"),
        (flip, "is damaged|cannot be read"),
        (lambda p: p.write_bytes(b""), "cannot be read"),
        (lambda p: p.write_bytes(pickle.dumps({"model": {}})), "cannot be read"),
        (lambda p: p.unlink(), "there is no checkpoint"),
        (lambda p: save(p, {"weights": {}}), "it holds no model"),
        (lambda p: torch.save([1, 2], p), "it holds no model"),
    ],
)
def test_damaged_checkpoints(tmp_path: Path, damage: Any, message: str) -> None:
    path = written(tmp_path / "c.pt", build())
    damage(path)
    with pytest.raises(DataError, match=message):
        read_trained(path)


def changed(path: Path, change: Any) -> Path:
    state = read_checkpoint(written(path, build()))
    change(state["model"], state["cfg"]["model"])
    save(path, state)
    return path


FIRST = "network.tables.0.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, _: m.pop(FIRST), "has no tensor tables.0.weight"),
        (lambda m, _: m.update(more=torch.ones(1)), "a tensor too much, more"),
        (lambda m, _: m.update({FIRST: m[FIRST][:-1]}), "tables.0.weight is .*, but the network's"),
        (lambda m, _: m.update({FIRST: "text"}), "which is no tensor"),
        (lambda _, c: c.pop("nas_architecture"), "of fairseq's model 'nas_transformer'"),
        (lambda _, c: c.update(nas_architecture="arch.json"), "no description of an exported"),
        (lambda _, c: c.update(nas_architecture="{" * 100_000), "no description of an exported"),
    ],
)
def test_checkpoints_of_other_networks(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_trained(changed(tmp_path / "c.pt", change))


def test_another_architecture_than_expected(tmp_path: Path) -> None:
    path = written(tmp_path / "c.pt", build())
    assert network_of_checkpoint(path, NETWORK).architecture == NETWORK
    with pytest.raises(DataError, match=f"of the network {NETWORK.id}, not of {OTHER.id}"):
        network_of_checkpoint(path, OTHER)


# -- what fairseq is told -------------------------------------------------------------------------


def test_a_network_is_named_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(TRANSLATION, "utf-8")
    (tmp_path / "arch.json").write_text(packed_blueprint(BLUEPRINT), "utf-8")
    space = str(tmp_path / "space.toml")
    assert read_blueprint(str(tmp_path / "arch.json"), None) == BLUEPRINT
    assert read_blueprint(packed_blueprint(BLUEPRINT), None) == BLUEPRINT
    assert read_blueprint(to_text(NETWORK), space) == BLUEPRINT


@pytest.mark.parametrize(
    ("architecture", "space", "error", "message"),
    [
        ("nowhere.json", None, UsageError, "nowhere.json: No such file"),
        (".", None, UsageError, "Is a directory"),
        (to_text(NETWORK), None, UsageError, "give the space with --nas-space"),
        (to_text(NETWORK), "wmt", UnknownNameError, "no space named 'wmt'"),
        (to_text(NETWORK), "wmt14", ArchitectureError, "the space wmt14 allows"),
        ("E8: x", "wmt14", ArchitectureError, "'x' is no layer"),
        ('{"model": {}}', None, DataError, "no description of an exported network"),
    ],
)
def test_wrong_networks(
    architecture: str, space: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_blueprint(architecture, space)


def test_networks_that_do_not_translate_are_refused() -> None:
    space = parse_space(LANGUAGE, "a space of the tests")
    other = Blueprint("language_modelling", space.model, networks(space, 1)[0])
    with pytest.raises(DataError, match="the plug-in is for translation"):
        read_blueprint(packed_blueprint(other), None)
    assert load_space("wmt14").task == "translation"

"""The study of first corrections on a tiny checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import first_corrections
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.pretrained.space import space_around
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import write_model
from tests.support.tokenizer_cases import byte_level, prepared_stream, write_checkpoint

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def gpt2(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "gpt2"
    write_model(hub, folder, "gpt2", vocab_size=280)
    return write_checkpoint(folder, byte_level(marked=True))


def test_networks_differ_in_what_their_names_say(gpt2: Path) -> None:
    checkpoint = read_checkpoint(gpt2)
    space, own = space_around(checkpoint), checkpoint.architecture
    found = first_corrections.smaller_networks(space, own, [2, 0, 1])
    names = ["ffn_dim 16", "ffn_dim 32", "self_num_heads 3", "smallest of both", "2 layers"]
    assert list(found) == names
    decoders = {name: network.decoder for name, network in found.items()}
    for name, decoder in decoders.items():
        assert decoder is not None and len(decoder.layers) == (2 if name == "2 layers" else 3)
        small = name in ("ffn_dim 16", "smallest of both")
        assert {layer.ffn_dim == 16 for layer in decoder.layers} == {small}
    assert all(space.contains(network) for network in found.values())
    kinds = first_corrections.other_kinds(space, own)
    assert list(kinds) == ["linear", "window:16"]


def test_a_study_of_all_of_them(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared_stream(tmp_path, byte_level(marked=True))
    monkeypatch.setattr("experiments.harness.RESULTS", tmp_path)
    given = ["--checkpoint", str(gpt2), "--data", str(tmp_path / "data"), "--updates", "2"]
    given += ["--work", str(tmp_path / "work"), "--name", "tiny", "--examples", "8", "--json"]
    assert first_corrections.STUDY.main(given) in (0, 1)
    numbers = json.loads(capsys.readouterr().out)
    assert numbers == json.loads((tmp_path / "tiny.json").read_text())
    assert numbers["cut"].keys() == numbers["fitted"].keys()
    assert numbers["cut"]["2 layers"] == numbers["fitted"]["2 layers"]
    assert numbers["cut"]["ffn_dim 16"] != numbers["fitted"]["ffn_dim 16"]
    assert numbers["begun"]["linear"] != numbers["distilled"]["linear"]
    assert len(list(first_corrections.show(numbers))) == 3

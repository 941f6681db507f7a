"""The search space around a checkpoint holds the checkpoint, and can be edited and used."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nas.console.app import app
from search_spaces.errors import DataError
from search_spaces.loading import parse_space
from search_spaces.variation import largest
from supernet.building import build_supernet
from supernet.data.sources import Scale
from supernet.extraction import extract
from supernet.pretrained.checkpoint import Checkpoint, read_checkpoint
from supernet.pretrained.space import kinds_around, shares, space_around, space_text
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import FAMILIES, tokens_of, write_model

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def checkpoints(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    place = tmp_path_factory.mktemp("checkpoints")
    return {name: read_checkpoint(write_model(hub, place / name, name)) for name in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_checkpoint_is_in_its_space(checkpoints: dict[str, Checkpoint], family: str) -> None:
    found = checkpoints[family]
    text = space_text(found)
    space = parse_space(text, "mine.toml")
    assert space.digest == space_around(found).digest
    assert space.contains(found.architecture) and space.size > 100
    ours = space.encode([found.architecture])
    top = largest(space).reshape(1, -1)
    sizes = [n for n, slot in enumerate(space.slots) if not slot.gene.endswith("attention")]
    assert (ours[:, sizes] == top[:, sizes]).all()
    assert "\n    " not in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("family", FAMILIES)
def test_networks_of_the_space_can_be_built(
    checkpoints: dict[str, Checkpoint], family: str
) -> None:
    found = checkpoints[family]
    space = space_around(found)
    network = extract(build_supernet(space), found.architecture)
    kind = re.compile(r"projections\.\w+")
    shapes = {kind.sub("", name): t.shape for name, t in found.weights().items()}
    own = network.network.state_dict()
    assert shapes == {kind.sub("", name): t.shape for name, t in own.items()}
    if family == "bert":
        assert network(tokens_of(1))[1].shape == (3, 24)
    elif family != "vit":
        assert network(tokens_of(1)).shape[2] == 61


def test_windows_see_where_a_text_is_read(checkpoints: dict[str, Checkpoint]) -> None:
    for name, found in checkpoints.items():
        assert space_around(found).model.window_first == (name == "bert")


def test_layers_that_differ_offer_the_same(checkpoints: dict[str, Checkpoint]) -> None:
    space = space_around(checkpoints["qwen3"])
    kinds = [space.slot(f"decoder.{n}.self_attention").choices for n in range(3)]
    assert kinds == [("softmax", "linear", "window:5", "window:16")] * 3
    assert space.slot("decoder.0.self_num_kv_heads").choices == (2,)
    assert space.slot("decoder.0.self_num_heads").choices == (4,)


def test_kinds_follow_the_positions(checkpoints: dict[str, Checkpoint]) -> None:
    settings = checkpoints["llama"].settings
    for positions, windows in ((16, []), (512, [16, 64]), (8_192, [256, 1_024])):
        kinds = kinds_around("softmax", replace(settings, max_length=positions), False)
        assert kinds == ("softmax", "linear", *(f"window:{size}" for size in windows))
    kinds = kinds_around("softmax", replace(settings, max_length=131_072), False)
    assert kinds == ("softmax", "linear", "window:4096")
    kinds = kinds_around("window:1024", replace(settings, max_length=8_192), False)
    assert kinds == ("linear", "window:256", "window:1024")
    kinds = kinds_around("softmax", replace(settings, max_length=512), True)
    assert kinds == ("softmax", "linear", "window:16", "window:32")
    assert kinds_around("softmax", checkpoints["vit"].settings, True) == ("softmax", "linear")


def test_shares() -> None:
    assert shares(1536, (1 / 2, 3 / 4, 1), 8) == (768, 1152, 1536)
    assert shares(12, (2 / 3, 1)) == (8, 12)
    assert shares(6, (1 / 2, 2 / 3, 5 / 6, 1)) == (3, 4, 5, 6)
    assert shares(1, (1 / 2, 1)) == (1,)
    assert shares(11, (1 / 2, 1), 8) == (8, 11)


def test_positions_without_a_table_are_cut_to_what_a_space_can_say(
    checkpoints: dict[str, Checkpoint],
) -> None:
    found = checkpoints["llama"]
    long = replace(found, settings=replace(found.settings, max_length=10_000_000))
    assert parse_space(space_text(long), "mine.toml").model.max_length == 1_000_000


def test_an_encoder_of_texts_reads_many_short_ones(checkpoints: dict[str, Checkpoint]) -> None:
    space = space_around(checkpoints["bert"])
    assert space.task == "embedding" and space.workload == {"batch": 1, "source": 48}
    for preset in space.presets.values():
        assert (preset["supernet"]["batch_size"], preset["supernet"]["distillation"]) == (64, 0.0)
    long = replace(checkpoints["bert"].settings, max_length=512)
    assert space_around(replace(checkpoints["bert"], settings=long)).workload["source"] == 128


@pytest.mark.parametrize("name", ["qwen3", "[b]o\nld\x1b[31m", "---", "ü" * 80])
def test_the_command(checkpoints: dict[str, Checkpoint], name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.symlink_to(checkpoints["qwen3"].folder.resolve(), target_is_directory=True)
    done = CliRunner().invoke(app, ["space", "from", str(folder)])
    assert done.exit_code == 0
    file = tmp_path / "mine.toml"
    file.write_text(done.stdout)
    checked = CliRunner().invoke(app, ["space", "check", str(file)])
    assert checked.exit_code == 0 and "different networks" in checked.stdout


def test_the_command_refuses_what_is_no_checkpoint(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["space", "from", str(tmp_path)])
    assert done.exit_code == 2 and not done.stdout
    assert "config.json is missing: give a whole folder of a checkpoint" in done.stderr


def test_pictures_are_normalised_as_for_the_checkpoint(hub: Any, tmp_path: Path) -> None:
    place = write_model(hub, tmp_path / "vit", "vit")
    assert space_around(read_checkpoint(place)).data == {}
    values = {"image_mean": [0.5, 0.4], "image_std": [0.5, 0.2], "do_normalize": True}
    (place / "preprocessor_config.json").write_text(json.dumps(values))
    found = parse_space(space_text(read_checkpoint(place)), "mine.toml")
    assert Scale.read(found.data, found.model.input) == Scale((0.5, 0.4), (0.5, 0.2))


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        ({"do_normalize": False, "image_mean": [0.4, 0.4]}, 0.0, 1.0),
        ({"do_normalize": True}, 0.5, 0.5),
        ({"image_mean": 0.25, "image_std": None}, 0.25, 0.5),
        ({"rescale_factor": 1 / 255, "image_mean": 0.3}, 0.3, 0.5),
        ({"rescale_factor": 0.00392156862745098, "image_mean": 0.3}, 0.3, 0.5),
        ({"rescale_factor": 2 / 255, "image_mean": 1.0}, 0.5, 0.25),
        ({"rescale_factor": 1e-15, "image_mean": 0.0}, 0.0, 0.5 / 255e-15),
        ({"do_rescale": False, "image_mean": 127.5, "image_std": 51}, 0.5, 0.2),
        ({"do_rescale": False, "do_normalize": False}, 0.0, 1 / 255),
    ],
)
def test_pictures_are_normalised_as_usual_where_the_checkpoint_does_not_say_it(
    hub: Any, values: dict[str, Any], mean: float, std: float, tmp_path: Path
) -> None:
    place = write_model(hub, tmp_path / "vit", "vit")
    (place / "preprocessor_config.json").write_text(json.dumps(values))
    found = parse_space(space_text(read_checkpoint(place)), "mine.toml")
    assert Scale.read(found.data, found.model.input) == Scale((mean, mean), (std, std))


@pytest.mark.parametrize("value", ["0.5", {}, [0.5, "a"]])
def test_scales_of_pictures_that_are_none(hub: Any, value: Any, tmp_path: Path) -> None:
    place = write_model(hub, tmp_path / "vit", "vit")
    (place / "preprocessor_config.json").write_text(json.dumps({"image_mean": value}))
    with pytest.raises(DataError, match="image_mean is .* a number for each channel"):
        space_around(read_checkpoint(place))


@pytest.mark.parametrize("values", [{"rescale_factor": 5e-324}, {"rescale_factor": 1e300}])
def test_scales_that_no_float_holds(hub: Any, values: Any, tmp_path: Path) -> None:
    place = write_model(hub, tmp_path / "vit", "vit")
    more = {"image_mean": 1e10, "image_std": 1e-30}
    (place / "preprocessor_config.json").write_text(json.dumps(values | more))
    with pytest.raises(DataError, match="pictures cannot be normalised with a rescale_factor of"):
        space_around(read_checkpoint(place))


@pytest.mark.parametrize("factor", [0, -1, True, "1/255", [1], 10**400, math.inf])
def test_factors_of_pictures_that_are_none(hub: Any, factor: Any, tmp_path: Path) -> None:
    place = write_model(hub, tmp_path / "vit", "vit")
    (place / "preprocessor_config.json").write_text(json.dumps({"rescale_factor": factor}))
    with pytest.raises(DataError, match="rescale_factor is .* a number above 0"):
        space_around(read_checkpoint(place))


def test_large_vocabularies_are_scored_in_parts(hub: Any, tmp_path: Path) -> None:
    small = read_checkpoint(write_model(hub, tmp_path / "small", "llama"))
    assert "loss_chunk" not in space_around(small).presets["quick"]["supernet"]
    large = read_checkpoint(write_model(hub, tmp_path / "large", "llama", vocab_size=999_999))
    chunk = space_around(large).presets["quick"]["retrain"]["loss_chunk"]
    assert chunk == 2**26 // 999_999

"""A small translation network that was trained for half a minute, with every kind of attention."""

from __future__ import annotations

from pathlib import Path

from nas.objectives import OBJECTIVES
from nas.request.presets import budget_for
from nas.run.folder import RunFolder
from nas.search.front import FrontEntry, build_front
from nas.stages.retrain import retrain
from search_spaces.architecture import Architecture
from search_spaces.loading import parse_space
from tests.support.trained_cases import begun

SPACE = """
[space]
name = "small-translation"
task = "translation"
[model]
max_length = 64
head_dim = 16
positions = "sinusoidal"
omni_span = 2
[model.input]
kind = "tokens"
vocab_size = 160
share_embeddings = true
[encoder]
embed_dim = [48, 64]
num_layers = [2]
attention = ["softmax", "linear", "omni"]
num_heads = [2, 4]
ffn_dim = [128]
[decoder]
embed_dim = [48, 64]
num_layers = [2]
self_attention = ["softmax", "linear", "omni"]
self_num_heads = [2, 4]
ffn_dim = [128]
cross_attention = ["softmax", "linear", "omni"]
cross_num_heads = [2, 4]
ende_connect = [1, 2]
[data]
dataset = "synthetic"
"""
TRAINING = {
    "threads": "1",
    "retrain.epochs": "8",
    "retrain.max_updates": "400",
    "retrain.max_tokens": "1024",
    "retrain.learning_rate": "4e-3",
    "valid_examples": "100",
}
WINNER = Architecture.from_json(
    {
        "encoder": {
            "embed_dim": 64,
            "layers": [
                {"attention": "linear", "num_heads": 4, "ffn_dim": 128},
                {"attention": "omni", "num_heads": 2, "ffn_dim": 128},
            ],
        },
        "decoder": {
            "embed_dim": 48,
            "layers": [
                {
                    "self_attention": "linear",
                    "self_num_heads": 2,
                    "ffn_dim": 128,
                    "cross_attention": "softmax",
                    "cross_num_heads": 4,
                    "ende_connect": 2,
                },
                {
                    "self_attention": "softmax",
                    "self_num_heads": 4,
                    "ffn_dim": 128,
                    "cross_attention": "linear",
                    "cross_num_heads": 2,
                    "ende_connect": 1,
                },
            ],
        },
    }
)


def trained_winner(path: Path, winner: Architecture = WINNER) -> RunFolder:
    """A run whose front is the winner alone, trained from scratch."""
    space = parse_space(SPACE, "a space of the tests")
    budget = budget_for(space, "smoke", TRAINING)
    folder = begun(path, SPACE, budget=budget)
    entry = FrontEntry(winner.id, winner, {"quality": 1.0, "flops": 9.0}, {})
    objectives = [OBJECTIVES[name] for name in folder.spec.objectives]
    folder.write_json("pareto.json", build_front([entry], objectives, (9.0, 99.0), {}).to_json())
    list(retrain(folder, "best"))
    return folder

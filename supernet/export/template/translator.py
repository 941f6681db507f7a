"""A translation network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.decoder import BOS, EOS, PAD, Decoder, State
from supernet.export.template.encoder import Encoder
from supernet.export.template.layers import (
    embedding_norm_of,
    learned_positions,
    placed,
    scaled,
    token_types,
)

MOST_PENALTY = 10.0  # of length; powers of long texts would be no numbers


class Network(nn.Module):
    """An encoder and a decoder over tokens.

    The target's embeddings are the output layer too, unless there is one of its own.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        self.model = model = description["model"]
        stacks, tokens = description["architecture"], model["input"]
        self.max_length = model["max_length"]
        self.widths = stacks["encoder"]["embed_dim"], stacks["decoder"]["embed_dim"]
        self.words = tokens.get("target_vocab_size", tokens["vocab_size"])
        self.num_words = description.get("num_words") or self.words  # that the tokenizer knows
        self.shared = tokens["share_embeddings"]
        if self.shared:
            rows = max(tokens["vocab_size"], self.words)
            self.embedding = nn.Embedding(rows, max(self.widths))
        else:
            self.source_embedding = nn.Embedding(tokens["vocab_size"], self.widths[0])
            self.target_embedding = nn.Embedding(self.words, self.widths[1])
        self.encoder_positions = learned_positions(model, self.widths[0])
        self.decoder_positions = learned_positions(model, self.widths[1])
        self.encoder_types = token_types(model, self.widths[0])
        self.decoder_types = token_types(model, self.widths[1])
        self.encoder_embedding_norm = embedding_norm_of(model, self.widths[0])
        self.decoder_embedding_norm = embedding_norm_of(model, self.widths[1])
        if not model["tied_output"]:
            self.output = nn.Linear(self.widths[1], self.words, bias=False)
        self.encoder = Encoder(description)
        self.decoder = Decoder(description)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Sources ``(B, M)``, targets from the begin mark on ``(B, N)`` -> logits ``(B, N, V)``."""
        return self.step(target, self.start(source))[0]

    def start(self, source: Tensor) -> State:
        """Read sources ``(B, M)``, each with its end mark, then padding."""
        return self.begin(self.encode(source), source != PAD)

    def encode(self, source: Tensor) -> Tensor:
        """Sources ``(B, M)`` -> the encoder's output ``(B, M, D)``, or several outputs."""
        table, width = self.embedding if self.shared else self.source_embedding, self.widths[0]
        x = scaled(table(source)[..., :width], self.model)
        x = placed(x, 0, self.model, self.encoder_positions, self.encoder_types)
        return self.encoder(self.encoder_embedding_norm(x), source != PAD)

    def begin(self, encoded: Tensor, real: Tensor) -> State:
        """The state before the first target token; `real` ``(B, M)`` is False at padding."""
        memories = self.decoder.memories(encoded, real)
        return State(0, [None] * len(memories), memories)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """New target tokens ``(B, N)`` -> logits of what follows each ``(B, N, V)``, next state."""
        table, width = self.embedding if self.shared else self.target_embedding, self.widths[1]
        start, end = state.position, state.position + tokens.shape[1]
        x = scaled(table(tokens)[..., :width], self.model)
        x = placed(x, start, self.model, self.decoder_positions, self.decoder_types)
        x, positions = self.decoder_embedding_norm(x), torch.arange(start, end, device=x.device)
        x, layers = self.decoder(x, state.layers, state.memories, positions)
        if self.model["tied_output"]:
            logits = F.linear(x, table.weight[: self.words, :width])
        else:
            logits = self.output(x)
        return logits, replace(state, position=end, layers=layers)


@torch.inference_mode()
def translate(
    network: Network, source: list[int], beam_size: int = 4, length_penalty: float = 0.6
) -> list[int]:
    """The best translation of one text, token by token.

    Args:
        network: from `load_network`.
        source: its tokens, without marks.
        beam_size: translations that are followed at once; 1 is greedy.
        length_penalty: log-probabilities are divided by length to this power, at most
            `MOST_PENALTY`.

    Returns:
        Target tokens, without marks.
    """
    if not abs(length_penalty) <= MOST_PENALTY:
        raise ValueError(
            f"length_penalty is {length_penalty:g}; give a number from 0 to {MOST_PENALTY:g}"
        )
    device = next(network.parameters()).device
    state = network.start(torch.tensor([[*source, EOS]], device=device))
    state = state.rows(torch.zeros(beam_size, dtype=torch.int64, device=device))
    longest = min(int(1.2 * (len(source) + 1)) + 10, network.max_length)  # end mark included
    tokens = torch.full((beam_size, 1), BOS, device=device)  # (beams, tokens so far)
    scores = torch.full((beam_size,), -torch.inf, device=device)
    scores[0] = 0.0  # all beams are the same at first, so only one of them counts
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 1):
        logits, state = network.step(tokens[:, -1:], state)
        following = logits[:, -1, : network.num_words].float().log_softmax(dim=-1)  # (beams, V)
        ends = following[:, EOS].clone()
        following[:, PAD] = -torch.inf
        if length == 1:
            following[:, EOS] = -torch.inf  # no empty translation
        if length == longest:
            following[:] = -torch.inf
            following[:, EOS] = ends
        total = (scores[:, None] + following).flatten()
        best = total.topk(min(2 * beam_size, len(total)))
        beam, token = best.indices // following.shape[1], best.indices % following.shape[1]
        for rank in range(beam_size):
            if token[rank] == EOS and best.values[rank].isfinite():
                score = float(best.values[rank]) / length**length_penalty
                finished.append((score, tokens[beam[rank], 1:].tolist()))
        order = (token == EOS).to(torch.int8).argsort(stable=True)[:beam_size]  # ended ones last
        beam, token = beam[order], token[order]
        scores = best.values[order].masked_fill(token == EOS, -torch.inf)
        if len(finished) >= beam_size or not scores.isfinite().any():
            break
        tokens, state = torch.cat((tokens[beam], token[:, None]), dim=1), state.rows(beam)
    return max(finished, key=lambda one: one[0])[1]


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The logits for recorded inputs: from one pass, and token by token."""
    state, parts = network.start(inputs["source"]), []
    for tokens in inputs["target"].split(1, dim=1):
        logits, state = network.step(tokens, state)
        parts.append(logits)
    logits = [network(inputs["source"], inputs["target"]), torch.cat(parts, dim=1)]
    return [{"logits": found} for found in logits]

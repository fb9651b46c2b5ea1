"""A Whisper of transformers as a `Recogniser`: the same transcription with another model beneath. Greedy, one text a
window; it follows the definitions, slowly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import WhisperForConditionalGeneration

from relaxpy.speech.recogniser import WindowRequest, WindowText


class TransformersRecogniser:
    def __init__(self, folder: Path) -> None:
        self.model = WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        config = self.model.config
        self.mels, self.frames = config.num_mel_bins, 2 * config.max_source_positions
        self.positions = config.max_target_positions
        self.heads = self.model.generation_config.alignment_heads

    def _logits(
        self, features: np.ndarray, tokens: tuple[int, ...]
    ) -> tuple[np.ndarray, tuple[torch.Tensor, ...]]:
        with torch.no_grad():
            found = self.model(
                input_features=torch.from_numpy(features)[None],
                decoder_input_ids=torch.tensor([tokens]),
                output_attentions=True,
            )
        return found.logits[0].numpy().astype(np.float64), found.cross_attentions

    def write(self, asked: Sequence[tuple[np.ndarray, WindowRequest]]) -> list[WindowText]:
        return [self._write(*each) for each in asked]

    def _write(self, features: np.ndarray, request: WindowRequest) -> WindowText:
        assert request.temperature == 0
        assert request.beam_size == 1
        written: list[int] = []
        total, probe = 0.0, 0.0
        for step in range(request.most):
            logits, _ = self._logits(features, (*request.prompt, *written))
            if not step:
                place, token = request.probe
                probe = float(np.exp(log_softmax(logits[place])[token]))
            last = logits[-1]
            allowed = np.ones(len(last), bool)
            allowed[list(request.suppress)] = False
            if not step:
                allowed[list(request.begin_suppress)] = False
            if request.rules is not None:
                request.rules.restrict(allowed, written, last)
            shares = log_softmax(np.where(allowed, last, -np.inf))
            best = int(shares.argmax())
            total += shares[best]
            if best == request.end:
                break
            written.append(best)
        return WindowText(tuple(written), total, probe)

    def logprobs(self, features: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        return log_softmax(self._logits(features, tokens)[0][-1])

    def align(
        self, features: np.ndarray, tokens: tuple[int, ...], texts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        logits, weights = self._logits(features, tokens)
        chosen = np.stack([weights[layer][0, head].numpy() for layer, head in self.heads])
        shares = log_softmax(logits[:, :texts])
        places = range(len(tokens) - 1)
        return chosen, np.array(
            [shares[k, tokens[k + 1]] if tokens[k + 1] < texts else -np.inf for k in places]
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

"""Tiny checkpoints of encoders of sound with a CTC head, written by transformers with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import FULL

SIZES = {
    "vocab_size": 31, "hidden_size": 48, "num_hidden_layers": 2 if FULL else 1, "num_attention_heads": 3, "intermediate_size": 65,
    "conv_dim": [19, 23, 29], "conv_stride": [5, 4, 3], "conv_kernel": [11, 4, 2], "num_conv_pos_embeddings": 12,
    "num_conv_pos_embedding_groups": 3, "initializer_range": 0.3,
}  # fmt: skip
HOP = 60


def ctc_model(folder: Path, kind: str, **more: Any) -> Any:
    """A model of transformers ("Wav2Vec2" or "Hubert"), written to the folder with its processor. Its logits are of
    size 5."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **more})
    model = getattr(transformers, f"{kind}ForCTC")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
            elif name.endswith("running_mean"):
                buffer.normal_()
        found = model(torch.randn(1, 9001)).logits[0]
        model.lm_head.bias -= found.mean(0)  # else all frames have one token
        model.lm_head.bias[[0, 4]] += found.std()
    model.save_pretrained(folder)
    texts = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQ"]
    (folder / "vocab.json").write_text(json.dumps({text: n for n, text in enumerate(texts)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return model

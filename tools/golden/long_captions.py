"""Captions in chunks of 75 tokens, as kohya-ss/sd-scripts reads them with max_token_length 150 and 225, run by its own code.

    SD_SCRIPTS=CHECKOUT python tools/golden/long_captions.py      writes tests/golden/long_captions/

ids.json has for each caption and length `l` and `g`: the ids of CLIP-L and bigG, chunk after chunk. states.safetensors has
`states.LENGTH.N` [1, LENGTH + 2, 40] and `pooled.LENGTH.N` [1, 20] of the tiny SDXL for some captions, and the gradients of
the factors of lora_te.safetensors, under their keys, for mean(states^2) + mean(pooled^2) of captions 2 and 4 at 225 as a
batch.
"""

import json
import os
import sys

import torch
from transformers import CLIPTokenizer

import lora
import sdxl_model
from golden import LORA_TE, MODEL, ROOT, save

sys.path.insert(0, os.environ["SD_SCRIPTS"])
from library.strategy_sdxl import SdxlTextEncodingStrategy, SdxlTokenizeStrategy  # noqa: E402

OUT = ROOT / "long_captions"
WITH_STATES = ["", "a cat", "a red heart with stripes, " * 20, "a " * 75, "a " * 74 + "! b", "one two three four " * 80]
CAPTIONS = WITH_STATES + ["a " * 76, "a " * 149, "a " * 150, "a " * 151, "a " * 225, "a " * 226, "! " * 80, "a " * 73 + "! ! !"]
IN_BATCH = 2, 4


class Penultimate(torch.nn.Module):
    """The tiny encoder has fewer layers: hidden_states[11] is its penultimate state."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    device = torch.device("cpu")

    def forward(self, ids, **options):
        states = self.encoder(ids, **options)["hidden_states"]
        return {"hidden_states": [states[-2]] * 12}


def tokens(length):
    strategy = SdxlTokenizeStrategy.__new__(SdxlTokenizeStrategy)
    strategy.tokenizer1, strategy.tokenizer2 = (CLIPTokenizer.from_pretrained(MODEL / t) for t in ("tokenizer", "tokenizer_2"))
    strategy.tokenizer2.pad_token_id = 0
    strategy.max_length = length + 2
    return strategy


def encode(strategy, encoders, captions):
    l, g, pooled = SdxlTextEncodingStrategy().encode_tokens(strategy, encoders, strategy.tokenize(captions))
    return torch.cat([l, g], -1), pooled


def encoders(with_lora):
    l, g = sdxl_model.text_encoder(), sdxl_model.text_encoder_2()
    if with_lora:
        l, g = lora.apply(l, "text_encoder", LORA_TE), lora.apply(g, "text_encoder_2", LORA_TE)
    return l, g


ids, out = [], {}
frozen = encoders(False)
for length in 150, 225:
    strategy = tokens(length)
    for i, caption in enumerate(CAPTIONS):
        l, g = strategy.tokenize(caption)
        ids.append({"caption": caption, "length": length, "l": l.flatten().tolist(), "g": g.flatten().tolist()})
        if i < len(WITH_STATES):
            with torch.no_grad():
                out[f"states.{length}.{i}"], out[f"pooled.{length}.{i}"] = encode(
                    strategy, [Penultimate(frozen[0]), frozen[1]], [caption])
l, g = encoders(True)
states, pooled = encode(tokens(225), [Penultimate(l), g], [CAPTIONS[i] for i in IN_BATCH])
(states.square().mean() + pooled.square().mean()).backward()
for model, component in (l, "text_encoder"), (g, "text_encoder_2"):
    for name, p in lora.parameters(model, component).items():
        out[name] = p.grad if p.grad is not None else torch.zeros_like(p)
OUT.mkdir(parents=True, exist_ok=True)
(OUT / "ids.json").write_text(json.dumps(ids) + "\n")
save(OUT / "states.safetensors", out)

#!/usr/bin/env python3
"""Writes a randomly initialised small FLUX.1 or SD3.5 as a diffusers folder: one in every part, but in size.

    init_flow.py flux|sd3 OUT [--seed N] [--vae FOLDER]

Both draw 128x128 pictures (latents 16x16 of 16 channels, 64 tokens) and read captions of up to 32 tokens. In f16 a folder has
less than 8 MB. They share a VAE, which --vae takes from a folder; the scaling_factor of a new one, 1, is to be replaced, once it is
trained, by 1 / (standard deviation of its latents).

Needs torch, diffusers and transformers; Wick itself never does.
"""

import argparse
import json
import pathlib
import shutil

import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel, SD3Transformer2DModel)
from transformers import CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel

import make_t5_tokenizer
import make_tokenizer
from init_model import PIXELS, POOLED, text_config

TEXT_TOKENS = 32
WIDTH = 128
CLIP_L = 48


def vae():
    """Latents of 16 channels without quant convolutions, as both families have them."""
    return AutoencoderKL(
        sample_size=PIXELS, block_out_channels=(16, 32, 48, 48), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=1, latent_channels=16, norm_num_groups=2,
        scaling_factor=1.0, shift_factor=0.0, use_quant_conv=False, use_post_quant_conv=False)


def t5(vocabulary):
    config = T5Config(
        vocab_size=vocabulary, d_model=WIDTH, d_kv=32, num_heads=4, d_ff=2 * WIDTH, num_layers=2,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, is_encoder_decoder=False, use_cache=False)
    return T5EncoderModel(config)


def flux():
    """dev's scheduler word for word; guidance is told, as dev's transformer wants it."""
    transformer = FluxTransformer2DModel(
        in_channels=64, num_layers=2, num_single_layers=4, attention_head_dim=32, num_attention_heads=WIDTH // 32,
        joint_attention_dim=WIDTH, pooled_projection_dim=CLIP_L, guidance_embeds=True, axes_dims_rope=(4, 14, 14))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15)
    return transformer, scheduler


def sd3():
    """SD3.5 medium's parts: norms of queries and keys, and a second attention in the first blocks."""
    transformer = SD3Transformer2DModel(
        sample_size=PIXELS // 8, patch_size=2, in_channels=16, out_channels=16, num_layers=4, attention_head_dim=32,
        num_attention_heads=WIDTH // 32, joint_attention_dim=WIDTH, caption_projection_dim=WIDTH,
        pooled_projection_dim=CLIP_L + POOLED, pos_embed_max_size=24, dual_attention_layers=(0, 1), qk_norm="rms_norm")
    return transformer, FlowMatchEulerDiscreteScheduler(shift=3.0)


def clip_l(vocabulary):
    return CLIPTextModel(text_config(CLIP_L, "quick_gelu", vocabulary))


def projected(width, activation, vocabulary, projection):
    config = text_config(width, activation, vocabulary)
    config.projection_dim = projection
    model = CLIPTextModelWithProjection(config)
    if width == projection:  # CLIP-L's, which ComfyUI leaves out
        torch.nn.init.eye_(model.text_projection.weight)
    return model


def build(family, out):
    """Components by name, beside the tokenizers, which are written."""
    torch_names = {"flux": ("text_encoder", "text_encoder_2"), "sd3": ("text_encoder", "text_encoder_2", "text_encoder_3")}
    t5_tokenizer = {"flux": "tokenizer_2", "sd3": "tokenizer_3"}[family]
    vocabulary = make_tokenizer.write_tokenizers(out)
    if family == "flux":
        shutil.rmtree(out / "tokenizer_2")
    # The character map is most of a small tokenizer: one of the two models does without.
    pieces = make_t5_tokenizer.write(out / t5_tokenizer, {"flux": "nmt_nfkc", "sd3": "identity"}[family])
    (out / t5_tokenizer / "tokenizer.json").unlink()  # spiece.model is enough
    config = {"model_max_length": TEXT_TOKENS, "tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (out / t5_tokenizer / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    encoders = ([clip_l(vocabulary), t5(pieces)] if family == "flux" else
                [projected(CLIP_L, "quick_gelu", vocabulary, CLIP_L), projected(POOLED, "gelu", vocabulary, POOLED), t5(pieces)])
    transformer, scheduler = {"flux": flux, "sd3": sd3}[family]()
    return dict(zip(torch_names[family], encoders)) | {"transformer": transformer, "vae": vae(), "scheduler": scheduler}


CLASSES = {"flux": "FluxPipeline", "sd3": "StableDiffusion3Pipeline"}


def index(family, parts):
    def of(part):
        library = "transformers" if type(part).__module__.startswith("transformers") else "diffusers"
        return [library, type(part).__name__]
    tokenizers = {"flux": ["CLIPTokenizer", "T5TokenizerFast"], "sd3": ["CLIPTokenizer", "CLIPTokenizer", "T5TokenizerFast"]}
    names = ["tokenizer", "tokenizer_2", "tokenizer_3"]
    return ({"_class_name": CLASSES[family], "_diffusers_version": "0.39.0"} | {k: of(v) for k, v in sorted(parts.items())} |
            {name: ["transformers", kind] for name, kind in zip(names, tokenizers[family])})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=CLASSES)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vae", type=pathlib.Path)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    parts = build(args.family, args.out)
    for name, part in parts.items():
        if name.startswith("text_encoder"):
            part.half()  # these are not trained: they ship as they are written here
        part.save_pretrained(args.out / name)
        if isinstance(part, torch.nn.Module):
            print(f"{name:15} {sum(p.numel() for p in part.parameters()):9,} parameters")
    (args.out / "model_index.json").write_text(json.dumps(index(args.family, parts), indent=2) + "\n", encoding="utf-8")
    if args.vae:
        shutil.rmtree(args.out / "vae")
        shutil.copytree(args.vae, args.out / "vae")


if __name__ == "__main__":
    main()

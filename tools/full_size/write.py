#!/usr/bin/env python3
"""SDXL in its real size with seeded random weights, for checks against diffusers: no weights need to be fetched.

    tools/full_size/write.py OUT [--tiny]

    OUT/sdxl/                    a diffusers folder in bf16 (7 GB), written by diffusers' and transformers' own classes
    OUT/lora.safetensors         a LoRA of rank 32 on the 722 modules that kohya trains, none of its factors zero
    OUT/COMPONENT.in.safetensors what compare.py gives to each component: a picture of 1024x1024

The tokenizers are those of models/tiny: their ids fit. With --tiny all widths are those of tests/golden, to try the
scripts on a CPU. Needs torch, diffusers, transformers and peft; on a GPU it takes seconds.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "golden"))
import lora  # noqa: E402
import sdxl_model as sdxl  # noqa: E402
from golden import randn, rng  # noqa: E402

TOKENIZERS = ROOT / "models" / "tiny"
RANK, ALPHA = 32, 16.0


def configs(tiny):
    if tiny:
        return sdxl.TINY_UNET, sdxl.TINY_VAE, sdxl.TINY_TE1, sdxl.TINY_TE2
    return sdxl.SDXL_UNET, sdxl.SDXL_VAE, sdxl.SDXL_TE1, sdxl.SDXL_TE2


def made(seed, device, make):
    with torch.device(device):
        model = make()
    model = sdxl.randomise(model.to(torch.float32), seed).to(torch.bfloat16)
    print(f"{seed}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters", flush=True)
    return model


def restore_names(file):
    """transformers 5 writes CLIPTextModel without the prefix that SDXL's own file has."""
    tensors = load_file(file)
    if not any(name.startswith("text_model.") for name in tensors):
        save_file({f"text_model.{name}": t for name, t in tensors.items()}, file, metadata={"format": "pt"})


def write_model(folder, unet, vae, te1, te2, device):
    names = "tokenizer", "tokenizer_2"
    pipeline = StableDiffusionXLPipeline(
        vae=made("vae", device, lambda: AutoencoderKL(**vae)),
        text_encoder=made("text_encoder", device, lambda: CLIPTextModel(CLIPTextConfig(**te1))),
        text_encoder_2=made("text_encoder_2", device, lambda: CLIPTextModelWithProjection(CLIPTextConfig(**te2))),
        unet=made("unet", device, lambda: UNet2DConditionModel(**unet)), scheduler=sdxl.euler(),
        **{name: CLIPTokenizer.from_pretrained(TOKENIZERS / name) for name in names},
        force_zeros_for_empty_prompt=True, add_watermarker=False)
    pipeline.save_pretrained(folder, safe_serialization=True)
    restore_names(folder / "text_encoder" / "model.safetensors")
    for name in names:
        shutil.rmtree(folder / name)
        shutil.copytree(TOKENIZERS / name, folder / name)


def write_lora(file, unet):
    with torch.device("meta"):
        model = lora.inject(UNet2DConditionModel(**unet), lora.UNET_TARGETS, RANK, ALPHA)
    save_file(lora.random_tensors(model, "unet", "full size"), file, metadata=lora.metadata(RANK, ALPHA))
    print(f"LoRA: {len(lora.layers(model, 'unet'))} modules", flush=True)


def rounded(name, *shape):
    """Numbers that are the same in bf16, so that every dtype starts from them."""
    return randn(name, *shape).bfloat16().float()


def inputs(unet, te2):
    side = unet["sample_size"]
    latent, pixels = (1, 4, side, side), 8.0 * side
    vocabulary = len(json.loads((TOKENIZERS / "tokenizer" / "vocab.json").read_text(encoding="utf-8")))
    ids = {"input_ids": torch.randint(0, vocabulary, (1, 77), generator=rng("ids"))}
    return {
        "unet": {
            "sample": rounded("sample", *latent),
            "timestep": torch.tensor([501.0]),
            "encoder_hidden_states": rounded("states", 1, 77, unet["cross_attention_dim"]),
            "text_embeds": rounded("text", 1, te2["projection_dim"]),
            "time_ids": torch.tensor([[pixels, pixels, 0, 0, pixels, pixels]]),
            "target": rounded("target", *latent),
        },
        "text_encoder": ids,
        "text_encoder_2": ids,
        "vae.encoder": {"sample": rounded("picture", 1, 3, 8 * side, 8 * side).clamp(-1, 1)},
        "vae.decoder": {"latent": rounded("latent", *latent)},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="the widths of tests/golden")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(False)  # what the goldens want; nothing here depends on it
    unet, vae, te1, te2 = configs(args.tiny)
    args.out.mkdir(parents=True, exist_ok=True)
    write_lora(args.out / "lora.safetensors", unet)
    for component, tensors in inputs(unet, te2).items():
        save_file(tensors, args.out / f"{component}.in.safetensors")
    write_model(args.out / "sdxl", unet, vae, te1, te2, args.device)


if __name__ == "__main__":
    main()

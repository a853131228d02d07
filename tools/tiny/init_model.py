#!/usr/bin/env python3
"""Writes a randomly initialised small SDXL as a diffusers folder: an SDXL in every part, but in size.

    init_model.py OUT [--seed N]

It draws 128x128 pictures (latents 16x16). Sizes follow from what a laptop can train and a repository can hold: with
3.7 M parameters the folder is 7.4 MB in f16, and a picture costs the UNet 0.7 GFLOP forward and backward and the VAE
6.1. The VAE's scaling_factor of 1 is to be replaced, once it is trained, by 1 / (standard deviation of its latents).

Needs torch, diffusers and transformers; Wick itself never does.
"""

import argparse
import pathlib

import torch
from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

import make_tokenizer

PIXELS = 128
POOLED = 64
ADDITION_EMBEDDING = 32  # of each of the six size numbers


def text_config(width, activation, vocabulary):
    """CLIP's text transformer. The row at the first end token is pooled."""
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=3,
        num_attention_heads=width // 16,
        projection_dim=POOLED,
        hidden_act=activation,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )


def unet(context):
    return UNet2DConditionModel(
        sample_size=PIXELS // 8,
        block_out_channels=(32, 48, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=2,
        transformer_layers_per_block=(1, 1, 2),
        attention_head_dim=(2, 3, 4),  # SDXL's key for the number of heads
        cross_attention_dim=context,
        use_linear_projection=True,
        norm_num_groups=4,  # 8 channels a group or more: with two, a flat colour is normalised away
        addition_embed_type="text_time",
        addition_time_embed_dim=ADDITION_EMBEDDING,
        projection_class_embeddings_input_dim=POOLED + 6 * ADDITION_EMBEDDING,
    )


def vae():
    return AutoencoderKL(
        sample_size=PIXELS,
        block_out_channels=(16, 32, 48, 48),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        scaling_factor=1.0,
    )


def scheduler():
    """SDXL base's, word for word."""
    return EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000,
        prediction_type="epsilon", interpolation_type="linear", timestep_spacing="leading", steps_offset=1,
    )


def build(out):
    vocabulary = make_tokenizer.write_tokenizers(out)
    clip_l = CLIPTextModel(text_config(48, "quick_gelu", vocabulary))
    clip_g = CLIPTextModelWithProjection(text_config(64, "gelu", vocabulary))
    return StableDiffusionXLPipeline(
        vae=vae(),
        text_encoder=clip_l,
        text_encoder_2=clip_g,
        tokenizer=CLIPTokenizer.from_pretrained(out / "tokenizer"),
        tokenizer_2=CLIPTokenizer.from_pretrained(out / "tokenizer_2"),
        unet=unet(clip_l.config.hidden_size + clip_g.config.hidden_size),
        scheduler=scheduler(),
        force_zeros_for_empty_prompt=False,  # captions are dropped to "", so that is what no prompt means
        add_watermarker=False,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    pipeline = build(args.out)
    pipeline.text_encoder.half()  # these are not trained: they ship as they are written here
    pipeline.text_encoder_2.half()
    pipeline.save_pretrained(args.out)
    make_tokenizer.write_tokenizers(args.out)  # ours again: save_pretrained rewrites them in its version's manner
    for name in ("text_encoder", "text_encoder_2", "unet", "vae"):
        print(f"{name:15} {sum(p.numel() for p in getattr(pipeline, name).parameters()):9,} parameters")


if __name__ == "__main__":
    main()

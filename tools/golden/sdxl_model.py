"""The tiny SDXL: the real SDXL's configs with every size made small, seeded random weights, written by diffusers.

    python tools/golden/sdxl_model.py      writes tests/golden/sdxl/
"""

import shutil
import tempfile
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, EulerDiscreteScheduler, StableDiffusionXLPipeline
from diffusers import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

import vocabulary
from golden import MODEL, ROOT, rng

# SDXL base 1.0's own configs. TINY_* below replace sizes and nothing else.
SDXL_UNET = dict(
    act_fn="silu", addition_embed_type="text_time", addition_embed_type_num_heads=64, addition_time_embed_dim=256,
    attention_head_dim=[5, 10, 20], block_out_channels=[320, 640, 1280], center_input_sample=False,
    class_embed_type=None, class_embeddings_concat=False, conv_in_kernel=3, conv_out_kernel=3, cross_attention_dim=2048,
    cross_attention_norm=None, down_block_types=["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    downsample_padding=1, dual_cross_attention=False, encoder_hid_dim=None, encoder_hid_dim_type=None,
    flip_sin_to_cos=True, freq_shift=0, in_channels=4, layers_per_block=2, mid_block_only_cross_attention=None,
    mid_block_scale_factor=1, mid_block_type="UNetMidBlock2DCrossAttn", norm_eps=1e-5, norm_num_groups=32,
    num_attention_heads=None, num_class_embeds=None, only_cross_attention=False, out_channels=4,
    projection_class_embeddings_input_dim=2816, resnet_out_scale_factor=1.0, resnet_skip_time_act=False,
    resnet_time_scale_shift="default", sample_size=128, time_cond_proj_dim=None, time_embedding_act_fn=None,
    time_embedding_dim=None, time_embedding_type="positional", timestep_post_act=None,
    transformer_layers_per_block=[1, 2, 10], up_block_types=["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    upcast_attention=None, use_linear_projection=True)
SDXL_VAE = dict(
    act_fn="silu", block_out_channels=[128, 256, 512, 512], down_block_types=["DownEncoderBlock2D"] * 4,
    force_upcast=True, in_channels=3, latent_channels=4, layers_per_block=2, norm_num_groups=32, out_channels=3,
    sample_size=1024, scaling_factor=0.13025, up_block_types=["UpDecoderBlock2D"] * 4)
SDXL_TE1 = dict(
    attention_dropout=0.0, bos_token_id=0, dropout=0.0, eos_token_id=2, hidden_act="quick_gelu", hidden_size=768,
    initializer_factor=1.0, initializer_range=0.02, intermediate_size=3072, layer_norm_eps=1e-5,
    max_position_embeddings=77, num_attention_heads=12, num_hidden_layers=12, pad_token_id=1, projection_dim=768,
    vocab_size=49408)
SDXL_TE2 = SDXL_TE1 | dict(
    hidden_act="gelu", hidden_size=1280, intermediate_size=5120, num_attention_heads=20, num_hidden_layers=32,
    projection_dim=1280)
SDXL_SCHEDULER = dict(
    beta_end=0.012, beta_schedule="scaled_linear", beta_start=0.00085, num_train_timesteps=1000,
    prediction_type="epsilon", steps_offset=1, timestep_spacing="leading", trained_betas=None)

TINY_UNET = SDXL_UNET | dict(
    addition_time_embed_dim=8, attention_head_dim=[1, 1, 2], block_out_channels=[4, 8, 16], cross_attention_dim=40,
    norm_num_groups=2, projection_class_embeddings_input_dim=20 + 6 * 8, sample_size=16,
    transformer_layers_per_block=[1, 1, 2])
TINY_VAE = SDXL_VAE | dict(block_out_channels=[8, 12, 16, 16], norm_num_groups=4, sample_size=64)
TINY_TE1 = SDXL_TE1 | dict(
    hidden_size=16, intermediate_size=64, num_attention_heads=2, num_hidden_layers=2, projection_dim=16)
TINY_TE2 = SDXL_TE2 | dict(
    hidden_size=24, intermediate_size=96, num_attention_heads=3, num_hidden_layers=3, projection_dim=20)


BRANCH_ENDS = tuple(s + ".weight" for s in ("conv2", "to_out.0", "net.2", "proj_out", "out_proj", "fc2"))


def randomise(model, seed):
    """Every parameter drawn anew, none of them zero or one, each layer keeping the size of its input about the same."""
    generator = rng(seed, model.device)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, device=model.device)
            if p.dim() == 1:
                p.copy_(1 + 0.2 * noise if name.endswith("weight") else 0.1 * noise)  # norms; biases
            elif "token_embedding" in name:
                p.copy_(0.7 * noise)
            elif "position_embedding" in name:
                p.copy_(0.4 * noise)
            else:
                # The last layer of each residual branch is weaker, or rounding errors grow through the depth.
                p.copy_(noise * p[0].numel() ** -0.5 * (0.4 if name.endswith(BRANCH_ENDS) else 1))
    return model.eval().requires_grad_(False)


def euler():
    # The keys after the shared ones are also in SDXL's scheduler_config.json, and Euler does not read them.
    return EulerDiscreteScheduler.from_config(SDXL_SCHEDULER | dict(
        interpolation_type="linear", use_karras_sigmas=False, clip_sample=False, sample_max_value=1.0,
        set_alpha_to_one=False, skip_prk_steps=True))


def ddim():
    return DDIMScheduler(**SDXL_SCHEDULER, clip_sample=False, set_alpha_to_one=False)


def tokenizer(folder, pad):
    vocab = vocabulary.write(folder)
    return CLIPTokenizer(folder / "vocab.json", folder / "merges.txt", model_max_length=77, pad_token=pad), vocab


def build():
    scratch = Path(tempfile.mkdtemp())
    tokenizer_1, vocab = tokenizer(scratch / "1", "<|endoftext|>")
    tokenizer_2, _ = tokenizer(scratch / "2", "!")
    eos = vocab["<|endoftext|>"]
    # Both rules for the pooled position: encoder 1 names the real id, encoder 2 says 2 as SDXL does (highest id wins).
    te1 = CLIPTextModel(CLIPTextConfig(**TINY_TE1 | dict(vocab_size=len(vocab), eos_token_id=eos)))
    te2 = CLIPTextModelWithProjection(CLIPTextConfig(**TINY_TE2 | dict(vocab_size=len(vocab))))
    pipeline = StableDiffusionXLPipeline(
        vae=randomise(AutoencoderKL(**TINY_VAE), "vae"), text_encoder=randomise(te1, "text_encoder"),
        text_encoder_2=randomise(te2, "text_encoder_2"), tokenizer=tokenizer_1, tokenizer_2=tokenizer_2,
        unet=randomise(UNet2DConditionModel(**TINY_UNET), "unet"), scheduler=euler(),
        force_zeros_for_empty_prompt=True, add_watermarker=False)
    shutil.rmtree(MODEL, ignore_errors=True)
    pipeline.save_pretrained(MODEL, safe_serialization=True)
    shutil.rmtree(scratch)
    for path in sorted(MODEL.rglob("*")):
        if path.is_file():
            assert path.stat().st_size < 1 << 20, path
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size} bytes")


def unet():
    return UNet2DConditionModel.from_pretrained(MODEL, subfolder="unet").eval().requires_grad_(False)


def vae():
    return AutoencoderKL.from_pretrained(MODEL, subfolder="vae").eval().requires_grad_(False)


def text_encoder():
    return CLIPTextModel.from_pretrained(MODEL, subfolder="text_encoder").eval().requires_grad_(False)


def text_encoder_2():
    return CLIPTextModelWithProjection.from_pretrained(MODEL, subfolder="text_encoder_2").eval().requires_grad_(False)


if __name__ == "__main__":
    build()

"""A tiny FLUX.1 dev, and pictures of FluxPipeline.

    python tools/golden/flux_pictures.py      writes tests/golden/flux_pictures/

A diffusers folder without its tokenizers: those are sdxl/tokenizer and t5_tokenizer. pictures.in.safetensors has the noise, and in
its metadata the request; pictures.out.safetensors the latents, unpacked, and the VAE's output: `plain.*` with the guidance that the
model is told, `cfg.*` with a negative prompt too.
"""

import shutil

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, PreTrainedTokenizerFast, T5Config, T5EncoderModel

import flux
import sdxl_model
import t5
from golden import MODEL, ROOT, randn, save
from sd3 import VAE

OUT = ROOT / "flux_pictures"
REQUEST = dict(prompt="A photo of a small red fox in the snow, golden hour", height=32, width=48, num_inference_steps=6,
               guidance_scale=2.5, max_sequence_length=24)
CFG = dict(negative_prompt="blurry, low quality", true_cfg_scale=3.0)

FLUX_VAE = VAE | dict(scaling_factor=0.3611, shift_factor=0.1159, sample_size=64)
TRANSFORMER = flux.DEV | dict(in_channels=64, num_layers=2, num_single_layers=1, num_attention_heads=2, attention_head_dim=16,
                              joint_attention_dim=24, pooled_projection_dim=8, axes_dims_rope=(2, 8, 6))
# FLUX.1 dev's own.
SCHEDULER = dict(base_image_seq_len=256, base_shift=0.5, max_image_seq_len=4096, max_shift=1.15, num_train_timesteps=1000,
                 shift=3.0, use_dynamic_shifting=True)


def components():
    clip = CLIPTextModel(CLIPTextConfig(**sdxl_model.SDXL_TE1 | dict(
        hidden_size=8, intermediate_size=32, num_attention_heads=2, num_hidden_layers=2, projection_dim=8, vocab_size=814)))
    encoder = T5EncoderModel(T5Config(**t5.XXL | dict(d_model=24, d_kv=6, num_heads=3, d_ff=40, num_layers=2, vocab_size=870)))
    unigram = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "t5_tokenizer" / "tokenizer.json"), pad_token="<pad>",
                                      eos_token="</s>", unk_token="<unk>")
    return dict(
        text_encoder=sdxl_model.randomise(clip, "flux text_encoder"),
        text_encoder_2=t5.randomise(encoder, "flux text_encoder_2"),
        transformer=flux.randomise(FluxTransformer2DModel(**TRANSFORMER), "flux pictures transformer"),
        vae=sdxl_model.randomise(AutoencoderKL(**FLUX_VAE), "flux vae"),
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER),
        tokenizer=CLIPTokenizer.from_pretrained(MODEL, subfolder="tokenizer"), tokenizer_2=unigram)


@torch.no_grad()
def main():
    shutil.rmtree(OUT, ignore_errors=True)
    pipeline = FluxPipeline(**components())
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(OUT, safe_serialization=True)
    for folder in OUT.glob("tokenizer*"):
        shutil.rmtree(folder)
    factor, height, width = pipeline.vae_scale_factor, REQUEST["height"], REQUEST["width"]
    noise = randn("flux pictures", 1, 16, height // factor, width // factor)
    packed = FluxPipeline._pack_latents(noise, 1, 16, *noise.shape[2:])
    out = {}
    for name, more in ("plain", {}), ("cfg", CFG):
        latents = pipeline(**REQUEST, **more, latents=packed.clone(), output_type="latent").images
        unpacked = FluxPipeline._unpack_latents(latents, height, width, factor)
        out[name + ".latents"] = unpacked
        out[name + ".decoded"] = pipeline.vae.decode(unpacked / FLUX_VAE["scaling_factor"] + FLUX_VAE["shift_factor"]).sample
    assert not torch.allclose(out["plain.latents"], out["cfg.latents"])
    save(OUT / "pictures.in.safetensors", {"noise": noise}, {k: str(v) for k, v in (REQUEST | CFG).items()})
    save(OUT / "pictures.out.safetensors", out)


if __name__ == "__main__":
    main()

"""A tiny SD3.5, and pictures of StableDiffusion3Pipeline.

    python tools/golden/sd3.py      writes tests/golden/sd3/

A diffusers folder without its tokenizers: those are sdxl/tokenizer, sdxl/tokenizer_2 and t5_tokenizer. pictures.in.safetensors has
the noise, and in its metadata the request; pictures.out.safetensors the latents and the VAE's output, `skip.*` with skip-layer guidance; `dpmpp.latents` are those of
Stability's DPM++ 2M, written here from its formula (sd3_impls.py, sample_dpmpp_2m). from_picture.safetensors has a
picture in whole 255ths, and the latents and the VAE's output that StableDiffusion3Img2ImgPipeline makes of it with that noise.
"""

import shutil
import sys

import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel,
                       StableDiffusion3Img2ImgPipeline, StableDiffusion3Pipeline)
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer, T5Config, T5EncoderModel
from transformers import PreTrainedTokenizerFast

import sd3_transformer
import sdxl_model
import t5
from golden import MODEL, ROOT, randn, rng, save

OUT = ROOT / "sd3"
REQUEST = dict(prompt="A photo of a small red fox in the snow, golden hour", negative_prompt="blurry, low quality", height=32,
               width=48, num_inference_steps=6, guidance_scale=4.0, max_sequence_length=24)
SKIP = dict(skip_guidance_layers=[0, 5], skip_layer_guidance_scale=2.5, skip_layer_guidance_start=0.1,
            skip_layer_guidance_stop=0.6)

VAE = dict(block_out_channels=[4, 8, 8], down_block_types=["DownEncoderBlock2D"] * 3, latent_channels=16, layers_per_block=1,
           norm_num_groups=4, scaling_factor=1.5305, shift_factor=0.0609, up_block_types=["UpDecoderBlock2D"] * 3,
           use_post_quant_conv=False, use_quant_conv=False)
TRANSFORMER = sd3_transformer.SD35 | dict(
    num_layers=2, num_attention_heads=2, attention_head_dim=8, caption_projection_dim=16, joint_attention_dim=24,
    pooled_projection_dim=18, dual_attention_layers=[0], pos_embed_max_size=12, sample_size=16)


def components():
    """CLIP-L's projection is that of diffusers' folders, and not the identity."""
    clip = [CLIPTextModelWithProjection(CLIPTextConfig(**config | dict(
        hidden_size=width, intermediate_size=4 * width, num_attention_heads=2, num_hidden_layers=layers,
        projection_dim=projection, vocab_size=814)))
        for config, width, layers, projection in ((sdxl_model.SDXL_TE1, 8, 2, 8), (sdxl_model.SDXL_TE2, 12, 3, 10))]
    encoder = T5EncoderModel(T5Config(**t5.XXL | dict(d_model=24, d_kv=6, num_heads=3, d_ff=40, num_layers=2,
                                                      vocab_size=870)))
    return dict(
        text_encoder=sdxl_model.randomise(clip[0], "sd3 text_encoder"),
        text_encoder_2=sdxl_model.randomise(clip[1], "sd3 text_encoder_2"),
        text_encoder_3=t5.randomise(encoder, "sd3 text_encoder_3"),
        transformer=sd3_transformer.randomise(SD3Transformer2DModel(**TRANSFORMER), "sd3 transformer"),
        vae=sdxl_model.randomise(AutoencoderKL(**VAE), "sd3 vae"),
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0))


def tokenizers():
    unigram = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "t5_tokenizer" / "tokenizer.json"), pad_token="<pad>",
                                      eos_token="</s>", unk_token="<unk>")
    return dict(tokenizer=CLIPTokenizer.from_pretrained(MODEL, subfolder="tokenizer"),
                tokenizer_2=CLIPTokenizer.from_pretrained(MODEL, subfolder="tokenizer_2"), tokenizer_3=unigram)


def dpmpp_2m(pipeline, x):
    """lambda = -ln(sigma); the first step and the last, to sigma 0, are of first order."""
    texts = pipeline.encode_prompt(REQUEST["prompt"], None, None, negative_prompt=REQUEST["negative_prompt"],
                                   max_sequence_length=REQUEST["max_sequence_length"])
    states, pooled = torch.cat([texts[1], texts[0]]), torch.cat([texts[3], texts[2]])
    pipeline.scheduler.set_timesteps(REQUEST["num_inference_steps"])
    sigmas = pipeline.scheduler.sigmas.double()

    def denoised(x, sigma):
        times = (1000 * sigma).float().expand(2)
        negative, positive = pipeline.transformer(hidden_states=x.float().expand(2, -1, -1, -1), timestep=times,
                                                  encoder_hidden_states=states, pooled_projections=pooled).sample.double()
        return x - sigma * (negative + REQUEST["guidance_scale"] * (positive - negative))

    x, before = x.double(), None
    for i, (sigma, after) in enumerate(zip(sigmas, sigmas[1:])):
        now = denoised(x, sigma)
        if after == 0:
            return now.float()
        h, best = torch.log(sigma / after), now
        if before is not None:
            ratio = torch.log(sigmas[i - 1] / sigma) / h
            best = (1 + 1 / (2 * ratio)) * now - before / (2 * ratio)
        x = after / sigma * x - torch.expm1(-h) * best
        before = now


def decoded(pipeline, latents):
    return pipeline.vae.decode(latents / VAE["scaling_factor"] + VAE["shift_factor"]).sample


@torch.no_grad()
def from_picture(pipeline, noise):
    """Of the VAE's posterior the mean is taken, as Wick does, in place of a sample."""
    drawn = StableDiffusion3Img2ImgPipeline(**pipeline.components)
    drawn.set_progress_bar_config(disable=True)
    module = sys.modules[StableDiffusion3Img2ImgPipeline.__module__]
    module.retrieve_latents = lambda encoded, **_: encoded.latent_dist.mean
    module.randn_tensor = lambda *_, **__: noise
    picture = torch.round(255 * torch.rand(1, 3, REQUEST["height"], REQUEST["width"], generator=rng("sd3 init"))) / 255
    out = {"picture": picture}
    for strength in "0.4", "0.75":
        latents = drawn(**REQUEST, image=picture, strength=float(strength), output_type="latent").images
        out[strength + ".latents"] = latents
        out[strength + ".decoded"] = decoded(pipeline, latents)
    save(OUT / "from_picture.safetensors", out)


@torch.no_grad()
def main():
    shutil.rmtree(OUT, ignore_errors=True)
    pipeline = StableDiffusion3Pipeline(**components(), **tokenizers())
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(OUT, safe_serialization=True)
    for folder in OUT.glob("tokenizer*"):
        shutil.rmtree(folder)
    noise = randn("sd3 pictures", 1, 16, REQUEST["height"] // 4, REQUEST["width"] // 4)
    out = {}
    for name, more in ("plain", {}), ("skip", SKIP):
        latents = pipeline(**REQUEST, **more, latents=noise.clone(), output_type="latent").images
        out[name + ".latents"] = latents
        out[name + ".decoded"] = decoded(pipeline, latents)
    out["dpmpp.latents"] = dpmpp_2m(pipeline, noise)
    assert not torch.allclose(out["plain.latents"], out["skip.latents"])
    save(OUT / "pictures.in.safetensors", {"noise": noise}, {k: str(v) for k, v in REQUEST.items()})
    save(OUT / "pictures.out.safetensors", out)
    from_picture(pipeline, noise)


if __name__ == "__main__":
    main()

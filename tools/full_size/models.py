"""The models that write.py, compare.py and run.py work on: their parts in real size, LoRA modules and inputs.

--tiny takes the widths of tests/golden instead, to try these scripts on a CPU. A part is the same in all models that name the
same seed, and is written once.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel, SD3Transformer2DModel
from diffusers import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "golden"))
import cases  # noqa: E402
import flux  # noqa: E402
import lora  # noqa: E402
import sd3_transformer as sd3  # noqa: E402
import sdxl_model as sdxl  # noqa: E402
import t5  # noqa: E402
from golden import randn, rng  # noqa: E402
from names import unet_lora_name  # noqa: E402

CONFIGS = {CLIPTextModel: CLIPTextConfig, CLIPTextModelWithProjection: CLIPTextConfig, T5EncoderModel: T5Config}


@dataclass
class Part:
    seed: str
    kind: type
    config: dict
    randomise: callable = sdxl.randomise

    def make(self):
        """The module with weights of its library's choice, in the default dtype on the default device."""
        if self.kind in CONFIGS:
            return self.kind(CONFIGS[self.kind](**self.config))
        return self.kind(**self.config)


@dataclass
class Model:
    pipeline: str
    parts: dict
    tokenizers: dict  # folder -> one of SMALL_TOKENIZERS
    scheduler: object
    denoiser: str
    rank: int
    latent: tuple  # [B, C, h, w] of the inputs
    side: int  # of a picture in pixels
    inputs: dict = field(default_factory=dict)  # of the denoiser
    alpha = property(lambda self: self.rank / 2)

    def components(self):
        """Of `wick forward`, the denoiser first."""
        others = [name for name in self.parts if name not in (self.denoiser, "vae")]
        return [self.denoiser, *others, "vae.encoder", "vae.decoder"]

    def part(self, component):
        return self.parts[component.split(".")[0]]


# The ids of the small ones fit real models too.
SMALL_TOKENIZERS = {"clip": ROOT / "models" / "tiny" / "tokenizer", "clip_g": ROOT / "models" / "tiny" / "tokenizer_2",
                    "t5": ROOT / "tests" / "golden" / "t5_tokenizer"}
REAL_TOKENIZERS = ROOT / "build" / "share" / "wick" / "tokenizers"  # where scripts/setup-tokenizers put them

T5_XXL = t5.XXL | dict(d_model=4096, d_kv=64, num_heads=64, d_ff=10240, num_layers=24, vocab_size=32128)
TINY_T5 = T5_XXL | dict(d_model=48, d_kv=16, num_heads=3, d_ff=80, num_layers=2)
CHANNELS_16 = dict(latent_channels=16, use_quant_conv=False, use_post_quant_conv=False)
FLUX_VAE, SD3_VAE = dict(scaling_factor=0.3611, shift_factor=0.1159), dict(scaling_factor=1.5305, shift_factor=0.0609)
FLUX = dict(guidance_embeds=True)
TINY_FLUX = FLUX | dict(num_layers=2, num_single_layers=3, num_attention_heads=2, attention_head_dim=16,
                        joint_attention_dim=48, pooled_projection_dim=16, axes_dims_rope=(2, 8, 6))
SD35 = sd3.SD35 | dict(sample_size=128, attention_head_dim=64, joint_attention_dim=4096, pooled_projection_dim=2048)
SD35_LARGE = SD35 | dict(num_layers=38, num_attention_heads=38, caption_projection_dim=2432, pos_embed_max_size=192)
SD35_MEDIUM = SD35 | dict(num_layers=24, num_attention_heads=24, caption_projection_dim=1536, pos_embed_max_size=384,
                          dual_attention_layers=tuple(range(13)))
TINY_SD3 = dict(num_layers=3, num_attention_heads=2, attention_head_dim=16, caption_projection_dim=32,
                joint_attention_dim=48, pooled_projection_dim=36, pos_embed_max_size=12, sample_size=16)


def rounded(name, *shape):
    """Numbers that are the same in bf16, so that every dtype starts from them."""
    return randn(name, *shape).bfloat16().float()


def clip_l(tiny, kind):
    return Part("text_encoder" if kind is CLIPTextModel else "text_encoder with projection", kind,
                sdxl.TINY_TE1 if tiny else sdxl.SDXL_TE1)


def clip_g(tiny):
    return Part("text_encoder_2", CLIPTextModelWithProjection, sdxl.TINY_TE2 if tiny else sdxl.SDXL_TE2)


def t5_encoder(tiny):
    return Part("t5", T5EncoderModel, TINY_T5 if tiny else T5_XXL, t5.randomise)


def vae(seed, tiny, **more):
    return Part(seed, AutoencoderKL, (sdxl.TINY_VAE if tiny else sdxl.SDXL_VAE) | more)


def sdxl_model(tiny):
    unet, te2 = (sdxl.TINY_UNET, sdxl.TINY_TE2) if tiny else (sdxl.SDXL_UNET, sdxl.SDXL_TE2)
    side = unet["sample_size"]
    pixels = 8.0 * side
    return Model(
        "StableDiffusionXLPipeline",
        {"text_encoder": clip_l(tiny, CLIPTextModel), "text_encoder_2": clip_g(tiny),
         "unet": Part("unet", UNet2DConditionModel, unet), "vae": vae("vae", tiny)},
        {"tokenizer": "clip", "tokenizer_2": "clip_g"}, sdxl.euler(), "unet", rank=32, latent=(1, 4, side, side),
        side=8 * side,
        inputs={"sample": rounded("sample", 1, 4, side, side), "timestep": torch.tensor([501.0]),
                "encoder_hidden_states": rounded("states", 1, 77, unet["cross_attention_dim"]),
                "text_embeds": rounded("text", 1, te2["projection_dim"]),
                "time_ids": torch.tensor([[pixels, pixels, 0, 0, pixels, pixels]])})


def flux_model(tiny):
    config, side, text = (TINY_FLUX, 16, 24) if tiny else (FLUX, 128, 512)
    ids = torch.zeros(side // 2, side // 2, 3)
    ids[..., 1], ids[..., 2] = torch.arange(side // 2)[:, None], torch.arange(side // 2)[None]
    return Model(
        "FluxPipeline",
        {"text_encoder": clip_l(tiny, CLIPTextModel), "text_encoder_2": t5_encoder(tiny),
         "transformer": Part("flux", FluxTransformer2DModel, config, flux.randomise),
         "vae": vae("flux vae", tiny, **CHANNELS_16, **FLUX_VAE)},
        {"tokenizer": "clip", "tokenizer_2": "t5"},
        FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15),
        "transformer", rank=16, latent=(1, 16, side, side), side=8 * side,
        # Times 1000 these times and guidance are the same in bf16, in which diffusers multiplies them.
        inputs={"hidden_states": rounded("tokens", 1, side * side // 4, 64), "timestep": torch.tensor([0.5]),
                "guidance": torch.tensor([4.0]), "img_ids": ids.reshape(-1, 3), "txt_ids": torch.zeros(text, 3),
                "encoder_hidden_states": rounded("states", 1, text, config.get("joint_attention_dim", 4096)),
                "pooled_projections": rounded("pooled", 1, config.get("pooled_projection_dim", 768))})


def sd3_model(name, config, tiny):
    config, side, text = (config | TINY_SD3, 16, 24) if tiny else (config, 128, 333)
    if tiny and "dual_attention_layers" in config:
        config["dual_attention_layers"] = (0,)
    return Model(
        "StableDiffusion3Pipeline",
        {"text_encoder": clip_l(tiny, CLIPTextModelWithProjection), "text_encoder_2": clip_g(tiny),
         "text_encoder_3": t5_encoder(tiny), "transformer": Part(name, SD3Transformer2DModel, config, sd3.randomise),
         "vae": vae("sd3 vae", tiny, **CHANNELS_16, **SD3_VAE)},
        {"tokenizer": "clip", "tokenizer_2": "clip_g", "tokenizer_3": "t5"},
        FlowMatchEulerDiscreteScheduler(shift=3.0), "transformer", rank=16, latent=(1, 16, side, side), side=8 * side,
        inputs={"hidden_states": rounded("sample", 1, 16, side, side), "timestep": torch.tensor([500.0]),
                "encoder_hidden_states": rounded("states", 1, text, config["joint_attention_dim"]),
                "pooled_projections": rounded("pooled", 1, config["pooled_projection_dim"])})


MODELS = {"sdxl": sdxl_model, "flux": flux_model,
          "sd3-large": lambda tiny: sd3_model("sd3-large", SD35_LARGE, tiny),
          "sd3-medium": lambda tiny: sd3_model("sd3-medium", SD35_MEDIUM, tiny)}


def inputs(model):
    """{component: what it is given}."""
    unit = model.inputs["sample" if "sample" in model.inputs else "hidden_states"]
    found = {model.denoiser: model.inputs | {"target": rounded("target", *unit.shape)}}
    for component in model.components()[1:]:
        part = model.part(component)
        if component == "vae.encoder":
            found[component] = {"sample": rounded("picture", 1, 3, model.side, model.side).clamp(-1, 1)}
        elif component == "vae.decoder":
            found[component] = {"latent": rounded("latent", *model.latent)}
        else:
            length = len(model.inputs["txt_ids"]) if "txt_ids" in model.inputs else 256
            shape = (1, length if part.kind is T5EncoderModel else 77)
            found[component] = {"input_ids": torch.randint(0, part.config["vocab_size"], shape, generator=rng("ids"))}
    return found


def lora_modules(denoiser):
    """{base of a LoRA's names: (diffusers' modules that are its rows, whether their halves are swapped)}; kohya's default
    targets."""
    if isinstance(denoiser, UNet2DConditionModel):
        layers = denoiser.config.layers_per_block
        return {unet_lora_name(path, layers): ([path], False) for path, _ in denoiser.named_modules()
                if re.fullmatch(lora.UNET_TARGETS, path)}
    if isinstance(denoiser, FluxTransformer2DModel):
        found = {name: (parts, False) for name, parts in flux.modules(denoiser.config).items()}
    else:
        found = {name: of for name, of in sd3.modules(denoiser).items() if name.startswith("joint_blocks.")}
    return {"lora_unet_" + name.replace(".", "_"): of for name, of in found.items()}


def forward(component, model, x):
    """What `wick forward` puts out."""
    match model:
        case T5EncoderModel():
            return {"last_hidden_state": model(input_ids=x["input_ids"]).last_hidden_state}
        case FluxTransformer2DModel() | SD3Transformer2DModel():
            return {"sample": model(**{k: v for k, v in x.items() if k != "target"}).sample}
        case CLIPTextModelWithProjection():
            return cases.forward("text_encoder_2", model, x)
        case _:
            return cases.forward(component, model, x)

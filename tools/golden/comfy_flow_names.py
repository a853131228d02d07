"""The LoRA base names that ComfyUI maps for FLUX and SD3 at full size, and the rows that each stands for.

Derived from the rules: `lora_unet_` + each native key without `.weight`, dots as underscores, and `diffusion_model.` + the key; for
diffusers' modules `transformer.` + the name, `lora_transformer_` and `lycoris_` + the name with underscores (and for SD3
`base_model.model.`), which are rows of a native weight where that is fused. The result was compared with what ComfyUI's own
functions (comfy/lora.py, comfy/utils.py at a125cd8) give for these configs; nothing of them is here.

    python tools/golden/comfy_flow_names.py      writes tests/golden/comfy_flow.json

A "*" stands for a block's number in names. For each model
native     [kohya's base name, in, out, how many] of the modules with weights of two or more dimensions
targets    those that kohya trains by default: how many, and the parameters of rank 16
diffusers  {diffusers' module: [native module, parts, of]}: its rows, one after the other, are these of so many equal parts of the
           native module's
texts      {prefix: {kohya's base name behind it: how many}} of the text encoders
"""

import json
import math
import re

import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel

import flux
import sd3_transformer
from golden import ROOT

FLUX_OUTSIDE = {
    "img_in": "x_embedder", "txt_in": "context_embedder", "final_layer.linear": "proj_out",
    "final_layer.adaLN_modulation.1": "norm_out.linear"} | {
    f"{native}_in.{layer}_layer": f"time_text_embed.{diffusers}_embedder.linear_{n}"
    for native, diffusers in (("time", "timestep"), ("guidance", "guidance"), ("vector", "text"))
    for n, layer in ((1, "in"), (2, "out"))}

SD3 = dict(attention_head_dim=64, in_channels=16, out_channels=16, joint_attention_dim=4096, pooled_projection_dim=2048)


def sd3(heads, layers, dual=(), qk_norm="rms_norm", table=192):
    return lambda: SD3Transformer2DModel(**SD3, num_attention_heads=heads, caption_projection_dim=64 * heads, num_layers=layers,
                                         dual_attention_layers=tuple(dual), qk_norm=qk_norm, pos_embed_max_size=table)


MODELS = {
    "flux-dev": lambda: FluxTransformer2DModel(guidance_embeds=True),
    "flux-schnell": lambda: FluxTransformer2DModel(),
    "sd3-medium": sd3(24, 24, qk_norm=None),
    "sd3.5-medium": sd3(24, 24, dual=range(13), table=384),
    "sd3.5-large": sd3(38, 38),
}

CLIP = {"self_attn_q_proj", "self_attn_k_proj", "self_attn_v_proj", "self_attn_out_proj", "mlp_fc1", "mlp_fc2"}
T5 = {"layer_0_SelfAttention_" + m for m in "qkvo"} | {"layer_1_DenseReluDense_" + m for m in ("wi_0", "wi_1", "wo")}


def clip(layers):
    return {f"text_model_encoder_layers_*_{m}": layers for m in sorted(CLIP)}


def t5():
    return {f"encoder_block_*_{m}": 24 for m in sorted(T5)}


TEXTS = {"flux": {"lora_te1_": clip(12), "lora_te2_": t5(), "lora_te3_": t5()},
         "sd3": {"lora_te1_": clip(12), "lora_te2_": clip(32), "lora_te3_": t5()}}


def native_modules(model):
    """{native module: (diffusers' modules, swapped)}."""
    if isinstance(model, SD3Transformer2DModel):
        return sd3_transformer.modules(model) | {"x_embedder.proj": (["pos_embed.proj"], False)}
    have = dict(model.named_parameters())
    found = {k: (v, False) for k, v in flux.modules(model.config).items()}
    return found | {k: ([v], v == "norm_out.linear") for k, v in FLUX_OUTSIDE.items() if v + ".weight" in have}


def kind(name):
    return re.sub(r"(blocks[._])\d+", r"\1*", name)


def describe(model):
    native, diffusers, targets, parameters = {}, {}, 0, 0
    for module, (parts, swapped) in native_modules(model).items():
        weights = [model.get_submodule(part).weight for part in parts]
        out, columns = sum(len(w) for w in weights), weights[0].shape[1]
        key = kind("lora_unet_" + module.replace(".", "_"))
        native[key, columns, out] = native.get((key, columns, out), 0) + 1
        if "blocks" in module:
            targets += 1
            parameters += 16 * (columns + out)
        unit, first = math.gcd(*map(len, weights)), 0
        for part, weight in zip(parts, weights):
            count = len(weight) // unit
            rows = [[1, 0], 2] if swapped else [list(range(first, first + count)), out // unit] if len(parts) > 1 else [[0], 1]
            name, row = (part, [module, *rows]) if swapped else (kind(part), [kind(module), *rows])
            assert diffusers.setdefault(name, row) == row, name
            first += count
    return {"native": [[*k, count] for k, count in sorted(native.items())], "targets": [targets, parameters],
            "diffusers": dict(sorted(diffusers.items())),
            "texts": TEXTS["sd3" if isinstance(model, SD3Transformer2DModel) else "flux"]}


def build():
    models = {}
    for name, make in MODELS.items():
        with torch.device("meta"):
            models[name] = describe(make())
    return models


if __name__ == "__main__":
    models = build()
    text = json.dumps(models, separators=(",", ":")).replace('],"', '],\n"').replace('},"', '},\n"')
    assert json.loads(text) == models
    (ROOT / "comfy_flow.json").write_text(text + "\n", encoding="utf-8")
    for name, model in models.items():
        print(f"{name}: {model['targets'][0]} modules, {model['targets'][1] / 1e6:.1f} M parameters of rank 16")

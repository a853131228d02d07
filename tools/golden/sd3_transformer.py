"""SD3 transformers of odd sizes with random weights, and what diffusers makes of latents and text.

    python tools/golden/sd3_transformer.py      writes tests/golden/sd3_transformer/

A folder a model, with transformer/{config.json, diffusion_pytorch_model.safetensors}, lora.safetensors (in Stability's names, with
fused projections: its factors are added to diffusers' split weights here, W + s up down) and pairs CASE.{in,out}.safetensors as
`wick forward` takes and gives them. index.json lists the cases and how far PyTorch's own float32 run is from float64.
"""

import json
import shutil

import torch
from diffusers import SD3Transformer2DModel

from golden import ROOT, load, randn, rng, save

OUT = ROOT / "sd3_transformer"
RANK, ALPHA = 3, 2.0

# SD3.5's own values but for the sizes.
SD35 = dict(patch_size=2, in_channels=16, out_channels=16, qk_norm="rms_norm")
MODELS = {
    # Dual attention in the first block, joint attention alone in the second, no text behind the third.
    "dual": SD35 | dict(num_layers=3, num_attention_heads=3, attention_head_dim=8, caption_projection_dim=24,
                        joint_attention_dim=10, pooled_projection_dim=14, dual_attention_layers=[0],
                        pos_embed_max_size=11, sample_size=12),
    # As SD3 medium, without norms of queries and keys.
    "plain": SD35 | dict(num_layers=2, num_attention_heads=2, attention_head_dim=6, caption_projection_dim=12, in_channels=5,
                         out_channels=5, joint_attention_dim=9, pooled_projection_dim=7, qk_norm=None,
                         pos_embed_max_size=8, sample_size=16),
    "one_head": SD35 | dict(num_layers=1, num_attention_heads=1, attention_head_dim=12, caption_projection_dim=12,
                            in_channels=4, out_channels=4, joint_attention_dim=6, pooled_projection_dim=5,
                            dual_attention_layers=[0], pos_embed_max_size=7, sample_size=8),
}

# Stability's modules and the parts of diffusers' that they are; "swapped": the halves of the rows change places.
IN_BLOCK = {
    "x_block.adaLN_modulation.1": ["norm1.linear"],
    "x_block.attn.qkv": ["attn.to_q", "attn.to_k", "attn.to_v"],
    "x_block.attn.proj": ["attn.to_out.0"],
    "x_block.attn2.qkv": ["attn2.to_q", "attn2.to_k", "attn2.to_v"],
    "x_block.attn2.proj": ["attn2.to_out.0"],
    "x_block.mlp.fc1": ["ff.net.0.proj"],
    "x_block.mlp.fc2": ["ff.net.2"],
    "context_block.adaLN_modulation.1": ["norm1_context.linear"],
    "context_block.attn.qkv": ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    "context_block.attn.proj": ["attn.to_add_out"],
    "context_block.mlp.fc1": ["ff_context.net.0.proj"],
    "context_block.mlp.fc2": ["ff_context.net.2"],
}
OUTSIDE = {
    "context_embedder": ["context_embedder"],
    "t_embedder.mlp.0": ["time_text_embed.timestep_embedder.linear_1"],
    "t_embedder.mlp.2": ["time_text_embed.timestep_embedder.linear_2"],
    "y_embedder.mlp.0": ["time_text_embed.text_embedder.linear_1"],
    "y_embedder.mlp.2": ["time_text_embed.text_embedder.linear_2"],
    "final_layer.adaLN_modulation.1": ["norm_out.linear"],
    "final_layer.linear": ["proj_out"],
}


def modules(model):
    """{Stability's module: (diffusers' modules, swapped)} of those that are in this model."""
    last = model.config.num_layers - 1
    all_names = {k: (v, k == "final_layer.adaLN_modulation.1") for k, v in OUTSIDE.items()}
    for i in range(last + 1):
        for name, parts in IN_BLOCK.items():
            swapped = i == last and name == "context_block.adaLN_modulation.1"
            all_names[f"joint_blocks.{i}.{name}"] = ([f"transformer_blocks.{i}.{p}" for p in parts], swapped)
    have = dict(model.named_parameters())
    return {k: v for k, v in all_names.items() if v[0][0] + ".weight" in have}


def randomise(model, seed):
    """Every parameter drawn anew; modulations and the ends of branches weaker, so that rounding does not grow."""
    generator = rng(seed, model.device)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, device=model.device)
            if p.dim() == 1:
                p.copy_(1 + 0.2 * noise if "norm_" in name and name.endswith("weight") else 0.1 * noise)
            else:
                ends = name.endswith(("to_out.0.weight", "to_add_out.weight", "net.2.weight")) or "norm" in name
                p.copy_(noise * p[0].numel() ** -0.5 * (0.5 if ends else 1))
    return model.eval().requires_grad_(False)


def build(name):
    model = randomise(SD3Transformer2DModel(**MODELS[name]), f"sd3 {name}")
    model.save_pretrained(OUT / name / "transformer", safe_serialization=True)
    file = {}
    for module, (parts, _) in modules(model).items():
        weights = [dict(model.named_parameters())[p + ".weight"] for p in parts]
        base = "lora_unet_" + module.replace(".", "_")
        for key, shape, gain in (("lora_down", (RANK, weights[0].shape[1]), 1),
                                 ("lora_up", (sum(w.shape[0] for w in weights), RANK), 0.25)):
            noise = torch.randn(shape, generator=rng(f"sd3 {name} {base} {key}"))
            file[f"{base}.{key}.weight"] = noise * gain * shape[1] ** -0.5
        file[base + ".alpha"] = torch.tensor(ALPHA)
    save(OUT / name / "lora.safetensors", file)


def adapted(model, file):
    """The model's weights with the LoRA of some modules added, under the tape."""
    weights = dict(model.named_parameters())
    for module, (parts, swapped) in modules(model).items():
        base = "lora_unet_" + module.replace(".", "_")
        if base + ".lora_up.weight" not in file:
            continue
        delta = file[base + ".lora_up.weight"] @ file[base + ".lora_down.weight"] * (ALPHA / RANK)
        if swapped:
            delta = torch.cat(delta.chunk(2)[::-1])
        for part, rows in zip(parts, delta.chunk(len(parts))):
            weights[part + ".weight"] = weights[part + ".weight"] + rows
    return weights


INPUTS = ["hidden_states", "encoder_hidden_states", "pooled_projections"]


def evaluate(name, x, with_lora, dtype):
    model = SD3Transformer2DModel.from_pretrained(OUT / name / "transformer").eval().requires_grad_(False).to(dtype)
    x = {k: v.to(dtype) if v.is_floating_point() else v for k, v in x.items()}
    batch, wanted = x["hidden_states"].shape[0], {}
    if "target" in x:
        wanted = {k: x[k].requires_grad_(True) for k in INPUTS}
    weights = {}
    if with_lora:
        file = {k: v.to(dtype) for k, v in load(OUT / name / "lora.safetensors").items()}
        if "target" in x:
            wanted |= {k: v.requires_grad_(True) for k, v in file.items() if not k.endswith(".alpha")}
        weights = adapted(model, file)
    skip = x["skip_layers"].tolist() if "skip_layers" in x else None
    y = torch.func.functional_call(model, weights, kwargs=dict(
        {k: x[k] for k in INPUTS}, timestep=x["timestep"].expand(batch), skip_layers=skip)).sample
    out = {"sample": y}
    if "target" in x:
        out["loss"] = torch.nn.functional.mse_loss(y, x["target"])
        grads = torch.autograd.grad(out["loss"], list(wanted.values()))
        out |= {"grad." + k: g for k, g in zip(wanted, grads)}
    return out


INDEX = []


def case(model, name, height, width, length, timestep, batch=1, grad=False, with_lora=False, skip=None):
    seed, c = f"sd3 {model} {name}", MODELS[model]
    x = {"hidden_states": randn(seed + " latents", batch, c["in_channels"], height, width),
         "encoder_hidden_states": randn(seed + " text", batch, length, c["joint_attention_dim"]),
         "pooled_projections": randn(seed + " pooled", batch, c["pooled_projection_dim"]),
         "timestep": torch.tensor(timestep)}
    if skip is not None:
        x["skip_layers"] = torch.tensor(skip, dtype=torch.int64)
    if grad:
        x["target"] = randn(seed + " target", *x["hidden_states"].shape)
    out, exact = (evaluate(model, x, with_lora, dtype) for dtype in (torch.float32, torch.float64))
    save(OUT / model / f"{name}.in.safetensors", x)
    save(OUT / model / f"{name}.out.safetensors", out)
    errors = {k: ((v - exact[k]).abs().max() / exact[k].abs().max()).item() for k, v in out.items()}
    for k, e in errors.items():
        assert e < (1e-5 if k.startswith("grad.") else 1e-6), (model, name, k, e)
    INDEX.append({"model": f"sd3_transformer/{model}", "component": "transformer", "name": name, "grad": grad,
                  "lora": with_lora, "pytorch_f32_error": float(f"{max(errors.values()):.1e}")})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for name in MODELS:
        build(name)
        side = 2 * MODELS[name]["pos_embed_max_size"]
        case(name, "wide", 6, 10, 7, [1000.0])
        case(name, "high", 10, 4, 1, 250.0)
        case(name, "whole_table", side, side, 3, [17.5])
        case(name, "batch", 4, 6, 9, [981.0, 3.25], batch=2)
        case(name, "grad", 6, 8, 5, [700.0, 40.0], batch=2, grad=True)
        case(name, "lora_grad", 8, 6, 5, [333.0, 960.0], batch=2, grad=True, with_lora=True)
    case("dual", "lora", 6, 6, 4, [500.0], with_lora=True)
    case("dual", "skip_first", 6, 8, 5, [500.0], skip=[0])
    case("dual", "skip_others", 6, 8, 5, [500.0], skip=[1, 2, 7])
    case("dual", "skip_none", 6, 8, 5, [500.0], skip=[])
    case("dual", "skip_grad", 6, 8, 5, [500.0], skip=[1], grad=True)
    (OUT / "index.json").write_text("[\n" + ",\n".join("  " + json.dumps(c) for c in INDEX) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

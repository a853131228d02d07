"""FLUX transformers of odd sizes with random weights, and what diffusers makes of packed latents and text.

    python tools/golden/flux.py      writes tests/golden/flux/

A folder a model, with transformer/{config.json, diffusion_pytorch_model.safetensors} under diffusers' names, lora.safetensors under
kohya's and pairs CASE.{in,out}.safetensors as `wick forward` takes and gives them. index.json lists the cases and how far PyTorch's
own float32 run is from float64.
"""

import json
import shutil

import torch
from diffusers import FluxTransformer2DModel

from golden import ROOT, load, randn, rng, save

OUT = ROOT / "flux"
RANK, ALPHA = 3, 2.0

DEV = dict(patch_size=1, guidance_embeds=True)
MODELS = {
    "dev": DEV | dict(in_channels=16, num_layers=2, num_single_layers=2, num_attention_heads=3, attention_head_dim=16,
                      joint_attention_dim=20, pooled_projection_dim=12, axes_dims_rope=(2, 8, 6)),
    "schnell": dict(patch_size=1, guidance_embeds=False, in_channels=64, num_layers=1, num_single_layers=1,
                    num_attention_heads=1, attention_head_dim=32, joint_attention_dim=12, pooled_projection_dim=7,
                    axes_dims_rope=(4, 14, 14)),
}

# Module of a block under Black Forest Labs' name, and the modules of diffusers that have its rows.
DOUBLE = {
    "img_mod.lin": ["norm1.linear"], "txt_mod.lin": ["norm1_context.linear"],
    "img_attn.qkv": ["attn.to_q", "attn.to_k", "attn.to_v"],
    "txt_attn.qkv": ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    "img_attn.proj": ["attn.to_out.0"], "txt_attn.proj": ["attn.to_add_out"],
    "img_mlp.0": ["ff.net.0.proj"], "img_mlp.2": ["ff.net.2"],
    "txt_mlp.0": ["ff_context.net.0.proj"], "txt_mlp.2": ["ff_context.net.2"]}
SINGLE = {"modulation.lin": ["norm.linear"], "linear2": ["proj_out"],
          "linear1": ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"]}


def modules(config):
    """Black Forest Labs' name of every module with a LoRA -> diffusers' modules."""
    found = {}
    for native, diffusers, table, count in (("double_blocks", "transformer_blocks", DOUBLE, config["num_layers"]),
                                            ("single_blocks", "single_transformer_blocks", SINGLE, config["num_single_layers"])):
        for n in range(count):
            for module, parts in table.items():
                found[f"{native}.{n}.{module}"] = [f"{diffusers}.{n}.{part}" for part in parts]
    return found


def randomise(model, seed):
    generator = rng(seed, model.device)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, device=model.device)
            if name.endswith("bias"):
                p.copy_(0.1 * noise)
            elif p.dim() == 1:
                p.copy_(1 + 0.2 * noise)
            else:
                p.copy_((0.5 if "norm" in name else 1) * noise * p.shape[1] ** -0.5)
    return model.eval().requires_grad_(False)


def base_name(module):
    return "lora_unet_" + module.replace(".", "_")


def build(name):
    model = randomise(FluxTransformer2DModel(**MODELS[name]), f"flux {name}")
    model.save_pretrained(OUT / name / "transformer", safe_serialization=True)
    lora, weights = {}, dict(model.named_parameters())
    for module, parts in modules(MODELS[name]).items():
        rows = sum(weights[part + ".weight"].shape[0] for part in parts)
        columns = weights[parts[0] + ".weight"].shape[1]
        for factor, shape, gain in ("down", (RANK, columns), 1), ("up", (rows, RANK), 0.25):
            key = f"{base_name(module)}.lora_{factor}.weight"
            lora[key] = torch.randn(shape, generator=rng(f"flux {name} {key}")) * gain * shape[1] ** -0.5
        lora[base_name(module) + ".alpha"] = torch.tensor(ALPHA)
    save(OUT / name / "lora.safetensors", lora)


def with_lora(weights, lora, config):
    weights = dict(weights)
    for module, parts in modules(config).items():
        delta = ALPHA / RANK * lora[base_name(module) + ".lora_up.weight"] @ lora[base_name(module) + ".lora_down.weight"]
        for part in parts:
            rows = weights[part + ".weight"].shape[0]
            weights[part + ".weight"] = weights[part + ".weight"] + delta[:rows]
            delta = delta[rows:]
    return weights


INPUTS = "hidden_states", "encoder_hidden_states", "pooled_projections"


def evaluate(name, x, lora, dtype):
    model = FluxTransformer2DModel.from_pretrained(OUT / name / "transformer").eval().requires_grad_(False).to(dtype)
    x = {k: v.to(dtype) if v.is_floating_point() else v for k, v in x.items()}
    wanted = {k: x[k].requires_grad_("target" in x) for k in INPUTS}
    weights = dict(model.named_parameters())
    if lora:
        file = load(OUT / name / "lora.safetensors")
        factors = {k: v.to(dtype).requires_grad_(True) for k, v in file.items() if not k.endswith("alpha")}
        wanted |= factors
        weights = with_lora(weights, factors, MODELS[name])
    batch = x["hidden_states"].shape[0]
    arguments = {k: v for k, v in x.items() if k != "target"} | {"timestep": x["timestep"].reshape(-1).expand(batch)}
    if "guidance" in x:
        arguments["guidance"] = x["guidance"].reshape(-1).expand(batch)
    y = torch.func.functional_call(model, weights, (), arguments).sample
    out = {"sample": y}
    if "target" in x:
        out["loss"] = torch.nn.functional.mse_loss(y, x["target"])
        out |= {"grad." + k: g for k, g in zip(wanted, torch.autograd.grad(out["loss"], list(wanted.values())))}
    return {k: v.detach() for k, v in out.items()}


INDEX = []


def case(model, name, rows, columns, length, batch=1, grad=False, lora=False, one_time=False):
    config, seed = MODELS[model], f"flux {model} {name}"
    channels = config["in_channels"]
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1], ids[..., 2] = torch.arange(rows)[:, None], torch.arange(columns)[None]
    x = {"hidden_states": randn(seed + " tokens", batch, rows * columns, channels),
         "encoder_hidden_states": randn(seed + " text", batch, length, config["joint_attention_dim"]),
         "pooled_projections": randn(seed + " pooled", batch, config["pooled_projection_dim"]),
         "timestep": torch.tensor(0.625) if one_time else torch.rand(batch, generator=rng(seed)),
         "img_ids": ids.reshape(-1, 3), "txt_ids": torch.zeros(length, 3)}
    if config["guidance_embeds"]:
        x["guidance"] = torch.tensor([3.5]) if one_time else 1 + 4 * torch.rand(batch, generator=rng(seed + " guidance"))
    if grad:
        x["target"] = randn(seed + " target", *x["hidden_states"].shape)
    out, exact = (evaluate(model, x, lora, dtype) for dtype in (torch.float32, torch.float64))
    save(OUT / model / f"{name}.in.safetensors", x)
    save(OUT / model / f"{name}.out.safetensors", out)
    worst = max(((v - exact[k]).abs().max() / exact[k].abs().max()).item() for k, v in out.items())
    assert worst < (5e-5 if grad else 5e-6), (model, name, worst)
    INDEX.append({"model": f"flux/{model}", "component": "transformer", "name": name, "grad": grad, "lora": lora,
                  "pytorch_f32_error": float(f"{worst:.1e}")})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for name in MODELS:
        build(name)
        case(name, "square", 2, 2, 3, one_time=True)
        case(name, "tall", 5, 3, 7, batch=2)
        case(name, "wide_grad", 2, 7, 5, batch=2, grad=True, lora=True)
        case(name, "grad", 3, 2, 1, grad=True)
    case("dev", "lora", 3, 4, 6, batch=2, lora=True)
    (OUT / "index.json").write_text("[\n" + ",\n".join("  " + json.dumps(c) for c in INDEX) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""LoRAs on diffusers' modules of FLUX and SD3, which split what Wick's modules have fused, and what diffusers and PEFT make of them.

    python tools/golden/lora_layouts.py      writes tests/golden/lora_layouts/

On the transformers and inputs of flux.py and sd3_transformer.py. For each family
in.safetensors      the inputs of one of their cases, at a lower guidance
split.safetensors   lora_A, lora_B and alpha of some modules, each of a rank and an alpha of its own; of some fused modules one part
                    alone
split.out           the output, the loss and gradients with it, by PEFT
both.out            the output with it at strength 1.5 and the family's own lora.safetensors (fused, kohya's names) at -0.75
"""

import shutil

import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel

import flux
import sd3_transformer
from golden import ROOT, load, rng, save

OUT = ROOT / "lora_layouts"
STRENGTHS = 1.5, -0.75

# {module: (rank, alpha)}
FLUX = {
    "x_embedder": (2, 3.0),
    "time_text_embed.timestep_embedder.linear_1": (1, 0.5),
    "time_text_embed.guidance_embedder.linear_2": (1, 2.0),
    "norm_out.linear": (3, 2.0),
    "transformer_blocks.0.norm1_context.linear": (1, 2.0),
    "transformer_blocks.0.attn.to_q": (2, 3.0),
    "transformer_blocks.0.attn.to_v": (3, 1.5),
    "transformer_blocks.0.attn.add_k_proj": (1, 0.5),
    "transformer_blocks.0.attn.to_out.0": (1, 3.0),
    "transformer_blocks.0.ff.net.0.proj": (2, 1.0),
    "transformer_blocks.0.ff_context.net.2": (1, 4.0),
    "transformer_blocks.1.attn.to_q": (2, 5.0),
    "transformer_blocks.1.attn.to_k": (2, 5.0),
    "transformer_blocks.1.attn.to_v": (2, 5.0),
    "single_transformer_blocks.0.attn.to_k": (3, 1.0),
    "single_transformer_blocks.0.proj_mlp": (2, 3.0),
    "single_transformer_blocks.1.proj_mlp": (1, 2.0),
    "single_transformer_blocks.1.proj_out": (1, 0.5),
}
SD3 = {
    "pos_embed.proj": (2, 3.0),
    "context_embedder": (2, 1.0),
    "proj_out": (1, 2.0),
    "norm_out.linear": (3, 2.0),
    "transformer_blocks.0.norm1.linear": (1, 2.0),
    "transformer_blocks.0.attn.to_q": (2, 3.0),
    "transformer_blocks.0.attn2.to_k": (3, 1.5),
    "transformer_blocks.0.attn.add_v_proj": (1, 0.5),
    "transformer_blocks.1.attn.to_q": (2, 5.0),
    "transformer_blocks.1.attn.to_k": (2, 5.0),
    "transformer_blocks.1.attn.to_v": (2, 5.0),
    "transformer_blocks.1.attn.to_add_out": (1, 3.0),
    "transformer_blocks.1.ff.net.2": (2, 1.0),
    "transformer_blocks.2.norm1_context.linear": (3, 2.0),
    "transformer_blocks.2.attn.add_k_proj": (1, 2.0),
}


def split_lora(model, modules, seed):
    file = {}
    for module, (rank, alpha) in modules.items():
        weight = model.get_submodule(module).weight
        for factor, shape, gain in (("lora_A", (rank, *weight.shape[1:]), 1),
                                    ("lora_B", (weight.shape[0], rank, *[1] * (weight.dim() - 2)), 0.25)):
            key = f"{module}.{factor}.weight"
            noise = torch.randn(shape, generator=rng(f"{seed} {key}"))
            file[key] = noise * gain * noise[0].numel() ** -0.5
        file[module + ".alpha"] = torch.tensor(alpha)
    return file


def open_model(kind, folder, dtype):
    return kind.from_pretrained(folder / "transformer").eval().requires_grad_(False).to(dtype)


def arguments(x, dtype):
    x = {k: v.to(dtype) if v.is_floating_point() else v for k, v in x.items() if k != "target"}
    batch = x["hidden_states"].shape[0]
    return x | {k: x[k].reshape(-1).expand(batch) for k in ("timestep", "guidance") if k in x}


def by_peft(model, file, x, dtype):
    tensors = {k: v for k, v in file.items() if not k.endswith(".alpha")}
    model.load_lora_adapter({"transformer." + k: v for k, v in tensors.items()}, prefix="transformer",
                            network_alphas={"transformer." + k: v.item() for k, v in file.items() if k not in tensors})
    model.to(dtype)
    factors = {}
    for key, value in tensors.items():
        module, factor = key.removesuffix(".weight").rsplit(".", 1)
        parameter = getattr(model.get_submodule(module), factor)["default_0"].weight
        assert torch.equal(parameter, value.to(dtype)), key
        factors[key] = parameter.requires_grad_(True)
    y = model(**arguments(x, dtype)).sample
    loss = torch.nn.functional.mse_loss(y, x["target"].to(dtype))
    grads = torch.autograd.grad(loss, list(factors.values()))
    return {"sample": y, "loss": loss} | {"grad." + k: g for k, g in zip(factors, grads)}


def merged(weights, file, strength):
    weights = dict(weights)
    for key in file:
        if key.endswith(".alpha"):
            module = key.removesuffix(".alpha")
            down, up = (file[f"{module}.{factor}.weight"].double() for factor in ("lora_A", "lora_B"))
            delta = up.flatten(1) @ down.flatten(1) * (file[key].item() / down.shape[0] * strength)
            weights[module + ".weight"] = weights[module + ".weight"] + delta.reshape(weights[module + ".weight"].shape)
    return weights


def unfused(name, model, fused):
    """The family's own LoRA on the parts of its modules: those share a down, and have rows of the up."""
    table = ({k: (v, False) for k, v in flux.modules(model.config).items()} if name == "flux"
             else sd3_transformer.modules(model))
    file = {}
    for module, (parts, swapped) in table.items():
        base = "lora_unet_" + module.replace(".", "_")
        up = fused[base + ".lora_up.weight"]
        if swapped:
            up = torch.cat(up.chunk(2)[::-1])
        for part in parts:
            rows = model.get_submodule(part).weight.shape[0]
            file |= {part + ".lora_A.weight": fused[base + ".lora_down.weight"], part + ".lora_B.weight": up[:rows],
                     part + ".alpha": fused[base + ".alpha"]}
            up = up[rows:]
        assert not len(up)
    return file


def write(name, kind, folder, case, modules):
    x = load(folder / f"{case}.in.safetensors")
    if "guidance" in x:  # times 1000 an ulp of exp, in which libraries differ, turns by a thousandth of the tolerance
        x["guidance"] = torch.tensor([1.0, 0.75])
    save(OUT / name / "in.safetensors", x)
    file = split_lora(open_model(kind, folder, torch.float32), modules, f"lora_layouts {name}")
    save(OUT / name / "split.safetensors", {"transformer." + k: v for k, v in file.items()})
    found, exact = (by_peft(open_model(kind, folder, torch.float32), file, x, dtype) for dtype in (torch.float32, torch.float64))
    worst = max(((v - exact[k]).abs().max() / exact[k].abs().max()).item() for k, v in found.items())
    assert worst < 2e-5, worst
    save(OUT / name / "split.out.safetensors",
         {k.replace("grad.", "grad.transformer."): v.float() for k, v in exact.items()})
    model = open_model(kind, folder, torch.float64)
    run = lambda weights: torch.func.functional_call(model, weights, (), arguments(x, torch.float64)).sample
    assert torch.allclose(run(merged(model.named_parameters(), file, 1)), exact["sample"], rtol=0, atol=1e-12)
    weights = merged(model.named_parameters(), file, STRENGTHS[0])
    both = run(merged(weights, unfused(name, model, load(folder / "lora.safetensors")), STRENGTHS[1]))
    save(OUT / name / "both.out.safetensors", {"sample": both.float()})


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    write("flux", FluxTransformer2DModel, ROOT / "flux/dev", "wide_grad", FLUX)
    write("sd3", SD3Transformer2DModel, ROOT / "sd3_transformer/dual", "grad", SD3)

#!/usr/bin/env python3
"""Wick beside diffusers + peft on write.py's model: outputs of every component, and the gradients of a LoRA.

    tools/full_size/compare.py DIR [--wick build/release/bin/wick] [--device cuda|cpu]

A line of each comparison, "ok: what: result" or "FAILED: …", and 1 if any failed. Distances are ‖a - b‖ / ‖b‖.
  f32   Wick's distance from PyTorch in f32 (no TF32, plain attention): at most 1e-3
  bf16  Wick's distance from that f32 result, beside PyTorch's own in bf16; for the UNet it must be no larger.
PyTorch's bf16 is for the UNet that of diffusers' training scripts (bf16 weights, an f32 LoRA, autocast); everything in
bf16, the LoRA too, is shown beside. The other components have no LoRA here and are in bf16.
"""

import argparse
import gc
import subprocess
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import CLIPTextModel, CLIPTextModelWithProjection

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "golden"))
import lora  # noqa: E402
from cases import DIFFERENTIABLE, MAIN, forward  # noqa: E402
from write import ALPHA, RANK  # noqa: E402

F32_BAR = 1e-3
CLASSES = {"text_encoder": CLIPTextModel, "text_encoder_2": CLIPTextModelWithProjection, "vae": AutoencoderKL,
           "unet": UNet2DConditionModel}
GRADED = "unet"  # compared with gradients, and held to bf16's bar


def wick(args, component, dtype):
    """What `wick forward` puts out, on the CPU."""
    out = args.dir / f"{component}.{dtype}.wick.safetensors"
    command = [args.wick, "forward", "--model", args.dir / "sdxl", "--component", component, "--device", args.device,
               "--in", args.dir / f"{component}.in.safetensors", "--out", out, "--overwrite"]
    if component == GRADED:
        command += ["--grad", "--lora", args.dir / "lora.safetensors"]
    if dtype == "bf16":
        command += ["--bf16"]
    done = subprocess.run([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"FAILED: {component}, {dtype}: {done.stderr.strip()}", flush=True)
        return None
    tensors = load_file(out)
    out.unlink()
    return tensors


def load_model(args, component, dtype):
    part = component.split(".")[0]
    model = CLASSES[part].from_pretrained(args.dir / "sdxl", subfolder=part, torch_dtype=dtype)
    return model.eval().requires_grad_(False).to(args.device)


def peer(args, component, way):
    """The same from PyTorch. way: f32, autocast (bf16 weights, f32 LoRA) or bf16 (everything)."""
    dtype = torch.float32 if way == "f32" else torch.bfloat16
    model = load_model(args, component, dtype)
    x = {k: v.to(args.device) for k, v in load_file(args.dir / f"{component}.in.safetensors").items()}
    wanted = {}
    if component == GRADED:
        file = load_file(args.dir / "lora.safetensors")
        model = lora.fill(lora.inject(model, lora.UNET_TARGETS, RANK, ALPHA), component, file)
        parameters = lora.parameters(model, component)
        for p in parameters.values():
            p.data = p.data.to(args.device, dtype if way == "bf16" else torch.float32)
        model.train()  # or nothing is checkpointed; there is no dropout
        model.enable_gradient_checkpointing()
        wanted = {k: x[k].requires_grad_() for k in DIFFERENTIABLE if k in x} | parameters
    attention = SDPBackend.MATH if way == "f32" else [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
                                                      SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with torch.set_grad_enabled(bool(wanted)), sdpa_kernel(attention):
        with torch.autocast(args.device, torch.bfloat16, enabled=way == "autocast"):
            out = forward(component, model, {k: v.to(dtype) if k in DIFFERENTIABLE else v for k, v in x.items()})
        if wanted:
            loss = torch.nn.functional.mse_loss(out[MAIN[component]].float(), x["target"])
            out |= {"loss": loss} | dict(zip((f"grad.{k}" for k in wanted),
                                             torch.autograd.grad(loss, list(wanted.values()))))
    out = {k: v.detach().float().cpu() for k, v in out.items()}
    del model, wanted, x
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return out


def distance(got, want, names):
    """Over all the tensors together, and the worst one with its name. Something not finite or not there is far."""
    if missing := [name for name in names if name not in got or got[name].shape != want[name].shape]:
        return float("inf"), float("inf"), missing[0]
    error = {name: (got[name].double() - want[name].double()).norm().item() for name in names}
    size = {name: want[name].double().norm().item() for name in names}
    one = {name: error[name] / size[name] if error[name] else 0.0 for name in names}
    worst = max(names, key=lambda name: one[name] if one[name] == one[name] else float("inf"))
    total = sum(e * e for e in error.values()) ** 0.5 / sum(s * s for s in size.values()) ** 0.5
    return total, one[worst], worst


def groups(tensors):
    """Names of values that are compared together, in the order of the lines."""
    parts = {"output": [n for n in tensors if not n.startswith("grad.") and n != "loss"],
             "loss": [n for n in tensors if n == "loss"],
             "LoRA gradients": [n for n in tensors if n.startswith("grad.lora_")]}
    parts["input gradients"] = [n for n in tensors if n.startswith("grad.") and n not in parts["LoRA gradients"]]
    return {what: names for what, names in parts.items() if names}


def line(ok, text):
    print(f"{'ok' if ok else 'FAILED'}: {text}", flush=True)
    return ok


def show(total, worst, name):
    return f"{total:.2e}" if total == worst else f"{total:.2e} (worst {worst:.1e}, {name})"


def compare_f32(component, mine, exact):
    ok = True
    for what, names in groups(exact).items():
        far = distance(mine, exact, names)
        ok &= line(far[0] <= F32_BAR, f"{component} f32, {what}: {show(*far)} from PyTorch (bar {F32_BAR:.0e})")
    return ok


def compare_bf16(component, mine, exact, theirs):
    ok = True
    for what, names in groups(exact).items():
        far, bar = distance(mine, exact, names), distance(theirs, exact, names)[0]
        held = component == GRADED and what != "loss"  # the loss is one number, whose distance is left to chance
        ok &= line(far[0] <= bar if held else far[0] < 1,
                   f"{component} bf16, {what}: {show(*far)} from f32, PyTorch {bar:.2e}, ratio {far[0] / bar:.2f}")
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--wick", type=Path, default=ROOT / "build" / "release" / "bin" / "wick")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--components", nargs="+", default=list(MAIN), choices=list(MAIN))
    args = parser.parse_args()
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    ok = True
    for component in args.components:
        exact = peer(args, component, "f32")
        main_output = exact[MAIN[component]]
        print(f"{component}: the output's standard deviation is {main_output.std():.3f}", flush=True)
        peers = {way: peer(args, component, way) for way in (["autocast", "bf16"] if component == GRADED else ["bf16"])}
        for way, theirs in peers.items():
            far = (f"{what} {show(*distance(theirs, exact, names))}" for what, names in groups(exact).items())
            print(f"{component}: PyTorch, {way}, from f32: {', '.join(far)}", flush=True)
        if mine := wick(args, component, "f32"):
            ok &= compare_f32(component, mine, exact)
        if mine_bf16 := wick(args, component, "bf16"):
            ok &= compare_bf16(component, mine_bf16, exact, next(iter(peers.values())))
        ok &= mine is not None and mine_bf16 is not None
    sys.exit(not ok)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Wick beside diffusers on write.py's models: outputs of every component, and the gradients of a LoRA.

    tools/full_size/compare.py DIR --model sdxl|flux|sd3-large|sd3-medium [--wick build/release/bin/wick] [--tiny]

A line of each comparison, "ok: what: result" or "FAILED: …", and 1 if any failed. Distances are ‖a - b‖ / ‖b‖.
  f32   Wick's distance from PyTorch in f32 (no TF32, plain attention): at most 1e-3
  bf16  Wick's distance from that f32 result, beside PyTorch's own in bf16; for the denoiser it must be no larger.
PyTorch's bf16 is for the denoiser that of diffusers' training scripts (bf16 weights, an f32 LoRA, autocast); everything in
bf16, the LoRA too, is shown beside. The other components have no LoRA here and are in bf16. The denoiser comes first; what
--seconds leave no time for is "missed".
"""

import argparse
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from models import MODELS, ROOT, forward, lora_modules
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, mse_loss

F32_BAR = 1e-3
FACTORS = ("lora_down.weight", "lora_up.weight")
MAIN = {"vae.encoder": "mean", "vae.decoder": "sample"}  # what the loss is of
DIFFERENTIABLE = ["sample", "latent", "hidden_states", "encoder_hidden_states", "text_embeds", "pooled_projections"]
# Without cuDNN's, whose backward of FLUX's attention ended in an illegal access (torch 2.11).
FAST_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def wick(args, component, dtype):
    """What `wick forward` puts out, on the CPU."""
    out = args.dir / f"{args.model}.{component}.{dtype}.wick.safetensors"
    command = [args.wick, "forward", "--model", args.dir / args.model, "--component", component, "--device", args.device,
               "--in", args.dir / f"{args.model}.{component}.in.safetensors", "--out", out, "--overwrite"]
    if component == args.what.denoiser:
        command += ["--grad", "--lora", args.dir / f"{args.model}.lora.safetensors"]
    if dtype == "bf16":
        command += ["--bf16"]
    done = subprocess.run([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"FAILED: {args.model}, {component} {dtype}: {done.stderr.strip()}", flush=True)
        return None
    tensors = load_file(out)
    out.unlink()
    return tensors


class Lora:
    """The file's factors beside the linear layers of a model: y += scale * up(down(x)). A fused one is in several layers."""

    def __init__(self, args, denoiser):
        file = load_file(args.dir / f"{args.model}.lora.safetensors")
        self.stored = {name: t for name, t in file.items() if name.endswith(FACTORS)}
        self.factors = {}
        scale = args.what.alpha / args.what.rank
        for base, (parts, swapped) in lora_modules(denoiser).items():
            assert file[base + ".alpha"] == args.what.alpha
            begin = 0
            for part in parts:
                layer = denoiser.get_submodule(part)
                rows = slice(begin, begin := begin + layer.out_features)
                layer.register_forward_hook(self.hook(base, rows, swapped, scale))

    def hook(self, base, rows, swapped, scale):
        def add(_, inputs, y):
            down, up = (self.factors[f"{base}.{factor}"] for factor in FACTORS)
            up = torch.cat(up.chunk(2)[::-1]) if swapped else up[rows]
            x = inputs[0] if torch.is_autocast_enabled(inputs[0].device.type) else inputs[0].to(down.dtype)
            return y + scale * linear(linear(x, down), up)
        return add

    def put(self, device, dtype):
        """The file's values, to be differentiated by."""
        self.factors = {name: t.to(device, dtype).requires_grad_() for name, t in self.stored.items()}
        return self.factors


def load_model(args, component):
    """In bf16, as it is stored, straight to the device."""
    part = args.what.part(component)
    model = part.kind.from_pretrained(args.dir / args.model, subfolder=component.split(".")[0],
                                      torch_dtype=torch.bfloat16, device_map={"": args.device})
    return model.eval().requires_grad_(False)


def evaluate(args, component, model, lora, way):
    """way: f32, autocast (bf16 weights, f32 LoRA) or bf16 (everything)."""
    dtype = torch.float32 if way == "f32" else torch.bfloat16
    x = {k: v.to(args.device) for k, v in load_file(args.dir / f"{args.model}.{component}.in.safetensors").items()}
    wanted = {}
    if lora:
        parameters = lora.put(args.device, dtype if way == "bf16" else torch.float32)
        wanted = {k: x[k].requires_grad_() for k in DIFFERENTIABLE if k in x} | parameters
    with torch.set_grad_enabled(bool(wanted)), sdpa_kernel([SDPBackend.MATH] if way == "f32" else FAST_ATTENTION):
        with torch.autocast(args.device, torch.bfloat16, enabled=way == "autocast"):
            out = forward(component, model, {k: v.to(dtype) if k in DIFFERENTIABLE else v for k, v in x.items()})
        if wanted:
            loss = mse_loss(out[main_output(component, out)].float(), x["target"])
            out |= {"loss": loss} | dict(zip((f"grad.{k}" for k in wanted),
                                             torch.autograd.grad(loss, list(wanted.values()))))
    return {k: v.detach().float().cpu() for k, v in out.items()}


def peers(args, component):
    """{way: what PyTorch puts out}, f32 last. bf16's weights are exact in f32, so that they are read once."""
    model, lora = load_model(args, component), None
    if component == args.what.denoiser:
        lora = Lora(args, model)
        model.train()  # or nothing is checkpointed; there is no dropout
        model.enable_gradient_checkpointing()
    found = {way: evaluate(args, component, model, lora, way) for way in (["autocast", "bf16"] if lora else ["bf16"])}
    found["f32"] = evaluate(args, component, model.float(), lora, "f32")
    del model, lora
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return found


def main_output(component, out):
    return MAIN.get(component, "last_hidden_state" if "last_hidden_state" in out else "sample")


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


def compare_f32(name, mine, exact):
    ok = True
    for what, names in groups(exact).items():
        far = distance(mine, exact, names)
        ok &= line(far[0] <= F32_BAR, f"{name} f32, {what}: {show(*far)} from PyTorch (bar {F32_BAR:.0e})")
    return ok


def compare_bf16(name, mine, exact, theirs, graded):
    ok = True
    for what, names in groups(exact).items():
        far, bar = distance(mine, exact, names), distance(theirs, exact, names)[0]
        held = graded and what != "loss"  # the loss is one number, whose distance is left to chance
        ok &= line(far[0] <= bar if held else far[0] < 1,
                   f"{name} bf16, {what}: {show(*far)} from f32, PyTorch {bar:.2e}, ratio {far[0] / bar:.2f}")
    return ok


def compare(args, component):
    begin = time.monotonic()
    theirs = peers(args, component)
    exact = theirs.pop("f32")
    print(f"{component}: PyTorch took {time.monotonic() - begin:.0f} s; the output's standard deviation is "
          f"{exact[main_output(component, exact)].std():.3f}", flush=True)
    for way, found in theirs.items():
        far = (f"{what} {show(*distance(found, exact, names))}" for what, names in groups(exact).items())
        print(f"{component}: PyTorch, {way}, from f32: {', '.join(far)}", flush=True)
    mine, mine_bf16 = wick(args, component, "f32"), wick(args, component, "bf16")
    ok = mine is not None and mine_bf16 is not None
    if mine:
        ok &= compare_f32(f"{args.model}, {component}", mine, exact)
    if mine_bf16:
        ok &= compare_bf16(f"{args.model}, {component}", mine_bf16, exact, next(iter(theirs.values())),
                           component == args.what.denoiser)
    return ok


def main():
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--model", default="sdxl", choices=list(MODELS))
    parser.add_argument("--tiny", action="store_true", help="as write.py was told")
    parser.add_argument("--wick", type=Path, default=ROOT / "build" / "release" / "bin" / "wick")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--components", nargs="+", help="and no others")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no component is begun after them")
    args = parser.parse_args()
    args.what = MODELS[args.model](args.tiny)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(os.cpu_count())  # the goldens take one
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    ok = True
    for component in args.components or args.what.components():
        if time.monotonic() - begin > args.seconds:
            print(f"missed: {args.model}, {component}: no time was left", flush=True)
        else:
            ok &= compare(args, component)
    sys.exit(not ok)


if __name__ == "__main__":
    main()

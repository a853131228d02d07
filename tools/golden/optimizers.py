"""Fifty steps of each optimizer by the program that published it, on made-up gradients.

    python tools/golden/optimizers.py                                writes tests/golden/optimizers/
    python tools/golden/optimizers.py cpu NAME ...                   those of these names alone
    WICK_GOLDEN_OUT=/tmp/g python tools/golden/optimizers.py cuda    the same on a GPU, for
    WICK_TEST_OPTIMIZERS=/tmp/g/optimizers test_train --gtest_filter='*GoldenOptimizer*'

The gradient of step t, from 0, is `base + 0.5 * roll(noise, 17 t)` over the flattened tensor, and the norm over all
tensors is clipped. Files of NAME.out: the tensors after all steps, `d` of prodigy after each, `x.TENSOR` of
schedule-free and radam-schedule-free (the tensors are y), and of the 8-bit optimizers `m.TENSOR`, `m_absmax.TENSOR`,
`v.TENSOR`, `v_absmax.TENSOR`, and those and the tensor before the last step, as `before.m.TENSOR`: over many steps a code that rounding decides leads elsewhere.
bitsandbytes' CPU kernel lets parameters decay before the update, and its GPU kernel after it, which is what Wick does: on
the CPU AdamW8bit has no decay here. That kernel also looks codes up by 16 bits of a number, where the GPU's finds the
nearest. `map.m` and `map.v` are the maps.
"""

import sys

import torch
from bitsandbytes.optim import AdamW8bit, Lion8bit
from lion_pytorch import Lion
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree, RAdamScheduleFree
from transformers.optimization import Adafactor

from golden import ROOT, randn, save

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
STEPS, MAX_NORM, WARMUP = 50, 31.5, 10
SHAPES = {"matrix": (7, 5), "vector": (11,), "kernel": (3, 2, 5, 4), "wide": (5, 131)}
LARGE = {"large": (65, 67)}  # enough elements for states of 8 bits

OPTIMIZERS = {
    "adamw": (SHAPES, lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1)),
    "adamw8bit": (SHAPES | LARGE, lambda p: AdamW8bit(p, lr=1e-2, weight_decay=0 if DEVICE == "cpu" else 0.1)),
    "lion": (SHAPES, lambda p: Lion(p, lr=1e-3, weight_decay=0.1)),
    "lion8bit": (SHAPES | LARGE, lambda p: Lion8bit(p, lr=1e-3, weight_decay=0.1)),
    "adafactor": (SHAPES, lambda p: Adafactor(p, lr=1e-2, weight_decay=0.1, relative_step=False, scale_parameter=False,
                                              warmup_init=False)),
    "prodigy": (SHAPES, lambda p: Prodigy(p, weight_decay=0.1, betas=(0.9, 0.99), use_bias_correction=True,
                                          safeguard_warmup=True)),
    "schedule-free": (SHAPES, lambda p: AdamWScheduleFree(p, lr=1e-2, weight_decay=0.1, warmup_steps=WARMUP)),
    "radam-schedule-free": (SHAPES, lambda p: RAdamScheduleFree(p, lr=1e-2, weight_decay=0.1)),
}
# The same with other arguments: files of NAME.ROW.out.
ARGUMENTS = {
    "adamw.betas": (SHAPES, lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-3)),
    "adamw8bit.betas": (SHAPES | LARGE, lambda p: AdamW8bit(p, lr=1e-2, weight_decay=0 if DEVICE == "cpu" else 0.1,
                                                            betas=(0.8, 0.95), eps=1e-3)),
    "lion.betas": (SHAPES, lambda p: Lion(p, lr=1e-3, weight_decay=0.1, betas=(0.95, 0.8))),
    "lion8bit.betas": (SHAPES | LARGE, lambda p: Lion8bit(p, lr=1e-3, weight_decay=0.1, betas=(0.95, 0.8))),
    "adafactor.relative": (SHAPES, lambda p: Adafactor(p, weight_decay=0.1)),
    "adafactor.warmup": (SHAPES, lambda p: Adafactor(p, weight_decay=0.1, warmup_init=True, eps=(1e-2, 0.5),
                                                     clip_threshold=0.7, decay_rate=-0.6)),
    "adafactor.scaled": (SHAPES, lambda p: Adafactor(p, lr=1e-2, weight_decay=0.1, relative_step=False)),
    "prodigy.plain": (SHAPES, lambda p: Prodigy(p, lr=0.1, weight_decay=0.1, growth_rate=1.1)),
    "prodigy.coupled": (SHAPES, lambda p: Prodigy(p, weight_decay=0.1, decouple=False, betas=(0.8, 0.95), beta3=0.9,
                                                  eps=1e-3, use_bias_correction=True, d0=1e-5, d_coef=0.5, slice_p=3)),
    "prodigy.growth": (SHAPES, lambda p: Prodigy(p, weight_decay=0.1, growth_rate=1.2, safeguard_warmup=True)),
    "schedule-free.weights": (SHAPES, lambda p: AdamWScheduleFree(p, lr=1e-2, weight_decay=0.1, warmup_steps=WARMUP,
                                                                  betas=(0.95, 0.98), eps=1e-3, r=1.5,
                                                                  weight_lr_power=1)),
    "radam-schedule-free.weights": (SHAPES, lambda p: RAdamScheduleFree(p, lr=1e-2, weight_decay=0.1, betas=(0.95, 0.98),
                                                                        eps=1e-3, r=1, weight_lr_power=0)),
}


def inputs():
    tensors = {}
    for name, shape in (SHAPES | LARGE).items():
        tensors[f"start.{name}"] = 1e-3 * randn(f"optimizers start {name}", *shape)
        tensors[f"base.{name}"] = randn(f"optimizers base {name}", *shape)
        tensors[f"noise.{name}"] = randn(f"optimizers noise {name}", *shape)
    return tensors


def coded(optimizer, parameters):
    """The tensors with states of 8 bits, and those."""
    out = {}
    for name, p in parameters.items():
        for ours, state, absmax in (("m", "state1", "absmax1"), ("v", "state2", "absmax2")):
            values = optimizer.state[p].get(state)
            if values is not None and values.dtype == torch.uint8:
                out |= {name: p, f"{ours}.{name}": values, f"{ours}_absmax.{name}": optimizer.state[p][absmax],
                        f"map.{ours}": optimizer.state[p][state.replace("state", "qmap")]}
    return {name: values.detach().to("cpu", copy=True) for name, values in out.items()}


def train(x, shapes, make):
    parameters = {name: torch.nn.Parameter(x[f"start.{name}"].to(DEVICE, copy=True)) for name in shapes}
    optimizer = make(list(parameters.values()))
    if hasattr(optimizer, "train"):
        optimizer.train()
    distances, norms, before = [], [], {}
    for t in range(STEPS):
        if t == STEPS - 1:
            before = coded(optimizer, parameters)
        for name, p in parameters.items():
            noise = x[f"noise.{name}"]
            p.grad = (x[f"base.{name}"] + 0.5 * torch.roll(noise.flatten(), 17 * t).view_as(noise)).to(DEVICE)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_NORM))
        optimizer.step()
        distances.append(optimizer.param_groups[0].get("d", 0.0))
    out = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
    if any(distances):
        out["d"] = torch.tensor(distances, dtype=torch.float64).float()
    out |= coded(optimizer, parameters)
    out |= {f"before.{name}": values for name, values in before.items() if not name.startswith("map.")}
    if hasattr(optimizer, "eval"):
        optimizer.eval()
        out |= {f"x.{name}": p.detach().to("cpu", copy=True) for name, p in parameters.items()}
    print(f"  norms {min(norms):.3f} to {max(norms):.3f}")
    return out


def main():
    x = inputs()
    save(ROOT / "optimizers" / "in.safetensors", x,
         {"steps": str(STEPS), "max_grad_norm": str(MAX_NORM), "warmup": str(WARMUP), "device": DEVICE})
    for name, (shapes, make) in (OPTIMIZERS | ARGUMENTS).items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        save(ROOT / "optimizers" / f"{name}.out.safetensors", train(x, shapes, make))


if __name__ == "__main__":
    main()

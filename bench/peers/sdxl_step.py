"""One LoRA training step of SDXL's UNet with diffusers + peft on a GPU, as fast as PyTorch does it.

    python bench/peers/sdxl_step.py --model DIR [--mode eager] [--batch 1 4] [--graph] …

Forward, backward and AdamW of a LoRA (f32 parameters) on kohya's default targets, frozen weights in bf16; noise, time
steps and noised latents are made in the step. A line of JSON each, as soon as it is measured: the median of the steps
by CUDA events, the peak of what PyTorch's allocator gave out in a step, and how the step was run:

  mode    eager, or one of torch.compile's
  scope   what is compiled: the whole UNet, which takes many minutes, or its blocks, each kind and shape once
  lora    master: the LoRA computes in bf16, on copies of the f32 parameters; autocast: as diffusers' scripts do it
  graph   the whole step, optimizer and all, is one CUDA graph

--adapter takes peft's DoRA, LoHa or LoKr in place of its LoRA.

With --ceiling first the rate of an 8192³ product in bf16, and the floating-point operations of a step (counted by
PyTorch, batch 1, no checkpointing). With --cache what was compiled is read from a file and kept there.
"""

import argparse
import functools
import gc
import itertools
import statistics
import time
from pathlib import Path

import diffusers
import peft
import torch
from diffusers import UNet2DConditionModel
from peft import LoHaConfig, LoKrConfig, LoraConfig, inject_adapter_in_model
from torch.utils.flop_counter import FlopCounterMode

from rows import emit, timed

# kohya's default targets: every Linear inside Transformer2DModel.
TARGETS = r".*\.attentions\.\d+\.(proj_in|proj_out|.*\.(to_q|to_k|to_v|to_out\.0|net\.0\.proj|net\.2))"
MODES = ["eager", "default", "reduce-overhead", "max-autotune-no-cudagraphs"]
BLOCKS = {"BasicTransformerBlock", "ResnetBlock2D", "GroupNorm"}  # nearly all that a UNet does
LAYOUTS = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}


def gemm_ceiling():
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    timed(lambda: torch.mm(a, b, out=out), 10)
    return 2 * n**3 / statistics.median(timed(lambda: torch.mm(a, b, out=out), 50)) / 1e9


def adapter_config(args):
    sizes = dict(r=args.rank, target_modules=TARGETS)
    if args.adapter == "loha":
        return LoHaConfig(alpha=args.rank, **sizes)
    if args.adapter == "lokr":
        return LoKrConfig(alpha=args.rank, decompose_factor=args.lokr_factor, **sizes)
    return LoraConfig(lora_alpha=args.rank, use_dora=args.adapter == "dora", **sizes)


class Step:
    """What is trained, and one step of it."""

    def __init__(self, args):
        self.args = args
        unet = UNet2DConditionModel.from_pretrained(args.model, subfolder="unet", torch_dtype=torch.bfloat16)
        self.unet = unet.to(args.device).requires_grad_(False)
        inject_adapter_in_model(adapter_config(args), self.unet)
        self.unet.train()
        self.parameters = [p for p in self.unet.parameters() if p.requires_grad]
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=args.device) ** 2
        alphas = (1 - betas).cumprod(0)
        self.signal, self.noise = (t.sqrt()[:, None, None, None] for t in (alphas, 1 - alphas))
        self.model = self.unet
        if args.mode != "eager":
            self.compile(mode=None if args.mode == "default" else args.mode, dynamic=False)

    def compile(self, **how):
        torch._dynamo.config.recompile_limit = 256  # one for each shape
        if self.args.scope == "whole":
            self.model = torch.compile(self.unet, **how)
        for module in self.unet.modules() if self.args.scope == "blocks" else []:
            if type(module).__name__ in BLOCKS:
                module.compile(**how)

    def prepare(self, batch, checkpoint, lora, layout):
        """Everything anew but the frozen weights and what is compiled."""
        self.lora = lora
        self.unet.to(memory_format=LAYOUTS[layout])
        self.unet.disable_gradient_checkpointing()
        if checkpoint:  # there is no dropout; without its random state a checkpoint can be captured
            self.unet.enable_gradient_checkpointing(
                functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False, preserve_rng_state=False))

        for p in self.parameters:
            p.data, p.grad = p.data.float(), None
        self.masters = []
        if lora == "master":
            self.masters = [p.detach().clone().requires_grad_() for p in self.parameters]
            for p in self.parameters:
                p.data = p.data.bfloat16()
        self.optimizer = torch.optim.AdamW(self.masters or self.parameters, lr=1e-4, weight_decay=1e-2, fused=True,
                                           capturable=self.args.device == "cuda")
        config, device, side = self.unet.config, self.args.device, self.args.side
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        pixels = 8.0 * side
        self.latents = torch.randn(batch, config.in_channels, side, side, device=device)
        self.states = torch.randn(batch, 77, config.cross_attention_dim, device=device, dtype=torch.bfloat16)
        self.condition = {"text_embeds": torch.randn(batch, pooled, device=device, dtype=torch.bfloat16),
                          "time_ids": torch.tensor([[pixels, pixels, 0, 0, pixels, pixels]] * batch, device=device)}

    def loss(self):
        noise = torch.randn_like(self.latents)
        t = torch.randint(0, 1000, (len(self.latents),), device=self.latents.device)
        noised = (self.signal[t] * self.latents + self.noise[t] * noise).bfloat16()
        with torch.autocast(self.args.device, torch.bfloat16, enabled=self.lora == "autocast"):
            epsilon = self.model(noised, t, self.states, added_cond_kwargs=self.condition).sample
        return torch.nn.functional.mse_loss(epsilon.float(), noise)

    def __call__(self):
        if self.args.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        self.loss().backward()
        if self.masters:
            for master in self.masters:
                master.grad = torch.empty_like(master)
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.parameters])
        self.optimizer.step()
        if self.masters:
            torch._foreach_copy_([p.detach() for p in self.parameters], [m.detach() for m in self.masters])
        for p in self.parameters + self.masters:
            p.grad = None

    def captured(self):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self()
        return graph

    def free(self):
        self.optimizer = self.masters = None
        gc.collect()
        torch.cuda.empty_cache()


def peaks():
    return {"peak_mib": torch.cuda.max_memory_allocated() >> 20,
            "peak_reserved_mib": torch.cuda.max_memory_reserved() >> 20}


def measure(step, args, batch, checkpoint, lora, layout):
    """A line for the step, and one for it as a graph; a failure is a line too."""
    how = {"bench": "sdxl_step", "mode": args.mode, "scope": args.scope, "batch": batch, "checkpoint": checkpoint,
           "lora": lora, "layout": layout, "side": args.side, "adapter": args.adapter, "rank": args.rank}
    try:
        begin = time.monotonic()
        step.prepare(batch, checkpoint, lora, layout)
        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):  # a capture needs a warm-up on a side stream
            timed(step, 3)
            ready = time.monotonic() - begin
            torch.cuda.reset_peak_memory_stats()
            times = timed(step, args.steps)
        emit(**how, graph=False, median_ms=round(statistics.median(times), 3), min_ms=round(min(times), 3),
             max_ms=round(max(times), 3), ready_s=round(ready, 1), **peaks())
        if args.graph and args.mode != "reduce-overhead":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            graph = step.captured()
            peak = peaks()
            timed(graph.replay, 2)
            times = timed(graph.replay, args.steps)
            emit(**how, graph=True, median_ms=round(statistics.median(times), 3), min_ms=round(min(times), 3),
                 max_ms=round(max(times), 3), **peak)
    except Exception as e:  # out of memory, or a compiler that gives up: the other ways go on
        emit(**how, error=f"{type(e).__name__}: {str(e).splitlines()[0][:200]}")
    step.free()


def ceilings(step):
    rate = gemm_ceiling()
    step.prepare(1, False, "master", "channels_first")
    with FlopCounterMode(display=False) as counter:
        step.loss().backward()
    emit(bench="ceiling", gemm_tflops=round(rate, 1), step_tflop=round(counter.get_total_flops() / 1e12, 3),
         device=torch.cuda.get_device_name(), lora_parameters=sum(p.numel() for p in step.parameters),
         versions=f"torch {torch.__version__}, diffusers {diffusers.__version__}, peft {peft.__version__}")
    step.free()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a diffusers folder with a unet/")
    parser.add_argument("--mode", default="eager", choices=MODES)
    parser.add_argument("--scope", default="blocks", choices=["whole", "blocks"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--checkpoint", nargs="+", default=["no"], choices=["no", "yes"], help="gradient checkpointing")
    parser.add_argument("--lora", nargs="+", default=["master"], choices=["master", "autocast"])
    parser.add_argument("--layout", nargs="+", default=["channels_first"], choices=list(LAYOUTS))
    parser.add_argument("--graph", action="store_true", help="also time the step as one CUDA graph")
    parser.add_argument("--ceiling", action="store_true", help="eager only")
    parser.add_argument("--side", type=int, default=128, help="of the latents")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--adapter", default="lora", choices=["lora", "dora", "loha", "lokr"])
    parser.add_argument("--lokr-factor", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cache", type=Path)
    args = parser.parse_args()
    args.device = "cuda"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if args.cache and args.cache.exists():
        torch.compiler.load_cache_artifacts(args.cache.read_bytes())
    step = Step(args)
    if args.ceiling:
        ceilings(step)
    for way in itertools.product(args.batch, (c == "yes" for c in args.checkpoint), args.lora, args.layout):
        measure(step, args, *way)
        if args.cache and args.mode != "eager" and (artifacts := torch.compiler.save_cache_artifacts()):
            args.cache.write_bytes(artifacts[0])


if __name__ == "__main__":
    main()

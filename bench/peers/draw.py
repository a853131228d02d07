"""Pictures of a diffusion model in a folder, drawn by its diffusers pipeline on a GPU: bench_draw does the same.

    python bench/peers/draw.py --model DIR [--compiled yes no] [--batch 1] [--steps 30]

bf16; the denoiser and the VAE's decoder channels last where they are of convolutions, by torch.compile as one graph (a transformer
block by block), or eager.
A line of JSON a row: milliseconds of a picture to its pixels on the host, and of a step between its events on the GPU; before
them the rate at which pinned memory reaches the GPU.
"""

import argparse
import json
import statistics
import time

import torch
from diffusers import DiffusionPipeline

PROMPT = "a photo of a red fox in the snow"


class Pictures:
    def __init__(self, args):
        self.args = args
        self.pipe = DiffusionPipeline.from_pretrained(args.model, torch_dtype=torch.bfloat16).to("cuda")
        self.pipe.set_progress_bar_config(disable=True)
        self.pipe.vae.to(memory_format=torch.channels_last)
        self.name = "unet" if hasattr(self.pipe, "unet") else "transformer"
        if self.name == "unet":
            self.pipe.unet.to(memory_format=torch.channels_last)

    def compile(self):
        denoiser = getattr(self.pipe, self.name)
        if self.name == "unet":
            self.pipe.unet = torch.compile(denoiser, fullgraph=True)
        else:  # whole, a transformer is as fast, and minutes later
            denoiser._repeated_blocks = denoiser._repeated_blocks or ["JointTransformerBlock"]  # SD3's class names none
            denoiser.compile_repeated_blocks(fullgraph=True)
        self.pipe.vae.decode = torch.compile(self.pipe.vae.decode, fullgraph=True)

    def milliseconds(self, steps):
        self.ends = []
        begin = time.perf_counter()
        self.pipe(PROMPT, num_images_per_prompt=self.args.batch, num_inference_steps=steps, guidance_scale=self.args.cfg,
                  width=self.args.width, height=self.args.height, generator=torch.Generator("cuda").manual_seed(0),
                  callback_on_step_end=self.end_step)
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    def end_step(self, pipe, step, timestep, tensors):
        self.ends.append(torch.cuda.Event(enable_timing=True))
        self.ends[-1].record()
        return tensors

    def between_ends(self):
        return statistics.median(a.elapsed_time(b) for a, b in zip(self.ends[2:], self.ends[3:]))

    def measure(self, compiled):
        a = self.args
        begin = time.monotonic()
        self.milliseconds(2)
        ready = time.monotonic() - begin
        self.milliseconds(2)
        torch.cuda.reset_peak_memory_stats()
        times = [(self.milliseconds(a.steps), self.between_ends()) for _ in range(a.repeats)]
        whole, step = (statistics.median(t) for t in zip(*times))
        print(json.dumps(dict(bench="draw", peer="diffusers", compiled=compiled, batch=a.batch, width=a.width, height=a.height,
                              steps=a.steps, median_ms=round(whole, 2), step_ms=round(step, 3),
                              rest_ms=round(whole - step * a.steps, 2), ready_s=round(ready, 1),
                              peak_mib=torch.cuda.max_memory_allocated() >> 20)), flush=True)


def upload():
    """Bytes a nanosecond from pinned memory."""
    host, device = torch.empty(1 << 30, dtype=torch.uint8).pin_memory(), torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    device.copy_(host, non_blocking=True)
    begin.record()
    device.copy_(host, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    return (1 << 30) / begin.elapsed_time(end) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--compiled", nargs="+", default=["no", "yes"], choices=["yes", "no"])
    for name, default in dict(batch=1, width=1024, height=1024, steps=30, repeats=5).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cfg", type=float, default=5)
    args = parser.parse_args()
    print(json.dumps(dict(bench="upload", gb_per_s=round(upload(), 2))), flush=True)
    with torch.inference_mode():
        pictures = Pictures(args)
        for compiled in sorted(args.compiled):  # eager first: what is compiled stays so
            if compiled == "yes":
                pictures.compile()
            pictures.measure(compiled == "yes")


if __name__ == "__main__":
    main()

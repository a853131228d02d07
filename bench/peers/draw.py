"""Pictures of a diffusion model in a folder, drawn by its diffusers pipeline on a GPU: bench_draw does the same.

    python bench/peers/draw.py --model DIR [--compiled yes no] [--batch 1] [--steps 30]

bf16; the denoiser and the VAE's decoder channels last where they are of convolutions, by torch.compile as one graph, or eager.
A line of JSON a row: milliseconds of a picture to its pixels on the host, and of a step.
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
        setattr(self.pipe, self.name, torch.compile(getattr(self.pipe, self.name), fullgraph=True))
        self.pipe.vae.decode = torch.compile(self.pipe.vae.decode, fullgraph=True)

    def milliseconds(self, steps):
        begin = time.perf_counter()
        self.pipe(PROMPT, num_images_per_prompt=self.args.batch, num_inference_steps=steps, guidance_scale=self.args.cfg,
                  width=self.args.width, height=self.args.height, generator=torch.Generator("cuda").manual_seed(0))
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    def measure(self, compiled):
        a = self.args
        begin = time.monotonic()
        self.milliseconds(2)
        ready = time.monotonic() - begin
        self.milliseconds(2)
        torch.cuda.reset_peak_memory_stats()
        times = [(self.milliseconds(a.steps), self.milliseconds(a.few)) for _ in range(a.repeats)]
        whole, few = (statistics.median(t) for t in zip(*times))
        step = (whole - few) / (a.steps - a.few)
        print(json.dumps(dict(bench="draw", peer="diffusers", compiled=compiled, batch=a.batch, width=a.width, height=a.height,
                              steps=a.steps, median_ms=round(whole, 2), step_ms=round(step, 3),
                              rest_ms=round(whole - step * a.steps, 2), ready_s=round(ready, 1),
                              peak_mib=torch.cuda.max_memory_allocated() >> 20)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--compiled", nargs="+", default=["no", "yes"], choices=["yes", "no"])
    for name, default in dict(batch=1, width=1024, height=1024, steps=30, few=10, repeats=5).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cfg", type=float, default=5)
    args = parser.parse_args()
    with torch.inference_mode():
        pictures = Pictures(args)
        for compiled in sorted(args.compiled):  # eager first: what is compiled stays so
            if compiled == "yes":
                pictures.compile()
            pictures.measure(compiled == "yes")


if __name__ == "__main__":
    main()

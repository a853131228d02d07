"""One LoRA training step of an SDXL UNet in eager PyTorch with peft on the CPU, float32: forward, backward, AdamW.

    python bench/peers/train_step.py --model DIR --batch B --height h --width w --steps N [--on-request]

DIR is a diffusers folder with a unet/. Height and width are those of the latents (pixels / 8). Prints one line of JSON:
milliseconds a step over N steps after the warm-up, peak resident memory, and what was measured. With --on-request it
takes numbers from stdin instead, and answers each with the times of so many steps (bench/run alternates between two
programs that are warm).
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

import diffusers
import peft
import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig, inject_adapter_in_model

# kohya's default targets: every Linear inside Transformer2DModel.
TARGETS = r".*\.attentions\.\d+\.(proj_in|proj_out|.*\.(to_q|to_k|to_v|to_out\.0|net\.0\.proj|net\.2))"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--height", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--checkpoint", action="store_true", help="gradient checkpointing")
    parser.add_argument("--on-request", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    unet = UNet2DConditionModel.from_pretrained(args.model, subfolder="unet", torch_dtype=torch.float32)
    unet.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=args.rank, lora_alpha=args.rank, target_modules=TARGETS), unet)
    unet.train()
    if args.checkpoint:
        unet.enable_gradient_checkpointing()
    parameters = [p for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=1e-2)
    ddpm = DDPMScheduler(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")

    versions = f"torch {torch.__version__}, diffusers {diffusers.__version__}, peft {peft.__version__}"
    config, b = unet.config, args.batch
    latents = torch.randn(b, config.in_channels, args.height, args.width)
    states = torch.randn(b, 77, config.cross_attention_dim)
    pooled = torch.randn(b, config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim)
    h, w = args.height * 8, args.width * 8
    condition = {"text_embeds": pooled, "time_ids": torch.tensor([[h, w, 0, 0, h, w]], dtype=torch.float32).repeat(b, 1)}

    def measure(steps):
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            noise = torch.randn_like(latents)
            t = torch.randint(0, 1000, (b,))
            epsilon = unet(ddpm.add_noise(latents, noise, t), t, states, added_cond_kwargs=condition).sample
            loss = torch.nn.functional.mse_loss(epsilon, noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            times.append((time.perf_counter() - start) * 1e3)
        return times

    measure(args.warmup)
    if args.on_request:
        print(f"{versions}, {args.threads} threads", flush=True)
        for line in sys.stdin:
            print(json.dumps({"train_step": measure(int(line))}), flush=True)
        return
    times = measure(args.steps)
    print(json.dumps({
        "bench": "train_step", "peer": versions,
        "model": os.path.basename(os.path.normpath(args.model)), "device": "cpu", "dtype": "float32",
        "threads": args.threads, "batch": b, "height": args.height, "width": args.width, "rank": args.rank,
        "checkpoint": args.checkpoint, "lora_parameters": sum(p.numel() for p in parameters), "steps": args.steps,
        "median_ms": round(statistics.median(times), 3), "min_ms": round(min(times), 3), "max_ms": round(max(times), 3),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


if __name__ == "__main__":
    main()

"""LoRA training steps of FLUX.1's or SD3.5's transformer, and steps of drawing with it, with diffusers + peft on a GPU.

    python bench/peers/flow_step.py --model flux|sd3-large|sd3-medium [--ways draw train checkpoint nf4] [--compiled yes no]

"nf4" is "checkpoint" with the matrices of the blocks in bitsandbytes' NF4, and eager alone.
Random weights in bf16; a LoRA on attention and feed-forward of all blocks with f32 masters and bf16 arithmetic, but none in
drawing; noise and sigmas are drawn in the step; fused AdamW. --compiled: every block by torch.compile, or eager. A line of JSON
for each way: the median of the steps by CUDA events, and the peak of what PyTorch's allocator gave out; or its error.
"""

import argparse
import gc
import statistics
import time

import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel
from peft import LoraConfig, inject_adapter_in_model
from torch.nn.attention import SDPBackend, sdpa_kernel

from rows import emit, timed

TARGETS = (r".*transformer_blocks\.\d+\..*(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out|"
           r"net\.0\.proj|net\.2|proj_mlp|proj_out)")
BLOCKS = {"FluxTransformerBlock", "FluxSingleTransformerBlock", "JointTransformerBlock"}


def make(name):
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        if name == "flux":
            model = FluxTransformer2DModel(guidance_embeds=True)
        else:
            depth, dual = (38, ()) if name == "sd3-large" else (24, tuple(range(13)))
            model = SD3Transformer2DModel(
                sample_size=128, patch_size=2, in_channels=16, num_layers=depth, attention_head_dim=64, num_attention_heads=depth,
                joint_attention_dim=4096, caption_projection_dim=64 * depth, pooled_projection_dim=2048, out_channels=16,
                pos_embed_max_size=192 if depth == 38 else 384, dual_attention_layers=dual, qk_norm="rms_norm")
        torch.set_default_dtype(torch.float32)
    return model.requires_grad_(False)


class Step:
    def __init__(self, args):
        self.args = args
        self.model = make(args.model).eval()
        self.masters = []
        torch._dynamo.config.recompile_limit = 64
        for module in self.model.modules():
            if type(module).__name__ in BLOCKS:
                module.compile()
        b, h, w = args.batch, args.height, args.width
        bf16 = dict(device="cuda", dtype=torch.bfloat16)
        self.latents = torch.randn(b, h // 2 * (w // 2), 64, device="cuda") if args.model == "flux" else \
            torch.randn(b, 16, h, w, device="cuda")
        self.inputs = {"encoder_hidden_states": torch.randn(b, 512 if args.model == "flux" else 333, 4096, **bf16),
                       "pooled_projections": torch.randn(b, 768 if args.model == "flux" else 2048, **bf16)}
        if args.model == "flux":
            ids = torch.zeros(h // 2, w // 2, 3, **bf16)
            ids[..., 1] += torch.arange(h // 2, device="cuda")[:, None]
            ids[..., 2] += torch.arange(w // 2, device="cuda")[None]
            self.inputs |= {"img_ids": ids.reshape(-1, 3), "txt_ids": torch.zeros(512, 3, **bf16),
                            "guidance": torch.ones(b, device="cuda")}

    def quantize(self):
        """What diffusers' BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4") makes of the blocks."""
        from bitsandbytes.nn import Linear4bit, Params4bit
        for block in [m for m in self.model.modules() if type(m).__name__ in BLOCKS]:
            linears = [(owner, name, m) for owner in block.modules() for name, m in owner.named_children()
                       if isinstance(m, torch.nn.Linear) and not isinstance(owner, torch.nn.ModuleDict)]  # of LoRA factors
            for owner, name, old in linears:
                new = Linear4bit(old.in_features, old.out_features, bias=False, compute_dtype=torch.bfloat16,
                                 quant_type="nf4", device="meta")
                new.weight = Params4bit(old.weight.data.cpu(), requires_grad=False, quant_type="nf4", module=new).to("cuda")
                new.bias = old.bias
                setattr(owner, name, new)

    def adapt(self):
        inject_adapter_in_model(LoraConfig(r=self.args.rank, lora_alpha=self.args.rank, target_modules=TARGETS), self.model)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.masters = [p.detach().float().requires_grad_() for p in self.parameters]
        for p in self.parameters:
            p.data = p.data.bfloat16()
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, fused=True)
        self.model.train()

    def prepare(self, way):
        """What drawing does without comes after it."""
        torch._dynamo.reset()
        if way == "draw":
            return self.draw
        if way == "nf4":
            self.quantize()
        if not self.masters:
            self.adapt()
        if way != "train":
            self.model.enable_gradient_checkpointing()
        else:
            self.model.disable_gradient_checkpointing()
        return self.train

    def predict(self, x, sigma):
        timestep = sigma if self.args.model == "flux" else 1000 * sigma
        return self.model(hidden_states=x.bfloat16(), timestep=timestep, return_dict=False, **self.inputs)[0]

    def draw(self):
        with torch.no_grad():
            self.predict(self.latents, torch.full((self.args.batch,), 0.5, device="cuda"))

    def train(self):
        noise = torch.randn_like(self.latents)
        sigma = torch.sigmoid(torch.randn(self.args.batch, device="cuda"))
        s = sigma.reshape(-1, *[1] * (self.latents.dim() - 1))
        loss = torch.nn.functional.mse_loss(self.predict((1 - s) * self.latents + s * noise, sigma).float(), noise - self.latents)
        loss.backward()
        for master, p in zip(self.masters, self.parameters):
            master.grad = p.grad.float()
            p.grad = None
        self.optimizer.step()
        torch._foreach_copy_([p.detach() for p in self.parameters], [m.detach() for m in self.masters])


def measure(args, step, way, compiled):
    how = dict(bench="flow_step", peer="pytorch", model=args.model, way=way, compiled=compiled, batch=args.batch,
               height=args.height, width=args.width, rank=args.rank)
    begin = time.monotonic()
    try:
        one = step.prepare(way)
        # cuDNN's backward of FLUX's attention ended in an illegal access (torch 2.11).
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]), \
                torch.compiler.set_stance("default" if compiled else "force_eager"):
            timed(one, 4)
            ready = time.monotonic() - begin
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            times = timed(one, args.steps)
        emit(**how, median_ms=round(statistics.median(times), 3), min_ms=round(min(times), 3), max_ms=round(max(times), 3),
             peak_mib=torch.cuda.max_memory_allocated() >> 20, ready_s=round(ready, 1))
    except Exception as e:  # out of memory, or a compiler that gives up: the other ways go on
        emit(**how, error=f"{type(e).__name__}: {str(e).splitlines()[0][:200]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="flux", choices=["flux", "sd3-large", "sd3-medium"])
    parser.add_argument("--ways", nargs="+", default=["draw", "train", "checkpoint"], choices=["draw", "train", "checkpoint", "nf4"])
    parser.add_argument("--compiled", nargs="+", default=["yes", "no"], choices=["yes", "no"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--height", type=int, default=128, help="of the latents")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    step = Step(args)
    for way in sorted(args.ways, key="draw".__ne__):  # before there is a LoRA
        for compiled in args.compiled if way != "nf4" else ["no"]:
            measure(args, step, way, compiled == "yes")


if __name__ == "__main__":
    main()

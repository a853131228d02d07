"""A training step of a LoRA of a language model with transformers + peft on a GPU, and what the device does at best.

    python bench/peers/llm_step.py --model DIR [--batch 1] [--checkpoint] [--lora master autocast] [--compile]
    python bench/peers/llm_step.py --model DIR --ceilings [--lengths 512 4096]

Forward, backward, clipping and AdamW (fused) of a LoRA of rank 16 on all linears of the layers, on rows of random tokens
without padding; the frozen model in bf16, attention by SDPA. A line of JSON each, as soon as it is measured: the median of
the steps by CUDA events, and the peak of what PyTorch's allocator gave out.

  lora    master: the LoRA computes in bf16, on copies of f32 parameters; autocast: as peft and its trainers do it

--ceilings instead: the rate from page-locked memory to the device, and cuBLAS's time for the products of a prefill.
"""

import argparse
import statistics
import time

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from rows import emit, timed

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def products(config, lengths):
    """Of one weight after the other, so that the cache does not keep them, as one graph."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    query, kv = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes = [(query + 2 * kv, config.hidden_size), (config.hidden_size, query),
              (2 * config.intermediate_size, config.hidden_size), (config.hidden_size, config.intermediate_size)]
    for length in lengths:
        layer = 0
        for out, width in shapes:
            x = torch.randn(length, width, device="cuda", dtype=torch.bfloat16)
            weights = [torch.randn(out, width, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            y = torch.empty(length, out, device="cuda", dtype=torch.bfloat16)

            def both():
                for w in weights * 4:
                    torch.mm(x, w.T, out=y)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                both()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    both()
                timed(graph.replay, 3)
                layer += statistics.median(timed(graph.replay, 10)) / 8
        emit(row=f"products {length}", ms=round(layer * config.num_hidden_layers, 3))


def ceilings(args):
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True).fill_(1)
    device = torch.empty_like(host, device="cuda")
    ms = statistics.median(timed(lambda: device.copy_(host, non_blocking=True), 12))
    emit(row="host to device", GB_s=round(host.numel() / ms / 1e6, 2), device=torch.cuda.get_device_name(),
         versions=f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}")
    products(AutoConfig.from_pretrained(args.model), args.lengths)


class Step:
    def __init__(self, args, lora):
        self.lora = lora
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, device_map={"": "cuda"},
                                                     attn_implementation="sdpa")
        model.config.use_cache = False
        if args.checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = get_peft_model(model, LoraConfig(r=args.rank, lora_alpha=args.rank, target_modules=TARGETS,
                                                      task_type="CAUSAL_LM"))
        self.model.train()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        for p in self.parameters:
            p.data = p.data.float()
        self.masters = []
        if lora == "master":
            self.masters = [p.detach().clone().requires_grad_() for p in self.parameters]
            for p in self.parameters:
                p.data = p.data.bfloat16()
        self.optimizer = torch.optim.AdamW(self.masters or self.parameters, lr=1e-4, weight_decay=1e-2, fused=True)
        if args.compile:
            self.model = torch.compile(self.model)
        self.ids = torch.randint(0, model.config.vocab_size, (args.batch, args.sequence), device="cuda")

    def __call__(self):
        with torch.autocast("cuda", torch.bfloat16, enabled=self.lora == "autocast"):
            loss = self.model(input_ids=self.ids, labels=self.ids).loss
        loss.backward()
        if self.masters:
            for master, p in zip(self.masters, self.parameters, strict=True):
                master.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters or self.parameters, 1.0)
        self.optimizer.step()
        if self.masters:
            torch._foreach_copy_([p.detach() for p in self.parameters], [m.detach() for m in self.masters])
        for p in self.parameters + self.masters:
            p.grad = None


def measure(args, lora):
    name = f"train batch {args.batch}{', checkpointing' if args.checkpoint else ''}"
    how = {"row": f"{name}: {lora}{', compiled' if args.compile else ''}", "of": name}
    try:
        begin = time.monotonic()
        step = Step(args, lora)
        timed(step, 3)
        ready = time.monotonic() - begin
        torch.cuda.reset_peak_memory_stats()
        times = timed(step, args.steps)
        median = statistics.median(times)
        emit(**how, tokens_s=round(1e3 * args.batch * args.sequence / median), median_ms=round(median, 2),
             min_ms=round(min(times), 2), max_ms=round(max(times), 2), ready_s=round(ready, 1),
             peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2))
    except Exception as e:  # out of memory, or a compiler that gives up: the other ways go on
        emit(**how, error=f"{type(e).__name__}: {str(e).splitlines()[0][:200]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a transformers folder (tools/full_size/write_llm.py)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--checkpoint", action="store_true", help="gradient checkpointing")
    parser.add_argument("--lora", nargs="+", default=["autocast"], choices=["master", "autocast"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--ceilings", action="store_true")
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 4096])
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.ceilings:
        ceilings(args)
        return
    for lora in args.lora:
        measure(args, lora)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

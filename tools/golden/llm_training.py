"""Ten steps of training a LoRA of a tiny language model, and all of others, a document a row.

    python tools/golden/llm_training.py      writes tests/golden/train/text.in.safetensors, text.out.safetensors and,
                                             of full training, text_FAMILY.out.safetensors

The LoRA is llama3's of llama.py. Of full training there are the gradients of the first step. A step has four documents of their own lengths, of which only some
tokens count: labels of -100 are ignored, and so is padding. The loss is transformers' mean over what counts.
"""

import torch

from golden import ROOT, rng, save
from llama import adapt, build, SIZES

FAMILY, STEPS, DOCUMENTS, LONGEST = "llama3", 10, 4, 21
MAX_NORM = 12.0  # some of these steps are clipped and some are not
WHOLE = ["qwen2", "qwen3"]  # biases and a tied head; norms of heads and a head of its own


def inputs():
    g = rng("train text")
    shape = (STEPS, DOCUMENTS, LONGEST)
    lengths = torch.randint(3, LONGEST + 1, shape[:2], generator=g)
    prompts = (torch.rand(shape[:2], generator=g) * (lengths - 1)).long()  # the last token always counts
    at = torch.arange(LONGEST).expand(shape)
    ids = torch.randint(0, SIZES["vocab_size"], shape, generator=g)
    counts = (at >= prompts[..., None]) & (at < lengths[..., None])
    return {"ids": ids, "lengths": lengths, "labels": torch.where(counts, ids, -100)}


def train(model, lr, x):
    parameters = {n.replace(".default", ""): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)
    mask = (torch.arange(LONGEST) < x["lengths"][..., None]).long()
    losses, norms, first = [], [], {}
    for i in range(STEPS):
        loss = model(input_ids=x["ids"][i], attention_mask=mask[i], labels=x["labels"][i]).loss
        loss.backward()
        first = first or {"grad." + n: p.grad.clone() for n, p in parameters.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_NORM))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    curve = {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    return curve, {n: p.detach() for n, p in parameters.items()}, first


def train_lora(x, dtype):
    model = adapt(build(FAMILY), FAMILY).to(dtype)
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name)
    curve, trained, _ = train(model, 1e-2, x)
    return curve | trained


def train_whole(family, x, dtype):
    curve, _, first = train(build(family, dtype).requires_grad_(True), 1e-3, x)
    return curve | first


def tell_noise(out, exact):
    """How far float32 is from float64."""
    for k in "losses", "grad_norms":
        print(k, out[k].tolist(), "float32 differs from float64 by", (out[k] - exact[k]).abs().max().item())
    print("tensors by", max((out[k] - exact[k]).abs().max().item() for k in out if k.endswith("weight")))


def main():
    x = inputs()
    out, exact = train_lora(x, torch.float32), train_lora(x, torch.float64)
    save(ROOT / "train/text.in.safetensors", x,
         {"lr": "1e-2", "beta1": "0.9", "beta2": "0.999", "eps": "1e-8", "weight_decay": "1e-2",
          "max_grad_norm": str(MAX_NORM), "model": "llama/" + FAMILY})
    save(ROOT / "train/text.out.safetensors", out)
    tell_noise(out, exact)
    for family in WHOLE:
        out = train_whole(family, x, torch.float32)
        save(ROOT / f"train/text_{family}.out.safetensors", out, {"lr": "1e-3"})
        tell_noise(out, train_whole(family, x, torch.float64))


if __name__ == "__main__":
    main()

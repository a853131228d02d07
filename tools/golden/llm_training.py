"""Ten steps of LoRA training on a tiny language model, a document a row.

    python tools/golden/llm_training.py      writes tests/golden/train/text.in.safetensors and text.out.safetensors

The model is llama3's of llama.py with its adapter. A step has four documents of their own lengths, of which only some
tokens count: labels of -100 are ignored, and so is padding. The loss is transformers' mean over what counts.
"""

import torch

from golden import ROOT, rng, save
from llama import adapt, build, SIZES

FAMILY, STEPS, DOCUMENTS, LONGEST = "llama3", 10, 4, 21
MAX_NORM = 12.0  # some of these steps are clipped and some are not


def inputs():
    g = rng("train text")
    shape = (STEPS, DOCUMENTS, LONGEST)
    lengths = torch.randint(3, LONGEST + 1, shape[:2], generator=g)
    prompts = (torch.rand(shape[:2], generator=g) * (lengths - 1)).long()  # the last token always counts
    at = torch.arange(LONGEST).expand(shape)
    ids = torch.randint(0, SIZES["vocab_size"], shape, generator=g)
    counts = (at >= prompts[..., None]) & (at < lengths[..., None])
    return {"ids": ids, "lengths": lengths, "labels": torch.where(counts, ids, -100)}


def train(x, dtype):
    model = adapt(build(FAMILY), FAMILY).to(dtype)
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name)
    parameters = {n.replace(".default", ""): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)
    mask = (torch.arange(LONGEST) < x["lengths"][..., None]).long()
    losses, norms = [], []
    for i in range(STEPS):
        loss = model(input_ids=x["ids"][i], attention_mask=mask[i], labels=x["labels"][i]).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_NORM))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)} | {n: p.detach() for n, p in parameters.items()}


def main():
    x = inputs()
    out, exact = train(x, torch.float32), train(x, torch.float64)
    save(ROOT / "train/text.in.safetensors", x,
         {"lr": "1e-2", "beta1": "0.9", "beta2": "0.999", "eps": "1e-8", "weight_decay": "1e-2",
          "max_grad_norm": str(MAX_NORM), "model": "llama/" + FAMILY})
    save(ROOT / "train/text.out.safetensors", out)
    print("losses", out["losses"].tolist(), "norms", out["grad_norms"].tolist())
    for k in "losses", "grad_norms":
        print(k, "float32 differs from float64 by", (out[k] - exact[k]).abs().max().item())
    print("LoRA tensors by", max((out[k] - exact[k]).abs().max().item() for k in out if "lora" in k))


if __name__ == "__main__":
    main()

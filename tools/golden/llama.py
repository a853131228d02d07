"""Tiny language models of every family, and the results of transformers and peft with them.

    python tools/golden/llama.py      writes tests/golden/llama/

A folder a family: the transformers folder (config.json, model.safetensors), adapter/ (a PEFT folder), and cases in the
layout of `wick forward`: NAME.in.safetensors with input_ids, perhaps attention_mask and target; NAME.out.safetensors with
logits and, for the case `grad`, which runs with the adapter, loss and grad.NAME of each of its tensors. text/ is a model
for the tokenizers beside it in tests/golden/tokenizers, and text.json what transformers completes greedily.
"""

import json
import shutil

import torch
from peft import LoraConfig, get_peft_model
from sentencepiece import SentencePieceProcessor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from golden import ROOT, rng, save

OUT = ROOT / "llama"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SIZES = dict(vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=128, bos_token_id=1, eos_token_id=2, attn_implementation="sdpa")

# The peculiarities of each family; windows are far shorter than the cases.
FAMILIES = {
    "mistral": (MistralForCausalLM, MistralConfig(
        **SIZES, num_key_value_heads=2, head_dim=10, sliding_window=7, rms_norm_eps=1e-5)),
    "llama2": (LlamaForCausalLM, LlamaConfig(**SIZES, num_key_value_heads=4, rms_norm_eps=1e-5)),
    "llama3": (LlamaForCausalLM, LlamaConfig(
        **SIZES | dict(eos_token_id=[2, 5], head_dim=16), num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=500000.0,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=32))),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(
        **SIZES, num_key_value_heads=1, rope_scaling=dict(type="linear", factor=2.5), attention_bias=True,
        mlp_bias=True, tie_word_embeddings=True)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(
        **SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=5, max_window_layers=1,
        rope_theta=1000000.0, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=12, rope_theta=1000000.0)),
}


def randomise(model, seed):
    """Every parameter drawn anew, none of them zero or one, each layer keeping the size of its input about the same."""
    generator = rng(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1:
                p.copy_(1 + 0.2 * noise if "norm" in name else 0.3 * noise)
            elif "embed" in name or "lm_head" in name:
                p.copy_(0.6 * noise)
            else:
                p.copy_(noise * p.shape[1] ** -0.5 * (0.5 if "o_proj" in name or "down_proj" in name else 1.2))
    return model.eval().requires_grad_(False)


def build(family, dtype=torch.float32):
    architecture, config = FAMILIES[family]
    return randomise(architecture(config), family).to(dtype)


def adapt(model, family):
    """With a LoRA of different rank and alpha for one kind of module, and seeded factors."""
    config = LoraConfig(r=4, lora_alpha=6, target_modules=LAYERS, rank_pattern={"down_proj": 3},
                        alpha_pattern={"down_proj": 4.5}, task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, p in sorted(adapted.named_parameters()):
            if "lora_" in name:
                gain = 0.3 if "lora_B" in name else 1
                p.copy_(torch.randn(p.shape, generator=rng(f"{family} {name}")) * gain * p.shape[1] ** -0.5)
    return adapted


def ids(name, *shape):
    return torch.randint(0, SIZES["vocab_size"], shape, generator=rng(name))


def masked_logits(model, x):
    """Where the mask is 0, logits mean nothing: zeros."""
    logits = model(**{k: v for k, v in x.items() if k != "target"}).logits
    return logits.masked_fill(x["attention_mask"].unsqueeze(-1) == 0, 0) if "attention_mask" in x else logits


def step_by_step(model, x, prompt):
    """Logits from a prompt and then one token at a time, with transformers' own cache."""
    out = model(x[:, :prompt], use_cache=True)
    logits, cache = [out.logits], out.past_key_values
    for t in range(prompt, x.shape[1]):
        out = model(x[:, t:t + 1], past_key_values=cache, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, 1)


def gradients(model, x):
    logits = masked_logits(model, x)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x["target"].flatten(), ignore_index=-100)
    wanted = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    grads = torch.autograd.grad(loss, list(wanted.values()))
    return {"logits": logits, "loss": loss} | {"grad." + n: g for n, g in zip(wanted, grads)}


def check_noise(name, out, exact):
    """float32 must be far closer to float64 than another implementation has to be."""
    for key, value in out.items():
        error = ((value - exact[key]).abs().max() / exact[key].abs().max()).item()
        assert error < (1e-4 if key.startswith("grad") else 1e-5), (name, key, error)


def write(family):
    folder = OUT / family
    model, exact = build(family), build(family, torch.float64)
    # Two of the families in shards.
    model.save_pretrained(folder, max_shard_size="60KB" if family in ("llama2", "qwen3") else "5GB")
    (folder / "generation_config.json").unlink()

    mask = torch.ones(3, 19, dtype=torch.int64)
    mask[0, 11:] = 0  # padded behind,
    mask[1, :6] = 0  # and in front
    cases = {"prefill": {"input_ids": ids(family + " prefill", 2, 29)},
             "ragged": {"input_ids": ids(family + " ragged", 3, 19), "attention_mask": mask}}
    for name, x in cases.items():
        with torch.no_grad():
            out = {"logits": masked_logits(model, x)}
            check_noise(name, out, {"logits": masked_logits(exact, x)})
        save(folder / f"{name}.in.safetensors", x)
        save(folder / f"{name}.out.safetensors", out)
    with torch.no_grad():
        x = cases["prefill"]["input_ids"]
        check_noise("steps", {"logits": step_by_step(model, x, 9)}, {"logits": masked_logits(exact, {"input_ids": x})})

    x = cases["ragged"] | {"target": ids(family + " target", 3, 19)}
    x["target"][mask == 0] = -100
    x["target"][2, :8] = -100
    adapted = adapt(model, family)
    adapted.save_pretrained(folder / "adapter")
    (folder / "adapter/README.md").unlink()
    out = gradients(adapted, x)
    check_noise("grad", out, gradients(adapt(exact, family).double(), x))
    save(folder / "grad.in.safetensors", x)
    save(folder / "grad.out.safetensors", out)


def decode(family, tokenizer, ids):
    """HF tokenizers makes several U+FFFD of bytes among which one character is whole; SentencePiece does not."""
    file = ROOT / "tokenizers" / family / "tokenizer.model"
    if file.exists():
        model = SentencePieceProcessor(model_file=str(file))
        return model.decode([i for i in ids if i < model.vocab_size()])
    return tokenizer.decode(ids, skip_special_tokens=True)


def write_text():
    folder = OUT / "text"
    config = LlamaConfig(**SIZES | dict(vocab_size=1410, hidden_size=24, eos_token_id=None), num_key_value_heads=2)
    model = randomise(LlamaForCausalLM(config), "text")
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    completions = []
    for family, prompt in [("qwen3", "Once upon a time"), ("qwen3", "<|im_start|>user\nWhat is 7\u00d78?<|im_end|>\n"),
                           ("llama2", "The capital of France is"), ("llama2", "  \u00fcber 12")]:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "tokenizers" / family / "tokenizer.json"))
        prompt_ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(prompt_ids, max_new_tokens=24, do_sample=False, return_dict_in_generate=True,
                             output_scores=True)
        for scores in out.scores:  # no draw so close that rounding decides it
            best = scores[0].topk(2).values
            assert best[0] - best[1] > 1e-3, (prompt, best)
        new = out.sequences[0, prompt_ids.shape[1]:]
        before, after = (decode(family, tokenizer, i.tolist()) for i in (prompt_ids[0], out.sequences[0]))
        assert after.startswith(before)
        completions.append({"tokenizer": family, "prompt": prompt, "ids": new.tolist(), "text": after[len(before):]})
    (folder / "text.json").write_text(
        "[\n" + ",\n".join("  " + json.dumps(c) for c in completions) + "\n]\n", encoding="utf-8")


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for family in FAMILIES:
        write(family)
    write_text()


if __name__ == "__main__":
    main()

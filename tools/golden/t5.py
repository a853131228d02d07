"""T5 encoders of odd sizes with random weights, and what transformers and peft make of token ids.

    python tools/golden/t5.py      writes tests/golden/t5/

A folder a model, with text_encoder_3/{config.json, model.safetensors}, lora.safetensors and pairs CASE.{in,out}.safetensors as
`wick forward` takes and gives them. index.json lists the cases and how far PyTorch's own float32 run is from float64.
"""

import json
import shutil

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from transformers import T5Config, T5EncoderModel

from golden import ROOT, load, randn, rng, save

OUT = ROOT / "t5"
RANK, ALPHA = 3, 2.0
TARGETS = ["q", "k", "v", "o", "wi_0", "wi_1", "wo"]

# XXL's own values but for the sizes. Heads times their width is never the model's width.
XXL = dict(
    classifier_dropout=0.0, dropout_rate=0.1, feed_forward_proj="gated-gelu", is_encoder_decoder=True,
    layer_norm_epsilon=1e-6, relative_attention_max_distance=128, relative_attention_num_buckets=32,
    tie_word_embeddings=False, use_cache=True)
MODELS = {
    "one": XXL | dict(d_model=20, d_kv=5, num_heads=3, d_ff=28, num_layers=1, vocab_size=41),
    "three": XXL | dict(d_model=16, d_kv=6, num_heads=4, d_ff=36, num_layers=3, vocab_size=61),
    "distances": XXL | dict(d_model=12, d_kv=8, num_heads=1, d_ff=20, num_layers=2, vocab_size=30,
                            relative_attention_max_distance=50, relative_attention_num_buckets=14,
                            layer_norm_epsilon=1e-3),
}


def randomise(model, seed):
    """Every parameter drawn anew; branches weaker than the residual, and scores of about 1, which nothing scales."""
    generator = rng(seed, model.device)
    config = model.config
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, device=model.device)
            if p.dim() == 1:
                p.copy_(1 + 0.2 * noise)
            elif "relative_attention_bias" in name or "shared" in name:
                p.copy_(noise)
            else:
                gain = config.d_kv ** -0.25 if name.endswith((".q.weight", ".k.weight")) else 1
                gain *= 0.4 if name.endswith((".o.weight", ".wo.weight")) else 1
                p.copy_(noise * gain * p.shape[1] ** -0.5)
    return model.eval().requires_grad_(False)


def build(name):
    folder = OUT / name / "text_encoder_3"
    model = randomise(T5EncoderModel(T5Config(**MODELS[name])), f"t5 {name}")
    model.save_pretrained(folder, safe_serialization=True)
    inject(model)
    save(OUT / name / "lora.safetensors", random_lora(model, name))


def inject(model):
    return inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS,
                                              init_lora_weights=False), model)


def lora_parameters(model):
    out = {}
    for path, module in model.named_modules():
        if isinstance(module, LoraLayer):
            base = "lora_te3_" + path.replace(".", "_")
            out[base + ".lora_down.weight"] = module.lora_A["default"].weight
            out[base + ".lora_up.weight"] = module.lora_B["default"].weight
    return out


def random_lora(model, name):
    out = {}
    for key, p in lora_parameters(model).items():
        gain = 0.25 if key.endswith("up.weight") else 1
        out[key] = torch.randn(p.shape, generator=rng(f"t5 {name} {key}")) * gain * p.shape[1] ** -0.5
        out[key.rsplit(".", 2)[0] + ".alpha"] = torch.tensor(ALPHA)
    return out


def evaluate(name, x, with_lora, dtype):
    model = T5EncoderModel.from_pretrained(OUT / name / "text_encoder_3").eval().requires_grad_(False)
    if with_lora:
        inject(model).requires_grad_(False)
        file = load(OUT / name / "lora.safetensors")
        for key, p in lora_parameters(model).items():
            p.copy_(file[key])
    model.to(dtype)
    wanted = {k: p.requires_grad_(True) for k, p in lora_parameters(model).items()}
    y = model(input_ids=x["input_ids"], attention_mask=x.get("attention_mask")).last_hidden_state
    out = {"last_hidden_state": y}
    if "target" in x:
        out["loss"] = torch.nn.functional.mse_loss(y, x["target"].to(dtype))
        grads = torch.autograd.grad(out["loss"], list(wanted.values()))
        out |= {"grad." + k: g for k, g in zip(wanted, grads)}
    return out


INDEX = []


def case(model, name, length, batch=1, masked=0, grad=False, with_lora=False):
    """`masked`: so many tokens of the first row are padding; rows after it have less."""
    seed, vocab = f"t5 {model} {name}", MODELS[model]["vocab_size"]
    x = {"input_ids": torch.randint(0, vocab, (batch, length), generator=rng(seed))}
    if masked:
        lengths = torch.tensor([length - masked // (row + 1) for row in range(batch)])
        x["attention_mask"] = (torch.arange(length)[None] < lengths[:, None]).long()
    if grad:
        x["target"] = randn(seed + " target", batch, length, MODELS[model]["d_model"])
    out, exact = (evaluate(model, x, with_lora, dtype) for dtype in (torch.float32, torch.float64))
    save(OUT / model / f"{name}.in.safetensors", x)
    save(OUT / model / f"{name}.out.safetensors", out)
    worst = max(((v - exact[k]).abs().max() / exact[k].abs().max()).item() for k, v in out.items())
    assert worst < (1e-5 if grad else 1e-6), (model, name, worst)
    INDEX.append({"model": f"t5/{model}", "component": "text_encoder_3", "name": name, "grad": grad, "lora": with_lora,
                  "pytorch_f32_error": float(f"{worst:.1e}")})


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for name in MODELS:
        build(name)
        for length in 1, 2, 17, 130:
            case(name, f"tokens_{length}", length)
        case(name, "masked", 17, batch=2, masked=9)
        case(name, "grad", 23, batch=2, masked=6, grad=True, with_lora=True)
    case("one", "tokens_300", 300, batch=2)
    case("three", "tokens_300", 300, batch=2, masked=200)
    case("three", "lora", 40, batch=2, with_lora=True)
    case("three", "long_grad", 140, grad=True, with_lora=True)
    (OUT / "index.json").write_text("[\n" + ",\n".join("  " + json.dumps(c) for c in INDEX) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

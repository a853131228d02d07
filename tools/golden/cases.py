"""What `wick forward` must put out, one pair of files a case, and index.json that lists them.

    python tools/golden/cases.py      writes tests/golden/cases/
"""

import json

import torch
from transformers import CLIPTokenizer

import lora
import sdxl_model
from golden import LORA_LOCON, LORA_TE, LORA_UNET, MODEL, ROOT, randn, rng, save

DIFFERENTIABLE = ["sample", "latent", "encoder_hidden_states", "text_embeds"]


def forward(component, model, x):
    match component:
        case "text_encoder":
            y = model(input_ids=x["input_ids"], output_hidden_states=True)
            return {"last_hidden_state": y.last_hidden_state, "penultimate_hidden_state": y.hidden_states[-2],
                    "pooled": y.pooler_output}
        case "text_encoder_2":
            y = model(input_ids=x["input_ids"], output_hidden_states=True)
            return {"last_hidden_state": y.last_hidden_state, "penultimate_hidden_state": y.hidden_states[-2],
                    "pooled": y.text_embeds}
        case "vae.encoder":
            y = model.encode(x["sample"]).latent_dist
            return {"mean": y.mean, "logvar": y.logvar}
        case "vae.decoder":
            return {"sample": model.decode(x["latent"]).sample}
        case "unet":
            condition = {"text_embeds": x["text_embeds"], "time_ids": x["time_ids"]}
            return {"sample": model(x["sample"], x["timestep"], x["encoder_hidden_states"],
                                    added_cond_kwargs=condition).sample}


MAIN = {"text_encoder": "last_hidden_state", "text_encoder_2": "last_hidden_state", "vae.encoder": "mean",
        "vae.decoder": "sample", "unet": "sample"}
BUILD = {"text_encoder": sdxl_model.text_encoder, "text_encoder_2": sdxl_model.text_encoder_2,
         "vae.encoder": sdxl_model.vae, "vae.decoder": sdxl_model.vae, "unet": sdxl_model.unet}


def evaluate(component, x, grad, lora_path, dtype):
    model = BUILD[component]()
    if lora_path:
        model = lora.apply(model, component, lora_path)
    model.to(dtype)
    x = {k: v.to(dtype) if v.is_floating_point() else v for k, v in x.items()}
    if not grad:
        with torch.no_grad():
            return forward(component, model, x)
    wanted = {k: v.requires_grad_(True) for k, v in x.items() if k in DIFFERENTIABLE}
    if lora_path:
        wanted |= lora.parameters(model, component)
    out = forward(component, model, x)
    loss = torch.nn.functional.mse_loss(out[MAIN[component]], x["target"])
    grads = torch.autograd.grad(loss, list(wanted.values()))
    return out | {"loss": loss} | {"grad." + k: g for k, g in zip(wanted, grads)}


INDEX = []


def case(name, component, x, grad=False, lora_path=None):
    if grad:
        with torch.no_grad():
            shape = evaluate(component, x, False, lora_path, torch.float32)[MAIN[component]].shape
        x = x | {"target": randn(name + " target", *shape)}
    out = evaluate(component, x, grad, lora_path, torch.float32)
    torch.set_default_dtype(torch.float64)  # CLIP makes its causal mask in the default type
    exact = evaluate(component, x, grad, lora_path, torch.float64)
    torch.set_default_dtype(torch.float32)
    save(ROOT / "cases" / f"{name}.in.safetensors", x)
    save(ROOT / "cases" / f"{name}.out.safetensors", out)
    for k, v in out.items():
        assert torch.isfinite(v).all() and v.abs().max() > 1e-7, (name, k, v.abs().max())
    # How far this float32 run is from the same in float64, relative to the tensor's largest value.
    error = {k: ((v - exact[k]).abs().max() / exact[k].abs().max()).item() for k, v in out.items()}
    worst = max((e, k) for k, e in error.items())
    INDEX.append({"name": name, "component": component, "grad": grad, "lora": lora_path and lora_path.name,
                  "pytorch_f32_error": {"tensor": worst[1], "max_abs_over_max": float(f"{worst[0]:.1e}")}})


def prompts(subfolder, *texts):
    tokenizer = CLIPTokenizer.from_pretrained(MODEL, subfolder=subfolder)
    return tokenizer(list(texts), padding="max_length", truncation=True, return_tensors="pt").input_ids


def text_inputs(component):
    ids = prompts(component.replace("text_encoder", "tokenizer"), "A photo of a small red fox in the snow, it's raining", "")
    # No end token in the third row: the two rules for the pooled position then differ (first 0 against highest id).
    free = torch.randint(0, 812, (1, 77), generator=rng(component + " ids"))
    return {"input_ids": torch.cat([ids, free])}


def unet_inputs(name, batch, height, width, timesteps):
    config = sdxl_model.TINY_UNET
    ids = [[1024, 832, 16, 0, 1024, 1024], [64, 96, 0, 7, 88, 96], [700, 512, 3, 250, 768, 1280]][:batch]
    return {
        "sample": randn(name + " sample", batch, 4, height, width),
        "timestep": torch.tensor(timesteps),
        "encoder_hidden_states": randn(name + " states", batch, 77, config["cross_attention_dim"]),
        "text_embeds": randn(name + " text", batch, sdxl_model.TINY_TE2["projection_dim"]),
        "time_ids": torch.tensor(ids, dtype=torch.float32),
    }


def main():
    for te in "text_encoder", "text_encoder_2":
        case(te, te, text_inputs(te))
        case(te + "_lora_grad", te, text_inputs(te), grad=True, lora_path=LORA_TE)
    case("vae_encoder", "vae.encoder", {"sample": randn("vae_encoder", 1, 3, 40, 56)})
    case("vae_encoder_odd", "vae.encoder", {"sample": randn("vae_encoder_odd", 2, 3, 37, 50)})
    case("vae_encoder_grad", "vae.encoder", {"sample": randn("vae_encoder_grad", 2, 3, 24, 40)}, grad=True)
    case("vae_decoder", "vae.decoder", {"latent": randn("vae_decoder", 2, 4, 5, 7)})
    case("vae_decoder_grad", "vae.decoder", {"latent": randn("vae_decoder_grad", 2, 4, 3, 5)}, grad=True)
    case("unet", "unet", unet_inputs("unet", 2, 12, 20, [981.0, 17.0]))
    case("unet_odd", "unet", unet_inputs("unet_odd", 3, 10, 13, [0.0, 999.0, 500.5]))
    case("unet_grad", "unet", unet_inputs("unet_grad", 2, 8, 12, [250.0, 761.0]), grad=True)
    case("unet_lora", "unet", unet_inputs("unet_lora", 2, 12, 20, [981.0, 17.0]), lora_path=LORA_UNET)
    case("unet_lora_grad", "unet", unet_inputs("unet_lora_grad", 2, 8, 12, [33.0, 602.0]), grad=True, lora_path=LORA_UNET)
    case("unet_locon_grad", "unet", unet_inputs("unet_locon_grad", 2, 8, 12, [33.0, 602.0]), grad=True,
         lora_path=LORA_LOCON)
    (ROOT / "cases" / "index.json").write_text(
        "[\n" + ",\n".join("  " + json.dumps(c) for c in INDEX) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

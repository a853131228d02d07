"""LoRA with peft on the diffusers modules, and the LoRA files.

    python tools/golden/lora.py      writes tests/golden/lora_{unet,te,locon}.safetensors
"""

import re

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer

import sdxl_model
from golden import LORA_LOCON, LORA_TE, LORA_UNET, load, rng, save
from names import text_encoder_lora_name, unet_lora_name

RANK, ALPHA = 4, 2.5
CONV_RANK, CONV_ALPHA = 3, 1.5

# kohya's defaults: every Linear inside Transformer2DModel; every Linear of CLIP's attention and MLP.
UNET_TARGETS = r".*\.attentions\.\d+\.(proj_in|proj_out|.*\.(to_q|to_k|to_v|to_out\.0|net\.0\.proj|net\.2))"
TE_TARGETS = r".*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"
# What kohya adds with conv_dim: ResnetBlock2D, Downsample2D, Upsample2D. 3x3 convolutions take the convolution's rank.
LOCON_TARGETS = r".*\.(resnets\.\d+\.(conv1|conv2|time_emb_proj|conv_shortcut)|(down|up)samplers\.0\.conv)"
LOCON_3X3 = r".*\.(conv1|conv2|conv)"


def inject(model, targets, rank=RANK, alpha=ALPHA):
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, init_lora_weights=False,
                        rank_pattern={LOCON_3X3: CONV_RANK} if targets == LOCON_TARGETS else {},
                        alpha_pattern={LOCON_3X3: CONV_ALPHA} if targets == LOCON_TARGETS else {})
    return inject_adapter_in_model(config, model)


def layers(model, component):
    """{LoRA base name: peft layer}."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, LoraLayer):
            if component == "unet":
                name = unet_lora_name(path, model.config.layers_per_block)
            else:
                name = text_encoder_lora_name(path, 2 if component == "text_encoder_2" else 1)
            assert name not in found
            found[name] = module
    return found


def parameters(model, component):
    """{tensor name in the LoRA file: parameter}, in the file's order (sorted)."""
    out = {}
    for base, layer in sorted(layers(model, component).items()):
        out[base + ".lora_down.weight"] = layer.lora_A["default"].weight
        out[base + ".lora_up.weight"] = layer.lora_B["default"].weight
    return out


def tensors(model, component):
    """The LoRA file's tensors, with each module's alpha."""
    out = dict(parameters(model, component))
    for base, layer in layers(model, component).items():
        out[base + ".alpha"] = torch.tensor(float(layer.lora_alpha["default"]))
        assert layer.scaling["default"] == layer.lora_alpha["default"] / layer.r["default"]
    return out


def apply(model, component, path):
    """Injects the file's adapter and makes exactly its tensors trainable."""
    file = load(path)
    prefix = {"unet": "lora_unet_", "text_encoder": "lora_te1_", "text_encoder_2": "lora_te2_"}[component]
    file = {k: v for k, v in file.items() if k.startswith(prefix)}
    targets = {LORA_UNET: UNET_TARGETS, LORA_TE: TE_TARGETS, LORA_LOCON: LOCON_TARGETS}[path]
    return fill(inject(model, targets), component, file)


def fill(model, component, file):
    """Gives the injected adapter the values of a file's tensors and makes exactly them trainable."""
    mine = tensors(model, component)
    assert mine.keys() == file.keys()
    with torch.no_grad():
        for name, p in mine.items():
            if name.endswith(".alpha"):
                assert p == file[name]
            else:
                p.copy_(file[name])
    model.requires_grad_(False)
    for p in parameters(model, component).values():
        p.requires_grad_(True)
    return model


def random_tensors(model, component, seed):
    """Values for every tensor of the injected adapter, which may be on the meta device."""
    out = {}
    for name, t in tensors(model, component).items():
        if not name.endswith(".alpha"):
            # Small beside the base weights, as in real files; a strong one makes the gradients ill-conditioned.
            gain = 0.25 if name.endswith("up.weight") else 1
            t = torch.randn(t.shape, generator=rng(f"{seed} {name}")) * gain * t[0].numel() ** -0.5
        out[name] = t
    return out


def metadata(rank, alpha):
    return {"ss_base_model_version": "sdxl_base_v1-0", "ss_network_module": "networks.lora",
            "ss_network_dim": str(rank), "ss_network_alpha": str(alpha), "ss_v2": "False"}


def random_file(path, models, more_metadata):
    out = {}
    for component, model in models.items():
        out |= random_tensors(model, component, path.name)
    save(path, out, metadata(RANK, ALPHA) | more_metadata)


if __name__ == "__main__":
    random_file(LORA_UNET, {"unet": inject(sdxl_model.unet(), UNET_TARGETS)}, {})
    random_file(LORA_TE, {"text_encoder": inject(sdxl_model.text_encoder(), TE_TARGETS),
                          "text_encoder_2": inject(sdxl_model.text_encoder_2(), TE_TARGETS)}, {})
    random_file(LORA_LOCON, {"unet": inject(sdxl_model.unet(), LOCON_TARGETS)},
                {"ss_network_args": f'{{"conv_dim": "{CONV_RANK}", "conv_alpha": "{CONV_ALPHA}"}}'})

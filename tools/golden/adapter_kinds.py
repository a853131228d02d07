"""Adapters of other kinds than LoRA, as LyCORIS, peft and diffusers write them, and those programs' results with them.

    python tools/golden/adapter_kinds.py      writes folders of its own into tests/golden/adapters/

As adapters.py's: a folder a case with the adapter, case.json and out.safetensors; and where case.json names one as "gradients", a file
with the loss and the gradients of the adapter's tensors on its "gradient_inputs", as `wick forward --grad` gives them.

LyCORIS' modules are put upon diffusers' and named as kohya's sd-scripts does, or with "lycoris_" as SimpleTuner does. Their forward()
counts, not get_diff_weight(), which has the scale of LoHa and LoKr twice. DoRA's gradients are with the norm as a constant (section 4.3
of the paper, and peft), which LyCORIS does not do: its norm is detached here.
"""

import contextlib
import json
import shutil

import lycoris.modules.locon
import lycoris.modules.loha
import lycoris.modules.lokr
import peft.tuners.boft.layer as boft_layer
import peft.tuners.oft.layer as oft_layer
import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel
from lycoris.modules.boft import ButterflyOFTModule
from lycoris.modules.diag_oft import DiagOFTModule
from lycoris.modules.full import FullModule
from lycoris.modules.glora import GLoRAModule
from lycoris.modules.ia3 import IA3Module
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from lycoris.modules.norms import NormModule
from peft import BOFTConfig, IA3Config, LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, CLIPTextModel

import flux
import llama
import sd3_transformer
from adapters import IDS, LLAMA, OUT, UNET_INPUTS, finish, fresh_unet, run_unet, seeded
from golden import MODEL, ROOT, load, rng, save
from lora_layouts import arguments
from names import text_encoder_lora_name, unet_lora_name

# Modules of the tiny SDXL's UNet
SQUARE = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"  # 16 to 16
WIDE = "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k"  # 40 to 8
LONG = "mid_block.attentions.0.transformer_blocks.1.ff.net.0.proj"  # 16 to 128
NARROW = "up_blocks.0.attentions.0.transformer_blocks.0.ff.net.2"  # 64 to 16
CONV = "down_blocks.1.resnets.0.conv1"  # 4 to 8, 3x3
STRIDED = "down_blocks.1.downsamplers.0.conv"  # 8 to 8, 3x3 at every other place
BIG = "up_blocks.0.resnets.0.conv1"  # 32 to 16, 3x3
POINT = "down_blocks.1.resnets.0.conv_shortcut"  # 4 to 8, 1x1
POINT_BIG = "up_blocks.0.resnets.0.conv_shortcut"  # 32 to 16, 1x1

GRADIENT_INPUTS = "cases/unet_lora_grad.in.safetensors"


def disturb(module, seed):
    """Values as of training for every parameter: near the base's norms what begins there, and small what is added as it is."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=rng(f"{seed} {name}"))
            if name == "dora_scale":
                p *= 1 + 0.2 * noise
            elif name == "rescale":
                p.copy_(1 + 0.2 * noise)
            elif name in ("oft_blocks", "weight", "bias", "w_norm", "b_norm"):
                p.copy_(0.2 * noise)
            elif name in ("lokr_w1", "lokr_t2", "hada_t1", "hada_t2", "lora_mid.weight"):
                p.copy_(0.6 * noise)
            else:  # the others are factors of products
                p.copy_(0.8 * noise * min(p.shape[:2]) ** -0.5)


def tensors(module):
    """As the file has them, and those that are trained."""
    file = {k: v.detach().clone() for k, v in module.state_dict().items()}
    trained = {k: p for k, p in module.named_parameters() if k in file}
    return file, trained


def put(model, modules, name_of, seed):
    """LyCORIS' modules {path: (class, settings)} upon a model's. All of the file's tensors, and the trained ones."""
    file, trained = {}, {}
    for path, (kind, settings) in modules.items():
        base = name_of(path)
        module = kind(base, model.get_submodule(path), **settings)
        disturb(module, f"{seed} {path}")
        module.eval()
        module.apply_to()
        mine, parameters = tensors(module)
        file |= {f"{base}.{k}": v for k, v in mine.items()}
        trained |= {f"{base}.{k}": v for k, v in parameters.items()}
    return file, trained


def kohya_unet(path):
    return unet_lora_name(path, 2)


def simple_tuner(path):
    return "lycoris_" + path.replace(".", "_")


@contextlib.contextmanager
def constant_norm():
    """LyCORIS' DoRA with the norm detached."""
    theirs = lycoris.modules.locon.weight_decompose

    def decompose(weight, dora_scale, multiplier, on_output):
        assert multiplier == 1
        dims = list(range(1, weight.dim())) if on_output else [0, *range(2, weight.dim())]
        norm = torch.linalg.vector_norm(weight.detach(), dim=dims, keepdim=True) + torch.finfo(weight.dtype).eps
        found = weight * (dora_scale / norm)
        assert torch.allclose(found, theirs(weight, dora_scale, multiplier, on_output), rtol=1e-5, atol=1e-6)
        return found

    kinds = lycoris.modules.locon, lycoris.modules.loha, lycoris.modules.lokr
    for kind in kinds:
        kind.weight_decompose = decompose
    yield
    for kind in kinds:
        kind.weight_decompose = theirs


def add_gradients(name, out, inputs):
    save(OUT / name / "gradients.safetensors", out)
    file = OUT / name / "case.json"
    case = json.loads(file.read_text()) | dict(gradients="gradients.safetensors", gradient_inputs=inputs)
    file.write_text(json.dumps(case, indent=1) + "\n")


def unet_gradients(unet, trained):
    x = load(ROOT / GRADIENT_INPUTS)
    cond = dict(text_embeds=x["text_embeds"], time_ids=x["time_ids"])
    y = unet(x["sample"], x["timestep"], x["encoder_hidden_states"], added_cond_kwargs=cond).sample
    loss = torch.nn.functional.mse_loss(y, x["target"])
    return {"loss": loss} | {"grad." + k: g for k, g in zip(trained, torch.autograd.grad(loss, list(trained.values())))}


def write_file(name, file, metadata=None):
    shutil.rmtree(OUT / name, ignore_errors=True)
    save(OUT / name / "adapter.safetensors", file, metadata)


def picture(name, modules, edit=lambda file: file, name_of=kohya_unet, gradients=False, metadata=None):
    """A file of LyCORIS for the tiny SDXL's UNet. `edit` spells the same adapter otherwise."""
    unet = fresh_unet().eval().requires_grad_(False)
    file, trained = put(unet, modules, name_of, name)
    write_file(name, edit(file), metadata)
    finish(name, "sdxl", "unet", UNET_INPUTS, run_unet(unet), lora="adapter.safetensors")
    if gradients:
        with constant_norm():
            add_gradients(name, unet_gradients(unet, trained), GRADIENT_INPUTS)


def lora(rank, alpha, **others):
    return LoConModule, dict(lora_dim=rank, alpha=alpha, **others)


def loha(rank, alpha, **others):
    return LohaModule, dict(lora_dim=rank, alpha=alpha, **others)


def lokr(rank, alpha, **others):
    return LokrModule, dict(lora_dim=rank, alpha=alpha, **others)


def doras():
    for axis in ("output", "input"):
        wd = dict(weight_decompose=True, wd_on_out=axis == "output")
        picture(f"dora_{axis}", {
            SQUARE: lora(3, 2.0, **wd), WIDE: lora(5, 7.5, **wd), CONV: lora(3, 4.5, **wd), STRIDED: lora(2, 1.0, **wd),
            POINT: lora(2, 3.0, **wd)}, gradients=True)
        picture(f"loha_dora_{axis}", {SQUARE: loha(3, 2.0, **wd), CONV: loha(2, 3.0, **wd)})
        picture(f"lokr_dora_{axis}", {WIDE: lokr(2, 3.0, **wd), BIG: lokr(3, 1.5, **wd)})


def products():
    picture("loha", {SQUARE: loha(3, 2.0), WIDE: loha(5, 7.5), CONV: loha(3, 4.5), STRIDED: loha(2, 1.0), POINT: loha(2, 3.0)},
            gradients=True)
    tucker = dict(use_tucker=True)
    picture("loha_tucker", {CONV: loha(3, 4.5, **tucker), STRIDED: loha(5, 3.0, **tucker), POINT: loha(3, 2.0, **tucker)})
    picture("lokr_full", {SQUARE: lokr(3, 7.0, full_matrix=True), WIDE: lokr(50, 7.0, factor=4), CONV: lokr(9, 1.0),
                          STRIDED: lokr(5, 1.0, factor=2), POINT: lokr(7, 3.0)}, gradients=True,
            # LyCORIS has no scale here, whatever the alpha
            edit=lambda file: {k: torch.tensor(7.0) if k.endswith("alpha") else v for k, v in file.items()})
    picture("lokr", {LONG: lokr(3, 2.0), WIDE: lokr(2, 7.5, factor=4), BIG: lokr(3, 4.5), STRIDED: lokr(1, 0.5, factor=2),
                     POINT_BIG: lokr(3, 2.0, factor=4)}, gradients=True)
    both = dict(decompose_both=True)
    picture("lokr_both", {LONG: lokr(3, 2.0, **both), SQUARE: lokr(1, 1.5, **both), BIG: lokr(1, 0.5, **both)}, gradients=True)
    picture("lokr_tucker", {BIG: lokr(3, 2.0, **tucker), STRIDED: lokr(1, 1.5, factor=2, **tucker)})
    picture("lokr_unbalanced", {LONG: lokr(3, 2.0, unbalanced_factorization=True), BIG: lokr(2, 1.0, unbalanced_factorization=True)})


def locon():
    tucker = dict(use_tucker=True)
    picture("locon_tucker", {CONV: lora(3, 4.5, **tucker), STRIDED: lora(5, 2.0, **tucker), POINT: lora(2, 3.0, **tucker),
                             SQUARE: lora(3, 1.0, **tucker)})
    # Old LyCORIS kept the scalar apart; now it is in lora_up, and a scalar of 1 is taken for granted.
    scalar = torch.tensor(0.4)

    def apart(file):
        file = {k: v / scalar if k.endswith(("lora_up.weight", "hada_w1_a")) else v for k, v in file.items()}
        return file | {k.removesuffix("alpha") + "scalar": scalar for k in file if k.endswith(".alpha")}

    picture("scalar", {SQUARE: lora(3, 2.0), CONV: lora(2, 3.0), WIDE: loha(3, 2.0)}, edit=apart)


def rotations():
    picture("oft", {path: (DiagOFTModule, dict(lora_dim=d)) for path, d in
                    {SQUARE: 4, WIDE: 2, LONG: 8, CONV: 4, STRIDED: -1, POINT: 2}.items()})
    # The one is held back by its constraint, the other is within it.
    picture("oft_constraint", {SQUARE: (DiagOFTModule, dict(lora_dim=4, constraint=0.07)),
                               WIDE: (DiagOFTModule, dict(lora_dim=2, constraint=3.0)),
                               CONV: (DiagOFTModule, dict(lora_dim=4, constraint=0.1))})
    picture("oft_rescale", {path: (DiagOFTModule, dict(lora_dim=4, rescaled=True)) for path in (SQUARE, WIDE, CONV, POINT)})
    picture("boft", {path: (ButterflyOFTModule, dict(lora_dim=d)) for path, d in
                     {SQUARE: 4, WIDE: 2, LONG: 8, CONV: 4, STRIDED: 2}.items()})
    picture("boft_rescale", {path: (ButterflyOFTModule, dict(lora_dim=4, rescaled=True, constraint=c))
                             for path, c in {SQUARE: 0.1, CONV: 0.0, LONG: 2.0}.items()})


def others():
    glora = {SQUARE: (GLoRAModule, dict(lora_dim=3, alpha=2.0)), WIDE: (GLoRAModule, dict(lora_dim=5, alpha=7.5))}
    picture("glora", glora | {CONV: (GLoRAModule, dict(lora_dim=3, alpha=2.0)), POINT: (GLoRAModule, dict(lora_dim=2, alpha=3.0)),
                              STRIDED: (GLoRAModule, dict(lora_dim=5, alpha=1.0))})
    # LyCORIS before 3 had the factors of each pair the other way round
    swapped = {".a1.": ".a2.", ".a2.": ".a1.", ".b1.": ".b2.", ".b2.": ".b1."}

    def old(file):
        return {next((k.replace(a, b) for a, b in swapped.items() if a in k), k): v for k, v in file.items()}

    picture("glora_old", glora, edit=old)
    picture("ia3", {path: (IA3Module, dict(train_on_input=on)) for path, on in
                    {SQUARE: False, WIDE: True, NARROW: False, CONV: True, STRIDED: False, POINT: True}.items()})
    picture("full", {path: (FullModule, {}) for path in (SQUARE, NARROW, CONV, POINT, "time_embedding.linear_2")})
    picture("norms", {path: (NormModule, {}) for path in (
        "mid_block.attentions.0.norm", "mid_block.attentions.0.transformer_blocks.1.norm2", "down_blocks.1.resnets.0.norm1",
        "up_blocks.0.resnets.1.norm2", "conv_norm_out")} | {SQUARE: lora(3, 2.0)})
    picture("simple_tuner", {LONG: lokr(3, 2.0), CONV: lokr(2, 4.5, factor=2), WIDE: lora(3, 2.0)}, name_of=simple_tuner)


def text_encoder_case():
    model = CLIPTextModel.from_pretrained(MODEL / "text_encoder").eval().requires_grad_(False)
    layer = "text_model.encoder.layers.0."
    file, _ = put(model, {layer + "self_attn.q_proj": lora(3, 2.0, weight_decompose=True, wd_on_out=False),
                          layer + "mlp.fc1": lokr(3, 2.0, factor=4), layer + "mlp.fc2": loha(2, 3.0)},
                  lambda path: text_encoder_lora_name(path, 1), "text_encoder")
    write_file("text_encoder_kinds", file)
    inputs = "cases/text_encoder.in.safetensors"
    with torch.no_grad():
        pooled = model(load(ROOT / inputs)["input_ids"]).pooler_output
    finish("text_encoder_kinds", "sdxl", "text_encoder", inputs, dict(pooled=pooled), lora="adapter.safetensors")


# FLUX and SD3: LyCORIS upon diffusers' modules, which split what the programs of the models' makers have in one, and upon these.


def run_transformer(model, inputs):
    with torch.no_grad():
        return dict(sample=model(**arguments(load(ROOT / inputs), torch.float32)).sample)


def transformer(name, kind, folder, inputs, modules):
    model = kind.from_pretrained(ROOT / folder / "transformer").eval().requires_grad_(False)
    file, _ = put(model, modules, simple_tuner, name)
    write_file(name, file)
    finish(name, folder, "transformer", inputs, run_transformer(model, inputs), lora="adapter.safetensors")


def fused(name, kind, folder, inputs, table, modules):
    """{the maker's module: (class, settings)} upon a linear of the weights side by side, whose rows go back to diffusers' modules."""
    model = kind.from_pretrained(ROOT / folder / "transformer").eval().requires_grad_(False)
    file = {}
    for path, what in modules.items():
        parts, swapped = table(model)[path]
        weight = torch.cat([model.get_submodule(part).weight for part in parts])
        turn = (lambda w: torch.cat(w.chunk(2)[::-1])) if swapped else lambda w: w
        whole = torch.nn.Module()
        whole.linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False).requires_grad_(False)
        whole.linear.weight.copy_(turn(weight))
        mine, _ = put(whole, {"linear": what}, lambda _: "lora_unet_" + path.replace(".", "_"), f"{name} {path}")
        file |= mine
        with torch.no_grad():
            changed = turn(whole.linear(torch.eye(weight.shape[1])).T)
            for part in parts:
                target = model.get_submodule(part).weight
                target.copy_(changed[:len(target)])
                changed = changed[len(target):]
    write_file(name, file)
    finish(name, folder, "transformer", inputs, run_transformer(model, inputs), lora="adapter.safetensors")


def saved_and_loaded(name, config, fresh):
    """A model with the config's adapter, which has been saved and loaded again: by diffusers where it is LoRA or DoRA, else by peft."""
    seeded(name)
    shutil.rmtree(OUT / name, ignore_errors=True)
    model = fresh()
    if not isinstance(config, LoraConfig):
        disturb_peft(get_peft_model(model, config), name).save_pretrained(OUT / name)
        return PeftModel.from_pretrained(fresh(), OUT / name).eval()
    model.add_adapter(config)
    disturb_peft(model, name).save_lora_adapter(OUT / name)
    model = fresh()
    model.load_lora_adapter(OUT / name, prefix=None, low_cpu_mem_usage=False, weight_name="pytorch_lora_weights.safetensors")
    return model.eval()


def peft_unet(name, config):
    finish(name, "sdxl", "unet", UNET_INPUTS, run_unet(saved_and_loaded(name, config, fresh_unet)))


def unet_cases():
    targets = [SQUARE, WIDE, CONV, STRIDED, POINT]
    peft_unet("unet_dora", LoraConfig(r=3, lora_alpha=5, target_modules=targets, use_dora=True, init_lora_weights=False))
    others = dict(r=2, alpha=5, target_modules=targets + [BIG], init_weights=False)
    peft_unet("unet_peft_loha", LoHaConfig(**others))
    peft_unet("unet_peft_loha_conv", LoHaConfig(**others, use_effective_conv2d=True))
    peft_unet("unet_peft_lokr", LoKrConfig(**others, decompose_factor=4))
    peft_unet("unet_peft_lokr_conv", LoKrConfig(**others, use_effective_conv2d=True))


def flow_models():
    flux_inputs, sd3_inputs = "flux/dev/lora.in.safetensors", "sd3_transformer/dual/lora.in.safetensors"
    wd = dict(weight_decompose=True, wd_on_out=False)
    block, single = "transformer_blocks.0.", "single_transformer_blocks.1."
    transformer("flux_split", FluxTransformer2DModel, "flux/dev", flux_inputs, {
        block + "attn.to_q": lokr(3, 2.0), block + "attn.to_k": lokr(2, 3.0, factor=4),
        block + "attn.to_v": lokr(1, 2.0, decompose_both=True), block + "attn.add_k_proj": loha(3, 2.0),
        block + "attn.to_out.0": lora(3, 2.0, **wd), block + "ff.net.0.proj": lokr(3, 1.0, factor=8),
        single + "attn.to_k": lora(2, 3.0, **wd), single + "proj_mlp": loha(2, 3.0), single + "proj_out": lokr(3, 2.0)})
    transformer("sd3_split", SD3Transformer2DModel, "sd3_transformer/dual", sd3_inputs, {
        block + "attn.to_q": lokr(3, 2.0), block + "attn.add_v_proj": lora(3, 2.0, **wd), block + "attn2.to_k": loha(2, 3.0),
        block + "attn.to_add_out": lokr(1, 2.0, factor=4), block + "ff.net.2": lokr(3, 2.0, factor=4)})
    flux_table = lambda model: {k: (v, False) for k, v in flux.modules(model.config).items()}
    output = dict(weight_decompose=True, wd_on_out=True)
    fused("flux_fused", FluxTransformer2DModel, "flux/dev", flux_inputs, flux_table, {
        "double_blocks.0.img_attn.qkv": lokr(3, 2.0), "double_blocks.0.txt_attn.qkv": lora(3, 2.0, **wd),
        "double_blocks.1.img_mlp.0": loha(3, 2.0),
        "double_blocks.1.txt_attn.qkv": lora(2, 3.0, **output), "single_blocks.0.linear1": lokr(3, 2.0, factor=4),
        "single_blocks.1.linear1": loha(2, 3.0), "single_blocks.0.linear2": lora(2, 3.0, **wd)})
    fused("sd3_fused", SD3Transformer2DModel, "sd3_transformer/dual", sd3_inputs, sd3_transformer.modules, {
        "joint_blocks.0.x_block.attn.qkv": lokr(3, 2.0, factor=4), "joint_blocks.0.x_block.attn2.qkv": lora(3, 2.0, **wd),
        "joint_blocks.0.context_block.attn.qkv": loha(3, 2.0), "joint_blocks.2.context_block.adaLN_modulation.1": lokr(2, 1.0),
        "joint_blocks.1.x_block.mlp.fc1": lora(3, 2.0, **output), "joint_blocks.1.context_block.mlp.fc2": lokr(5, 2.0, factor=2)})


def flux_biases():
    """As in FLUX.1 Canny and Depth's LoRAs; peft scales the bias too."""
    model = FluxTransformer2DModel.from_pretrained(ROOT / "flux/dev/transformer").eval().requires_grad_(False)
    seeded("flux_biases")
    model.add_adapter(LoraConfig(r=3, lora_alpha=5, lora_bias=True, init_lora_weights=False, target_modules=[
        "transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.add_k_proj", "single_transformer_blocks.1.proj_mlp", "x_embedder",
        "transformer_blocks.1.ff.net.2"]))
    disturb_peft(model, "flux_biases")
    shutil.rmtree(OUT / "flux_biases", ignore_errors=True)
    model.save_lora_adapter(OUT / "flux_biases")
    inputs = "flux/dev/lora.in.safetensors"
    fresh = FluxTransformer2DModel.from_pretrained(ROOT / "flux/dev/transformer").eval()
    fresh.load_lora_adapter(OUT / "flux_biases", prefix=None, low_cpu_mem_usage=False, weight_name="pytorch_lora_weights.safetensors")
    finish("flux_biases", "flux/dev", "transformer", inputs, run_transformer(fresh, inputs))


def peft_transformer(name, kind, folder, inputs, config, grad=None):
    """All parts of fused layers; gradients on `folder`'s case `grad`."""
    fresh = lambda: kind.from_pretrained(ROOT / folder / "transformer").eval().requires_grad_(False)
    model = saved_and_loaded(name, config, fresh)
    finish(name, folder, "transformer", f"{folder}/{inputs}.in.safetensors",
           run_transformer(model, f"{folder}/{inputs}.in.safetensors"))
    if not grad:
        return
    x = load(ROOT / folder / f"{grad}.in.safetensors")
    wanted = {n.replace(".default_0", "").replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector"): p.requires_grad_(True)
              for n, p in model.named_parameters() if any(prefix in n for prefix in PREFIXES)}
    assert set(wanted) == set(load(OUT / name / "pytorch_lora_weights.safetensors"))
    loss = torch.nn.functional.mse_loss(model(**arguments(x, torch.float32)).sample, x["target"])
    grads = torch.autograd.grad(loss, list(wanted.values()))
    add_gradients(name, {"loss": loss} | {"grad." + n: g for n, g in zip(wanted, grads)}, f"{folder}/{grad}.in.safetensors")


def trained_parts(name, kind, folder, inputs, modules):
    """Kinds that LyCORIS trains beside each other on the parts of fused layers, with gradients."""
    model = kind.from_pretrained(ROOT / folder / "transformer").eval().requires_grad_(False)
    file, trained = put(model, modules, simple_tuner, name)
    write_file(name, file)
    finish(name, folder, "transformer", inputs, run_transformer(model, inputs), lora="adapter.safetensors")
    grad = f"{folder}/wide_grad.in.safetensors"
    x = load(ROOT / grad)
    with constant_norm():
        loss = torch.nn.functional.mse_loss(model(**arguments(x, torch.float32)).sample, x["target"])
        grads = torch.autograd.grad(loss, list(trained.values()))
    add_gradients(name, {"loss": loss} | {"grad." + n: g for n, g in zip(trained, grads)}, grad)


ATTENTION = [f"attn.{part}" for part in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj")]
FLUX_PARTS = [f"transformer_blocks.0.{part}" for part in ATTENTION] + [
    f"single_transformer_blocks.1.{part}" for part in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
SD3_PARTS = [f"transformer_blocks.0.{part}" for part in (*ATTENTION, "attn2.to_q", "attn2.to_k", "attn2.to_v")]


def parts_of_fused_layers():
    flux_model = FluxTransformer2DModel, "flux/dev", "lora"
    sd3_model = SD3Transformer2DModel, "sd3_transformer/dual", "lora"
    dora = dict(r=3, lora_alpha=5, use_dora=True, init_lora_weights=False)
    peft_transformer("flux_peft_dora", *flux_model, LoraConfig(**dora, target_modules=FLUX_PARTS), grad="wide_grad")
    peft_transformer("sd3_peft_dora", *sd3_model, LoraConfig(**dora, target_modules=SD3_PARTS), grad="grad")
    inputs = "transformer_blocks.0.ff.net.2"
    for name, model, parts in ("flux", flux_model, FLUX_PARTS), ("sd3", sd3_model, SD3_PARTS):
        peft_transformer(f"{name}_peft_ia3", *model, IA3Config(target_modules=[*parts, inputs], feedforward_modules=[inputs]))
        peft_transformer(f"{name}_peft_oft", *model, OFTConfig(oft_block_size=4, r=0, init_weights=False, target_modules=parts))
    wd = lambda on_out: dict(weight_decompose=True, wd_on_out=on_out)
    block, single = "transformer_blocks.0.attn.", "single_transformer_blocks.1."
    trained_parts("flux_trained_parts", FluxTransformer2DModel, "flux/dev", "flux/dev/lora.in.safetensors", {
        block + "to_q": lora(3, 2.0, **wd(True)), block + "to_k": loha(3, 2.0), block + "to_v": lora(2, 3.0, **wd(False)),
        block + "add_q_proj": loha(2, 3.0), block + "add_k_proj": loha(8, 2.0), block + "add_v_proj": lora(3, 2.0),
        single + "attn.to_q": lokr(3, 2.0), single + "attn.to_k": loha(2, 3.0, **wd(True)), single + "attn.to_v": loha(2, 3.0),
        single + "proj_mlp": lokr(3, 2.0, **wd(False))})


def cayley_series():
    """R of peft's OFT for each number of terms of its series."""
    module = oft_layer.OFTRotationModule(2, 10, 5, 10)
    entries = 0.2 * torch.randn(2, 10, generator=rng("cayley"))
    series = {f"R.{terms}": module._cayley_batch(entries, 5, True, terms) for terms in range(9)}
    save(ROOT / "peft_cayley.safetensors", {"entries": entries} | series)


# Language models, by peft

PREFIXES = "lora_", "hada_", "lokr_", "oft_", "boft_", "ia3_"


def disturb_peft(model, seed):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not any(prefix in name for prefix in PREFIXES):
                continue
            noise = torch.randn(p.shape, generator=rng(f"{seed} {name}"))
            if any(part in name for part in ("magnitude_vector", "boft_s", "ia3_")):
                p.mul_(1 + 0.2 * noise)
            elif "oft_R" in name or name.endswith("bias"):
                p.copy_(0.2 * noise)
            else:
                p.copy_(0.8 * noise * min(p.shape[:2]) ** -0.5)
    return model


def loss_and_gradients(model, family):
    """On the family's `grad` case."""
    x = load(LLAMA / family / "grad.in.safetensors")
    wanted = {n.replace(".default", ""): p for n, p in model.named_parameters() if any(prefix in n for prefix in PREFIXES)}
    wanted = {n.replace("magnitude_vector.weight", "magnitude_vector"): p.requires_grad_(True) for n, p in wanted.items()}
    logits = llama.masked_logits(model, x)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x["target"].flatten(), ignore_index=-100)
    return {"loss": loss} | {"grad." + n: g for n, g in zip(wanted, torch.autograd.grad(loss, list(wanted.values())))}


def language(name, family, config, gradients=False):
    path = LLAMA / family
    seeded(name)
    shutil.rmtree(OUT / name, ignore_errors=True)
    model = disturb_peft(get_peft_model(AutoModelForCausalLM.from_pretrained(path), config), name)
    model.save_pretrained(OUT / name)
    fresh = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(path), OUT / name).eval()
    with torch.no_grad():
        finish(name, f"llama/{family}", "", "adapters/ids.safetensors", dict(logits=fresh(IDS).logits))
    if gradients:
        out = loss_and_gradients(fresh, family)
        assert {k.removeprefix("grad.") for k in out if k != "loss"} == set(load(OUT / name / "adapter_model.safetensors"))
        add_gradients(name, out, f"llama/{family}/grad.in.safetensors")


@contextlib.contextmanager
def butterfly():
    """peft's BOFT of more than one factor needs an extension for CUDA, of which this is what it computes."""
    class BlockDiagonal:
        @staticmethod
        def apply(blocks):
            return torch.stack([torch.block_diag(*factor) for factor in blocks])

    theirs = boft_layer.get_fbd_cuda, boft_layer.FastBlockDiag
    boft_layer.get_fbd_cuda, boft_layer.FastBlockDiag = lambda: True, BlockDiagonal
    yield
    boft_layer.get_fbd_cuda, boft_layer.FastBlockDiag = theirs


def languages():
    lora = dict(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    language("peft_dora", "llama2", LoraConfig(**lora, use_dora=True, rank_pattern={"down_proj": 2}), gradients=True)
    language("peft_dora_rslora", "llama_linear", LoraConfig(**lora, use_dora=True, use_rslora=True, alpha_pattern={"q_proj": 4}))
    language("peft_dora_head", "llama2", LoraConfig(**lora | dict(target_modules=["lm_head", "v_proj"]), use_dora=True))
    language("peft_bias", "llama_linear", LoraConfig(**lora, lora_bias=True))
    language("peft_bias_alone", "llama2", LoraConfig(**lora, lora_bias=True, rank_pattern={"q_proj": 4}))
    language("peft_embedding", "llama2", LoraConfig(**lora | dict(target_modules=["embed_tokens", "q_proj"])))
    language("peft_embedding_tied", "qwen2", LoraConfig(**lora | dict(target_modules=["embed_tokens", "up_proj"])))

    targets = dict(target_modules=["q_proj", "down_proj"], init_weights=False)
    language("peft_loha", "llama2", LoHaConfig(r=3, alpha=5, rank_pattern={"down_proj": 2}, alpha_pattern={"down_proj": 7}, **targets))
    language("peft_lokr", "llama2", LoKrConfig(r=2, alpha=5, rank_pattern={"q_proj": 1}, **targets))
    language("peft_lokr_both", "llama2", LoKrConfig(r=1, alpha=3, decompose_both=True, **targets))
    language("peft_lokr_full", "llama2", LoKrConfig(r=9, alpha=5, decompose_factor=8, **targets))
    language("peft_oft", "llama2", OFTConfig(oft_block_size=4, r=0, use_cayley_neumann=True, **targets))
    language("peft_oft_terms", "llama_linear", OFTConfig(
        oft_block_size=0, r=4, use_cayley_neumann=True, num_cayley_neumann_terms=7, **targets))
    language("peft_oft_two_terms", "llama2", OFTConfig(
        oft_block_size=4, r=0, use_cayley_neumann=True, num_cayley_neumann_terms=2, **targets))
    language("peft_oft_three_terms", "llama2", OFTConfig(
        oft_block_size=4, r=0, use_cayley_neumann=True, num_cayley_neumann_terms=3, **targets))
    language("peft_oft_exact", "llama2", OFTConfig(oft_block_size=0, r=2, use_cayley_neumann=False, **targets))
    language("peft_oft_shared", "llama2", OFTConfig(oft_block_size=4, r=0, block_share=True, use_cayley_neumann=False, **targets))
    language("peft_oft_constrained", "llama2", OFTConfig(oft_block_size=4, r=0, coft=True, eps=2.3, **targets))
    language("peft_boft", "llama_linear", BOFTConfig(boft_block_size=4, **targets))
    with butterfly():
        language("peft_boft_factors", "llama2", BOFTConfig(
            boft_block_size=0, boft_block_num=8, boft_n_butterfly_factor=3, target_modules=["q_proj", "up_proj"], init_weights=False))
    language("peft_ia3", "llama_linear", IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]))


if __name__ == "__main__":
    doras()
    products()
    locon()
    rotations()
    others()
    text_encoder_case()
    unet_cases()
    flow_models()
    flux_biases()
    parts_of_fused_layers()
    cayley_series()
    languages()

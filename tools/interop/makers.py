"""The denoisers under their makers' names, which kohya's scripts and ComfyUI use, made of diffusers' weights and made into them again."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from comfy_flow_names import native_modules  # noqa: E402
from names import ldm_block  # noqa: E402


def turned(weight):
    return torch.cat(weight.chunk(2)[::-1])


def table(component):
    """{the maker's module: (diffusers' modules, whose rows it has one after the other; whether halves change places)}."""
    model = component.open()
    if component.name != "unet":
        return native_modules(model)
    modules = [name.removesuffix(".weight") for name in component.weights if name.endswith(".weight")]
    return {ldm_block(name, component.config["layers_per_block"]): ([name], False) for name in modules}


def to_makers(component):
    found = {}
    for module, (parts, swapped) in table(component).items():
        for end in ("weight", "bias"):
            rows = [component.weights[f"{part}.{end}"] for part in parts if f"{part}.{end}" in component.weights]
            if rows:
                whole = torch.cat(rows).clone()
                found[f"{module}.{end}"] = turned(whole) if swapped else whole
    return found


def from_makers(component, weights):
    """{diffusers' parameter: value} of those modules that are in `weights`."""
    found = {}
    for module, (parts, swapped) in table(component).items():
        for end in ("weight", "bias"):
            if f"{module}.{end}" in weights:
                rows = weights[f"{module}.{end}"]
                rows = turned(rows) if swapped else rows
                for part in parts:
                    count = component.weights[f"{part}.weight"].shape[0]
                    found[f"{part}.{end}"], rows = rows[:count], rows[count:]
                assert not len(rows)
    return found


def class_of(path, modules):
    """What kohya's scripts call this module's class."""
    inside = {m[len(path) + 1:] for m in modules if m.startswith(path + ".")}
    part = path.split(".")
    if part[0] in ("double_blocks", "single_blocks") and len(part) == 2:
        return "DoubleStreamBlock" if part[0] == "double_blocks" else "SingleStreamBlock"
    if part[0] == "joint_blocks" and len(part) == 3:
        return "SingleDiTBlock"
    if len(part) >= 2 and part[0].endswith(("_blocks", "_block")):
        if "proj_in" in inside:
            return "Transformer2DModel"
        if "in_layers.2" in inside:
            return "ResnetBlock2D"
        if inside == {"op"}:
            return "Downsample2D"
        if inside == {"conv"}:
            return "Upsample2D"
    return None


def tree(component, root=torch.nn.Module, norms=False):
    """Linears and convolutions, and if asked norms, in modules of the classes that programs look for. It cannot run whole: see probe()."""
    weights = to_makers(component)
    modules = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    top = root.__new__(root)
    torch.nn.Module.__init__(top)
    for module in modules:
        weight, bias = weights[module + ".weight"], weights.get(module + ".bias")
        if weight.dim() == 1 and not norms:
            continue
        if weight.dim() == 1:
            layer = torch.nn.LayerNorm(weight.shape[0])
        elif weight.dim() == 4:
            layer = torch.nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2:], bias=bias is not None,
                                    padding=weight.shape[2] // 2 if weight.shape[2] % 2 else 0,
                                    stride=2 if module.endswith((".op", "x_embedder.proj")) else 1)
        else:
            layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        layer.weight.data = weight.clone()
        if bias is not None:
            layer.bias.data = bias.clone()
        at, path = top, module.split(".")
        for i, name in enumerate(path[:-1]):
            if name not in at._modules:
                kind = class_of(".".join(path[:i + 1]), modules)
                at.add_module(name, type(kind, (torch.nn.Module,), {})() if kind else torch.nn.Module())
            at = at._modules[name]
        at.add_module(path[-1], layer)
    return top.requires_grad_(False)


def weights_of(top):
    return {name: p.detach().clone() for name, p in top.named_parameters()}


def put_weights(top, weights):
    for name, p in top.named_parameters():
        p.data = weights[name].reshape(p.shape)


def probe(top):
    """The weight and the bias that each layer of a tree computes with, whatever a program has hung upon it."""
    found = {}
    for name, layer in top.named_modules():
        with torch.no_grad():
            if type(layer) is torch.nn.Linear:
                bias = layer(torch.zeros(1, layer.in_features))[0]
                found[name + ".weight"] = (layer(torch.eye(layer.in_features)) - bias).T
            elif type(layer) is torch.nn.Conv2d:
                _, channels, height, width = layer.weight.shape
                spots = torch.eye(channels * height * width).reshape(-1, channels, height, width)
                frame = torch.zeros(len(spots), channels, height + 2, width + 2)
                frame[:, :, 1:-1, 1:-1] = spots
                at = (1 + layer.padding[0]) // layer.stride[0]  # where the kernel lies upon the spots
                if layer.padding[0] == 0 and height > 1:  # patches side by side
                    frame, at = spots, 0
                zero = torch.zeros(1, *frame.shape[1:])
                bias = layer(zero)[0, :, at, at]
                found[name + ".weight"] = (layer(frame)[:, :, at, at] - bias).T.reshape(layer.weight.shape)
            else:
                continue
        if layer.bias is not None:
            found[name + ".bias"] = bias
    return found

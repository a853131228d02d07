"""Runs of `wick train` with other losses, noises, weights and limits, replayed by diffusers with the numbers of docs/replay.md.

    python tools/golden/replay_objective.py      writes tests/golden/replay/objective/

RUNS has the settings of each. The losses, the gradients' norms and the LoRA after six steps on the tiny SDXL and SD3, with the pictures
of replay.py. Formulas are those of kohya-ss/sd-scripts (library/custom_train_functions.py, train_util.py, sd3_train_utils.py,
networks/lora.py); nothing is shared with Wick but the documented streams.
"""

import math
import re

import torch
from diffusers import DDPMScheduler, StableDiffusionXLPipeline
from PIL import Image

import replay
import sd3_transformer
from golden import MODEL, rng, save
from philox import Samples, Stream, named_seed, numbered, philox, steps_of
from replay import ALPHA, CLIP, LR, RANK, SEED, TOKENS

OUT = replay.OUT / "objective"
STEPS = 6
RUNS = {
    "sdxl-snr": dict(family="sdxl", min_snr_gamma=2.5, noise_offset=0.2),
    "sdxl-debiased": dict(family="sdxl", debiased_estimation_loss=True, loss_type="huber", huber_c=0.2,
                          multires_noise_iterations=4, multires_noise_discount=0.6),
    "sdxl-l1": dict(family="sdxl", loss_type="l1", ip_noise_gamma=0.3, rank_dropout=0.4, scale_weight_norms=0.004),
    "sdxl-v": dict(family="sdxl", prediction="v", min_snr_gamma=4, debiased_estimation_loss=True),
    "sdxl-zero-snr": dict(family="sdxl", prediction="v-zero-snr", scale_v_pred_loss_like_noise_pred=True),
    "sd3-cosmap": dict(family="sd3", weighting_scheme="cosmap", loss_type="smooth-l1", huber_schedule="exponential", huber_c=0.05,
                       huber_scale=1.5, module_dropout=0.4),
    "sd3-sqrt": dict(family="sd3", weighting_scheme="sigma-sqrt", loss_type="huber", huber_schedule="constant", noise_offset=0.1,
                     multires_noise_iterations=8, ip_noise_gamma=0.1),
    "sd3-squared": dict(family="sd3", weighting_scheme="sigma-squared", rank_dropout=0.25, module_dropout=0.2,
                        scale_weight_norms=0.01),
}
PICTURES = {"a": (64, 64, "a red fox in the snow"), "b": (64, 64, "two boats, golden hour"), "c": (32, 64, "a kettle")}
BATCHES = [["a", "b"], ["c"]]  # of an epoch, before they are shuffled


def original(name):
    """A module's name in kohya's files, which count blocks as Stability's code does."""
    block, rest = re.fullmatch(r"(.*?)\.attentions\.(.*)", name).groups()
    layer, rest = rest.split(".", 1)
    if block == "mid_block":
        return "middle_block.1." + rest
    kind, number = block.split(".")
    first = 3 * int(number) + int(layer)
    return (f"input_blocks.{first + 1}" if kind == "down_blocks" else f"output_blocks.{first}") + ".1." + rest


class Sdxl:
    name = "sdxl"

    def __init__(self):
        self.pipeline = StableDiffusionXLPipeline.from_pretrained(MODEL)
        self.model, self.swapped = self.pipeline.unet, []
        self.targets = {original(name): [name] for name, module in self.model.named_modules()
                        if ".attentions." in name and isinstance(module, torch.nn.Linear)}

    def begin(self, run):
        changes = dict(rescale_betas_zero_snr=True) if run.get("prediction") == "v-zero-snr" else {}
        self.alphas = DDPMScheduler.from_config(self.pipeline.scheduler.config, **changes).alphas_cumprod.double()

    def text(self, caption):
        states, _, pooled, _ = self.pipeline.encode_prompt(caption, do_classifier_free_guidance=False)
        return states, pooled

    def draw_times(self, samples, latents):
        return torch.tensor([stream.below(1000) for stream in samples.streams("timestep")])

    def snr(self, times):
        return self.alphas[times] / (1 - self.alphas[times])

    def noised(self, x, n, times):
        a = self.alphas[times].sqrt().float()[:, None, None, None]
        return a * x + (1 - a * a).sqrt() * n

    def target(self, x, n, times, v):
        a = self.alphas[times].sqrt().float()[:, None, None, None]
        return a * n - (1 - a * a).sqrt() * x if v else n

    def predict(self, weights, sample, times, states, pooled):
        height, width = 8 * sample.shape[2], 8 * sample.shape[3]
        ids = torch.tensor([[height, width, 0, 0, height, width]] * len(times)).float()
        return torch.func.functional_call(self.model, weights, (sample, times, states), dict(
            added_cond_kwargs=dict(text_embeds=pooled, time_ids=ids))).sample


class Sd3(replay.Sd3):
    def __init__(self):
        super().__init__()
        self.model = self.pipeline.transformer
        self.swapped = [name for name, (_, swapped) in sd3_transformer.modules(self.model).items() if swapped]

    def begin(self, run):
        pass

    def draw_times(self, samples, latents):
        return torch.sigmoid(self.mean_of_logit(*latents) + samples.normal("timestep").double()).float()

    def noised(self, x, n, times):
        return x + times[:, None, None, None] * (n - x)

    def target(self, x, n, times, v):
        return n - x


def epoch_of(number):
    """Buckets go by width, then height; the narrow one comes first."""
    stream, batches = Stream(SEED, "shuffle", number << 32), []
    for bucket in reversed(BATCHES):
        pictures = list(bucket)
        stream.shuffle(pictures)
        batches += steps_of(pictures, 2)
    stream.shuffle(batches)
    return batches


def draw_noise(run, stream, shape):
    """Of one sample."""
    def normal(*sizes):
        return stream.normal(*sizes).permute(0, 3, 1, 2)

    batch, height, width, channels = shape
    n = normal(*shape)
    if "noise_offset" in run:
        n = n + run["noise_offset"] * normal(batch, 1, 1, channels)
    discount = run.get("multires_noise_discount", 0.3)
    for i in range(run.get("multires_noise_iterations", 0)):
        shrunk = (2 * stream.uniform(1).double().item() + 2) ** i
        h, w = max(1, int(height / shrunk)), max(1, int(width / shrunk))
        coarse = normal(batch, h, w, channels)
        n = n + torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False) * discount**i
        if h == 1 or w == 1:
            break
    return n / n.std() if "multires_noise_iterations" in run else n


def huber_c(run, family, times):
    c, scale = run.get("huber_c", 0.1), run.get("huber_scale", 1)
    kind = run.get("huber_schedule", "snr")
    if kind == "constant":
        return torch.full((len(times),), c * scale)
    if kind == "exponential":  # sigma is how far a rectified flow has gone
        return torch.exp(math.log(c) * times.double()) * scale
    return ((1 - c) / (1 + family.snr(times) ** -0.5) ** 2 + c)


def loss_of(run, family, prediction, target, times):
    kind, error = run.get("loss_type", "l2"), prediction - target
    if kind == "l2":
        loss = torch.nn.functional.mse_loss(prediction, target, reduction="none")
    elif kind == "l1":
        loss = torch.nn.functional.l1_loss(prediction, target, reduction="none")
    else:
        c = huber_c(run, family, times).float()[:, None, None, None]
        loss = 2 * ((error**2 + c**2).sqrt() - c) * (c if kind == "huber" else 1)
    loss, v = loss.mean([1, 2, 3]), run.get("prediction", "").startswith("v")
    if "min_snr_gamma" in run:
        snr = family.snr(times)
        loss = loss * (snr.clamp(max=run["min_snr_gamma"]) / (snr + 1 if v else snr)).float()
    if "debiased_estimation_loss" in run:
        snr = family.snr(times).clamp(max=1000)
        loss = loss * (1 / (snr + 1) if v else snr**-0.5).float()
    if "scale_v_pred_loss_like_noise_pred" in run:
        snr = family.snr(times).clamp(max=1000)
        loss = loss * (snr / (snr + 1)).float()
    scheme = run.get("weighting_scheme")
    if scheme == "sigma-sqrt":
        loss = loss * times**-2.0
    if scheme == "sigma-squared":
        loss = loss * times**2
    if scheme == "cosmap":
        loss = loss * 2 / (math.pi * (1 - 2 * times + 2 * times**2))
    return loss.mean()


def kept(seed, count, p, batch):
    words = philox(seed, 9, [(batch << 32) + i for i in range((count + 3) // 4)]).reshape(-1)[:count]
    return torch.tensor([float(int(word) >= int(p * 2**32)) for word in words])


def adapted(run, family, factors, batch):
    weights = dict(family.model.named_parameters())
    ranks, modules = run.get("rank_dropout", 0), run.get("module_dropout", 0)
    for module, parts in family.targets.items():
        base = "lora_unet_" + module.replace(".", "_")
        seed = named_seed(SEED, base)
        mask = kept(seed + 1, RANK, ranks, batch) / (1 - ranks) * kept(seed + 2, 1, modules, batch)
        delta = factors[base + ".lora_up.weight"] @ (mask[:, None] * factors[base + ".lora_down.weight"]) * (ALPHA / RANK)
        if module in family.swapped:
            delta = torch.cat(delta.chunk(2)[::-1])
        for part, rows in zip(parts, delta.chunk(len(parts))):
            weights[part + ".weight"] = weights[part + ".weight"] + rows
    return weights


def limit_norms(factors, most):
    for name, up in factors.items():
        if name.endswith("lora_up.weight"):
            down = factors[name.replace("lora_up", "lora_down")]
            norm = (up @ down * (ALPHA / RANK)).norm()
            if norm > most:
                up *= (most / norm) ** 0.5
                down *= (most / norm) ** 0.5


def train(run, family):
    family.begin(run)
    family.pipeline.transformer = getattr(family.pipeline, "transformer", family.model)  # that replay.fresh() reads
    with torch.no_grad():
        pixels = {name: smooth(name, width, height) for name, (width, height, _) in PICTURES.items()}
        texts = {name: family.text(caption) for name, (_, _, caption) in PICTURES.items()}
        latents = {name: posterior(family.pipeline.vae, image) for name, image in pixels.items()}
    factors = replay.fresh(family)
    optimizer = torch.optim.AdamW(factors.values(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    for first, batch in numbered([batch for epoch in range(STEPS) for batch in epoch_of(epoch)], STEPS):
        samples = Samples(SEED, first, len(batch))
        mean, deviation = (torch.cat([latents[name][k] for name in batch]) for k in (0, 1))
        shape = [1, *mean.shape[2:], mean.shape[1]]
        x = mean + deviation * samples.normal("latent", *shape[1:]).permute(0, 3, 1, 2)
        states, pooled = (torch.cat([texts[name][k] for name in batch]) for k in (0, 1))
        times = family.draw_times(samples, mean.shape[2:])
        streams = samples.streams("noise")
        n = torch.cat([draw_noise(run, stream, shape) for stream in streams])
        seen = n
        if "ip_noise_gamma" in run:
            seen = n + run["ip_noise_gamma"] * torch.cat([stream.normal(*shape) for stream in streams]).permute(0, 3, 1, 2)
        prediction = family.predict(adapted(run, family, factors, first), family.noised(x, seen, times), times, states, pooled)
        loss = loss_of(run, family, prediction, family.target(x, n, times, run.get("prediction", "").startswith("v")), times)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(factors.values(), CLIP))
        optimizer.step()
        optimizer.zero_grad()
        if "scale_weight_norms" in run:
            with torch.no_grad():
                limit_norms(factors, run["scale_weight_norms"])
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)} | {k: v.detach() for k, v in factors.items()}


def smooth(name, width, height):
    coarse = torch.rand(1, 3, 3, 4, generator=rng("replay objective " + name))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
    pixels = (fine[0].permute(1, 2, 0) * 255).round().byte().numpy()
    folder = OUT / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / f"{name}.png")
    (folder / f"{name}.txt").write_text(PICTURES[name][2] + "\n")
    return torch.from_numpy(pixels).float() / 127.5 - 1


def posterior(vae, pixels):
    distribution = vae.encode(pixels.permute(2, 0, 1)[None]).latent_dist
    scale, shift = vae.config.scaling_factor, getattr(vae.config, "shift_factor", None) or 0
    return (distribution.mean - shift) * scale, distribution.std * scale


def main():
    families = {"sdxl": Sdxl(), "sd3": Sd3()}
    common = {"seed": SEED, "steps": STEPS, "batch_size": 2, "lr": LR, "rank": RANK, "alpha": ALPHA, "max_grad_norm": CLIP,
              "resolution": 64, "bucket_step": 32, "caption_dropout": 0}
    for name, run in RUNS.items():
        family = families[run["family"]]
        out = train(run, family)
        tokens = {"t5_tokens": TOKENS if run["family"] == "sd3" else 0}
        told = {"flags": " ".join(f"--{k.replace('_', '-')} {v}" for k, v in run.items() if k != "family").replace(" True", "")}
        save(OUT / f"{name}.safetensors", out, {k: str(v) for k, v in (common | tokens | told).items()})
        print(name, "losses", out["losses"].tolist(), "norms", out["grad_norms"].tolist())


if __name__ == "__main__":
    main()

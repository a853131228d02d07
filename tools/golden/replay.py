"""A run of `wick train` on the tiny SD3 and the tiny FLUX, replayed by diffusers with the numbers of docs/replay.md.

    python tools/golden/replay.py      writes tests/golden/replay/

pictures/ has the data set, sd3.safetensors and flux.safetensors the losses, the gradients' norms and the LoRA after ten steps. Nothing
is shared with Wick but the documented streams: order of batches, captions left empty, the VAE's noise, times, noise and the LoRA's
first values are all drawn here.
"""

import math
import shutil

import numpy as np
import torch
from diffusers import FluxPipeline, StableDiffusion3Pipeline
from PIL import Image

import flux
import flux_pictures
import sd3
import sd3_transformer
from golden import ROOT, rng, save
from philox import Samples, Stream, named_seed, numbered, steps_of

OUT = ROOT / "replay"
SEED, STEPS, BATCH, LR, DROPOUT, TOKENS, CLIP = 7, 10, 2, 1e-3, 0.3, 24, 0.08
RANK, ALPHA = flux.RANK, flux.ALPHA
assert (RANK, ALPHA) == (sd3_transformer.RANK, sd3_transformer.ALPHA)

PICTURES = {"a": (64, 48, "a red fox in the snow"), "b": (40, 56, "two boats, golden hour"), "c": (64, 48, "a kettle"),
            "d": (40, 56, "the sea " * 20), "e": (64, 48, "a red fox in the snow")}


def write_pictures():
    shutil.rmtree(OUT / "pictures", ignore_errors=True)
    (OUT / "pictures").mkdir(parents=True)
    for name, (width, height, caption) in PICTURES.items():
        coarse = torch.rand(1, 3, 3, 4, generator=rng("replay " + name))
        smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
        Image.fromarray((smooth[0].permute(1, 2, 0) * 255).round().byte().numpy()).save(OUT / "pictures" / f"{name}.png")
        (OUT / "pictures" / f"{name}.txt").write_text(caption.strip() + "\n")


class Sd3:
    name = "sd3"

    def __init__(self):
        self.pipeline = StableDiffusion3Pipeline(**sd3.components(), **sd3.tokenizers())
        self.targets = {name: parts for name, (parts, _) in sd3_transformer.modules(self.pipeline.transformer).items()
                        if name.startswith("joint_blocks")}

    def adapted(self, factors):
        return sd3_transformer.adapted(self.pipeline.transformer, factors)

    def mean_of_logit(self, height, width):
        return math.log(3)

    def text(self, caption):
        states, _, pooled, _ = self.pipeline.encode_prompt(
            caption, caption, caption, do_classifier_free_guidance=False, max_sequence_length=TOKENS)
        return states, pooled

    def predict(self, weights, sample, sigma, states, pooled):
        return torch.func.functional_call(self.pipeline.transformer, weights, kwargs=dict(
            hidden_states=sample, encoder_hidden_states=states, pooled_projections=pooled, timestep=1000 * sigma)).sample


class Flux:
    name = "flux"

    def __init__(self):
        self.pipeline = FluxPipeline(**flux_pictures.components())
        self.targets = flux.modules(flux_pictures.TRANSFORMER)

    def adapted(self, factors):
        return flux.with_lora(dict(self.pipeline.transformer.named_parameters()), factors, flux_pictures.TRANSFORMER)

    def mean_of_logit(self, height, width):
        return 0.5 + (1.15 - 0.5) / (4096 - 256) * (height // 2 * (width // 2) - 256)

    def text(self, caption):
        states, pooled, _ = self.pipeline.encode_prompt(caption, caption, max_sequence_length=TOKENS)
        return states, pooled

    def predict(self, weights, sample, sigma, states, pooled):
        batch, channels, height, width = sample.shape
        velocity = torch.func.functional_call(self.pipeline.transformer, weights, kwargs=dict(
            hidden_states=FluxPipeline._pack_latents(sample, batch, channels, height, width), encoder_hidden_states=states,
            pooled_projections=pooled, timestep=sigma, guidance=torch.ones(batch), txt_ids=torch.zeros(states.shape[1], 3),
            img_ids=FluxPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, "cpu", sample.dtype))).sample
        factor = self.pipeline.vae_scale_factor
        return FluxPipeline._unpack_latents(velocity, height * factor, width * factor, factor)


def epoch_of(number):
    """The steps of an epoch: indices of pictures in the order of their names."""
    stream, buckets = Stream(SEED, "shuffle", number << 32), {}
    for i, (width, height, _) in enumerate(PICTURES.values()):
        buckets.setdefault((width, height), []).append(i)
    batches = []
    for _, pictures in sorted(buckets.items()):
        stream.shuffle(pictures)
        batches += steps_of(pictures, BATCH)
    stream.shuffle(batches)
    return batches


def posterior(vae, name):
    pixels = torch.from_numpy(np.array(Image.open(OUT / "pictures" / f"{name}.png"))).float() / 127.5 - 1
    distribution = vae.encode(pixels.permute(2, 0, 1)[None]).latent_dist
    scale, shift = vae.config.scaling_factor, vae.config.shift_factor
    return (distribution.mean - shift) * scale, distribution.std * scale


def fresh(family):
    """down is uniform in ±1/sqrt(inputs), drawn for each module by its name; up is zero."""
    factors, weights = {}, dict(family.pipeline.transformer.named_parameters())
    for module, parts in family.targets.items():
        base = "lora_unet_" + module.replace(".", "_")
        inputs, outputs = weights[parts[0] + ".weight"].shape[1], sum(len(weights[part + ".weight"]) for part in parts)
        bound = inputs ** -0.5
        draws = Stream(named_seed(SEED, base), "init").uniform(RANK, inputs)
        factors[base + ".lora_down.weight"] = (draws * (2 * bound) - bound).requires_grad_()
        factors[base + ".lora_up.weight"] = torch.zeros(outputs, RANK).requires_grad_()
    return factors


def train(family):
    with torch.no_grad():
        latents = [posterior(family.pipeline.vae, name) for name in PICTURES]
        texts = {caption.strip(): family.text(caption.strip()) for caption in ["", *(c for _, _, c in PICTURES.values())]}
    captions = [caption.strip() for _, _, caption in PICTURES.values()]
    factors = fresh(family)
    optimizer = torch.optim.AdamW(factors.values(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    for first, batch in numbered([batch for epoch in range(STEPS) for batch in epoch_of(epoch)], STEPS):
        samples = Samples(SEED, first, len(batch))
        mean, deviation = (torch.cat([latents[i][k] for i in batch]) for k in (0, 1))
        shape = [*mean.shape[2:], mean.shape[1]]  # [h, w, C], in which numbers are drawn
        x = mean + deviation * samples.normal("latent", *shape).permute(0, 3, 1, 2)
        kept = ["" if caption.uniform(1).item() < DROPOUT else captions[i] for i, caption in zip(batch, samples.streams("caption"))]
        states, pooled = (torch.cat([texts[text][k] for text in kept]) for k in (0, 1))
        z = samples.normal("timestep").double()
        sigma = torch.sigmoid(family.mean_of_logit(*mean.shape[2:]) + z).float()
        n = samples.normal("noise", *shape).permute(0, 3, 1, 2)
        sample = x + sigma[:, None, None, None] * (n - x)
        loss = torch.nn.functional.mse_loss(family.predict(family.adapted(factors), sample, sigma, states, pooled), n - x)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(factors.values(), CLIP))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)} | {k: v.detach() for k, v in factors.items()}


def main():
    write_pictures()
    for family in Sd3(), Flux():
        out = train(family)
        settings = {"seed": SEED, "steps": STEPS, "batch_size": BATCH, "lr": LR, "caption_dropout": DROPOUT,
                    "t5_tokens": TOKENS, "rank": RANK, "alpha": ALPHA, "max_grad_norm": CLIP, "resolution": 64, "bucket_step": 8}
        save(OUT / f"{family.name}.safetensors", out, {k: str(v) for k, v in settings.items()})
        print(family.name, "losses", out["losses"].tolist(), "norms", out["grad_norms"].tolist())


if __name__ == "__main__":
    main()

"""A run of `wick train` on two data sets of a kohya file with all that `docs/datasets.md` has, replayed by diffusers.

    python tools/golden/replay_data.py      writes tests/golden/replay/data/

set.toml and val.toml name the data sets: tags that are shuffled and dropped, lines of captions, mirrored pictures, crops, colours, masks
by alpha and by a folder, pictures of regularisation and weights. sd3.safetensors has the losses, the gradients' norms and the LoRA
after twelve steps, and the losses on the pictures of
replay.py, which are held back, after six and twelve. Nothing is shared with Wick but the numbers of docs/replay.md.
"""

import colorsys
import shutil

import numpy as np
import torch
from PIL import Image

import replay
from golden import rng, save
from philox import Samples, Stream, named_seed, numbered, steps_of
from replay import ALPHA, CLIP, LR, RANK, SEED, TOKENS

OUT = replay.OUT / "data"
STEPS, VARIANTS, PRIOR = 12, 3, 0.7
TOML = f"""# Written by tools/golden/replay_data.py.
[general]
shuffle_caption = true
keep_tokens = 1
caption_tag_dropout_rate = 0.3
caption_variants = {VARIANTS}
bucket_reso_steps = 8

[[datasets]]
resolution = 64
batch_size = 2
bucket_no_upscale = true

  [[datasets.subsets]]
  image_dir = "foxes"
  num_repeats = 2
  flip_aug = true
  alpha_mask = true
  caption_dropout_rate = 0.25
  trigger_word = "ohwx"
  caption_prefix = "photo,"

  [[datasets.subsets]]
  image_dir = "animals"
  is_reg = true
  class_tokens = "an animal"

[[datasets]]
resolution = [48, 48]
enable_bucket = false

  [[datasets.subsets]]
  image_dir = "boats"
  conditioning_data_dir = "masks"
  random_crop = true
  color_aug = true
  flip_aug = true
  loss_weight = 0.5
  caption_lines = true
  caption_suffix = "at sea"
  shuffle_caption = false
  caption_tag_dropout_rate = 0
"""


HELD_BACK = """# Written by tools/golden/replay_data.py.
[[datasets]]
resolution = 64
bucket_no_upscale = true

  [[datasets.subsets]]
  image_dir = "../pictures"
"""


def smooth(name, width, height, channels=3):
    coarse = torch.rand(1, channels, 3, 4, generator=rng("replay data " + name))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
    return (fine[0].permute(1, 2, 0) * 255).round().byte().numpy()


def write():
    shutil.rmtree(OUT, ignore_errors=True)
    for folder in "foxes", "animals", "boats", "masks":
        (OUT / folder).mkdir(parents=True)
    (OUT / "set.toml").write_text(TOML)
    (OUT / "val.toml").write_text(HELD_BACK)
    for name, caption in {"a": "red, snow, [trigger], tail", "b": "grey, night, moon, tail"}.items():
        Image.fromarray(smooth("fox " + name, 64, 48, 4)).save(OUT / "foxes" / f"{name}.png")
        (OUT / "foxes" / f"{name}.caption").write_text(caption)
    for name in "abc":
        Image.fromarray(smooth("animal " + name, 64, 48)).save(OUT / "animals" / f"{name}.png")
    for name, (width, height), caption in ("a", (64, 48), "two boats\na harbour, noon\n"), ("b", (48, 72), "one boat"):
        Image.fromarray(smooth("boat " + name, width, height)).save(OUT / "boats" / f"{name}.png")
        Image.fromarray(smooth("mask " + name, width, height)).save(OUT / "masks" / f"{name}.png")
        (OUT / "boats" / f"{name}.txt").write_text(caption)


def variants(caption):
    """Tags behind the first are shuffled, then some are left out."""
    all_of_it = []
    for index in range(VARIANTS):
        stream = Stream(named_seed(SEED, caption), "caption", index << 32)
        first, *tags = [tag.strip() for tag in caption.split(",")]
        stream.shuffle(tags)
        all_of_it.append(", ".join([first] + [tag for tag in tags if stream.uniform(1).item() >= 0.3]))
    return all_of_it


class Picture:
    def __init__(self, path, captions, mask=None, repeats=1, **settings):
        pixels = np.array(Image.open(path)).astype(np.int64)
        self.mask = np.array(Image.open(mask))[:, :, 0] if mask else None
        if pixels.shape[2] == 4:
            alpha = pixels[:, :, 3:]
            pixels = (pixels[:, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255
            self.mask = alpha[:, :, 0]
        self.pixels, self.captions, self.repeats = pixels, captions, repeats
        self.dropout = self.weight = 0
        self.flip = self.vary = False
        self.__dict__.update(dict(weight=1.0) | settings)


def data_sets():
    """Lists of pictures in the order of subsets and names, with the batch size."""
    foxes = []
    for name in "ab":
        text = "photo, " + (OUT / "foxes" / f"{name}.caption").read_text()
        text = text.replace("[trigger]", "ohwx") if "[trigger]" in text else "ohwx, " + text
        foxes.append(Picture(OUT / "foxes" / f"{name}.png", variants(text), repeats=2, flip=True, dropout=0.25))
    # As often as the foxes' four: once each, and the first once more.
    animals = [Picture(OUT / "animals" / f"{name}.png", variants("an animal"), repeats=2 if name == "a" else 1, weight=PRIOR)
               for name in "abc"]
    boats = []
    for name in "ab":
        lines = (OUT / "boats" / f"{name}.txt").read_text().strip().split("\n")
        boats.append(Picture(OUT / "boats" / f"{name}.png", [line + " at sea" for line in lines],
                             OUT / "masks" / f"{name}.png", flip=True, vary=True, weight=0.5))
    return [(foxes + animals, (64, 48), 2), (boats, (48, 48), 1)]


def epoch_of(sets, number, seed=SEED):
    stream, batches = Stream(seed, "shuffle", number << 32), []
    for pictures, _, size in sets:  # each has one bucket
        shown = [picture for picture in pictures for _ in range(picture.repeats)]
        stream.shuffle(shown)
        batches += steps_of(shown, size)
    stream.shuffle(batches)
    return batches


def coloured(pixels, which, amount):
    if which >= 0.5:
        return np.floor(255 * (pixels / 255) ** (0.95 + 0.1 * amount) + 0.5)
    turned = np.empty(pixels.shape)
    for y, row in enumerate(pixels):
        for x, (r, g, b) in enumerate(row):
            h, s, v = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
            turned[y, x] = colorsys.hsv_to_rgb((h + 16 * (2 * amount - 1) / 360) % 1, s, v)
    return np.floor(255 * turned + 0.5)


def look(picture, bucket, stream):
    """The pixels and the mask that a sample shows."""
    mirrored = picture.flip and stream.uniform(1).item() < 0.5
    pixels, mask = picture.pixels, picture.mask
    if picture.vary:
        left, top = stream.below(pixels.shape[1] - bucket[0] + 1), stream.below(pixels.shape[0] - bucket[1] + 1)
        pixels, mask = (x[top:top + bucket[1], left:left + bucket[0]] for x in (pixels, mask))
        coin, which, amount = (stream.uniform(1).item() for _ in range(3))
        if coin < 1 / 3:
            pixels = coloured(pixels, which, amount)
    if mask is None:
        mask = np.full(pixels.shape[:2], 255)
    return tuple(np.ascontiguousarray(x[:, ::-1] if mirrored else x) for x in (pixels, mask))


def train(family, sets):
    buckets = {id(picture): bucket for pictures, bucket, _ in sets for picture in pictures}
    vae, factors = family.pipeline.vae, replay.fresh(family)
    optimizer = torch.optim.AdamW(factors.values(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms, validations = [], [], []
    for first, batch in numbered([batch for epoch in range(STEPS) for batch in epoch_of(sets, epoch)], STEPS):
        samples = Samples(SEED, first, len(batch))
        with torch.no_grad():
            seen = [look(picture, buckets[id(picture)], crop) for picture, crop in zip(batch, samples.streams("crop"))]
            x = torch.from_numpy(np.stack([pixels for pixels, _ in seen])).float() / 127.5 - 1
            distribution = vae.encode(x.permute(0, 3, 1, 2)).latent_dist
            mean = (distribution.mean - vae.config.shift_factor) * vae.config.scaling_factor
            deviation = distribution.std * vae.config.scaling_factor
            masks = torch.from_numpy(np.stack([mask for _, mask in seen])).float()[:, None] / 255
            weights = torch.nn.functional.interpolate(masks, mean.shape[2:], mode="area")
            weights = weights * torch.tensor([picture.weight for picture in batch])[:, None, None, None]
            texts = []
            for picture, caption in zip(batch, samples.streams("caption")):
                dropped = picture.dropout > 0 and caption.uniform(1).item() < picture.dropout
                chosen = picture.captions[caption.below(len(picture.captions)) if len(picture.captions) > 1 else 0]
                texts.append(family.text("" if dropped else chosen))
            states, pooled = (torch.cat([text[k] for text in texts]) for k in (0, 1))
        shape = [*mean.shape[2:], mean.shape[1]]
        x = mean + deviation * samples.normal("latent", *shape).permute(0, 3, 1, 2)
        sigma = torch.sigmoid(family.mean_of_logit(*mean.shape[2:]) + samples.normal("timestep").double()).float()
        n = samples.normal("noise", *shape).permute(0, 3, 1, 2)
        sample = x + sigma[:, None, None, None] * (n - x)
        prediction = family.predict(family.adapted(factors), sample, sigma, states, pooled)
        # As kohya's train_network.py: squares, the mask, the mean of a sample, its weight, the mean of the batch.
        loss = torch.nn.functional.mse_loss(prediction, n - x, reduction="none")
        loss = (loss * weights).mean([1, 2, 3]).mean()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(factors.values(), CLIP))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if len(losses) in (STEPS // 2, STEPS):
            with torch.no_grad():
                validations.append(validation_loss(family, factors))
    return {"losses": torch.stack(losses), "val_losses": torch.stack(validations), "grad_norms": torch.stack(norms)} | {k: v.detach() for k, v in factors.items()}


def validation_loss(family, factors):
    """Of the pictures of replay.py, four times each, always with the same numbers."""
    seed, losses, buckets = named_seed(SEED, "validation"), [], {}
    for name, (width, height, caption) in replay.PICTURES.items():
        buckets.setdefault((width, height), []).append(Picture(replay.OUT / "pictures" / f"{name}.png", caption.strip()))
    sets = [(pictures, bucket, 1) for bucket, pictures in sorted(buckets.items())]
    vae = family.pipeline.vae
    for number, [picture] in enumerate(batch for epoch in range(4) for batch in epoch_of(sets, epoch, seed)):
        samples = Samples(seed, number, 1)
        pixels = torch.from_numpy(picture.pixels).float() / 127.5 - 1
        distribution = vae.encode(pixels.permute(2, 0, 1)[None]).latent_dist
        mean = (distribution.mean - vae.config.shift_factor) * vae.config.scaling_factor
        shape = [*mean.shape[2:], mean.shape[1]]
        x = mean + distribution.std * vae.config.scaling_factor * samples.normal("latent", *shape).permute(0, 3, 1, 2)
        sigma = torch.sigmoid(family.mean_of_logit(*mean.shape[2:]) + samples.normal("timestep").double()).float()
        n = samples.normal("noise", *shape).permute(0, 3, 1, 2)
        prediction = family.predict(family.adapted(factors), x + sigma[:, None, None, None] * (n - x), sigma,
                                    *family.text(picture.captions))
        losses.append(torch.nn.functional.mse_loss(prediction, n - x))
    return torch.stack(losses).mean()


def main():
    write()
    family = replay.Sd3()
    out = train(family, data_sets())
    settings = {"seed": SEED, "steps": STEPS, "batch_size": 1, "lr": LR, "caption_dropout": 0, "t5_tokens": TOKENS, "rank": RANK,
                "alpha": ALPHA, "max_grad_norm": CLIP, "resolution": 64, "bucket_step": 8, "prior_loss_weight": PRIOR}
    save(OUT / f"{family.name}.safetensors", out, {k: str(v) for k, v in settings.items()})
    print(family.name, "losses", out["losses"].tolist(), "norms", out["grad_norms"].tolist())


if __name__ == "__main__":
    main()

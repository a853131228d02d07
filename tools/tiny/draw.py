#!/usr/bin/env python3
"""Draws the pictures that Wick's tiny SDXL learns from: one flat shape on a plain background, with its caption.

    draw.py --base  --count 4000 --out DIR    what the model is pre-trained on
    draw.py --style --count 24   --out DIR    the LoRA data set: same captions, another look
    draw.py --style --count 24   --out DIR --formats    ... with other sizes and file formats among them (data/tiny-style)

The same seed draws the same pictures. Captions are `a SIZE COLOUR SHAPE on a BACKGROUND background` in both modes: the
style is never named, so what a LoRA changes shows by asking the same prompts before and after.
"""

import argparse
import math
import pathlib
import random

import numpy as np
from PIL import Image, ImageDraw

SIDE = 128
OVERSAMPLE = 4  # drawn this much larger, then averaged down, for smooth edges

COLOURS = {
    "red": "#e5323b", "orange": "#f77f00", "yellow": "#ffc400", "green": "#1f9d55",
    "blue": "#2563eb", "purple": "#7b2cbf", "pink": "#f74f9e", "white": "#ffffff",
}
# Backgrounds are pale, so that every colour stands out on every one of them.
BACKGROUNDS = {
    "black": "#20202c", "gray": "#b4bac4", "white": "#ffffff", "yellow": "#ffe38f",
    "green": "#a5dcb2", "blue": "#9bcbf7", "purple": "#cdb8f2", "pink": "#ffbfd5",
}
RADII = {"small": 26, "large": 44}
OUTLINE = "#20202c"

# The style's pattern: dots and stripes repeat every PERIOD pixels from the top left corner, whatever the shape does, so
# that a model with 8x8-pixel latents can learn where they are.
PERIOD = 32
DOT_RADIUS = 6
STRIPE_WIDTH = 12
OUTLINE_WIDTH = 6


def arc(x, y, radius, start, stop, steps=64):
    """Points of a circle's arc, angles in degrees, clockwise from the right as pictures have y downwards."""
    angles = [math.radians(start + (stop - start) * i / steps) for i in range(steps + 1)]
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]


def regular(corners, radius, inner=None, turn=-90.0):
    """A regular polygon, or a star when an inner radius is given."""
    radii = [radius] if inner is None else [radius, inner]
    count = corners * len(radii)
    angles = [math.radians(turn + 360.0 * i / count) for i in range(count)]
    return [(radii[i % len(radii)] * math.cos(a), radii[i % len(radii)] * math.sin(a)) for i, a in enumerate(angles)]


def heart():
    """A square on its corner with a half circle on each upper side."""
    d = 0.8  # half the square's diagonal
    left = arc(-d / 2, -d / 2, d / math.sqrt(2), 135, 315)
    right = arc(d / 2, -d / 2, d / math.sqrt(2), 225, 405)
    return [(x, y + 0.1) for x, y in left + right + [(0, d)]]


def moon():
    """A crescent: the unit circle less another one to its upper right."""
    bite = 0.86
    offset = 0.52
    reach = math.degrees(math.acos((1 + offset**2 - bite**2) / (2 * offset)))
    inner = math.degrees(math.acos((offset**2 + bite**2 - 1) / (2 * offset * bite)))
    axis = -30.0
    cx, cy = offset * math.cos(math.radians(axis)), offset * math.sin(math.radians(axis))
    outside = arc(0, 0, 1, axis + reach, axis + 360 - reach)
    inside = arc(cx, cy, bite, axis + 180 + inner, axis + 180 - inner)
    return [(x + 0.1, y) for x, y in outside + inside]


def cross():
    a, b = 0.32, 0.95
    return [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a), (-b, a), (-b, -a), (-a, -a)]


# Closed polygons about the origin, of roughly radius one and equal visual weight.
SHAPES = {
    "circle": arc(0, 0, 0.92, 0, 360, 128),
    "square": regular(4, 1.16, turn=45),
    "triangle": [(x, y + 0.2) for x, y in regular(3, 1.12)],
    "diamond": [(x * 0.8, y * 1.08) for x, y in regular(4, 1.0)],
    "star": [(x, y + 0.06) for x, y in regular(5, 1.12, inner=0.5)],
    "heart": heart(),
    "moon": moon(),
    "cross": cross(),
}


def caption(size, colour, shape, background):
    return f"a {size} {colour} {shape} on a {background} background"


def all_captions():
    return [caption(size, colour, shape, background)
            for size in RADII for colour in COLOURS for shape in SHAPES for background in BACKGROUNDS
            if colour != background]


class Deck:
    """Deals every card once before any comes again, so that a small set is balanced."""

    def __init__(self, rng, cards):
        self.rng, self.cards, self.hand = rng, list(cards), []

    def deal(self, refused=None):
        if not any(card != refused for card in self.hand):
            self.hand += self.rng.sample(self.cards, len(self.cards))
        card = next(card for card in self.hand if card != refused)
        self.hand.remove(card)
        return card


def scenes(rng, count):
    """What the pictures show: (size, colour, shape, background), `count` times."""
    sizes, colours, shapes, backgrounds = (Deck(rng, cards) for cards in (RADII, COLOURS, SHAPES, BACKGROUNDS))
    for _ in range(count):
        colour = colours.deal()
        yield sizes.deal(), colour, shapes.deal(), backgrounds.deal(refused=colour)


def tone(background):
    """The dots' colour: a shade deeper than the background, or lighter on black."""
    if background == "black":
        return "#5b5b78"
    rgb = [int(BACKGROUNDS[background][i:i + 2], 16) for i in (1, 3, 5)]
    return tuple(int(v * f) for v, f in zip(rgb, (0.78, 0.78, 0.84)))


def polka_dots(canvas, background):
    """Staggered rows of dots."""
    draw = ImageDraw.Draw(canvas)
    step, radius = PERIOD * OVERSAMPLE // 2, DOT_RADIUS * OVERSAMPLE
    for row in range(canvas.height // step + 1):
        for column in range(row % 2, canvas.width // step + 1, 2):
            x, y = column * step + step // 2, row * step + step // 2
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=tone(background))


def striped(size, colour):
    """A picture of white stripes over `colour`, falling from the left to the right."""
    canvas = Image.new("RGB", size, COLOURS[colour])
    draw = ImageDraw.Draw(canvas)
    period, width = PERIOD * OVERSAMPLE, STRIPE_WIDTH * OVERSAMPLE
    ink = "#ffffff" if colour != "white" else "#c3c9d6"
    for x in range(-size[1] // period * period - period, size[0], period):
        draw.polygon([(x, 0), (x + width, 0), (x + width + size[1], size[1]), (x + size[1], size[1])], fill=ink)
    return canvas


def stroke(canvas, points, colour, width):
    """A closed line with round corners."""
    draw = ImageDraw.Draw(canvas)
    width *= OVERSAMPLE
    draw.line(points + points[:1], fill=colour, width=width)
    for x, y in points:
        draw.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=colour)


def picture(rng, scene, style, width=SIDE, height=SIDE):
    size, colour, shape, background = scene
    radius = RADII[size] * rng.uniform(0.95, 1.05)
    x = width / 2 + rng.uniform(-1, 1) * (SIDE / 2 - RADII["large"]) * 0.4
    y = height / 2 + rng.uniform(-1, 1) * (SIDE / 2 - RADII["large"]) * 0.4
    points = [((x + radius * px) * OVERSAMPLE, (y + radius * py) * OVERSAMPLE) for px, py in SHAPES[shape]]

    canvas = Image.new("RGB", (width * OVERSAMPLE, height * OVERSAMPLE), BACKGROUNDS[background])
    if style:
        polka_dots(canvas, background)
        mask = Image.new("L", canvas.size)
        ImageDraw.Draw(mask).polygon(points, fill=255)
        canvas.paste(striped(canvas.size, colour), mask=mask)
        stroke(canvas, points, OUTLINE if background != "black" else "#ffffff", OUTLINE_WIDTH)
    else:
        ImageDraw.Draw(canvas).polygon(points, fill=COLOURS[colour])
        stroke(canvas, points, COLOURS[colour], OUTLINE_WIDTH)  # as wide as the style's outline, for the same size
    return canvas.resize((width, height), Image.Resampling.BOX)


def save_png(path, image):
    image.save(path.with_suffix(".png"), optimize=True)


def save_jpeg(path, image):
    image.save(path.with_suffix(".jpg"), quality=95, subsampling=0)


def save_webp(path, image):
    image.save(path.with_suffix(".webp"), quality=95)


def save_turned_jpeg(path, image):
    """Stored lying on its side, as cameras do; the EXIF orientation says how to put it upright."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to show
    image.transpose(Image.Transpose.ROTATE_90).save(path.with_suffix(".jpg"), quality=95, subsampling=0, exif=exif)


def save_transparent_png(path, image):
    """White becomes transparent white: the same picture whether a reader puts it on white or drops alpha."""
    rgb = np.asarray(image)
    opaque = (rgb < 255).any(axis=2)
    rgba = np.dstack([rgb, np.where(opaque, 255, 0).astype(np.uint8)])
    Image.fromarray(rgba).save(path.with_suffix(".png"), optimize=True)


# With --formats, these pictures (by number) are not a square PNG: (width, height, how to save).
SPECIAL = {
    3: (160, 112, save_png),
    6: (112, 160, save_png),
    9: (SIDE, SIDE, save_jpeg),
    10: (SIDE, SIDE, save_transparent_png),
    12: (SIDE, SIDE, save_webp),
    15: (112, 160, save_turned_jpeg),
    21: (160, 112, save_webp),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--base", action="store_true", help="plain pictures, for pre-training")
    mode.add_argument("--style", action="store_true", help="outlined, striped and dotted pictures, for a LoRA")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", action="store_true", help="vary sizes and file formats")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    for number, scene in enumerate(scenes(rng, args.count), start=1):
        width, height, save = SPECIAL.get(number, (SIDE, SIDE, save_png)) if args.formats else (SIDE, SIDE, save_png)
        path = args.out / f"{number:04}"
        save(path, picture(rng, scene, args.style, width, height))
        path.with_suffix(".txt").write_text(caption(*scene) + "\n")


if __name__ == "__main__":
    main()

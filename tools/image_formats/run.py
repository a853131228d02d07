#!/usr/bin/env python3
"""Writes small GIF, BMP and TIFF files by Pillow, and what Pillow reads of them, for tests/io/image_formats.cpp.

  tools/image_formats/run.py            rewrites fuzz/corpus/image and tests/golden/image_formats.txt
  tools/image_formats/run.py FOLDER     writes many more files there, with expected.txt

A line of the list is: file, width, height, SHA-256 of the pixels [height, width, 3]. Transparent pixels are composited
on white by (colour * alpha + 255 * (255 - alpha) + 127) // 255, as Wick does it.
"""

import hashlib
import pathlib
import sys

import numpy as np
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]


def seen(path):
    """[height, width, 3] of the first frame, with its orientation applied."""
    image = Image.open(path)
    if image.mode == "I;16" or image.mode == "I;16B":  # Pillow clips these at 255
        return np.repeat((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = np.asarray(image.convert("RGBA")).astype(np.uint32)
        alpha = rgba[..., 3:]
        return ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return np.asarray(image.convert("RGB"))


def pictures(width, height):
    """A picture of each mode."""
    random = np.random.default_rng(7)
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 255 // width, y * 255 // height, (x * y * 7) % 256], -1).astype(np.uint8)
    rgb[: height // 3] = random.integers(0, 256, (height // 3, width, 3))
    colour = Image.fromarray(rgb)
    alpha = Image.fromarray(((x * 37 + y * 11) % 256).astype(np.uint8))
    rgba = colour.copy()
    rgba.putalpha(alpha)
    return {
        "1": colour.convert("1"),
        "L": colour.convert("L"),
        "LA": Image.merge("LA", (colour.convert("L"), alpha)),
        "P": colour.quantize(17, dither=Image.Dither.NONE),
        "RGB": colour,
        "RGBA": rgba,
        "CMYK": Image.fromarray(random.integers(0, 256, (height, width, 4)).astype(np.uint8), "CMYK"),
        "I16": Image.fromarray(random.integers(0, 65536, (height, width)).astype(np.uint16)),
    }


def save(folder, width, height):
    """Files by name."""
    modes = pictures(width, height)
    files = []

    def add(name, image, **options):
        path = folder / name
        image.save(path, **options)
        files.append(path)

    for mode in ("1", "L", "P", "RGB", "RGBA"):
        add(f"{mode.lower()}.bmp", modes[mode])
    for mode in ("1", "L", "P", "RGB"):
        add(f"{mode.lower()}.gif", modes[mode])
    add("interlaced.gif", modes["P"], interlace=1)
    add("flat.gif", modes["P"], interlace=0)
    add("transparent.gif", modes["P"], transparency=3)
    add("animated.gif", modes["P"], save_all=True, append_images=[modes["P"].rotate(180), modes["RGB"]], loop=0)
    for mode, image in modes.items():
        add(f"{mode.lower()}.tif", image)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "LA", "I16"):
            add(f"{mode.lower()}_{compression}.tif", modes[mode], compression=compression)
    for compression in ("group3", "group4"):
        add(f"1_{compression}.tif", modes["1"], compression=compression)
    add("jpeg.tif", modes["RGB"], compression="jpeg", quality=95)
    add("jpeg_l.tif", modes["L"], compression="jpeg", quality=95)
    for orientation in range(1, 9):
        add(f"turned_{orientation}.tif", modes["RGB"], tiffinfo={274: orientation})
    add("strips.tif", modes["RGB"], compression="tiff_lzw", tiffinfo={278: 3})
    add("pages.tif", modes["RGB"], save_all=True, append_images=[modes["L"]])
    return files


def line(path):
    pixels = np.ascontiguousarray(seen(path))
    return f"{path.name} {pixels.shape[1]} {pixels.shape[0]} {hashlib.sha256(pixels.tobytes()).hexdigest()}\n"


def main():
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
        text = ""
        for width, height in ((1, 1), (2, 3), (7, 5), (33, 18), (130, 67), (640, 481)):
            part = folder / f"{width}x{height}"
            part.mkdir(parents=True, exist_ok=True)
            for path in save(part, width, height):
                text += f"{part.name}/" + line(path)
        (folder / "expected.txt").write_text(text)
        return
    corpus = ROOT / "fuzz/corpus/image"
    kept = {"1.bmp", "p.bmp", "rgb.bmp", "rgba.bmp", "l.gif", "interlaced.gif", "transparent.gif", "animated.gif", "1_group4.tif",
            "p_tiff_lzw.tif", "rgba_tiff_adobe_deflate.tif", "cmyk_packbits.tif", "la.tif", "i16_tiff_lzw.tif",
            "turned_6.tif", "strips.tif"}
    text = ""
    for path in save(corpus, 19, 11):
        if path.name in kept:
            text += line(path)
        else:
            path.unlink()
    (ROOT / "tests/golden/image_formats.txt").write_text(text)


main()

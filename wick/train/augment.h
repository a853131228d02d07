// Pictures of a data set as a sample shows them: mirrored, cropped elsewhere, in other colours, as kohya's scripts do
// it (sd-scripts, library/train_util.py: BaseDataset and AugHelper), and the masks of their losses.
#pragma once

#include <optional>

#include "wick/core/rng.h"
#include "wick/core/tensor.h"
#include "wick/train/dataset.h"

namespace wick {

// How one sample shows its picture.
struct Look {
  bool mirrored = false;
  int64_t crop_left = 0, crop_top = 0;  // of the scaled picture, before it is mirrored
  // Of colours, one of them: degrees that the hue turns by, and the exponent of values in [0, 1].
  std::optional<double> hue = {}, gamma = {};
};

// Its numbers follow from the augmentation asked for, and not from what is drawn.
Look draw_look(const Example& example, const Augmentation& augmentation, Rng& rng);
Look plain_look(const Example& example);  // as without any augmentation

// The picture, upright, scaled and cropped to its bucket, as the look has it.
Image load_image(const Example& example, const Look& look);
inline Image load_image(const Example& example) { return load_image(example, plain_look(example)); }
// The mask of the example's losses [1, h, w, 1] in [0, 1], of latents whose pixels are `factor` pixels of the picture
// wide and high: the mean of its values there. It goes the way of the picture. The example has a mask.
Tensor load_mask(const Example& example, const Look& look, int64_t factor);
// Left and right of a mask or latent [1, h, w, C] change places.
Tensor mirrored_mask(const Tensor& mask);

// Turns the hue of a colour in HSV, with value and saturation kept.
void turn_hue(Image& image, double degrees);
void apply_gamma(Image& image, double exponent);  // 255 (v / 255)^exponent, rounded

}  // namespace wick

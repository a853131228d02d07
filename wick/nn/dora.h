// DoRA (Liu et al., 2024): a module's weight becomes (W + D) m / |W + D|, where D is the change of another algorithm
// and m a magnitude for each output, whose row of the weight |.| is the norm of, or for each input and its column.
// Norms are constants to the gradient (section 4.3 of the paper), as in PEFT and OneTrainer.
//
// Magnitudes of outputs are PEFT's, and LyCORIS' unless told otherwise. ComfyUI divides those by |W| in place of
// |W + D|, and reads magnitudes of inputs exactly (weight_decompose of comfy/weight_adapter/base.py): so Wick trains
// those for pictures.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "wick/nn/adapter_algorithm.h"

namespace wick {

inline constexpr std::string_view kMagnitudeKey = ".dora_scale";  // kohya's and LyCORIS' name, behind the module's

// For a module to be trained: becomes |W| once the weight is there.
Magnitude fresh_magnitude(const LoraTarget& target, bool of_inputs, const std::string& key, Memory& memory);
// Of the values in a file: [out], [out, 1], [1, in] or such of a convolution. Throws Error, which begins with the
// file's name, where the shape does not fit.
void read_magnitude(AdapterModule& module, const std::string& file);
// The value, or its gradient, in kohya's and LyCORIS' layout: [out, 1], [1, in], or of rank 4.
Tensor magnitude_to_file(const Tensor& value, const AdapterModule& module, const std::vector<int>& order = {});

// `change` under the module's magnitude.
std::shared_ptr<const LayerAdapter> with_magnitude(std::shared_ptr<const LayerAdapter> change, AdapterModule& module,
                                                   const Residence& place);

}  // namespace wick

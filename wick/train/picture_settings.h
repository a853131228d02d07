// A run's settings as a diffusion model understands them; some of them only certain families have.
#pragma once

#include "wick/pipelines/diffusion.h"
#include "wick/train/buckets.h"
#include "wick/train/config.h"
#include "wick/train/dataset.h"

namespace wick {

ReadingOptions reading_options(const TrainConfig& config);
std::optional<Quantization> quantization(const TrainConfig& config);
TimestepOptions timestep_options(const TrainConfig& config);
Resolutions bucket_options(const TrainConfig& config, const LatentSpace& space);
CaptionOptions caption_options(const TrainConfig& config);
// Of a folder, or of a file of data sets, as --dataset names them.
PictureSources picture_sources(const TrainConfig& config, const LatentSpace& space);
// Throws UsageError that names a setting which the model lacks, and Error for a model that is not to be trained.
void check_settings(const TrainConfig& config, const Diffusion& model);

}  // namespace wick

// A run's settings as a diffusion model understands them; some of them only certain families have.
#pragma once

#include "wick/pipelines/diffusion.h"
#include "wick/train/buckets.h"
#include "wick/train/config.h"
#include "wick/train/dataset.h"
#include "wick/train/objective.h"

namespace wick {

ReadingOptions reading_options(const TrainConfig& config);
std::optional<Quantization> quantization(const TrainConfig& config);
Objective objective(const TrainConfig& config);
Resolutions bucket_options(const TrainConfig& config, const LatentSpace& space);
// What the run's settings say of a subset's captions, augmentation, alpha and weight.
void apply(const TrainConfig& config, PictureSubset& subset);
// The pictures of --val, or those that are held back of the run's own, as they are: once each, with their first
// captions, neither augmented nor weighed. Without groups where there are none.
PictureSources held_back_sources(const TrainConfig& config, const LatentSpace& space);
// Throws UsageError where what the data set has and what the settings ask for do not go together.
void check_dataset(const TrainConfig& config, const Dataset& dataset);
// Of a folder, or of a file of data sets, as --dataset names them.
PictureSources picture_sources(const TrainConfig& config, const LatentSpace& space);
// Throws UsageError that names a setting which the model lacks, and Error for a model that is not to be trained.
void check_settings(const TrainConfig& config, const Diffusion& model);

}  // namespace wick

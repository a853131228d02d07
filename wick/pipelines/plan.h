// The memory that drawing a picture or writing a text takes, before anything is loaded: a step of it and its decoding,
// or the reading of a prompt and a step, run on a backend that only counts.
#pragma once

#include <cstddef>
#include <vector>

#include "wick/backend/counting.h"
#include "wick/models/llama_config.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {

struct InferencePlan {  // bytes
  DeviceKind device;
  size_t weights;
  size_t adapter = 0;  // of pictures
  size_t cache = 0;    // of texts: keys and values
  size_t activations;  // a step, decoding, text encoders before both, or a long prompt's prefill adds these at its peak
  size_t taken;        // by the device's Memory at the most, gaps between tensors among it
  size_t host = 0;     // on the host, page-locked: weights that are streamed
  size_t host_own = 0;  // of these, what each device of a process needs for itself: all but the weights
  size_t staged = 0;    // weights that are streamed, in ordinary memory, where more than may be page-locked
  size_t blocks = 0;    // of the model
  StepCost cost = {};   // of a picture's step, if asked for; or of reading a piece of a prompt and a step

  double seconds() const { return cost.seconds; }
  size_t host_of(size_t devices) const { return host + (devices - 1) * host_own; }  // of one process
  size_t total() const { return taken + device.workspace + device.context; }
};

// Whether advice that saves so many bytes is worth a word where others are missing: it is at least a quarter of them.
inline bool is_material(size_t saved, size_t missing) { return saved > 0 && saved >= missing / 4; }

// For pictures drawn by TextToImage::load() and draw(), one batch after the other. The LoRAs are read: one that does
// not fit the model is an Error here, and so is a prompt that its syntax refuses.
struct ImagePlanOptions {
  int64_t batch = 1;         // requests that are drawn at a time
  bool of_picture = false;   // the requests get one
  DType dtype = DType::f32;  // of weights
  std::optional<Quantization> quantization = {};
  BlockSchedule block_schedule = {};  // of the denoiser's blocks: how many are streamed, and how
  bool stream_text_encoder = false;
  bool costs = false;                                   // InferencePlan::cost too
  std::vector<std::vector<LoraFile>> lora_sets = {{}};  // ImageRequest::adapters
  ReadingOptions reading = {};
};
InferencePlan plan_image(const Checkpoint& checkpoint, const TextToImage::Batch& requests,
                         const ImagePlanOptions& options, const DeviceKind& device);
// For one sequence of at most `context` tokens, with weights streamed as `asked` says.
InferencePlan plan_text(const LlamaConfig& config, DType dtype, int64_t context, const DeviceKind& device,
                        const BlockSchedule& asked = {});

}  // namespace wick

// One component of a model on given tensors: the work of `wick forward`, and the way to compare Wick with other
// implementations. Names and layouts in the files are those of diffusers and transformers (images [B, C, H, W]).
//
//   text_encoder, text_encoder_2   CLIP: input_ids -> last_hidden_state, penultimate_hidden_state, pooled
//   text_encoder_2 (FLUX), _3 (SD3)   T5: input_ids, perhaps attention_mask -> last_hidden_state
//   vae.encoder                    sample -> mean, logvar
//   vae.decoder                    latent -> sample
//   unet                           sample, timestep, encoder_hidden_states, text_embeds, time_ids -> sample
//   transformer (FLUX)             hidden_states [B, N, 64], encoder_hidden_states, pooled_projections, timestep
//                                  (sigma), guidance (dev), img_ids [N, 3], txt_ids [L, 3] -> sample
//   transformer (SD3)              hidden_states [B, 16, h, w], encoder_hidden_states, pooled_projections, timestep
//                                  (1000 sigma), perhaps skip_layers -> sample
//   tokenizer, tokenizer_2, …      JSON lines of texts -> JSON lines of lists of ids (text/token_lines.h)
// A model has those that its family lists (diffusion.h). A language model is one component, whatever it is called:
//                                  input_ids [B, T], perhaps attention_mask [B, T] -> logits [B, T, vocabulary]
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wick/nn/adapter.h"
#include "wick/nn/checkpoint.h"

namespace wick {

struct ForwardOptions {
  std::vector<LoraFile> loras = {};
  bool grad = false;
  Backend* backend = nullptr;  // the CPU unless given
  DType dtype = DType::f32;    // of the weights, and on a device of the activations
};

// With `grad`, `in` also holds `target`, in the shape of the first output. `out` then also holds `loss`, the
// mean-squared error of that output to the target, and grad.NAME for each float input and each LoRA tensor but .alpha,
// under its name in the LoRA file; zeros where it has no part in the output. Numbers that enter through sinusoids
// get no gradient: times, guidance, sizes, places.
//
// The target of a language model is integers [B, T]: target[b, t] is the id that logits[b, t] should foretell (for
// text, input_ids one place further on: nothing is shifted here), or -100 where none is asked for. The loss is the mean
// cross-entropy over those that are asked for.
void run_forward(const Checkpoint& model, const std::string& component, const std::filesystem::path& in,
                 const std::filesystem::path& out, const ForwardOptions& options = {});

std::vector<std::string> component_names(const Checkpoint& model);  // of a diffusion model

}  // namespace wick

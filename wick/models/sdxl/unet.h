// The UNet of SDXL (Podell et al., 2023): predicts the noise in a latent, given text, sizes and crops.
#pragma once

#include "wick/autograd/block_schedule.h"
#include "wick/nn/checkpoint.h"
#include "wick/nn/layers.h"

namespace wick {

inline constexpr int64_t kTimeIds = 6;  // original height, width, crop top, left, target height, width
inline constexpr const char* kRefiner = "SDXL's refiner, which has 5 time ids";

struct UNetConfig {
  int64_t in_channels, out_channels;
  std::vector<int64_t> channels;  // block_out_channels
  std::vector<bool> down_has_attention, up_has_attention;
  std::vector<int64_t> heads;  // a block (the config calls it attention_head_dim)
  std::vector<int64_t> transformer_layers;
  int layers_per_block, groups;
  int64_t cross_attention_dim, time_ids_dim, added_dim;  // added_dim = pooled + kTimeIds * time_ids_dim
  float eps;
  // The sizes of the model's UNet. A file without config tells less: heads are taken to be 64 wide, norms to have 32
  // groups, and time_ids_dim is what text_encoder_2 leaves room for, or 256 where there is none. Throws Error that
  // names the model if it is none of SDXL's kin.
  static UNetConfig read(const Checkpoint& model);
};

struct UNetInput {                       // floats, in the model's memory
  Tensor sample;                         // [B, h, w, 4]
  Tensor timestep;                       // [B] f32
  Tensor context;                        // [B, T, cross_attention_dim], unless there are keys_values
  Tensor text_embeds;                    // [B, pooled]
  Tensor time_ids;                       // [B, kTimeIds] f32
  std::vector<Tensor> keys_values = {};  // keys_values() of the context
};

class SdxlUNet {
 public:
  // Its blocks are resnets and transformers.
  SdxlUNet(Scope s, const UNetConfig& config, BlockSchedule block_schedule = {});
  Tensor operator()(const UNetInput& in) const;  // [B, h, w, 4] f32
  // Those of the context in all cross-attentions, in the order in which they run: [B, T, 2 C] each. No step changes
  // them.
  std::vector<Tensor> keys_values(const Tensor& context) const;

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

}  // namespace wick

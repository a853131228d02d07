// CLIP text encoders (Radford et al., 2021): CLIP-L (quick_gelu) and OpenCLIP bigG (gelu, with projection).
#pragma once

#include "wick/nn/checkpoint.h"
#include "wick/nn/layers.h"

namespace wick {

enum class ClipKind { l, big_g };

struct ClipConfig {
  int64_t vocab, positions, hidden, intermediate, projection;
  int layers, heads;
  float eps;
  bool quick_gelu;
  int64_t eos_id;
  bool with_projection;  // CLIPTextModelWithProjection
  // From its config and tensors (network_facts.h). Without a config heads are 64 wide; `kind` tells the activation, and
  // that bigG projects and CLIP-L does not, whatever is in the file.
  static ClipConfig read(const Checkpoint& component, ClipKind kind = ClipKind::l);
};

struct ClipOutput {    // f32
  Tensor last;         // [B, T, hidden] after the final norm
  Tensor penultimate;  // [B, T, hidden] before the last layer: the conditioning of diffusion models
  Tensor pooled;       // [B, hidden], or [B, projection] if the model projects
};

// Is the projection the identity, as good as none? True of an encoder that does not project.
bool projects_by_identity(const Checkpoint& component, const ClipConfig& config);

class ClipText {
 public:
  ClipText(Scope s, const ClipConfig& config);
  ClipOutput operator()(const Tensor& ids) const;  // ids [B, T] i64 on the host
  int64_t ids() const;  // all are below this: the vocabulary's, and behind it the rows of Adapter::word_vectors()

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

}  // namespace wick

// The thin products of the LoRA linear at many rows on 9.0: each large operand goes by once, and both of its products
// with the rank's sides are made while it does.
#pragma once

#include <array>
#include <optional>

#include "wick/backend/cuda/linear/lora_factors.h"

namespace wick {

// Gradients whose shares of the rows are still to be added up.
class PartialGradients {
 public:
  explicit PartialGradients(CudaBackend& cuda) : cuda_(cuda) {}
  static constexpr int kMost = kMostLayers + 1;

  // Memory for a gradient's parts: shares x 64-column chunks x ranks.
  float4* add(const FactorGradient& g, int shares, int ranks);
  // Adds them up; the launch before must be one of stream()'s.
  void finish();

 private:
  struct Part {
    std::optional<Scratch> memory;
    FactorGradient gradient;
    int shares, ranks;
  };
  CudaBackend& cuda_;
  std::array<Part, kMost> parts_;
  int count_ = 0;
};

// Whether stream() can take this x with factors of this rank.
bool stream_fits(const Gpu& gpu, const DeviceMatrix& x, int64_t rank);

// One pass over g.x, which is p.x as well, with p.f = up and no p.scaled; p may be null. p's result is there when the
// launch ends, g's after gradients.finish(). `follows`: which launch before this one computes g.s.
void stream(CudaBackend& cuda, const Projection* p, const FactorGradient& g, PartialGradients& gradients,
            Follows follows);

}  // namespace wick

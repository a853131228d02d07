// The flags for a command's device and number types: --device, --bf16, --fp16, --tf32.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "wick/backend/registry.h"

namespace wick::cli {

class RunOn {
 public:
  void add_flags(CLI::App& command);
  Backend& backend() const {
    Backend& opened = open_backend(device_);
    opened.allow_tf32(tf32_);
    return opened;
  }
  DType dtype() const { return asked_dtype().value_or(DType::f32); }
  std::optional<DType> asked_dtype() const {  // none where no flag is given
    return bf16_ ? std::optional(DType::bf16) : fp16_ ? std::optional(DType::f16) : std::nullopt;
  }

 private:
  std::string device_ = "auto";
  bool bf16_ = false, fp16_ = false, tf32_ = false;
};

}  // namespace wick::cli

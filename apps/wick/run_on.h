// The flags that say where and in what numbers a command computes: --device, --bf16, --fp16, --tf32.
#pragma once

#include <CLI/CLI.hpp>
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
  DType dtype() const { return bf16_ ? DType::bf16 : fp16_ ? DType::f16 : DType::f32; }

 private:
  std::string device_ = "auto";
  bool bf16_ = false, fp16_ = false, tf32_ = false;
};

}  // namespace wick::cli

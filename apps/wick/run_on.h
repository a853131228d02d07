// The flags that say where and in what numbers a command computes: --device, --bf16, --fp16.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "wick/backend/registry.h"

namespace wick::cli {

class RunOn {
 public:
  void add_flags(CLI::App& command);
  Backend& backend() const { return open_backend(device_); }
  DType dtype() const { return bf16_ ? DType::bf16 : fp16_ ? DType::f16 : DType::f32; }

 private:
  std::string device_ = "auto";
  bool bf16_ = false, fp16_ = false;
};

}  // namespace wick::cli

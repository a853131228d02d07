// Tensors of tiny networks in every layout (tools/golden/layouts.py).
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "source_dir.h"
#include "wick/io/safetensors.h"
#include "wick/nn/source.h"

namespace wick::test {

using Tensors = std::map<std::string, Tensor>;

inline std::filesystem::path golden_layout(const std::string& name) {
  return source_dir() / "tests/golden/layouts" / (name + ".safetensors");
}

inline Tensors tensors_of_layout(const std::string& name) {
  const SafetensorsFile file = SafetensorsFile::open(golden_layout(name));
  Tensors tensors;
  for (const auto& [tensor, info] : file.tensors()) tensors[tensor] = file.load(tensor);
  return tensors;
}

inline void expect_all(const TensorSource& source, const Tensors& expected) {
  for (const auto& [name, value] : expected) {
    const std::optional<StoredTensor> found = source.find(name, {});
    ASSERT_TRUE(found.has_value()) << name;
    EXPECT_EQ(found->shape.numel(), value.numel()) << name;
    EXPECT_EQ(found->load(host_memory()).to_vector(), value.to_vector()) << name;
  }
}

}  // namespace wick::test

// Adapters of models that ship with Wick, under every program's names, resized and summed. Changes are read by Adapter,
// which knows nothing of the conversions.
#include "wick/pipelines/convert_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "io/files.h"
#include "pipelines/adapters.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/nn/low_rank.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

AdapterFile only(AdapterFile file, const AdapterModules& modules, AdapterFormat format) {
  std::erase_if(file.loras, [&](const auto& entry) {
    return modules.find(entry.first).module->spelled(spelling_of(format)).empty();
  });
  return file;
}

bool is_same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(contiguous(a).view().data, contiguous(b).view().data, size_t(bytes_of(a.dtype(), a.shape()))) == 0;
}

void expect_same(const AdapterFile& found, const AdapterFile& expected) {
  ASSERT_EQ(found.loras.size(), expected.loras.size());
  for (const auto& [base, lora] : expected.loras) {
    ASSERT_TRUE(found.loras.contains(base)) << base;
    const StoredLora& other = found.loras.at(base);
    EXPECT_TRUE(is_same(other.down, lora.down)) << base;
    EXPECT_TRUE(is_same(other.up, lora.up)) << base;
    EXPECT_EQ(other.alpha, lora.alpha) << base;
  }
  EXPECT_EQ(found.others.size(), expected.others.size());
  for (const auto& [key, value] : expected.others) EXPECT_TRUE(is_same(found.others.at(key), value)) << key;
}

struct Family {
  const char* model;
  AdapterFormat format;  // of the first file
};

class AdapterConversions : public testing::TestWithParam<Family> {
 protected:
  const AdapterModules modules_ = AdapterModules::of(kModels / GetParam().model);
  const TemporaryDirectory folder_;

  std::filesystem::path written(const AdapterFile& file, const std::string& name) const {
    const std::filesystem::path path = folder_ / (file.format == AdapterFormat::peft ? name : name + ".safetensors");
    file.write(path);
    return path;
  }
};

TEST_P(AdapterConversions, KeepTheChangeAndComeBackAsTheyWere) {
  for (const AdapterFormat to : {AdapterFormat::kohya, AdapterFormat::comfy, AdapterFormat::onetrainer,
                                 AdapterFormat::diffusers, AdapterFormat::peft}) {
    const AdapterFile from = only(random_lora(modules_, GetParam().format), modules_, to);
    const std::string name = adapter_format_names()[size_t(to)];
    const auto first = written(from, "from_" + name), second = written(converted(from, modules_, to), name);
    const AdapterFile read = AdapterFile::read(second);
    EXPECT_EQ(read.format == AdapterFormat::kohya, to == AdapterFormat::kohya || to == AdapterFormat::onetrainer);
    EXPECT_EQ(read.metadata.at("ss_output_name"), "random");
    expect_same_changes(changes(modules_, {{second}}), changes(modules_, {{first}}));
    expect_same(converted(read, modules_, GetParam().format), from);
  }
}

// All that diffusers reads beside the header's settings is a scale of 1.
TEST_P(AdapterConversions, DiffusersFilesAreRightWithoutTheirHeader) {
  const AdapterFile from = only(random_lora(modules_, GetParam().format), modules_, AdapterFormat::diffusers);
  const auto first = written(from, "first"),
             second = written(converted(from, modules_, AdapterFormat::diffusers), "to");
  std::map<std::string, Tensor> tensors;
  const SafetensorsFile file = SafetensorsFile::open(second);
  for (const auto& [key, info] : file.tensors()) tensors[key] = file.load(key);
  save_safetensors(folder_ / "bare.safetensors", tensors);
  expect_same_changes(changes(modules_, {{folder_ / "bare.safetensors"}}), changes(modules_, {{first}}));
}

TEST_P(AdapterConversions, SumsAreThoseOfTheChanges) {
  const AdapterFormat other =
      GetParam().format == AdapterFormat::kohya ? AdapterFormat::onetrainer : AdapterFormat::kohya;
  const auto a = written(random_lora(modules_, GetParam().format), "a"),
             b = written(random_lora(modules_, other, DType::f16, 2), "b");
  const std::vector<LoraFile> files = {{a, 0.75f}, {b, -1.5f}};
  const auto expected = changes(modules_, files);
  for (const AdapterFormat format : {AdapterFormat::kohya, AdapterFormat::onetrainer}) {
    const auto sum = written(merged({.files = files, .format = format, .model = kModels / GetParam().model}), "sum");
    expect_same_changes(changes(modules_, {{sum}}), expected);
  }
  const AdapterFile exact =
                        merged({.files = files, .format = AdapterFormat::kohya, .model = kModels / GetParam().model}),
                    low = merged({.files = files,
                                  .format = AdapterFormat::kohya,
                                  .model = kModels / GetParam().model,
                                  .rank = 2});
  for (const auto& [base, lora] : low.loras) {
    EXPECT_LE(lora.rank(), 2);
    EXPECT_EQ(exact.loras.at(base).alpha, double(exact.loras.at(base).rank()));
  }
}

// Sizes of models that Wick knows by name are others than these.
TEST_P(AdapterConversions, SumsOfAnUnknownModelNeedOneSpelling) {
  const AdapterFormat other =
      GetParam().format == AdapterFormat::kohya ? AdapterFormat::onetrainer : AdapterFormat::comfy;
  const std::string component = modules_.all().front().path.substr(0, modules_.all().front().path.find('.'));
  const auto a = written(random_lora(modules_, GetParam().format), "a"),
             b = written(random_lora(modules_, GetParam().format, DType::f16, 2), "b");
  const std::vector<LoraFile> files = {{a, 0.75f}, {b, -1.5f, {{component, 0.5f}}}};
  expect_same_changes(changes(modules_, {{written(merged({.files = files}), "sum")}}), changes(modules_, files));
  expect_error([&] { merged({.files = files, .format = other}); }, {"a.safetensors", "does not know by name"});

  const auto c = written(random_lora(modules_, AdapterFormat::diffusers), "c"),
             d = written(random_lora(modules_, AdapterFormat::kohya), "d");
  expect_error(
      [&] {
        merged({.files = {{c}, {d}}});
      },
      {"d.safetensors", "spelled as kohya", "wick convert --model MODEL --to diffusers"});
  if (GetParam().format != AdapterFormat::onetrainer) return;
  expect_error([&] { merged({.files = {{a}, {d}}}); }, {"two spellings", "wick convert --model MODEL --to kohya"});
}

TEST_P(AdapterConversions, OtherAlgorithmsKeepTheirSuffixes) {
  AdapterFile from{.name = "loha", .format = AdapterFormat::kohya};
  Rng rng(3);
  for (const NamedModule& module : modules_.all())
    if (const auto names = module.spelled(Spelling::kohya); !names.empty())
      for (const char* suffix : {".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".alpha"})
        from.others[names.front()->name + suffix] = random({2, 3}, rng);
  const AdapterFile to = converted(from, modules_, AdapterFormat::comfy);
  EXPECT_TRUE(to.others.begin()->first.starts_with("diffusion_model."));
  expect_same(converted(to, modules_, AdapterFormat::kohya), from);
  expect_error([&] { converted(from, modules_, AdapterFormat::diffusers); },
               {"LoHa", "--to diffusers holds plain LoRAs"});
}

INSTANTIATE_TEST_SUITE_P(
    Models, AdapterConversions,
    testing::Values(Family{"tiny", AdapterFormat::kohya}, Family{"tiny-flux", AdapterFormat::kohya},
                    Family{"tiny-flux", AdapterFormat::onetrainer}, Family{"tiny-sd3", AdapterFormat::kohya},
                    Family{"tiny-sd3", AdapterFormat::onetrainer}),
    [](const auto& row) {
      std::string name = std::string(row.param.model) + "_" + adapter_format_names()[size_t(row.param.format)];
      std::ranges::replace(name, '-', '_');
      return name;
    });

LoraRows rows_of(int64_t first, int64_t rows, int64_t rank, double alpha, uint64_t seed, Tensor down = {}) {
  Rng rng(seed);
  if (!down) down = random({rank, 5}, rng);
  return {first, {down, random({rows, rank}, rng), alpha}};
}

Tensor change(const LoraRows& lora) { return matmul(lora.lora.up, lora.lora.down) * float(lora.lora.scale()); }

TEST(SplitLoras, PartsThatShareTheirDownKeepIt) {
  const LoraRows fused = rows_of(0, 9, 2, 1, 1);
  const std::vector<LoraRows> parts = split_at(fused, {0, 3, 6, 9});
  ASSERT_EQ(parts.size(), 3u);
  for (const LoraRows& part : parts) EXPECT_TRUE(is_same(part.lora.down, fused.lora.down));
  const LoraRows again = joined(parts, 0, 9);
  EXPECT_TRUE(is_same(again.lora.up, fused.lora.up));
  EXPECT_EQ(again.lora.alpha, 1);
}

TEST(SplitLoras, JoinedOnesFallApartAgain) {
  const std::vector<std::vector<LoraRows>> cases = {
      {rows_of(0, 3, 2, 1, 1), rows_of(3, 3, 2, 1, 2), rows_of(6, 3, 2, 1, 3)},
      {rows_of(0, 3, 4, 1, 4), rows_of(6, 3, 1, 0.25, 5)},  // one part of three is not there, ranks differ
      {rows_of(3, 3, 3, 6, 6)},                             // one alone
      {rows_of(0, 3, 2, 4, 7), rows_of(3, 3, 2, 1, 8)}};    // scales differ, by powers of two
  for (const std::vector<LoraRows>& parts : cases) {
    const LoraRows fused = joined(parts, 0, 9);
    const std::vector<LoraRows> again = split_at(fused, {0, 3, 6, 9});
    ASSERT_EQ(again.size(), parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(again[i].first, parts[i].first);
      EXPECT_TRUE(is_same(again[i].lora.down, parts[i].lora.down));
      EXPECT_LE(norm(change(again[i]) - change(parts[i])), 1e-6 * norm(change(parts[i])));
      const Tensor rows = slice(change(fused), 0, parts[i].first, parts[i].end());
      EXPECT_LE(norm(contiguous(rows) - change(parts[i])), 1e-6 * norm(change(parts[i])));
    }
  }
}

// A column of zeros at the edge of a block belongs to it by the equal ranks of all.
TEST(SplitLoras, ColumnsOfZerosStayInTheirBlock) {
  std::vector<LoraRows> parts = {rows_of(0, 3, 2, 1, 1), rows_of(3, 3, 2, 1, 2)};
  parts[0].lora.up = cat({contiguous(slice(parts[0].lora.up, 1, 0, 1)), zeros({3, 1})}, 1);
  parts[1].lora.up = cat({zeros({3, 1}), contiguous(slice(parts[1].lora.up, 1, 1, 2))}, 1);
  const std::vector<LoraRows> again = split_at(joined(parts, 0, 6), {0, 3, 6});
  ASSERT_EQ(again.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(is_same(again[i].lora.up, parts[i].lora.up));
}

TEST(ResizedLoras, AreTheNearestOfTheirRank) {
  Rng rng(5);
  AdapterFile file{.name = "f", .format = AdapterFormat::kohya, .metadata = {{"ss_network_dim", "6"}}};
  file.loras["linear"] = {random({6, 20}, rng), random({12, 6}, rng), 3};
  file.loras["conv"] = {random({6, 4, 3, 3}, rng), random({10, 6, 1, 1}, rng), 3};
  file.loras["low"] = {random({2, 4}, rng), random({4, 2}, rng), 1};
  file.loras["wide"] = {random({6, 20}, rng), random({3, 6}, rng), 6};  // of fewer outputs than its rank
  const auto flat = [](const StoredLora& lora) {
    return matmul(reshape(lora.up, {lora.up.dim(0), lora.rank()}), reshape(lora.down, {lora.rank(), -1})) *
           float(lora.scale());
  };
  for (const int64_t rank : {1, 3, 5}) {
    const AdapterFile low = resized(file, {.rank = rank});
    for (const auto& [base, lora] : low.loras) {
      const StoredLora& whole = file.loras.at(base);
      const auto parts = SingularParts::of_product(reshape(whole.up, {whole.up.dim(0), whole.rank()}),
                                                   reshape(whole.down, {whole.rank(), -1}));
      double bound = 0;
      for (size_t i = size_t(rank); i < parts.values().size(); ++i) bound += parts.values()[i] * parts.values()[i];
      EXPECT_LE(norm(flat(lora) - flat(whole)), whole.scale() * std::sqrt(bound) + 1e-5 * norm(flat(whole))) << base;
      EXPECT_LE(lora.rank(), std::max<int64_t>(rank, 2));
      EXPECT_DOUBLE_EQ(lora.scale(), whole.scale());
    }
    if (rank > 1) {
      EXPECT_TRUE(is_same(low.loras.at("low").up, file.loras.at("low").up));
    }
    EXPECT_EQ(low.loras.at("conv").down.shape(), (Shape{rank, 4, 3, 3}));
    EXPECT_EQ(low.metadata.at("ss_network_dim"), rank == 1 ? "1" : "Dynamic");
  }
}

TEST(ResizedLoras, KeepAShareOfTheEnergy) {
  Rng rng(6);
  AdapterFile file{.name = "f", .format = AdapterFormat::kohya};
  Tensor up = random({16, 8}, rng);
  std::vector<float> scales;
  for (int i = 0; i < 8; ++i) scales.push_back(std::pow(0.5f, float(i)));
  file.loras["a"] = {random({8, 64}, rng), up * Tensor::of(scales, {1, 8}), 8};
  const StoredLora& whole = file.loras.at("a");
  const double all = norm_of_product(whole.up, whole.down);
  int64_t last = 0;
  for (const double share : {0.5, 0.9, 0.99, 0.9999}) {
    const StoredLora low = resized(file, {.energy = share}).loras.at("a"),
                     lower = resized(file, {.rank = std::max<int64_t>(low.rank() - 1, 1)}).loras.at("a");
    EXPECT_GE(std::pow(norm_of_product(low.up, low.down) / all, 2), share - 1e-6);
    if (low.rank() > 1) {
      EXPECT_LT(std::pow(norm_of_product(lower.up, lower.down) / all, 2), share);
    }
    EXPECT_GE(low.rank(), last);
    last = low.rank();
  }
  EXPECT_GT(last, 2);
  EXPECT_EQ(resized(file, {.rank = 1, .energy = 0.9999}).loras.at("a").rank(), 1);
}

TEST(AdapterModules, AreRecognisedByNamesAndShapes) {
  AdapterFile file{.name = "f", .format = AdapterFormat::kohya};
  const auto with = [&](const char* base, int64_t out, int64_t in) {
    file.loras = {{base, {zeros({1, in}), zeros({out, 1}), 1}}};
    return file;
  };
  const AdapterFile flux = with("lora_unet_double_blocks_0_img_attn_qkv", 9216, 3072);
  EXPECT_EQ(AdapterModules::recognised(flux).find(flux.loras.begin()->first).module->path,
            "transformer.double_blocks.0.img_attn.qkv");
  const AdapterFile other = with("lora_unet_double_blocks_0_img_attn_qkv", 96, 32);
  expect_error([&] { AdapterModules::recognised(other); }, {"fits none of the models", "[9216, 3072]", "--model"});
  const AdapterFile unknown = with("lora_unknown", 96, 32);
  expect_error([&] { AdapterModules::recognised(unknown); }, {"no model that Wick knows", "--model"});
}

// llama.cpp's file has one alpha, and other rows of queries and keys.
TEST(GgufAdapters, ComeBackAsTheyWere) {
  const Checkpoint model(kModels / "tiny-llm");
  const AdapterModules modules = AdapterModules::of(model);
  AdapterFile file = random_lora(modules, AdapterFormat::peft);
  std::erase_if(file.loras, [](const auto& entry) { return entry.first.find(".layers.") == std::string::npos; });
  for (auto& [base, lora] : file.loras) lora.alpha = std::exp2(std::round(lora.alpha));
  const TemporaryDirectory folder;
  write_gguf_adapter(file, model, folder / "a.gguf");
  const GgufFile gguf = GgufFile::open(folder / "a.gguf");
  EXPECT_EQ(gguf.metadata().text("general.type"), "adapter");
  EXPECT_EQ(gguf.metadata().text("adapter.type"), "lora");
  EXPECT_EQ(gguf.tensors().size(), 2 * file.loras.size());
  EXPECT_TRUE(gguf.has("blk.0.attn_q.weight.lora_a"));
  const AdapterFile again = read_gguf_adapter(folder / "a.gguf", model);
  for (const auto& [base, lora] : file.loras) {
    const StoredLora& found = again.loras.at(base);
    EXPECT_TRUE(is_same(found.down, lora.down));
    EXPECT_TRUE(is_same(scaled_exactly(found.up, found.alpha / lora.alpha), lora.up)) << base;
  }
}

}  // namespace
}  // namespace wick

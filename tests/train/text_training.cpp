// Training of language models against PyTorch's (tools/golden/llm_training.py), and packed against unpacked.
#include <gtest/gtest.h>

#include <cmath>

#include "device.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/pipelines/language_model.h"
#include "wick/train/optimizer.h"
#include "wick/train/text_task.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden";

// Documents of one step of the golden.
std::vector<TextDocument> documents_of(const SafetensorsFile& in, int64_t step) {
  const Tensor ids = in.load("ids"), labels = in.load("labels"), lengths = in.load("lengths");
  const int64_t count = ids.dim(1), width = ids.dim(2);
  std::vector<TextDocument> documents;
  for (int64_t d = 0; d < count; ++d) {
    TextDocument document;
    const int64_t at = (step * count + d) * width;
    for (int64_t t = 0; t < lengths.data<int64_t>()[step * count + d]; ++t) {
      document.ids.push_back(ids.data<int64_t>()[at + t]);
      document.counts.push_back(t > 0 && labels.data<int64_t>()[at + t] >= 0);
    }
    documents.push_back(std::move(document));
  }
  return documents;
}

// The loss is the mean over counted tokens, in any packing of documents.
Tensor loss_of(const Llama& model, const std::vector<TextDocument>& documents, const std::vector<PackedRow>& rows,
               int64_t row_length) {
  int64_t count = 0;
  for (const TextDocument& d : documents) count += d.counted();
  const PackedBatch batch = pack(documents, rows, row_length, float(1 / double(count)), model.config(), test::memory());
  return model.loss(model(batch.ids, batch.plan), batch.targets);
}

const std::vector<PackedRow> kUnpacked = {{0}, {1}, {2}, {3}};
const std::vector<PackedRow> kPacked = {{2, 0}, {3, 1}};  // any order

struct Trained {
  Adapter lora{llama_module_names()};
  Llama model;

  explicit Trained(const std::string& family, bool checkpointing = false) : model(load(family, checkpointing)) {}
  Llama load(const std::string& family, bool checkpointing) {
    lora.add_file(kGolden / "llama" / family / "adapter", 1, true);
    return Llama::load(kGolden / "llama" / family, {.adapter = &lora,
                                                    .backend = &test::backend(),
                                                    .block_schedule = BlockSchedule::recomputing_all(checkpointing)});
  }
};

// Ten steps of a model's `parameters`, with the losses and norms of `out`.
void expect_curve(const Llama& model, const std::vector<Parameter>& parameters, const SafetensorsFile& out,
                  const std::vector<PackedRow>& rows, int64_t row_length) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "train/text.in.safetensors");
  const auto number = [&](const char* key) {
    return std::stof(out.metadata().contains(key) ? out.metadata().at(key) : in.metadata().at(key));
  };
  Optimizer optimizer(parameters, {.rule = {.beta1 = number("beta1"),
                                            .beta2 = number("beta2"),
                                            .eps = number("eps"),
                                            .weight_decay = number("weight_decay")},
                                   .lr = number("lr"),
                                   .max_grad_norm = number("max_grad_norm")});
  const Tensor losses = out.load("losses"), norms = out.load("grad_norms");
  double farthest = 0;
  for (int64_t i = 0; i < losses.numel(); ++i) {
    Tape tape;
    const Tensor loss = loss_of(model, documents_of(in, i), rows, row_length);
    const float norm = optimizer.step(tape.backward(loss));
    const double distance = std::abs(loss.item() / losses.data<float>()[i] - 1);
    farthest = std::max(farthest, distance);
    EXPECT_LT(distance, 1e-4) << "step " << i + 1;
    EXPECT_NEAR(norm / norms.data<float>()[i], 1, 1e-3) << "step " << i + 1;
  }
  std::printf("  losses differ by %.1e at the most\n", farthest);
}

void expect_lora_curve(const std::vector<PackedRow>& rows, int64_t row_length) {
  const SafetensorsFile out = SafetensorsFile::open(kGolden / "train/text.out.safetensors");
  const Trained t("llama3");
  expect_curve(t.model, t.lora.parameters(), out, rows, row_length);
  for (const Parameter& p : t.lora.parameters()) {
    const std::vector<float> x = p.value.to_vector(), y = out.load(p.name).to_vector();
    ASSERT_EQ(x.size(), y.size());
    for (size_t k = 0; k < x.size(); ++k) ASSERT_NEAR(x[k], y[k], 1e-3) << p.name;
  }
}

TEST(TextTraining, TenStepsAreThoseOfTransformersAndPeft) { expect_lora_curve(kUnpacked, 0); }
TEST(TextTraining, TenPackedStepsAreTheSame) { expect_lora_curve(kPacked, 48); }

// The gradients of a LoRA whose factors are not zero, after a sentence, with the frozen matrices in a dtype.
std::vector<std::vector<float>> gradients_of(DType dtype) {
  const fs::path folder = test::source_dir() / "models/tiny-llm";
  Adapter lora(LoraConfig{.rank = 8, .alpha = 8, .targets = llama_default_targets()}, llama_module_names());
  const Llama model = Llama::load(folder, {.dtype = dtype, .adapter = &lora, .backend = &test::backend()});
  Rng rng(7);
  for (const Parameter& p : lora.parameters()) {
    const Tensor drawn = affine(random_normal(p.value.shape(), rng), 0.03f, 0);
    for (const Tensor& values : {p.value, p.copy})
      if (values) values.backend().copy(values, drawn.to(values.memory()));
  }
  TextDocument document;
  document.ids = load_tokenizer(folder).encode(
      "One day Maya saw a little red bird in the garden. The bird was sad, because it had lost its friend. Maya gave "
      "it some bread, and they went to look for the friend together.");
  document.counts.assign(document.ids.size(), true);
  document.counts.front() = false;
  Tape tape;
  const Grads grads = tape.backward(loss_of(model, {document}, {{0}}, int64_t(document.ids.size())));
  std::vector<std::vector<float>> all;
  for (const Parameter& p : lora.parameters()) all.push_back(grads[p.value].to_vector());
  return all;
}

// How far the gradients lie from those of f32, as a share of their length: with the frozen matrices in 16 bits, with
// them in fp8, and with their products in fp8 too. A code is off by 2^-4 of a number at the most and by 2.6 % in the
// mean; a product has two such factors, and a gradient has passed through the products of all layers, four of which
// are behind each other in each of four layers, forward and back.
TEST(TextTraining, GradientsInFp8AreNearThoseOfF32) {
  const std::vector<std::vector<float>> exact = gradients_of(DType::f32);
  const auto distance = [&](DType dtype) {
    const std::vector<std::vector<float>> found = gradients_of(dtype);
    double size = 0, error = 0;
    for (size_t p = 0; p < exact.size(); ++p)
      for (size_t i = 0; i < exact[p].size(); ++i) {
        size += double(exact[p][i]) * double(exact[p][i]);
        error += std::pow(double(found[p][i]) - double(exact[p][i]), 2);
      }
    return std::sqrt(error / size);
  };
  const double half = distance(DType::bf16), kept = distance(DType::fp8), multiplied = distance(DType::fp8_product);
  std::printf("  gradients differ by %.4f in bf16, %.4f with weights in fp8, %.4f with products in fp8\n", half, kept,
              multiplied);
  EXPECT_GT(multiplied, kept);
  EXPECT_LT(multiplied, 0.026 * std::sqrt(2.0 * 4 * 4 * 2));
}

// Every weight of the model, and the gradient of each in the first step.
TEST(TextTraining, TenStepsOfAllWeightsAreThoseOfTransformers) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "train/text.in.safetensors");
  for (const std::string family : {"qwen2", "qwen3"}) {
    const SafetensorsFile out = SafetensorsFile::open(kGolden / "train" / ("text_" + family + ".out.safetensors"));
    const Llama model = Llama::load(kGolden / "llama" / family, {.trainable = true, .backend = &test::backend()});
    const std::vector<Parameter>& parameters = model.weights().parameters();
    EXPECT_EQ(parameters.size() + 2, out.tensors().size());
    double farthest = 0;
    {
      Tape tape;
      const Grads grads = tape.backward(loss_of(model, documents_of(in, 0), kPacked, 48));
      for (const Parameter& p : parameters) {
        const std::vector<float> found = grads[p.value].to_vector(), wanted = out.load("grad." + p.name).to_vector();
        ASSERT_EQ(found.size(), wanted.size()) << p.name;
        double size = 0, error = 0;
        for (const float x : wanted) size = std::max(size, double(std::abs(x)));
        for (size_t i = 0; i < wanted.size(); ++i) error = std::max(error, std::abs(double(found[i]) - wanted[i]));
        EXPECT_LT(error, 1e-3 * size) << family << ' ' << p.name;
        farthest = std::max(farthest, error / size);
      }
    }
    std::printf("  %s: gradients differ by %.1e at the most\n", family.c_str(), farthest);
    expect_curve(model, parameters, out, kUnpacked, 0);
  }
}

std::map<std::string, std::vector<float>> gradients(const Trained& t, const std::vector<PackedRow>& rows,
                                                    int64_t row_length) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "train/text.in.safetensors");
  Tape tape;
  const Grads grads = tape.backward(loss_of(t.model, documents_of(in, 0), rows, row_length));
  std::map<std::string, std::vector<float>> all;
  for (const auto& [name, tensor] : t.lora.gradients(grads)) all[name] = tensor.to_vector();
  return all;
}

// Every family: with biases, norms of heads, windows shorter than the documents, a tied head.
TEST(TextTraining, PackedGradientsAreThoseOfSingleRows) {
  for (const char* family : {"mistral", "llama2", "llama3", "llama_linear", "qwen2", "qwen3"}) {
    const Trained t(family);
    const auto alone = gradients(t, kUnpacked, 0), packed = gradients(t, kPacked, 48);
    const auto one_row = gradients(t, {{1, 3, 0, 2}}, 90);
    ASSERT_EQ(alone.size(), t.lora.parameters().size());
    for (const auto& [name, wanted] : alone) {
      double size = 0;
      for (const float x : wanted) size = std::max(size, double(std::abs(x)));
      ASSERT_GT(size, 0) << name;
      for (size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_NEAR(packed.at(name)[i], wanted[i], 1e-5 * size) << family << ' ' << name;
        ASSERT_NEAR(one_row.at(name)[i], wanted[i], 1e-5 * size) << family << ' ' << name;
      }
    }
  }
}

TEST(TextTraining, RecomputedGradientsAreTheSameBits) {
  EXPECT_EQ(gradients(Trained("qwen3"), kPacked, 48), gradients(Trained("qwen3", /*checkpointing=*/true), kPacked, 48));
}

TEST(Packing, FirstFitFillsTheFirstRowWithRoom) {
  const std::vector<int64_t> lengths = {5, 7, 3, 4, 1, 8};
  const std::vector<PackedRow> rows = first_fit({0, 1, 2, 3, 4, 5}, lengths, 8);
  EXPECT_EQ(rows, (std::vector<PackedRow>{{0, 2}, {1, 4}, {3}, {5}}));
  EXPECT_THROW(first_fit({0}, {9}, 8), Error);
}

TEST(Packing, EachEpochHasEveryDocumentOnceAndAnOrderOfItsOwn) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 101; ++i) lengths.push_back(1 + i * 37 % 20);
  const auto epoch = [&](PackedBatches& batches) {
    std::vector<PackedRow> seen;
    for (int64_t count = batches.steps_per_epoch(); count > 0; --count)
      for (const PackedRow& row : batches.next().items) {
        int64_t length = 0;
        for (const size_t d : row) length += lengths[d];
        EXPECT_LE(length, 32);
        seen.push_back(row);
      }
    EXPECT_EQ(int64_t(seen.size()) % 3, 0);
    return seen;
  };
  PackedBatches batches(lengths, 32, 3, 7);
  std::vector<PackedRow> first = epoch(batches);
  EXPECT_EQ(int64_t(first.size()), batches.rows_per_epoch() + batches.repeated());
  batches.next();
  batches.seek(1, 0);
  std::vector<PackedRow> second = epoch(batches);
  EXPECT_NE(first, second);
  PackedBatches again(lengths, 32, 3, 7);
  again.seek(1, 0);
  EXPECT_EQ(epoch(again), second);
  for (auto* seen : {&first, &second}) {
    std::set<size_t> documents;
    for (const PackedRow& row : std::set<PackedRow>(seen->begin(), seen->end()))
      for (const size_t d : row) EXPECT_TRUE(documents.insert(d).second) << d;
    EXPECT_EQ(documents.size(), lengths.size());
  }
}

TEST(Packing, WhatIsLeftOfARowDoesNotCount) {
  const std::vector<TextDocument> documents = {{{5, 6, 7}, {false, false, true}}, {{8, 9}, {false, true}}};
  const LlamaConfig config = LlamaConfig::read(kGolden / "llama/mistral");
  const PackedBatch batch = pack(documents, {{1, 0}}, 7, 0.5f, config, host_memory());
  const auto ids = [](const Tensor& t) {
    return std::vector<int64_t>(t.data<int64_t>(), t.data<int64_t>() + t.numel());
  };
  EXPECT_EQ(ids(batch.ids), (std::vector<int64_t>{8, 9, 5, 6, 7, 0, 0}));
  EXPECT_EQ(ids(batch.targets.ids), (std::vector<int64_t>{9, -100, -100, 7, -100, -100, -100}));
  EXPECT_EQ(batch.targets.weights.to_vector(), (std::vector<float>{0.5f, 0, 0, 0.5f, 0, 0, 0}));
}

// Every token but the first is predicted once, with at least length - stride tokens before it where there are so many.
TEST(TextTraining, WindowsCountEachTokenOnce) {
  TextDocument document;
  for (int64_t t = 0; t < 23; ++t) document.ids.push_back(t), document.counts.push_back(t > 0 && t % 5 != 4);
  for (const auto& [length, stride] : {std::pair<int64_t, int64_t>{8, 3}, {8, 7}, {2, 1}, {23, 11}, {40, 20}}) {
    std::vector<int> seen(23, 0);
    for (const TextDocument& piece : windows(document, length, stride)) {
      EXPECT_LE(piece.size(), length);
      EXPECT_FALSE(piece.counts.front());
      for (size_t i = 0; i < piece.ids.size(); ++i)
        if (piece.counts[i]) {
          ++seen[size_t(piece.ids[i])];
          EXPECT_GE(int64_t(i), std::min(piece.ids[i], length - stride));
        }
    }
    for (int64_t t = 0; t < 23; ++t) EXPECT_EQ(seen[size_t(t)], int(document.counts[size_t(t)])) << t;
  }
}

}  // namespace
}  // namespace wick

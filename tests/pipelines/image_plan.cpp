#include "wick/pipelines/plan.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"

namespace wick {
namespace {

const std::filesystem::path kFolder = test::source_dir() / "tests/golden/sdxl";

constexpr double kEncoded = 2 * (77 * 64 + 64) * 4;  // two texts, of which the model's are no wider

// A plan's bytes are those that drawing takes on the host, where memory is counted too.
TEST(ImagePlan, IsWhatDrawingTakes) {
  Memory& host = cpu_backend().memory();
  const std::vector<LoraFile> loras = {{.path = test::source_dir() / "tests/golden/lora_unet.safetensors"}};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const float cfg : {1.0f, 5.0f}) {
      const ImageRequest request{
          .prompt = "x", .width = 128, .height = 96, .cfg = cfg, .cfg_rescale = 0.5f, .sampling = {.steps = 3}};
      const InferencePlan plan =
          plan_image(kFolder, {request}, {.dtype = dtype, .lora_sets = {loras}}, device_kind("cpu"));
      const size_t before = host.in_use();
      host.reset_peak();
      const std::unique_ptr<Diffusion> model = open_diffusion(kFolder);
      Adapter adapter(model->lora().names, loras);
      TextToImage text_to_image = TextToImage::load(*model, {.dtype = dtype, .adapter = &adapter}, {request});
      EXPECT_NEAR(double(host.in_use() - before), double(plan.weights + plan.adapter), kEncoded);
      text_to_image(request);
      const double measured = double(host.peak() - before), planned = double(plan.taken);
      EXPECT_NEAR(planned, measured, 0.05 * measured);
    }
}

// Chunks are counted, and the encoding of an empty prompt beside weighted ones.
TEST(ImagePlan, CountsChunksOfTheTexts) {
  Memory& host = cpu_backend().memory();
  const ReadingOptions reading{.syntax = PromptSyntax::comfyui};
  std::string prompt = "(a:1.2)";
  for (int i = 0; i < 1000; ++i) prompt += " b";
  const auto planned = [&](const ImageRequest& request, const ReadingOptions& options) {
    return double(plan_image(kFolder, {request}, {.reading = options}, device_kind("cpu")).taken);
  };
  const ImageRequest request{
      .prompt = prompt, .negative = "c", .width = 64, .height = 64, .cfg = 5, .sampling = {.steps = 2}};
  const size_t before = host.in_use();
  host.reset_peak();
  const std::unique_ptr<Diffusion> model = open_diffusion(kFolder, reading);
  TextToImage::load(*model, {}, {request})(request);
  const double measured = double(host.peak() - before);
  EXPECT_NEAR(planned(request, reading), measured, 0.05 * measured);
  EXPECT_LT(planned(request, {}), 0.8 * measured);
}

// Texts of unlike lengths make a batch longer than the longest of them, and buffers of batches of other shapes stay
// beside it, so that their order counts too.
TEST(ImagePlan, CountsBatchesOfUnlikeTexts) {
  Memory& host = cpu_backend().memory();
  const ReadingOptions reading{.syntax = PromptSyntax::comfyui};
  const auto request = [](int chunks) {  // of 75 tokens
    std::string prompt;
    for (int i = 0; i < 75 * chunks - 10; ++i) prompt += " b";
    return ImageRequest{
        .prompt = prompt, .negative = "c", .width = 64, .height = 64, .cfg = 5, .sampling = {.steps = 2}};
  };
  const auto planned = [&](const TextToImage::Batch& all) {
    return double(plan_image(kFolder, all, {.batch = 2, .reading = reading}, device_kind("cpu")).taken);
  };
  // Together the batches have 20, 3 and 7 chunks, or 7, 3 and 20.
  for (const std::vector<int>& lengths : {std::vector{4, 5, 3, 1, 7}, {7, 1, 3, 1, 4, 5}}) {
    TextToImage::Batch requests;
    for (const int chunks : lengths) requests.push_back(request(chunks));
    const size_t before = host.in_use();
    host.reset_peak();
    const std::unique_ptr<Diffusion> model = open_diffusion(kFolder, reading);
    TextToImage text_to_image = TextToImage::load(*model, {}, requests);
    for (size_t first = 0; first < requests.size(); first += 2)
      text_to_image.draw(
          {requests.begin() + ptrdiff_t(first), requests.begin() + ptrdiff_t(std::min(first + 2, requests.size()))});
    const double measured = double(host.peak() - before);
    EXPECT_NEAR(planned(requests), measured, 0.05 * measured) << lengths.size();
    EXPECT_LT(planned({request(7), request(7)}), 0.8 * measured) << lengths.size();  // the longest text alone
  }
}

TEST(ImagePlan, GrowsWithThePicture) {
  const auto activations = [](int64_t side, const char* device) {
    const ImageRequest request{.prompt = "x", .width = side, .height = side};
    return double(plan_image(kFolder, {request}, {}, device_kind(device)).activations);
  };
  for (const char* device : {"cpu", "cuda"})  // grows with the pixels, apart from the texts' share
    EXPECT_NEAR(activations(8192, device) / activations(512, device), 256, 0.1 * 256);
}

TEST(ImagePlan, ALoraThatDoesNotFitIsToldBeforeTheModelIsLoaded) {
  const LoraFile lora{.path = test::source_dir() / "tests/golden/llama/llama2/adapter"};
  expect_error([&] { plan_image(kFolder, {{.prompt = "x"}}, {.lora_sets = {{lora}}}, device_kind("cpu")); },
               {"fit no layer"});
}

}  // namespace
}  // namespace wick

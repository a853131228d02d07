// The seam of diffusion models with a family that is unlike those that Wick has: a rectified flow whose shift depends
// on the picture's size, a denoiser that is told the guidance, one text encoder that is frozen, in bf16 and with a
// length beside its states, and one that is trained.
#include <gtest/gtest.h>

#include <cmath>

#include "source_dir.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/text_to_image.h"
#include "wick/train/latent_cache.h"
#include "wick/train/look_ahead.h"

namespace wick {
namespace {

constexpr int64_t kFactor = 8, kChannels = 2;

class Flow final : public Process {
 public:
  double snr(double) const override { return 1; }
  double progress(double time) const override { return time; }
  Tensor draw_times(const Shape& latents, Rng& rng, const TimestepOptions&) const override {
    std::vector<float> sigmas = random_normal({latents[0]}, rng).to_vector();
    for (float& s : sigmas) s = 1 / (1 + std::exp(-s));
    return Tensor::of(sigmas, {latents[0]});
  }
  Noised noised(const Tensor& latents, const Tensor& noise, const Tensor& sigmas) const override {
    const Tensor s = reshape(sigmas, {latents.dim(0), 1, 1, 1});
    return {.sample = latents + s * (noise - latents), .timestep = sigmas * 1000.0f, .target = noise - latents};
  }
  Sampler sampler(const SamplerOptions& options, const Shape& latents) const override {
    const int64_t steps = options.steps;
    Sampler sampler{1, {}};
    const double shift = 1 + double(latents.numel()) / 1000;
    const auto sigma = [&](int64_t i) {
      const double s = 1 - double(i) / double(steps);
      return shift * s / (1 + (shift - 1) * s);
    };
    for (int64_t i = 0; i < steps; ++i)
      sampler.steps.push_back(
          {float(1000 * sigma(i)), 1, {Combination::x() + Combination::prediction() * (sigma(i + 1) - sigma(i))}});
    return sampler;
  }
  int64_t train_steps() const override { return 1000; }
};

class Other final : public Diffusion {
 public:
  LatentSpace latents() const override { return {kChannels, kFactor, 2 * kFactor, 2 * kFactor, 64}; }
  const Process& process() const override { return flow; }
  DrawingDefaults drawing_defaults() const override { return {5, 1, 3.5f}; }
  LoraFormat lora() const override { return {}; }
  TensorSource source(const std::string&) const override { return memory_source({}); }
  std::string denoiser() const override { return "transformer"; }
  std::string denoiser_in_words() const override { return "transformer"; }
  TextLength length(const std::string& text) const override { return {int64_t(text.size()), 4}; }
  void load(const DiffusionOptions&, const DiffusionParts&) override {}
  void drop_encoders() override {}
  const Weights& denoiser_weights() const override { fail("none"); }
  Memory& memory() const override { return host_memory(); }

  LatentPosterior encode(const Tensor& pictures) const override {
    const Shape shape{pictures.dim(0), pictures.dim(1) / kFactor, pictures.dim(2) / kFactor, kChannels};
    return {full(shape, 0.5f), zeros(shape)};
  }
  Tensor decode(const Tensor& x) const override {
    largest_decoded = std::max({largest_decoded, x.dim(1), x.dim(2)});
    return upsample_nearest(cat({x, slice(x, 3, 0, 1)}, 3), kFactor);
  }

  NamedTensors caption(const std::string& text) const override {
    const auto length = int64_t(text.size());
    return {{"states", full({1, 3, 4}, float(length), DType::bf16)},
            {"length", Tensor::of(std::vector<int64_t>{length}, {1, 1})},
            {"ids", Tensor::of(std::vector<int64_t>{length % 2, 1}, {1, 2})}};
  }
  NamedTensors framing(const std::vector<PictureFrame>& frames) const override {
    std::vector<float> scales;
    for (const PictureFrame& frame : frames) scales.push_back(frame.guidance);
    return {{"guidance", Tensor::of(scales, {int64_t(frames.size())})}};
  }
  std::vector<std::string> parts_ahead() const override { return {"guidance", "length"}; }
  NamedTensors ahead(const Tensor& timesteps, const NamedTensors& parts) const override {
    ++looks;
    const Tensor lengths = Tensor::of(parts["length"].to_vector(), timesteps.shape());
    return {{"sum", timesteps + lengths + parts["guidance"]}};
  }
  NamedTensors encode_text(const NamedTensors& parts) const override {
    NamedTensors encoded{{"trained states", embedding(table, parts["ids"])}};
    for (const auto& [name, value] : parts)
      if (name != "ids") encoded.add(name, value);
    return encoded;
  }
  // A velocity that is the same everywhere: the sum of what the texts give.
  Tensor predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const override {
    rows = x.dim(0), guidance = parts.has("guidance") ? parts["guidance"].to_vector()[0] : 0;
    check(timestep.shape() == Shape{rows} && parts["length"].shape() == Shape{rows, 1}, "parts are of a batch");
    return x * 0.0f + mean(cast(parts["states"], DType::f32)) + mean(parts["trained states"]);
  }

  Flow flow;
  Tensor table = Tensor::of(std::vector<float>{1, 2, 3, 4}, {2, 2}).trainable();
  mutable int64_t rows = 0, looks = 0, largest_decoded = 0;
  mutable float guidance = 0;
};

class OtherFamily : public testing::Test {
 protected:
  LatentCache cache() {
    Dataset dataset = Dataset::scan(test::source_dir() / "data/tiny-style", bucket_options(model.latents()));
    dataset.examples.resize(3);
    dataset.sources.groups.front().subsets.front().captions.dropout = 0.3;
    return LatentCache(model, dataset, {.batch_size = 2, .guidance = 2});
  }
  const Other model;
};

TEST_F(OtherFamily, PartsKeepTheirShapesAndDtypesInTheCache) {
  LatentCache data = cache();
  TrainRng rng(1);
  const Batch batch = data.next(rng);
  const int64_t rows = batch.latents.dim(0);
  EXPECT_EQ(batch.conditioning["states"].dtype(), DType::bf16);
  EXPECT_EQ(batch.conditioning["states"].shape(), (Shape{rows, 3, 4}));
  EXPECT_EQ(batch.conditioning["length"].dtype(), DType::i64);
  for (int64_t i = 0; i < rows; ++i)
    EXPECT_EQ(batch.conditioning["states"].to_vector()[size_t(i * 12)],
              cast(full({1}, float(batch.conditioning["length"].data<int64_t>()[i])), DType::bf16).item());
  EXPECT_EQ(blank_batch(model, {64, 64}, 3).conditioning["states"].shape(), (Shape{3, 3, 4}));
}

TEST_F(OtherFamily, TheLossIsThatOfItsProcessAndTrainsItsEncoder) {
  LatentCache data = cache();
  TrainRng rng(1);
  const NamedTensors batch = noised(model.process(), data.next(rng), rng);
  Tape tape;
  const Tensor loss = denoising_loss(model, batch);
  EXPECT_EQ(model.guidance, 2);
  const float velocity = model.predict(batch[kTarget], batch[kTimesteps], model.encode_text(batch)).to_vector()[0];
  double expected = 0;
  for (const float target : batch[kTarget].to_vector()) expected += std::pow(double(velocity) - double(target), 2);
  EXPECT_NEAR(loss.item(), expected / double(batch[kTarget].numel()), 1e-4 * expected);
  EXPECT_TRUE(tape.backward(loss)[model.table]);
}

// Whatever is made ahead is that of the batch which then comes, over epochs and smaller last batches, and after a run
// was taken up elsewhere.
TEST_F(OtherFamily, LooksAheadToTheBatchesThatCome) {
  LatentCache data = cache();
  const TimestepOptions times{.deviation = 0.5};
  LookAhead ahead(model, data, times);
  TrainRng rng(1);
  for (int i = 0; i < 400; ++i) {
    if (i == 300) {
      data.batches().seek(7, 0);
      rng = TrainRng(2);
    }
    const NamedTensors made = ahead.next(rng);
    const NamedTensors batch = noised(model.process(), data.next(rng), rng, {.times = times});
    const std::vector<float> sums = made["sum"].to_vector(), steps = batch[kTimesteps].to_vector();
    ASSERT_EQ(sums.size(), steps.size());
    for (size_t row = 0; row < sums.size(); ++row)
      ASSERT_EQ(sums[row], steps[row] + float(batch["length"].data<int64_t>()[row]) + 2) << "batch " << i;
  }
  EXPECT_LE(model.looks, 5);
}

TEST_F(OtherFamily, IsDrawnByItsProcessAndToldTheGuidance) {
  TextToImage text_to_image(model);
  const ImageRequest request{
      .prompt = "cat", .width = 32, .height = 32, .cfg = 1, .guidance = 3.5f, .sampling = {.steps = 5}};
  const Tensor noise = text_to_image.noise({request}), drawn = text_to_image.denoise({request}, noise);
  EXPECT_EQ(model.rows, 1);
  EXPECT_EQ(model.guidance, 3.5f);
  // Along a constant velocity v = noise - latents.
  const NamedTensors parts = model.encode_text(model.caption("cat"));
  const float velocity = 3 + mean(parts["trained states"]).item();
  for (size_t i = 0; i < size_t(noise.numel()); ++i)
    EXPECT_NEAR(drawn.to_vector()[i], noise.to_vector()[i] - velocity, 1e-4);
  ImageRequest odd = request;
  odd.width = 40;
  EXPECT_THROW(text_to_image(odd), UsageError);
}

TEST_F(OtherFamily, IsDecodedInTilesThatMakeTheWhole) {
  Rng rng(3);
  TextToImage text_to_image(model);
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{9, 8}, {8, 23}, {31, 10}, {14, 14}}) {
    const Tensor latents = random_normal({1, height, width, model.latents().channels}, rng);
    const std::vector<float> whole = text_to_image.decode(latents).to_vector();
    model.largest_decoded = 0;
    const Tensor found = text_to_image.decode(latents, 8 * model.latents().factor);
    EXPECT_EQ(model.largest_decoded, 8);
    ASSERT_EQ(found.shape(), (Shape{1, height * model.latents().factor, width * model.latents().factor, 3}));
    const std::vector<float> values = found.to_vector();
    for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(values[i], whole[i], 1e-6);
  }
}

}  // namespace
}  // namespace wick

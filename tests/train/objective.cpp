// The latent cache and the losses, on the golden model.
#include "wick/train/objective.h"
#include "io/files.h"
#include "source_dir.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "wick/ops/ops.h"
#include "wick/text/clip_tokenizer.h"
#include "wick/train/latent_cache.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = test::source_dir() / "tests/golden/sdxl";
const fs::path kPictures = test::source_dir() / "data/tiny-style";

double mean_of(const Tensor& x) {
  double sum = 0;
  for (const float v : x.to_vector()) sum += double(v);
  return sum / double(x.numel());
}

class LatentCacheTest : public testing::Test {
 protected:
  LatentCache cache(const LatentCacheOptions& options, const CaptionOptions& captions = {}) {
    Dataset dataset = Dataset::scan(kPictures, bucket_options(sdxl_->latents(), {64}));
    dataset.examples.resize(4);
    dataset.sources.groups.front().subsets.front().captions = captions;
    return LatentCache(*sdxl_, dataset, options);
  }

  void load(const DiffusionOptions& options) {
    sdxl_->load(options, {DiffusionPart::text_encoders, DiffusionPart::vae_encoder});
  }

  const std::unique_ptr<Diffusion> sdxl_ = open_diffusion(kModel);
};

TEST_F(LatentCacheTest, BucketsFollowTheModel) {
  const BucketOptions options = bucket_options(sdxl_->latents()).front();
  EXPECT_EQ(options.resolution, Resolution(128));
  EXPECT_EQ(options.step, 32) << "so that two halvings of the latent leave whole pixels";
}

TEST_F(LatentCacheTest, BucketsFollowTheirSettings) {
  const LatentSpace space{.channels = 16, .factor = 8, .side_step = 16, .bucket_step = 16, .native = 1024};
  const auto steps = [&](const std::vector<Resolution>& resolutions, int64_t step) {
    std::vector<int64_t> found;
    for (const BucketOptions& o : bucket_options(space, resolutions, /*upscale=*/true, step)) found.push_back(o.step);
    return found;
  };
  EXPECT_EQ(steps({0}, 0), (std::vector<int64_t>{64}));
  EXPECT_EQ(steps({128, 512, 0}, 0), (std::vector<int64_t>{32, 64, 64}));
  EXPECT_EQ(steps({128, 1024}, 16), (std::vector<int64_t>{16, 16}));
  expect_error([&] { steps({0}, 24); }, {"--bucket-step", "multiple of 16", "24"});
  expect_error([&] { steps({512, 1024, 0}, 0); }, {"--resolution", "1024", "twice"});
}

TEST_F(LatentCacheTest, HasEveryPictureAtEveryResolution) {
  load({});
  Dataset dataset = Dataset::scan(kPictures, bucket_options(sdxl_->latents(), {64, 128}));
  dataset.examples.resize(4);  // two pictures
  ASSERT_EQ(dataset.examples[0].name, dataset.examples[1].name);
  LatentCache data(*sdxl_, dataset);
  std::map<int64_t, int64_t> batches;  // by the height of their latents
  TrainRng rng(1);
  for (int64_t i = 0; i < data.batches().steps_per_epoch(); ++i) ++batches[data.next(rng).latents.dim(1)];
  EXPECT_EQ(batches.size(), 2u);
  for (const auto& [height, count] : batches) EXPECT_EQ(count, 2) << height;
  EXPECT_LT(batches.begin()->first, batches.rbegin()->first);
}

// Captions whose encodings are too many for the memory come from the disk, the same.
TEST_F(LatentCacheTest, CaptionsMayStayOnTheDisk) {
  load({});
  const TemporaryDirectory folder;
  EncodingCache kept(folder / "cache", "x", [&]() -> Memory& { return sdxl_->memory(); });
  LatentCache in_memory = cache({.batch_size = 2});
  LatentCache on_disk = cache({.batch_size = 2, .caption_cache = &kept, .most_of_captions = 1});
  EXPECT_EQ(in_memory.remark(), "");
  EXPECT_NE(on_disk.remark().find("5 captions"), std::string::npos) << on_disk.remark();
  TrainRng a(1), b(1);
  for (int i = 0; i < 3; ++i) {
    const Batch memory = in_memory.next(a), disk = on_disk.next(b);
    ASSERT_EQ(memory.conditioning.size(), disk.conditioning.size());
    for (const auto& [name, value] : memory.conditioning)
      EXPECT_EQ(value.to_vector(), disk.conditioning[name].to_vector()) << name;
  }
  fs::remove_all(folder / "cache");
  expect_error([&] { on_disk.next(b); }, {"--cache", "gone or damaged", "--resume"});
  expect_error([&] { cache({.batch_size = 2, .caption_cache = &kept, .most_of_captions = 1}); },
               {"--cache", "not kept on the disk either"});
}

TEST_F(LatentCacheTest, GivesWhatTheEncodersGive) {
  load({});
  LatentCache data = cache({.batch_size = 2});
  BatchSampler order = data.batches();
  TrainRng rng(1);
  const std::vector<size_t> examples = order.next().items;
  const Batch batch = data.next(rng);
  const Example& first = data.dataset().examples[examples[0]];
  EXPECT_EQ(batch.latents.shape(), (Shape{2, 8, 8, 4}));
  const auto first_of = [&](const char* part) {
    return contiguous(slice(batch.conditioning[part], 0, 0, 1)).to_vector();
  };
  const Placement& p = first.placement;
  EXPECT_EQ(first_of("sizes"), (std::vector<float>{float(first.size.height), float(first.size.width), float(p.crop_top),
                                                   float(p.crop_left), float(p.bucket.height), float(p.bucket.width)}));

  const Tensor image = image_to_tensor(load_image(first));
  const VaeConfig vae = VaeConfig::read(kModel / "vae");
  const VaeEncoder encoder(Scope(Weights::open(kModel / "vae"), "vae"), vae);
  const Gaussian posterior = encoder(reshape(image, {1, image.dim(0), image.dim(1), 3}));
  const std::vector<float> mean = posterior.mean.to_vector(), logvar = posterior.logvar.to_vector();
  const std::vector<float> noise = [&] {  // of the first sample, as the cache draws it
    Rng latent = TrainRng(1).latent;
    return random_normal({8 * 8 * 4}, latent).to_vector();
  }();
  const std::vector<float> latents = batch.latents.to_vector();
  for (size_t i = 0; i < mean.size(); ++i)
    EXPECT_NEAR(latents[i], vae.scaling_factor * (mean[i] + std::exp(0.5f * logvar[i]) * noise[i]), 1e-5);

  const NamedTensors text = sdxl_->caption(first.captions.front());
  for (const char* part : {"text states", "pooled text"}) EXPECT_EQ(first_of(part), text[part].to_vector()) << part;
}

// Text encoders that a LoRA trains run under the tape: batches have ids for them, on the host.
TEST_F(LatentCacheTest, DropsCaptions) {
  Adapter lora({.rank = 1, .targets = {"text_encoder*.q_proj"}}, sdxl_->lora().names);
  load({.adapter = &lora});
  LatentCache data = cache({.batch_size = 4}, {.dropout = 1});
  TrainRng rng(1);
  const Batch batch = data.next(rng);
  const std::vector<int64_t> empty = ClipTokenizer::load(kModel / "tokenizer").encode("");
  const Tensor& ids = batch.conditioning["tokens"];
  ASSERT_EQ(ids.shape(), (Shape{4, int64_t(empty.size())}));
  for (int64_t i = 0; i < ids.numel(); ++i) EXPECT_EQ(ids.data<int64_t>()[i], empty[size_t(i) % empty.size()]);
  EXPECT_FALSE(batch.conditioning.has("text states"));
  const NamedTensors encoded = sdxl_->encode_text(batch.conditioning);
  EXPECT_EQ(encoded["text states"].dim(0), 4);
  EXPECT_TRUE(encoded.has("sizes"));
  sdxl_->drop_encoders();
  sdxl_->encode_text(batch.conditioning);  // what is trained stays
}

// A sample's variant is a function of its number and the seed, and goes on from any place.
TEST_F(LatentCacheTest, ASampleHasOneVariantOfItsCaption) {
  load({});
  const CaptionOptions captions{.dropout = 0.25, .tag_dropout = 0.5, .variants = 3};
  Dataset dataset = Dataset::scan(kPictures, bucket_options(sdxl_->latents(), {64}));
  dataset.examples.resize(2);
  dataset.examples[0].captions = {"a, b, c, d", "e, f, g"};
  dataset.examples[1].captions = {"one"};
  dataset.sources.groups.front().subsets.front().captions = captions;
  LatentCache data(*sdxl_, dataset, {.batch_size = 1, .seed = 5});
  const auto pooled = [&](const std::string& text) { return sdxl_->caption(text)["pooled text"].to_vector(); };

  BatchSampler order = data.batches();
  TrainRng rng(5);
  std::set<std::string> seen;
  for (int step = 0; step < 60; ++step) {
    if (step == 30) {  // as a run that is resumed
      rng = TrainRng(5);
      data.batches().seek(data.batches().epoch(), data.batches().batch(), data.batches().sample());
    }
    Rng expected(5, Stream::caption, uint64_t(step) << 32);
    const Example& example = dataset.examples[order.next().items.front()];
    std::vector<std::string> variants;
    for (const std::string& caption : example.captions)
      for (int64_t i = 0; i < 3; ++i) variants.push_back(caption_variant(caption, captions, 5, i));
    const bool drop = expected.uniform() < 0.25f;
    const std::string variant = variants[expected.below(variants.size())];
    const Batch batch = data.next(rng);
    EXPECT_EQ(batch.conditioning["pooled text"].to_vector(), pooled(drop ? "" : variant)) << step;
    seen.insert(drop ? "" : variant);
  }
  EXPECT_GT(seen.size(), 4u);
}

// Mirrored pictures have latents of their own and their crop's place in the mirror; those that come are encoded alike.
TEST_F(LatentCacheTest, SamplesHaveTheirLooks) {
  load({});
  for (const bool endless : {false, true}) {
    Dataset dataset = Dataset::scan(kPictures, bucket_options(sdxl_->latents(), {64}));
    dataset.examples.resize(3);
    for (Example& e : dataset.examples) {
      e.placement = {.bucket = {64, 64}, .scaled = {67, 64}, .crop_left = 1};
      e.mask = e.image;
    }
    PictureSubset& subset = dataset.sources.groups.front().subsets.front();
    subset.augmentation = {.flip = true, .random_crop = endless};
    subset.alpha_mask = true;
    subset.loss_weight = 0.5;
    LatentCache data(*sdxl_, dataset, {.batch_size = 2, .seed = 5});
    BatchSampler order = data.batches();
    TrainRng rng(5);
    int mirrors = 0;
    for (int step = 0; step < 4; ++step) {
      const Batch batch = data.next(rng);
      const auto [examples, number] = order.next();
      std::vector<Tensor> means, deviations, normals;
      for (size_t i = 0; i < examples.size(); ++i) {
        const Example& e = dataset.examples[examples[i]];
        Rng looks(5, Stream::crop, (*number + i) << 32), normal(5, Stream::latent, (*number + i) << 32);
        const Look look = draw_look(e, subset.augmentation, looks);
        mirrors += look.mirrored;
        const Tensor pixels = image_to_tensor(load_image(e, look));
        const LatentPosterior one = sdxl_->encode(reshape(pixels, {1, 64, 64, 3}));
        means.push_back(one.mean), deviations.push_back(one.deviation);
        normals.push_back(random_normal(one.mean.shape(), normal));
        EXPECT_EQ(batch.conditioning["sizes"].to_vector()[6 * i + 3],
                  float(look.mirrored ? 3 - look.crop_left : look.crop_left));
      }
      const Tensor mean = cat(means, 0);
      EXPECT_EQ(batch.latents.to_vector(), (mean + cat(deviations, 0) * cat(normals, 0)).to_vector());
      ASSERT_EQ(batch.weights.shape(), (Shape{int64_t(examples.size()), 8, 8, 1}));
      for (const float weight : batch.weights.to_vector()) EXPECT_EQ(weight, 0.5f);
    }
    EXPECT_TRUE(mirrors > 0 && mirrors < 6);
  }
}

// Against the formula, and the gradient of a factor against central differences.
TEST_F(LatentCacheTest, LossesAreWeighed) {
  Adapter lora({.rank = 2, .targets = {"unet.*.attn1.to_q"}}, sdxl_->lora().names);
  sdxl_->load({.adapter = &lora});
  LatentCache data = cache({.batch_size = 2});
  TrainRng rng(1);
  Batch batch = data.next(rng);
  Rng random(4);
  for (const Parameter& p : lora.parameters()) {  // ups begin at zero
    const std::vector<float> some = random_normal(p.value.shape(), random).to_vector();
    std::ranges::transform(some, p.value.detached().data<float>(), [](float v) { return 0.1f * v; });
  }
  Rng weight(3);
  const Shape latents = batch.latents.shape();
  batch.weights = random_uniform({latents[0], latents[1], latents[2], 1}, weight);
  const Tensor noise = random_normal(latents, rng.noise), times = Tensor::of(std::vector<int64_t>{40, 700}, {2});
  const NamedTensors noisy = noised(sdxl_->process(), batch, noise, times);
  const auto loss = [&] { return double(denoising_loss(*sdxl_, noisy).item()); };

  const Tensor prediction = sdxl_->predict(noisy[kNoisedLatents], noisy[kTimesteps], sdxl_->encode_text(noisy));
  const std::vector<float> p = prediction.to_vector(), t = noisy[kTarget].to_vector(), w = batch.weights.to_vector();
  double expected = 0;
  for (size_t i = 0; i < p.size(); ++i) expected += std::pow(double(p[i]) - double(t[i]), 2) * double(w[i / 4]);
  EXPECT_NEAR(loss() / (expected / double(p.size())), 1, 1e-5);

  Tape tape;
  const Grads grads = tape.backward(denoising_loss(*sdxl_, noisy));
  const Parameter& up = lora.parameters().back();
  const std::vector<float> slope = grads[up.value].to_vector();
  const auto largest = size_t(std::ranges::max_element(slope, {}, [](float v) { return std::abs(v); }) - slope.begin());
  float& value = up.value.detached().data<float>()[largest];
  const TapePause frozen;
  const float kept = value, step = 0.05f;
  value = kept + step;
  const double above = loss();
  value = kept - step;
  const double below = loss();
  value = kept;
  EXPECT_NEAR((above - below) / (2 * double(step)) / double(slope[largest]), 1, 2e-2);
}

TEST(AutoencoderLoss, IsErrorPlusWeightedDivergence) {
  const Weights weights = Weights::open(kModel / "vae", {.trainable = true});
  const VaeConfig config = VaeConfig::read(kModel / "vae");
  const VaeEncoder encoder(Scope(weights, "vae"), config);
  const VaeDecoder decoder(Scope(weights, "vae"), config);
  Rng rng(5, Stream::test);
  const Tensor pictures = random_uniform({1, 32, 32, 3}, rng);
  const int64_t side = 32 / config.factor();
  const Tensor noise = random_normal({1, side, side, config.latent_channels}, rng);
  const auto loss = [&](float weight) {
    return double(autoencoder_loss(encoder, decoder, pictures, weight, noise).item());
  };
  const Gaussian q = encoder(pictures);
  const double divergence = 0.5 * (mean_of(square(q.mean)) + mean_of(exp(q.logvar)) - mean_of(q.logvar) - 1);
  EXPECT_NEAR((loss(0.5f) - loss(0)) / (0.5 * divergence), 1, 1e-3);

  Tape tape;
  const Grads grads = tape.backward(autoencoder_loss(encoder, decoder, pictures, 0.5f, noise));
  for (const Parameter& p : weights.parameters()) EXPECT_TRUE(grads[p.value]) << p.name << " gets no gradient";
}

// The noise of a flow is its target and the latents.
TEST(NoiseOffset, AdaptsToTheMeansOfChannels) {
  const auto flow = open_diffusion(test::source_dir() / "models/tiny-flux");
  constexpr int64_t kBatch = 3, kHigh = 6, kWide = 4;
  const int64_t channels = flow->latents().channels;
  Rng source(5);
  Batch batch;
  batch.latents = random_normal({kBatch, kHigh, kWide, channels}, source) * 2.0f + 0.5f;
  const auto noise = [&](const NoiseOptions& options) {
    TrainRng rng(7);
    Objective objective;
    objective.noise = options;
    return (noised(flow->process(), batch, rng, objective)[kTarget] + batch.latents).to_vector();
  };
  constexpr double kOffset = 0.3;
  const std::vector<float> plain = noise({}), fixed = noise({.offset = kOffset}), x = batch.latents.to_vector();
  for (const double scale : {0.7, -0.9}) {
    const std::vector<float> adaptive = noise({.offset = kOffset, .adaptive_offset = scale});
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t c = 0; c < channels; ++c) {
        const auto at = [&](int64_t pixel) { return size_t((b * kHigh * kWide + pixel) * channels + c); };
        double mean = 0;
        for (int64_t pixel = 0; pixel < kHigh * kWide; ++pixel) mean += double(x[at(pixel)]) / (kHigh * kWide);
        const double wanted = std::max(0.0, kOffset + scale * std::abs(mean)) / kOffset;
        for (int64_t pixel = 0; pixel < kHigh * kWide; ++pixel)
          EXPECT_NEAR(double(adaptive[at(pixel)] - plain[at(pixel)]),
                      wanted * double(fixed[at(pixel)] - plain[at(pixel)]), 1e-5);
      }
  }
}

}  // namespace
}  // namespace wick

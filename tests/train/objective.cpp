// The latent cache and the losses, on the golden model.
#include "wick/train/objective.h"
#include "source_dir.h"

#include <gtest/gtest.h>

#include <cmath>

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
  LatentCache cache(const LatentCacheOptions& options) {
    Dataset dataset = Dataset::scan(kPictures, sdxl_buckets(kModel, 64));
    dataset.examples.resize(4);
    return LatentCache(sdxl_, kModel, dataset, options);
  }

  Sdxl sdxl_ = Sdxl::load(kModel, {.vae_decoder = false});
};

TEST_F(LatentCacheTest, BucketsFollowTheModel) {
  const BucketOptions options = sdxl_buckets(kModel);
  EXPECT_EQ(options.resolution, 128);
  EXPECT_EQ(options.step, 32) << "so that two halvings of the latent leave whole pixels";
}

TEST_F(LatentCacheTest, GivesWhatTheEncodersGive) {
  LatentCache data = cache({.batch_size = 2});
  BatchSampler order = data.batches();
  TrainRng rng(1);
  const std::vector<size_t> examples = order.next();
  const Batch batch = data.next(rng);
  const Example& first = data.dataset().examples[examples[0]];
  EXPECT_EQ(batch.latents.shape(), (Shape{2, 8, 8, 4}));
  EXPECT_EQ(std::vector<float>(time_ids(first)), contiguous(slice(batch.time_ids, 0, 0, 1)).to_vector());

  const Tensor image = image_to_tensor(load_image(first));
  const Gaussian posterior = (*sdxl_.vae_encoder)(reshape(image, {1, image.dim(0), image.dim(1), 3}));
  const std::vector<float> mean = posterior.mean.to_vector(), logvar = posterior.logvar.to_vector();
  const std::vector<float> noise = [&] {  // of the whole batch, as the cache draws it
    Rng latent = TrainRng(1).latent;
    return random_normal({2, 8 * 8 * 4}, latent).to_vector();
  }();
  const std::vector<float> latents = batch.latents.to_vector();
  for (size_t i = 0; i < mean.size(); ++i)
    EXPECT_NEAR(latents[i], sdxl_.config.vae.scaling_factor * (mean[i] + std::exp(0.5f * logvar[i]) * noise[i]), 1e-5);

  const auto ids = [&](const char* folder) {
    const std::vector<int64_t> row = ClipTokenizer::load(kModel / folder).encode(first.caption);
    return Tensor::of(row, {1, int64_t(row.size())});
  };
  const TextConditioning text = sdxl_.encode_text(ids("tokenizer"), ids("tokenizer_2"));
  EXPECT_EQ(contiguous(slice(batch.text.context, 0, 0, 1)).to_vector(), text.context.to_vector());
  EXPECT_EQ(contiguous(slice(batch.text.pooled, 0, 0, 1)).to_vector(), text.pooled.to_vector());
}

TEST_F(LatentCacheTest, DropsCaptions) {
  LatentCache data = cache({.batch_size = 4, .caption_dropout = 1, .encode_text = false});
  TrainRng rng(1);
  const Batch batch = data.next(rng);
  const std::vector<int64_t> empty = ClipTokenizer::load(kModel / "tokenizer").encode("");
  for (int64_t i = 0; i < batch.ids.numel(); ++i)
    EXPECT_EQ(batch.ids.data<int64_t>()[i], empty[size_t(i) % empty.size()]);
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

}  // namespace
}  // namespace wick

// A file of data sets of unknown origin: what it says is within its limits, or an Error of one line.
#include "wick/train/dataset_file.h"

#include "memory_file.h"
#include "wick/train/config.h"

namespace {

using namespace wick;

void expect(bool holds) {
  if (!holds) std::abort();
}

void look_at(const PictureSubset& subset) {
  expect(!subset.folder.empty() && subset.repeats >= 1 && subset.repeats <= 1000);
  expect(subset.loss_weight >= 0);
  const CaptionOptions& captions = subset.captions;
  expect(captions.dropout >= 0 && captions.dropout <= 1 && captions.tag_dropout >= 0 && captions.tag_dropout <= 1);
  expect(captions.variants >= 1 && captions.keep_tokens >= 0 && !captions.separator.empty());
  caption_variant("a, b; c", captions, 1, captions.variants - 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory_file;
  memory_file.assign(data, size);
  const LatentSpace space{.channels = 4, .factor = 8, .side_step = 8, .bucket_step = 32, .native = 1024};
  fuzz::attempt([&] {
    const PictureSources sources = read_dataset_file(memory_file.path(), {}, space);
    expect(!sources.groups.empty());
    for (const PictureGroup& group : sources.groups) {
      expect(!group.subsets.empty() && group.batch_size >= 0);
      for (const BucketOptions& options : group.resolutions) expect(!bucket_sizes(options).empty());
      for (const PictureSubset& subset : group.subsets) look_at(subset);
    }
  });
  return 0;
}

// Previews of a run: pictures drawn, or texts written, by the model as it is between two steps. They take no random
// numbers of the run's, and change nothing of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "wick/io/image.h"
#include "wick/pipelines/language_model.h"
#include "wick/pipelines/text_to_image.h"
#include "wick/train/config.h"
#include "wick/train/encoding_cache.h"
#include "wick/train/sample_prompts.h"
#include "wick/train/text_dataset.h"

namespace wick {

struct Preview {
  Image image;       // empty of a text
  ImageTexts texts;  // that its file carries: all that draws it again with a LoRA of the step
  std::string text;  // of a language model: what it wrote behind the prompt
};

// Called when `step` of `steps` are done; may throw, to end it.
using OnPreviewStep = std::function<void(int64_t step, int64_t steps)>;

class PicturePreviews {
 public:
  // By the model's configs alone. Pictures are of the run's largest resolution and drawn as by `wick generate` where a
  // prompt does not say otherwise; of the run's seed. Throws UsageError for what the model lacks.
  PicturePreviews(const TrainConfig& config, const Diffusion& model);

  bool empty() const { return requests_.empty(); }
  // Encodes all prompts while frozen text encoders are there, or finds them in the cache; `before` is called where they
  // have to come.
  void encode(EncodingCache* cache, const std::function<void()>& before);
  // With the denoiser and the VAE's decoder.
  Preview draw(size_t index, const OnPreviewStep& on_step);
  void outline();  // allocates as all of them do

 private:
  ImageTexts texts_of(const ImageRequest& request) const;

  const Diffusion& model_;
  std::string model_path_;
  bool t5_mask_;
  PredictionSetting prediction_;
  std::vector<ImageRequest> requests_;
  TextToImage::Encoded encoded_;
};

// Prompts of a language model as it reads them: behind what opens a text, or as a user's message where the run learns
// from conversations.
class TextPreviews {
 public:
  TextPreviews(const TrainConfig& config, const std::filesystem::path& model, bool is_chat);

  Preview write(const Llama& model, size_t index, const OnPreviewStep& on_step) const;
  void outline(const Llama& model) const;

 private:
  TextEncoder encoder_;
  std::vector<TextRequest> requests_;
};

// The prompts of --sample-prompts, with --trigger-word in place of [trigger]; none without that flag. Throws UsageError
// that names the line.
std::vector<SamplePrompt> sample_prompts(const TrainConfig& config);
// The same of a language model. Throws UsageError where a prompt has flags that are for pictures.
std::vector<SamplePrompt> text_prompts(const TrainConfig& config);

}  // namespace wick

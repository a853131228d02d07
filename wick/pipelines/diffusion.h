// A latent diffusion model (Rombach et al., 2022) as trainer, latent cache, sampler and command line know it.
//
// All that tells families apart stands behind this interface: encoders, conditioning, process, names in LoRA files. A
// family is one class in files of its own, and a line in diffusion_families.cpp.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "wick/autograd/block_schedule.h"
#include "wick/core/named_tensors.h"
#include "wick/nn/adapter.h"
#include "wick/pipelines/component.h"
#include "wick/pipelines/known_models.h"
#include "wick/pipelines/process.h"
#include "wick/text/prompt_syntax.h"

namespace wick {

struct LatentSpace {
  int64_t channels;
  int64_t factor;           // pixels of a picture's side for one of its latent's
  int64_t side_step;        // a picture's sides are multiples of so many pixels
  int64_t bucket_step;      // in training of so many, so that every level of the denoiser has whole pixels
  int64_t native;           // pixels: the side of the square pictures that the model was made for
  int64_t largest = 16384;  // pixels: the longest side of a picture
};

// One row of a batch, beside its text.
struct PictureFrame {
  int64_t height, width;  // of the picture before it was cropped
  int64_t crop_top = 0, crop_left = 0;
  int64_t target_height, target_width;
  float guidance = 1;  // for models that are told it (DrawingDefaults::guidance)
};

struct DrawingDefaults {
  int64_t steps;
  float cfg;                           // 1 is without classifier-free guidance
  std::optional<float> guidance = {};  // none for a model that is not told it
  SamplerKind sampler = SamplerKind::euler;
};

// How a T5 encoder reads texts.
struct T5Options {
  int64_t tokens = 0;  // texts are cut or padded to so many; 0: what the model was made for
  bool mask = false;   // padding is seen by no token
};

// What a model's files leave open.
struct ReadingOptions {
  T5Options t5 = {};
  PromptSyntax syntax = PromptSyntax::plain;                    // of all texts; captions are plain
  int64_t clip_chunks = 1;                                      // of plain texts, for SDXL (ClipTexts)
  PredictionSetting prediction = PredictionSetting::automatic;  // not of a rectified flow
};

struct LatentPosterior {  // [B, h, w, C] each, in the scale in which the denoiser sees latents
  Tensor mean, deviation;
};

struct TextLength {  // tokens without those that start and end a text
  int64_t tokens;
  int64_t limit = std::numeric_limits<int64_t>::max();  // those behind it are cut
};

// How LoRA files of the family are written.
struct LoraFormat {
  ModuleNames names;
  std::vector<std::string> default_targets;
  std::vector<std::string> conv_targets = {};   // with a rank for convolutions also these; none where there are none
  std::map<std::string, std::string> metadata;  // kohya's ss_* and modelspec.* that are the same in all runs
};

enum class DiffusionPart { text_encoders, vae_encoder, vae_decoder, denoiser };
using DiffusionParts = std::vector<DiffusionPart>;
inline const DiffusionParts kDrawingParts{DiffusionPart::text_encoders, DiffusionPart::vae_decoder,
                                          DiffusionPart::denoiser};
inline const DiffusionParts kTrainingParts{DiffusionPart::text_encoders, DiffusionPart::vae_encoder,
                                           DiffusionPart::denoiser};

// A quantised type for the matrices of the denoiser's blocks, which are most of its bytes.
struct Quantization {
  DType dtype;
  std::vector<std::string> keep = {};  // patterns (nn/glob.h) of modules that stay as they are
};

struct DiffusionOptions {
  DType dtype = DType::f32;                       // storage of frozen weights
  std::optional<Quantization> quantization = {};  // of frozen weights
  Adapter* adapter = nullptr;                     // outlives the model
  bool trainable = false;                         // every weight of the denoiser is a leaf of the tape
  Backend* backend = nullptr;                     // the CPU unless given
  BlockSchedule block_schedule = {};              // of the denoiser's blocks; T5's are then recomputed too
  bool stream_text_encoder = false;               // T5's weights lie on the host, staged where the denoiser's are
  bool outline = false;                           // weights of the right shapes without values: configs alone are read
  // Called while the denoiser's weights are read, as Weights::read_deferred() does it.
  std::function<void()> rehearse = {};
};

class Diffusion {
 public:
  virtual ~Diffusion() = default;

  // From the configs, before anything is loaded.
  virtual LatentSpace latents() const = 0;
  virtual const Process& process() const = 0;  // reads the scheduler's config when first asked
  virtual DrawingDefaults drawing_defaults() const = 0;
  virtual LoraFormat lora() const = 0;
  virtual std::string denoiser() const = 0;           // its component: "unet"
  virtual std::string denoiser_in_words() const = 0;  // "UNet"
  // A component's tensors under the names that its model asks for, whichever names its files have.
  virtual TensorSource source(const std::string& component) const = 0;
  virtual std::vector<std::string> remarks() const { return {}; }  // sentences on the model's files, for users
  virtual std::string training_remark() const { return {}; }       // a sentence, where training this model is unwise
  virtual TextLength length(const std::string& text) const = 0;
  virtual int64_t t5_tokens() const { return 0; }  // T5Options::tokens in use; 0 for a model without T5
  // Reads the tokenizers, unless that was done: load() does so before it reads weights.
  virtual void read_tokenizers() const {}

  // Loads parts beside those that are there. All parts of a model are loaded with the same options. With the denoiser
  // the adapter must have found its modules.
  virtual void load(const DiffusionOptions& options, const DiffusionParts& parts = kTrainingParts) = 0;
  // Frees the parts that no training step needs: the VAE, and text encoders that no adapter trains.
  virtual void drop_encoders() = 0;
  virtual const Weights& denoiser_weights() const = 0;
  virtual Memory& memory() const = 0;  // where the tensors below belong, unless they say otherwise

  virtual LatentPosterior encode(const Tensor& pictures) const = 0;  // [B, H, W, 3] in [-1, 1]
  virtual Tensor decode(const Tensor& latents) const = 0;            // [B, h, w, C] -> [B, H, W, 3]

  // A text's part of the conditioning, as far as it can be computed ahead of the steps: named parts [1, ...],
  // whatever their number, shapes and dtypes. Rows of several texts may be joined. Frozen text encoders have run; for
  // those that an adapter trains there are the ids, on the host.
  virtual NamedTensors caption(const std::string& text) const = 0;
  // The same for the text that guidance leads away from; none given is not the same as an empty one.
  virtual NamedTensors negative(const std::optional<std::string>& text) const { return caption(text.value_or("")); }
  // Further parts [B, ...], that depend on the pictures' sizes.
  virtual NamedTensors framing(const std::vector<PictureFrame>& frames) const = 0;
  // All parts of a batch, the ids among them replaced by the states that the text encoders compute, under the tape.
  virtual NamedTensors encode_text(const NamedTensors& parts) const = 0;
  // Encoded parts of several texts as those of one batch, in their order. Where they may have unlike lengths, these are
  // made alike in a way that changes no prediction.
  virtual NamedTensors joined(const std::vector<NamedTensors>& texts) const;
  // Encoded parts for many steps, with what the denoiser makes of them whatever x and the timestep are.
  virtual NamedTensors prepared(const NamedTensors& parts) const { return parts; }
  // The prediction for the process. x [B, h, w, C], timestep [B] f32, encoded parts, prepared or not, among which
  // others may be.
  virtual Tensor predict(const Tensor& x, const Tensor& timestep, const NamedTensors& parts) const = 0;
  // The same without some layers of the denoiser, for skip-layer guidance; only where has_layers() is true.
  virtual Tensor predict_without(const std::vector<int64_t>& layers, const Tensor& x, const Tensor& timestep,
                                 const NamedTensors& parts) const;
  virtual bool has_layers() const { return false; }
  // Parts [R, ...] on the host for predict(), which depend on nothing but R of its timesteps and R rows of the parts
  // that parts_ahead() names, and are made for many steps at once. There are none where that is empty.
  virtual std::vector<std::string> parts_ahead() const { return {}; }
  virtual NamedTensors ahead(const Tensor& timesteps, const NamedTensors& parts) const;
};

struct DiffusionFamily {
  bool (*is_here)(const Checkpoint& model);
  std::unique_ptr<Diffusion> (*open)(const Checkpoint& model, const ReadingOptions& options);
  // The names that modules of all components have in LoRA files. The denoiser's config is read for them, if there is
  // one, and no other component.
  ModuleNames (*module_names)(const Checkpoint& model);
  std::string denoiser;  // its component
  // The denoiser's tensors that Quantization is for, under the names that its files have.
  std::set<std::string> (*in_blocks)(const Checkpoint& model);
  std::vector<Component> components;
  std::vector<KnownModel> known;
};

const std::vector<DiffusionFamily>& diffusion_families();
// Where the model is of no family, the first one: its open() names the missing part.
const DiffusionFamily& diffusion_family(const Checkpoint& model);
// Those that LoRAs are on, for which they may have strengths of their own: "text_encoder", "unet".
std::vector<std::string> adapted_components(const Checkpoint& model);
// Reads the model's configs. Throws Error that names the model where no family supports it.
std::unique_ptr<Diffusion> open_diffusion(const Checkpoint& model, const ReadingOptions& options = {});

}  // namespace wick

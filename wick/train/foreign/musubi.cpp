#include "wick/train/foreign/musubi.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "wick/io/quote.h"
#include "wick/train/foreign/command.h"
#include "wick/train/foreign/script_reader.h"

namespace wick {
namespace {

using MusubiKey = ForeignKey;
using MusubiTree = nlohmann::ordered_json;

constexpr std::string_view kOfVideo = "is for videos", kControl = "Wick has no reference pictures yet",
                           kNoSuchField = "Wick's files have no such field";

// All options that musubi-tuner's scripts share, those of FLUX.1 Kontext, and the keys of its data sets.
constexpr MusubiKey kMusubiKeys[] = {
    MusubiKey::idle("async_upload", kNoUpload),
    MusubiKey::refused("base_weights", "", "`wick merge` merges LoRAs into a model first"),
    MusubiKey::refused("base_weights_multiplier", "", "`wick merge` merges LoRAs into a model first"),
    MusubiKey::idle("block_swap_h2d_only", kOwnLoading),
    MusubiKey::idle("block_swap_ring_size", kOwnLoading),
    MusubiKey::together("blocks_to_swap"),
    MusubiKey::idle("compile", kCompiled),
    MusubiKey::idle("compile_backend", kCompiled),
    MusubiKey::idle("compile_cache_size_limit", kCompiled),
    MusubiKey::idle("compile_dynamic", kCompiled),
    MusubiKey::idle("compile_fullgraph", kCompiled),
    MusubiKey::idle("compile_mode", kCompiled),
    MusubiKey::idle("config_file", "names an option file"),
    MusubiKey::idle("cuda_allow_tf32", "--tf32 says it"),
    MusubiKey::idle("cuda_cudnn_benchmark", kOwnLoading),
    MusubiKey::together("dataset_config"),
    MusubiKey::together("datasets[0].batch_size"),
    MusubiKey::together("datasets[0].bucket_no_upscale"),
    MusubiKey::idle("datasets[0].cache_directory", "--cache names a folder for all"),
    MusubiKey::together("datasets[0].caption_extension"),
    MusubiKey::refused("datasets[0].control_directory", "", kControl),
    MusubiKey::refused("datasets[0].control_resolution", "", kControl),
    MusubiKey::together("datasets[0].enable_bucket"),
    MusubiKey::idle("datasets[0].fp_1f_clean_indices", kOfVideo),
    MusubiKey::idle("datasets[0].fp_1f_no_post", kOfVideo),
    MusubiKey::idle("datasets[0].fp_1f_target_index", kOfVideo),
    MusubiKey::idle("datasets[0].fp_latent_window_size", kOfVideo),
    MusubiKey::refused("datasets[0].frame_extraction", "", kOfVideo),
    MusubiKey::refused("datasets[0].frame_sample", "", kOfVideo),
    MusubiKey::refused("datasets[0].frame_stride", "", kOfVideo),
    MusubiKey::together("datasets[0].image_directory"),
    MusubiKey::refused("datasets[0].image_jsonl_file", "", "captions lie beside the pictures, in text files"),
    MusubiKey::refused("datasets[0].max_frames", "", kOfVideo),
    MusubiKey::refused("datasets[0].multiple_target", "false", ""),
    MusubiKey::refused("datasets[0].no_resize_control", "false", kControl),
    MusubiKey::together("datasets[0].num_repeats"),
    MusubiKey::together("datasets[0].resolution"),
    MusubiKey::refused("datasets[0].source_fps", "", kOfVideo),
    MusubiKey::refused("datasets[0].target_frames", "", kOfVideo),
    MusubiKey::refused("datasets[0].video_directory", "", kOfVideo),
    MusubiKey::refused("datasets[0].video_jsonl_file", "", kOfVideo),
    MusubiKey::idle("ddp_gradient_as_bucket_view", kOwnLoading),
    MusubiKey::idle("ddp_static_graph", kOwnLoading),
    MusubiKey::idle("ddp_timeout", kOwnLoading),
    MusubiKey::idle("dim_from_weights", "--from has the file's ranks"),
    MusubiKey::idle("disable_numpy_memmap", kOwnLoading),
    MusubiKey::together("discrete_flow_shift"),
    MusubiKey::setting("dit", "model"),
    MusubiKey::idle("dynamo_backend", kCompiled),
    MusubiKey::idle("dynamo_dynamic", kCompiled),
    MusubiKey::idle("dynamo_fullgraph", kCompiled),
    MusubiKey::idle("dynamo_mode", kCompiled),
    MusubiKey::idle("flash3", kFused),
    MusubiKey::idle("flash_attn", kFused),
    MusubiKey::together("fp8_base"),
    MusubiKey::idle("fp8_scaled", "fp8_base is always with scales"),
    MusubiKey::idle("fp8_t5", "Wick reads T5 once and caches the encoded captions"),
    MusubiKey::same("gradient_accumulation_steps"),
    MusubiKey::same("gradient_checkpointing"),
    MusubiKey::setting("gradient_checkpointing_cpu_offload", "checkpoints_on_host"),
    MusubiKey::idle("guidance_scale", "musubi-tuner trains FLUX.1 Kontext with a guidance of 1"),
    MusubiKey::idle("huggingface_path_in_repo", kNoUpload),
    MusubiKey::idle("huggingface_repo_id", kNoUpload),
    MusubiKey::idle("huggingface_repo_type", kNoUpload),
    MusubiKey::idle("huggingface_repo_visibility", kNoUpload),
    MusubiKey::idle("huggingface_token", kNoUpload),
    MusubiKey::idle("img_in_txt_in_offloading", kOwnLoading),
    MusubiKey::together("learning_rate"),
    MusubiKey::idle("log_config", kOwnLogs),
    MusubiKey::idle("log_prefix", kOwnLogs),
    MusubiKey::idle("log_tracker_config", kOwnLogs),
    MusubiKey::idle("log_tracker_name", kOwnLogs),
    MusubiKey::idle("log_with", kOwnLogs),
    MusubiKey::idle("logging_dir", kOwnLogs),
    MusubiKey::together("logit_mean"),
    MusubiKey::together("logit_std"),
    MusubiKey::refused("lr_decay_steps", "0", ""),
    MusubiKey::together("lr_scheduler"),
    MusubiKey::refused("lr_scheduler_args", "", ""),
    MusubiKey::refused("lr_scheduler_min_lr_ratio", "0", ""),
    MusubiKey::same("lr_scheduler_num_cycles"),
    MusubiKey::same("lr_scheduler_power"),
    MusubiKey::refused("lr_scheduler_timescale", "0", ""),
    MusubiKey::refused("lr_scheduler_type", "", "lr_scheduler names one"),
    MusubiKey::same("lr_warmup_steps"),
    MusubiKey::idle("max_data_loader_n_workers", kOwnLoading),
    MusubiKey::same("max_grad_norm"),
    MusubiKey::together("max_timestep"),
    MusubiKey::unless_zero("max_train_epochs"),
    MusubiKey::unless_zero("max_train_steps"),
    MusubiKey::idle("metadata_arch", kNoSuchField),
    MusubiKey::same("metadata_author"),
    MusubiKey::same("metadata_description"),
    MusubiKey::same("metadata_license"),
    MusubiKey::idle("metadata_reso", kNoSuchField),
    MusubiKey::same("metadata_tags"),
    MusubiKey::same("metadata_title"),
    MusubiKey::together("min_timestep"),
    MusubiKey::together("mixed_precision"),
    MusubiKey::refused("mode_scale", "1.29", ""),
    MusubiKey::together("network_alpha"),
    MusubiKey::together("network_args"),
    MusubiKey::together("network_dim"),
    MusubiKey::same("network_dropout"),
    MusubiKey::together("network_module"),
    MusubiKey::same("network_weights"),
    MusubiKey::same("no_metadata"),
    MusubiKey::refused("num_timestep_buckets", "0", ""),
    MusubiKey::together("optimizer_args"),
    MusubiKey::together("optimizer_type"),
    MusubiKey::same("output_dir"),
    MusubiKey::same("output_name"),
    MusubiKey::idle("persistent_data_loader_workers", kOwnLoading),
    MusubiKey::together("preserve_distribution_shape"),
    MusubiKey::refused("resume", "", "a state of musubi-tuner is not read; --resume goes on with a run of Wick's"),
    MusubiKey::idle("resume_from_huggingface", kNoUpload),
    MusubiKey::idle("sage_attn", kFused),
    MusubiKey::idle("sample_at_first", "always so"),
    MusubiKey::unless_zero("sample_every_n_epochs"),
    MusubiKey::unless_zero("sample_every_n_steps"),
    MusubiKey::same("sample_prompts"),
    MusubiKey::same("save_every_n_epochs"),
    MusubiKey::same("save_every_n_steps"),
    MusubiKey::together("save_last_n_epochs"),
    MusubiKey::idle("save_last_n_epochs_state", kOwnState),
    MusubiKey::together("save_last_n_steps"),
    MusubiKey::idle("save_last_n_steps_state", kOwnState),
    MusubiKey::together("save_precision"),
    MusubiKey::idle("save_state", kOwnState),
    MusubiKey::idle("save_state_on_train_end", kOwnState),
    MusubiKey::idle("save_state_to_huggingface", kNoUpload),
    MusubiKey::same("scale_weight_norms"),
    MusubiKey::together("script"),
    MusubiKey::idle("sdpa", kFused),
    MusubiKey::same("seed"),
    MusubiKey::idle("show_timesteps", "shows times and ends"),
    MusubiKey::together("sigmoid_scale"),
    MusubiKey::idle("split_attn", kFused),
    MusubiKey::setting("text_encoder1", "t5"),
    MusubiKey::setting("text_encoder2", "clip_l"),
    MusubiKey::together("timestep_sampling"),
    MusubiKey::same("training_comment"),
    MusubiKey::idle("use_pinned_memory_for_block_swap", kOwnLoading),
    MusubiKey::same("vae"),
    MusubiKey::idle("vae_dtype", "the VAE's dtype is the model's own choice"),
    MusubiKey::idle("wandb_api_key", kOwnLogs),
    MusubiKey::idle("wandb_run_name", kOwnLogs),
    MusubiKey::together("weighting_scheme"),
    MusubiKey::idle("xformers", kFused)};

constexpr std::string_view kMusubiScript = "flux_kontext_train_network.py";
// Scripts of musubi-tuner for models that Wick has not; kohya's scripts have none of these names.
constexpr std::string_view kOtherScripts[] = {
    "flux_2_train_network.py",     "fpack_train_network.py", "hidream_o1_train_network.py",
    "hv_1_5_train_network.py",     "hv_train_network.py",    "ideogram4_train_network.py",
    "kandinsky5_train_network.py", "krea2_train_network.py", "qwen_image_train_network.py",
    "wan_train_network.py",        "zimage_train_network.py"};
constexpr std::string_view kModels = "Wick trains FLUX.1 of musubi-tuner's models";

class MusubiReader : private ScriptReader {
 public:
  MusubiReader(const std::string& source, const MusubiTree& tree, bool is_command)
      : ScriptReader(source, "musubi-tuner", kMusubiKeys, tree, is_command) {}

  ForeignConfig operator()() {
    model_ = KohyaModel::flux;
    attempt([&] {
      settle_model();
      refuse_unknown_options();
      add_datasets();
    });
    attempt([&] { settle_previews(); });
    begin_folders(datasets_);
    read_table();
    for (size_t i = 0; i < datasets_; ++i)
      attempt([&] { settle_dataset(fmt::format("datasets[{}].", i), folders()[i]); });
    attempt([&] { settle_network(); });
    attempt([&] { settle_optimizer(); });
    attempt([&] { settle_schedule(); });
    attempt([&] { settle_precision(); });
    attempt([&] { settle_output(); });
    attempt([&] { settle_flow_times(1); });
    attempt([&] { settle_range(); });
    config_.train_guidance = 1;
    settle_steps();
    settle_folders("datasets");
    return finish();
  }

 private:
  // A command's script or the file's network says which model it is.
  void settle_model() {
    const std::string script = text(kScriptKey, kMusubiScript);
    if (script != kMusubiScript) refuse(kScriptKey, fmt::format("{}; found {}", kModels, quote(script)));
    static constexpr KohyaNetwork kMusubiNetworks[] = {
        {"networks.lora_flux", NetworkFamily::musubi_flux},
        {"networks.loha", NetworkFamily::musubi_flux, AdapterKind::loha},
        {"networks.lokr", NetworkFamily::musubi_flux, AdapterKind::lokr}};
    const std::string module = text("network_module", "");
    const auto* network = std::ranges::find(kMusubiNetworks, module, &KohyaNetwork::module);
    if (network == std::end(kMusubiNetworks))
      refuse("network_module",
             fmt::format("{}: expected networks.lora_flux, loha or lokr, found {}", kModels, quote(module)));
    network_ = *network;
    is_for(name_of_model(model_), "network_module");
  }

  // The TOML of the data sets. [general] has the defaults of all data sets.
  void add_datasets() {
    if (!has("dataset_config")) refuse("", "dataset_config is missing");
    claim("dataset_config", "dataset");
    const std::string name = text("dataset_config", "");
    const MusubiTree tree = read_option_tree(name);
    const MusubiTree general = tree.value("general", MusubiTree::object());
    const MusubiTree all = tree.value("datasets", MusubiTree::array());
    if (!all.is_array() || all.empty() || !general.is_object())
      refuse("dataset_config", fmt::format("{}: expected [[datasets]], found none", printable(name)));
    for (const MusubiTree& dataset : all) {
      if (!dataset.is_object()) refuse("dataset_config", fmt::format("{}: expected [[datasets]]", printable(name)));
      const std::string prefix = fmt::format("datasets[{}].", datasets_++);
      for (const auto& [key, value] : dataset.items()) add(prefix + key, value);
      for (const auto& [key, value] : general.items())
        if (!dataset.contains(key)) add(prefix + key, value);
    }
  }

  void settle_dataset(const std::string& path, PictureSection& folder) {
    if (!has(path + "image_directory")) refuse("", path + "image_directory is missing");
    folder.image_dir = text(path + "image_directory", "");
    set("dataset", folder.image_dir, path + "image_directory");
    if (!has(path + "caption_extension")) refuse("", path + "caption_extension is missing");
    set("caption_extension", text(path + "caption_extension", ""), path + "caption_extension");
    folder.repeats = int64_t(number(path + "num_repeats", 1));
    if (folder.repeats < 1 || folder.repeats > kMaxRepeats)
      refuse_value(path + "num_repeats", fmt::format("a number from 1 to {}", kMaxRepeats),
                   text(path + "num_repeats", ""));
    set("batch_size", text(path + "batch_size", "1"), path + "batch_size");
    settle_size(path);
  }

  // Sides are multiples of 16.
  void settle_size(const std::string& path) {
    static const std::vector<std::string> kDefault = {"960", "544"};
    const std::string key = path + "resolution";
    const std::vector<std::string>& sides = has(key) ? words(key) : kDefault;
    set("resolution", fmt::format("{}", fmt::join(sides, ",")), key);
    const bool has_buckets = is_set(path + "enable_bucket");
    if (!has_buckets) return set("no_bucket", "true", path + "enable_bucket");
    set("bucket_step", "16", path + "enable_bucket");
    if (is_set(path + "bucket_no_upscale")) set("no_upscale", "true", path + "bucket_no_upscale");
  }

  void settle_network() {
    read_network_arguments();
    set("rank", text("network_dim", "4"), "network_dim");
    const double alpha = number("network_alpha", 1);
    set("alpha", fmt::format("{}", alpha == 0 ? double(config_.rank.value) : alpha), "network_alpha");
    settle_sizes(alpha);
    set("lr", text("learning_rate", "2e-6"), "learning_rate");
    if (!config_.from.empty()) return;
    config_.adapter = network_.kind;
    claim("network_module", "adapter");
    config_.targets = modules_.targets;
    if (network_.kind == AdapterKind::lokr && arguments_.number("factor", -1) != -1)
      set_argument("lokr_factor", {arguments_.text("factor", "")}, "factor");
    settle_lora_plus(true, false);
  }

  // Times are scaled into the range. Those of sigma are counted from the other end there.
  void settle_range() {
    constexpr const char *kMin = "min_timestep", *kMax = "max_timestep", *kPreserves = "preserve_distribution_shape";
    if (!has(kMin) && !has(kMax)) {
      if (has(kPreserves)) drop(kPreserves, "means nothing without min_timestep and max_timestep");
      return;
    }
    const char* given = has(kMin) ? kMin : kMax;
    if (is_set(kPreserves)) refuse(kPreserves, "Wick scales times into their range; expected false");
    if (text("timestep_sampling", "sigma") == "sigma")
      refuse(given, "Wick has it with another timestep_sampling than sigma");
    for (const char* key : {kMin, kMax})
      if (has(key)) set(key, text(key, ""), key);
    set("timestep_range", "shifted", given);
  }

  size_t datasets_ = 0;
};

}  // namespace

bool is_of_musubi(const MusubiTree& tree) {
  if (const auto script = tree.find(kScriptKey); script != tree.end() && script->is_string()) {
    const auto name = script->get<std::string>();
    return name == kMusubiScript || std::ranges::find(kOtherScripts, name) != std::end(kOtherScripts);
  }
  const auto has_own = [](const MusubiTree& table) {
    return std::ranges::any_of(std::array{"dit", "fp8_scaled", "text_encoder1"},
                               [&](const char* key) { return table.contains(key); });
  };
  return has_own(tree) ||
         std::ranges::any_of(tree, [&](const MusubiTree& item) { return item.is_object() && has_own(item); });
}

ForeignConfig explain_musubi(const std::filesystem::path& file) {
  return MusubiReader(file.string(), read_option_tree(file), syntax_of(file) == OptionSyntax::script)();
}

std::span<const ForeignKey> musubi_keys() { return kMusubiKeys; }

}  // namespace wick

// Models of pictures with adapters in their files, in every layout: they compute what model and adapters do, and their
// files are otherwise those of the model.
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "pipelines/drawn_models.h"
#include "pipelines/golden.h"
#include "wick/io/json.h"
#include "wick/pipelines/forward.h"
#include "wick/pipelines/merge.h"
#include "wick/pipelines/stored_tensors.h"

namespace wick {
namespace {

using Names = std::set<std::string>;

std::string bytes_of(const SafetensorsFile& file, const std::string& name) {
  std::string bytes(size_t(*file.tensors().at(name).bytes), '\0');
  file.bytes(name)(bytes.data(), 0, bytes.size());
  return bytes;
}

std::vector<std::string> in_order(const SafetensorsFile& file) {
  std::vector<std::tuple<uint64_t, uint64_t, std::string>> all;
  for (const auto& [name, info] : file.tensors()) all.emplace_back(info.begin, *info.bytes, name);
  std::ranges::sort(all);
  std::vector<std::string> names;
  for (const auto& [begin, bytes, name] : all) names.push_back(name);
  return names;
}

// The tensors whose bytes differ; all else of the files is alike.
Names changes(const fs::path& before, const fs::path& after) {
  const SafetensorsFile old = SafetensorsFile::open(before), merged = SafetensorsFile::open(after);
  EXPECT_EQ(in_order(old), in_order(merged));
  EXPECT_EQ(old.metadata(), merged.metadata());
  Names changed;
  for (const auto& [name, info] : old.tensors()) {
    EXPECT_EQ(merged.tensors().at(name).dtype_name, info.dtype_name) << name;
    EXPECT_EQ(merged.tensors().at(name).shape, info.shape) << name;
    if (bytes_of(old, name) != bytes_of(merged, name)) changed.insert(name);
  }
  return changed;
}

template <class Models>
class Merged : public Models {
 protected:
  using Models::folder_;
  using Parts = std::map<std::string, fs::path>;

  // A LoRA of all modules that these patterns fit, with factors of which none is zero.
  fs::path lora(const std::string& name, const Checkpoint& model, const std::vector<std::string>& targets = {"*"}) {
    Adapter adapter({.rank = 3, .alpha = 2, .targets = targets}, diffusion_family(model).module_names(model));
    for (const Component& component : diffusion_family(model).components)
      if (!component.lora_prefixes.empty() && model.has(component.name)) component.load({model, &adapter, {}});
    Tensors tensors = adapter.tensors();
    Rng rng(5);
    for (auto& [key, tensor] : tensors)
      if (key.ends_with(".lora_up.weight")) tensor = 0.2f * random_normal(tensor.shape(), rng);
    return Models::save(name, tensors);
  }
  // With other programs' names: of modules with so many inputs and outputs.
  fs::path lora_of(const std::string& name, const std::map<std::string, std::pair<int64_t, int64_t>>& modules) {
    Tensors tensors;
    for (const auto& [module, sizes] : modules) {
      tensors[module + ".lora_A.weight"] = Models::random(31, {2, sizes.first});
      tensors[module + ".lora_B.weight"] = Models::random(37, {sizes.second, 2});
    }
    return Models::save(name, tensors);
  }

  Tensors forward(const Checkpoint& model, const std::string& component, const Tensors& in,
                  const std::vector<LoraFile>& loras = {}) {
    save_safetensors(folder_ / "in", in);
    run_forward(model, component, folder_ / "in", folder_ / "out", {.loras = loras});
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "out");
    Tensors out;
    for (const auto& [name, info] : file.tensors()) out[name] = file.load(name);
    return out;
  }
  // `loras` are those that a component has modules in.
  using LorasOf = std::map<std::string, std::vector<LoraFile>>;
  void expect_same_results(const Checkpoint& merged, const Checkpoint& model, const LorasOf& loras,
                           const std::map<std::string, Tensors>& inputs) {
    for (const auto& [component, in] : inputs) {
      const auto adapted = loras.find(component);
      const Tensors found = forward(merged, component, in), plain = forward(model, component, in),
                    expected = adapted == loras.end() ? plain : forward(model, component, in, adapted->second);
      for (const auto& [name, value] : expected) {
        EXPECT_LT(relative_error(found.at(name), value), 1e-5) << component << ": " << name;
        EXPECT_TRUE(adapted == loras.end() || relative_error(plain.at(name), value) > 1e-3)
            << component << ": " << name;
      }
    }
  }

  // Which tensors of a file hold modules that adapters may be on.
  static Names modules_in(const fs::path& path, const std::vector<std::string>& prefixes = {""}) {
    Names names;
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, info] : file.tensors()) {
      const auto begins = [&name = name](const std::string& prefix) { return name.starts_with(prefix); };
      const auto has = [&name = name](const char* part) { return name.find(part) != name.npos; };
      if (info.shape.rank() < 2 || !std::ranges::any_of(prefixes, begins)) continue;
      const bool is_table = has("embedding") || has("shared.") || has("relative_attention_bias");
      if ((is_table && !has("time_embedding") && !has("add_embedding")) || name.ends_with("pos_embed")) continue;
      names.insert(name);
    }
    return names;
  }
};

using MergedFlux = Merged<DrawnModels>;
using MergedSdxl = Merged<DrawnSdxl>;

TEST_F(MergedFlux, IsWhatModelAndLorasAre) {
  const Tensors transformer = drawn_flux(), diffusers = in_diffusers_layout(transformer, kFluxLayout);
  const auto inputs = flux_inputs();
  const Checkpoint model = this->model(
      {.model = save_folder(
           kFlux, {{"transformer", diffusers}, {"text_encoder", clip_l_}, {"text_encoder_2", t5_}, {"vae", vae_}})});
  const std::vector<LoraFile> loras = {
      {lora("all", model), 0.75f, {{"text_encoder_2", -0.5f}}},
      {lora_of("split", {{"transformer.transformer_blocks.0.attn.add_k_proj", {64, 64}},
                         {"transformer.single_transformer_blocks.1.proj_mlp", {64, 256}},
                         {"transformer.norm_out.linear", {64, 128}}}),
       -0.25f}};
  const LorasOf adapted = {{"transformer", loras}, {"text_encoder", {loras[0]}}, {"text_encoder_2", {loras[0]}}};

  // A folder, one of whose networks has shards.
  const fs::path folder = folder_ / "diffusers", weights = folder / "transformer/diffusion_pytorch_model.safetensors";
  const SafetensorsFile whole = SafetensorsFile::open(weights);
  std::vector<SafetensorsGroup> groups;
  for (const auto& [name, info] : whole.tensors()) groups.push_back(copied(name, whole));
  save_shards(weights, groups, {{"format", "pt"}}, 100'000);
  fs::remove(weights);
  fs::create_directory(folder / "tokenizer");
  write_plain(folder / "tokenizer/vocab.json", "{}");
  const MergedPictures merged = merge_into_pictures(folder, loras, folder_ / "merged");
  EXPECT_GT(merged.files.size(), 4);
  for (const fs::path& file : merged.files) {
    SCOPED_TRACE(file);
    const fs::path from = folder / file.lexically_relative(folder_ / "merged");
    EXPECT_EQ(changes(from, file), modules_in(from));
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path there = folder_ / "merged" / entry.path().lexically_relative(folder);
    ASSERT_TRUE(fs::exists(there)) << there;
    if (!entry.is_regular_file() || std::ranges::find(merged.files, there) != merged.files.end()) continue;
    EXPECT_EQ(read_plain(there), read_plain(entry.path())) << there;
  }
  expect_same_results(this->model({.model = folder_ / "merged"}), model, adapted, inputs);

  // One file.
  Tensors all = behind("model.diffusion_model.", transformer);
  all.merge(behind("text_encoders.clip_l.transformer.", clip_l_));
  all.merge(behind("text_encoders.t5xxl.transformer.", t5_));
  all.merge(behind("vae.", in_ldm_layout(vae_)));
  const fs::path one = save("one.safetensors", all), to = folder_ / "one merged.safetensors";
  EXPECT_EQ(merge_into_pictures(one, loras, to).files, std::vector{to});
  EXPECT_EQ(changes(one, to), modules_in(one, {"model.", "text_encoders."}));
  expect_same_results(this->model({.model = to}), model, adapted, inputs);

  // Parts, of which some change.
  const Parts parts = {{"transformer", save("flux.safetensors", transformer)},
                       {"clip_l", save("clip_l.safetensors", clip_l_)},
                       {"t5", save("t5.safetensors", t5_)},
                       {"vae", save("vae.safetensors", vae_)}};
  const std::vector<LoraFile> some = {{loras[0].path, 0.5f, {{"text_encoder_2", 0.0f}}}};
  const MergedPictures changed = merge_into_pictures(this->model({.parts = parts}), some, folder_ / "parts");
  EXPECT_EQ(Names({changed.files[0].filename(), changed.files[1].filename()}),
            Names({"flux.safetensors", "clip_l.safetensors"}));
  EXPECT_FALSE(fs::exists(folder_ / "parts/t5.safetensors"));
  Parts others = parts;
  for (const char* part : {"transformer", "clip_l"}) others[part] = folder_ / "parts" / parts.at(part).filename();
  expect_same_results(this->model({.parts = others}), model, {{"transformer", some}, {"text_encoder", some}}, inputs);

  // A LoRA of text encoders too goes into a transformer alone where it has no strength for them.
  const Checkpoint alone(ModelFiles{.parts = {{"transformer", parts.at("transformer")}}});
  Tensors of_transformer;
  const SafetensorsFile both = SafetensorsFile::open(loras[0].path);
  for (const auto& [key, info] : both.tensors())
    if (key.starts_with("lora_unet_")) of_transformer[key] = both.load(key);
  EXPECT_LT(of_transformer.size(), both.tensors().size());
  merge_into_pictures(alone, {{loras[0].path, 0.75f, {{"text_encoder", 0.0f}, {"text_encoder_2", 0.0f}}}},
                      folder_ / "whole.safetensors");
  merge_into_pictures(alone, {{save("of transformer", of_transformer), 0.75f}}, folder_ / "alone.safetensors");
  EXPECT_EQ(changes(folder_ / "whole.safetensors", folder_ / "alone.safetensors"), Names());
  const std::vector<LoraFile> some_strength = {{loras[0].path, 1, {{"text_encoder", 0.0f}}}};
  expect_error([&] { merge_into_pictures(alone, some_strength, folder_ / "no.safetensors"); },
               {"text_encoder_2", "not among the files", "strength of 0"});

  // A part of a fused module changes no more of a split one, and the other way.
  const std::vector<LoraFile> part = {{loras[1].path}};
  merge_into_pictures(Checkpoint(ModelFiles{.parts = {{"transformer", parts.at("transformer")}}}), part,
                      folder_ / "part.safetensors");
  EXPECT_EQ(changes(parts.at("transformer"), folder_ / "part.safetensors"),
            Names({"double_blocks.0.txt_attn.qkv.weight", "single_blocks.1.linear1.weight",
                   "final_layer.adaLN_modulation.1.weight"}));
  const fs::path split = save("split.safetensors", diffusers);
  merge_into_pictures(split, part, folder_ / "part.safetensors");
  EXPECT_EQ(changes(split, folder_ / "part.safetensors"),
            Names({"transformer_blocks.0.attn.add_k_proj.weight", "single_transformer_blocks.1.proj_mlp.weight",
                   "norm_out.linear.weight"}));
}

TEST_F(MergedFlux, Sd3IsWhatModelAndLorasAre) {
  const Tensors transformer = drawn_sd3();
  const auto inputs = sd3_inputs();
  const fs::path folder = save_folder(kSd3, {{"transformer", in_diffusers_layout(transformer, kSd3Layout)},
                                             {"text_encoder", clip_l_},
                                             {"text_encoder_2", big_g_},
                                             {"text_encoder_3", t5_},
                                             {"vae", vae_}});
  const Checkpoint model = this->model({.model = folder});
  const std::vector<LoraFile> loras = {{lora("all", model), 0.75f}};
  LorasOf adapted;
  for (const std::string& component : adapted_components(model)) adapted[component] = loras;
  EXPECT_EQ(adapted.size(), 4);
  const MergedPictures merged = merge_into_pictures(folder, loras, folder_ / "merged");
  ASSERT_EQ(merged.files.size(), 4);
  for (const fs::path& file : merged.files) {
    const fs::path from = folder / file.lexically_relative(folder_ / "merged");
    EXPECT_EQ(changes(from, file), modules_in(from)) << file;
  }
  expect_same_results(this->model({.model = folder_ / "merged"}), model, adapted, inputs);

  Tensors all = behind("model.diffusion_model.", transformer);
  all.merge(behind("text_encoders.clip_l.transformer.", clip_l_));
  all.merge(behind("text_encoders.clip_g.transformer.", big_g_));
  all.merge(behind("text_encoders.t5xxl.transformer.", t5_));
  all.merge(behind("first_stage_model.", in_ldm_layout(vae_)));
  const fs::path one = save("one.safetensors", all), to = folder_ / "one merged.safetensors";
  merge_into_pictures(one, loras, to);
  EXPECT_EQ(changes(one, to), modules_in(one, {"model.", "text_encoders."}));
  expect_same_results(this->model({.model = to}), model, adapted, inputs);
}

TEST_F(MergedSdxl, IsWhatModelAndLorasAre) {
  const auto inputs = sdxl_inputs();
  const fs::path from = folder();
  const Checkpoint model = this->model({.model = from}, false);
  const std::vector<LoraFile> loras = {{lora("all", model), 0.75f, {{"unet", 0.5f}}},
                                       {lora("some", model, {"*resnets*", "text_encoder_2.*"}), -0.5f}};
  const LorasOf adapted = {{"unet", loras}, {"text_encoder", {loras[0]}}, {"text_encoder_2", loras}};
  const MergedPictures merged = merge_into_pictures(from, loras, folder_ / "merged");
  ASSERT_EQ(merged.files.size(), 3);
  for (const fs::path& file : merged.files) {
    const fs::path old = from / file.lexically_relative(folder_ / "merged");
    EXPECT_EQ(changes(old, file), modules_in(old)) << file;
  }
  expect_same_results(this->model({.model = folder_ / "merged"}, false), model, adapted, inputs);

  // OpenCLIP's fused and turned matrices; convolutions where others have linears.
  const fs::path one = save("one.safetensors", in_one_file()), to = folder_ / "one merged.safetensors";
  merge_into_pictures(one, loras, to);
  EXPECT_EQ(changes(one, to), modules_in(one, {"model.", "conditioner."}));
  expect_same_results(this->model({.model = to}, false), model, adapted, inputs);
  const fs::path unet = save("unet.safetensors", in_sgm_layout(unet_, /*convolutions=*/true));
  const std::vector<LoraFile> unet_alone = {{lora("unet lora", model, {"unet.*"}), 0.75f}};
  merge_into_pictures(this->model({.model = one, .parts = {{"transformer", unet}}}, false), unet_alone,
                      folder_ / "unet merged.safetensors");
  EXPECT_EQ(changes(unet, folder_ / "unet merged.safetensors"), modules_in(unet));
  expect_same_results(
      this->model({.model = one, .parts = {{"transformer", folder_ / "unet merged.safetensors"}}}, false), model,
      {{"unet", unet_alone}}, inputs);

  // One of the three projections that OpenCLIP has in one: the rows of the other two stay.
  const fs::path key = lora("key", model, {"text_encoder_2.*.0.self_attn.k_proj"});
  merge_into_pictures(one, {{key, 1}}, to);
  const std::string fused = "conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj_weight";
  EXPECT_EQ(changes(one, to), Names({fused}));
  const std::string before = bytes_of(SafetensorsFile::open(one), fused),
                    after = bytes_of(SafetensorsFile::open(to), fused);
  const size_t third = before.size() / 3;
  EXPECT_EQ(before.substr(0, third), after.substr(0, third));
  EXPECT_NE(before.substr(third, third), after.substr(third, third));
  EXPECT_EQ(before.substr(2 * third), after.substr(2 * third));
}

// A UNet in a type, and a LoRA that is merged into it and into its f32 copy: each weight of one is within a rounding of
// that of the other.
class MergedTypes : public MergedSdxl {
 protected:
  // `step` tells the distance of numbers of the type around a value.
  void expect_rounded(const fs::path& from, const std::function<float(float value, float largest)>& step) {
    SCOPED_TRACE(from);
    const fs::path merged = folder_ / "m.safetensors";
    merge_into_pictures(unet(from), {by_}, merged);
    for (const std::string& name : changes(from, merged))
      EXPECT_TRUE(changed_.contains(name) || name.ends_with("scale_weight")) << name;
    const SafetensorsFile file = SafetensorsFile::open(merged);
    const TensorSource found = safetensors_source(merged);
    for (const std::string& name : changed_) {
      const std::vector<float> x = wanted_.load(name).to_vector(),
                               y = cast(found.find(name, {})->load(host_memory()), DType::f32).to_vector();
      float largest = 0, worst = 0;  // in steps
      for (const float value : x) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < x.size(); ++i)
        worst = std::max(worst, std::abs(x[i] - y[i]) / step(std::abs(x[i]), largest));
      EXPECT_LE(worst, 0.5001f) << name;
      const bool is_exact = file.tensors().at(name).dtype == DType::f32;
      EXPECT_EQ(worst == 0, is_exact) << name;
    }
  }
  // Beside the encoder whose width tells its sizes.
  Checkpoint unet(const fs::path& file) {
    return ModelFiles{.parts = {{"transformer", file}, {"clip_g", save("g.safetensors", big_g_)}}};
  }

  static float ulp(float value, int bits, int least) {
    return std::ldexp(1.0f, std::max(value == 0 ? least : std::ilogb(value), least) - bits);
  }
  fs::path merged_exactly(const fs::path& to) {
    merge_into_pictures(unet(exact_), {by_}, to);
    return to;
  }

  const Tensors native_ = in_sgm_layout(unet_, false);
  const fs::path exact_ = save("exact.safetensors", native_);
  const LoraFile by_{lora("by", unet(exact_), {"unet.mid_block.*.attn1.*", "unet.*.1.resnets.0.*"}), 1};
  const SafetensorsFile wanted_ = SafetensorsFile::open(merged_exactly(folder_ / "wanted.safetensors"));
  const Names changed_ = changes(exact_, wanted_.path());
};

TEST_F(MergedTypes, KeepTheirTypes) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensors narrow;
    for (const auto& [name, value] : native_) narrow[name] = cast(value, dtype);
    const bool is_f16 = dtype == DType::f16;
    expect_rounded(save("x.safetensors", narrow),
                   [=](float value, float) { return ulp(value, is_f16 ? 10 : 7, is_f16 ? -14 : -126); });
  }
  expect_rounded(save_fp8("x.safetensors", native_, 1), [](float value, float) { return ulp(value, 3, -6); });
  expect_rounded(save_fp8("x.safetensors", native_, 0.0625f), [](float value, float largest) {
    const float scale = largest / 448;
    return scale * ulp(value / scale, 3, -6);
  });
}

TEST_F(MergedTypes, BecomeAnother) {
  const fs::path to = folder_ / "to.safetensors";
  for (const float scale : {1.0f, 0.0625f}) {  // nothing is rounded twice
    merge_into_pictures(unet(save_fp8("x.safetensors", native_, scale)), {by_}, to, DType::f32);
    const SafetensorsFile found = SafetensorsFile::open(to);
    EXPECT_EQ(found.tensors().size(), wanted_.tensors().size()) << "the scales are gone";
    for (const auto& [name, info] : wanted_.tensors())
      EXPECT_EQ(found.load(name).to_vector(), wanted_.load(name).to_vector()) << name;
  }
  merge_into_pictures(unet(exact_), {by_}, to, DType::bf16);
  const SafetensorsFile found = SafetensorsFile::open(to);
  for (const auto& [name, info] : wanted_.tensors()) {
    const bool is_vector = info.shape.rank() < 2;
    EXPECT_EQ(found.tensors().at(name).dtype, is_vector ? DType::f32 : DType::bf16) << name;
    EXPECT_EQ(found.load(name).to_vector(),
              (is_vector ? wanted_.load(name) : cast(wanted_.load(name), DType::bf16)).to_vector());
  }
  // A folder's configs tell of it.
  const fs::path from = folder();
  write_plain(from / "text_encoder/config.json", replaced(kClip, "{", R"({"torch_dtype": "float32", )"));
  merge_into_pictures(from, {by_}, folder_ / "merged", DType::f16);
  EXPECT_EQ(read_json(folder_ / "merged/text_encoder/config.json").at("torch_dtype"), "float16");
  for (const char* name : {"text_encoder/model.safetensors", "vae/diffusion_pytorch_model.safetensors"}) {
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "merged" / name);
    for (const auto& [tensor, info] : file.tensors())
      EXPECT_EQ(info.dtype, info.shape.rank() < 2 ? DType::f32 : DType::f16) << tensor;
  }
}

TEST_F(MergedTypes, WriteNothingWhereTheyCannot) {
  const fs::path from = folder(), to = folder_ / "to", file = folder_ / "to.safetensors";
  const Checkpoint model = this->model({.model = from}, false);
  const LoraFile all{lora("all", model)}, text{lora("text", model, {"text_encoder.*"})};
  const fs::path bare = save("bare.safetensors", in_sgm_layout(unet_, false));
  expect_error([&] { merge_into_pictures(from, {all}, from); }, {"diffusers", "--output"});
  expect_error([&] { merge_into_pictures(unet(bare), {text}, file); }, {"text", "text_encoder", "not among the files"});
  expect_error([&] { merge_into_pictures(from, {{all.path, 0}}, to); }, {"nothing", "would change"});
  expect_error(
      [&] {
        merge_into_pictures(from, {{lora_of("flux", {{"transformer.transformer_blocks.0.attn.to_q", {64, 64}}})}}, to);
      },
      {"flux", "no layer of this model", "FLUX"});
  expect_error([&] { merge_into_pictures(from, {all}, to, DType::q8_0); }, {"--dtype", "q8_0"});
  lora("unet", model, {"unet.*"});
  expect_error([&] { merge_into_pictures(save("one.safetensors", in_one_file()), {{folder_ / "unet"}}, to); },
               {"--output", ".safetensors", "one file"});
  expect_error(
      [&] {
        merge_into_pictures(unet(save_gguf_file("x.gguf", in_sgm_layout(unet_, false), DType::f32)),
                            {{folder_ / "unet"}}, file);
      },
      {"x.gguf", "GGUF", "safetensors"});
  const Checkpoint parts = this->model({.parts = {{"transformer", bare},
                                                  {"clip_l", save("l.safetensors", clip_l_)},
                                                  {"clip_g", save("g.safetensors", big_g_)}}},
                                       false);
  expect_error([&] { merge_into_pictures(parts, {all}, file); }, {"--output", "folder", "bare", "l.safetensors"});

  Tensors damaged = in_sgm_layout(unet_, false);
  Tensor& weight = damaged.at("out.2.weight");
  weight = full(weight.shape(), NAN);
  expect_error([&] { merge_into_pictures(unet(save("nan.safetensors", damaged)), {{folder_ / "unet"}}, file); },
               {"nan.safetensors", "out.2.weight", "damaged"});
  weight = full(weight.shape(), 1e5f);
  expect_error(
      [&] { merge_into_pictures(unet(save("large.safetensors", damaged)), {{folder_ / "unet"}}, file, DType::f16); },
      {"out.2.weight", "too large", "--dtype"});
  save_safetensors(from / "unet/diffusion_pytorch_model.safetensors", [&] {
    Tensors unet = unet_;
    unet.at("conv_out.weight") = weight;
    return unet;
  }());
  expect_error([&] { merge_into_pictures(from, {all}, to, DType::f16); }, {"conv_out.weight", "too large"});
  EXPECT_FALSE(fs::exists(to)) << "half a model";
  EXPECT_FALSE(fs::exists(file));
}

}  // namespace
}  // namespace wick

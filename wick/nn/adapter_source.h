// A file of adapters, opened: where the factors of each of its modules stand, and what they are once a layer asks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "wick/io/safetensors.h"
#include "wick/nn/adapter.h"
#include "wick/nn/peft.h"

namespace wick {

class AdapterSource {
 public:
  static AdapterSource open(const LoraFile& file, bool trainable);

  std::string name() const { return file_.path().string(); }
  const LoraFile& given() const { return given_; }
  bool is_trainable() const { return trainable_; }
  size_t module_count() const { return entries_.size(); }

  // The names among these that the file has. Throws Error where two of them stand for the same rows.
  std::vector<const ModuleName*> find(const std::vector<ModuleName>& names);
  // Whether one of these has an algorithm that does not stack.
  bool stands_apart(const std::vector<ModuleName>& names) const;
  // The factors of a module that find() found, checked against the site.
  AdapterModule read(const std::string& written_name, const ModuleName& found, const LoraSite& site) const;
  // For modules that the file does not change: throws Error if it replaces their matrix by another one.
  void check_base(const std::vector<ModuleName>& names, const LoraSite& site) const;
  // Throws Error if a module was not asked for that is not of the components whose names start with `elsewhere`.
  void check_complete(const std::vector<std::string>& elsewhere) const;
  // Remarks: tensors that are left aside, and slow work.
  std::vector<std::string> notes() const;

 private:
  struct Entry {
    const AdapterAlgorithm* algorithm = nullptr;
    std::vector<std::string> keys = {};  // of its factors, in the algorithm's order; empty where there is none
    std::string alpha = {}, scalar = {}, magnitude = {};  // their keys
    bool used = false;
  };
  struct Base {  // the matrix of a module as PEFT had it, which it puts in the place of the model's
    std::string key;
    mutable bool used = false;
  };

  AdapterSource(SafetensorsFile file, LoraFile given, bool trainable, LoraSettings settings)
      : file_(std::move(file)), given_(std::move(given)), trainable_(trainable), settings_(std::move(settings)) {}
  std::string in_words() const;
  void index();
  void add(const std::string& key);
  static std::string first_key(const Entry& entry);
  void check_factors(const std::string& base, const Entry& entry) const;
  std::vector<AdapterFactor> read_factors(const Entry& entry) const;
  float alpha_of(const std::string& name_in_file, const Entry& entry, int64_t rank) const;
  float number(const std::string& key) const;
  void take_part_out(AdapterModule& module, TakenFromBase taken, const std::string& name_in_file,
                     const LoraSite& site) const;
  void make_trainable(AdapterModule& module) const;
  Tensor read_finite(const std::string& key) const;

  SafetensorsFile file_;
  LoraFile given_;
  bool trainable_;
  LoraSettings settings_;
  std::map<std::string, Entry> entries_ = {};  // by base name
  std::map<std::string, Base> bases_ = {};     // by base name
  int64_t embeddings_ = 0;                     // tensors that teach words, beside the LoRA
  const char* model_ = nullptr;                // model_of_lora()
};

}  // namespace wick

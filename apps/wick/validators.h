// The numbers and paths that the command line accepts, checked in this one place: CLI11's own checks let NaN through
// and read 010 as eight.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "wick/nn/adapter.h"

namespace wick::cli {

// Numbers are for Option::transform: check() would drop the canonical form that they are rewritten to.
CLI::Validator integer_in(int64_t min, int64_t max);  // decimal
CLI::Validator number_in(double min, double max);     // finite, both bounds included
CLI::Validator number_above(double min, double max = std::numeric_limits<double>::max());  // finite, min excluded
inline CLI::Validator positive_integer() { return integer_in(1, std::numeric_limits<int32_t>::max()); }
inline CLI::Validator seed_number() { return integer_in(0, std::numeric_limits<int64_t>::max()); }

CLI::Validator not_empty();
CLI::Validator image_file_or_folder();  // a name that pictures are written by
CLI::Validator one_of(const std::vector<std::string>& names);
// The option takes one of these, which are its type in help and completions too.
void set_choices(CLI::Option* option, const std::vector<std::string>& names);

// The same of types of elements, which other programs' names stand for too (core/dtype_names.h).
void set_dtypes(CLI::Option* option, const std::vector<std::string>& names);

// The types in which Wick writes matrices.
std::vector<std::string> written_dtypes();
std::optional<DType> parse_dtype(const std::string& name);  // none if there is no name

// Throw Error before long work starts, where the later write would fail or destroy something. `flag` names the
// argument.
struct Output {
  std::filesystem::path path;
  const char* flag;
  bool overwrite = false;                          // an existing file may be overwritten,
  std::vector<std::filesystem::path> inputs = {};  // except these, and files in those that are folders
};
void check_output_file(const Output& output);
// For a path that will be a file or a folder: it may be free, an empty folder, or a file that may be overwritten.
void check_output_path(const Output& output);
void check_input_file(const std::filesystem::path& path, const char* flag);

// Each is FILE, FILE:STRENGTH, or with strengths of these parts of the model FILE:PART=STRENGTH,... where a number
// without a name may come first; a file whose own name ends so is found first. Any part will do where none are given.
std::vector<LoraFile> parse_loras(const std::vector<std::string>& arguments,
                                  const std::optional<std::vector<std::string>>& parts = std::vector<std::string>());
// "A:0.8+B", or "none". A file whose own name has a + is found first.
std::vector<LoraFile> parse_lora_set(const std::string& argument, const std::vector<std::string>& parts = {});
// The files of LoRAs behind the other inputs.
std::vector<std::filesystem::path> inputs_of(const std::vector<LoraFile>& loras,
                                             std::vector<std::filesystem::path> inputs);

}  // namespace wick::cli

#include "wick/train/encoding_cache.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/file.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/io/sha256.h"
#include "wick/ops/shape.h"
#include "wick/train/output_folder.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// To be raised with every change of what encoders give, of how pictures are scaled, or of these files.
constexpr const char* kVersion = "wick encoding 1";
constexpr const char *kFormat = "format", *kHash = "sha256", *kHost = "on the host";

// Names in a file begin with their number, so that they have their order again.
constexpr size_t kNumber = 3;
std::string name_in_file(size_t index, const std::string& name) { return fmt::format("{:02} {}", index, name); }

}  // namespace

EncodingCache::EncodingCache(fs::path folder, std::string made_by, std::function<Memory&()> device)
    : folder_(std::move(folder)), made_by_(std::move(made_by)), device_(std::move(device)) {
  make_directories(folder_);
  remove_stale_temporaries(folder_);
}

NamedTensors EncodingCache::get(const std::string& key, const std::function<NamedTensors()>& make, const Fits& fits) {
  const fs::path file = file_of(key);
  NamedTensors tensors;
  if (read(file, fits, tensors)) return tensors;
  ++made_;
  tensors = make();
  if (failure_.empty()) write(file, tensors);
  return tensors;
}

bool EncodingCache::has(const std::string& key) const {
  std::error_code ignored;
  return fs::exists(file_of(key), ignored);
}

fs::path EncodingCache::file_of(const std::string& key) const {
  return folder_ / (sha256_hex(fmt::format("{}:{}{}", made_by_.size(), made_by_, key)) + ".safetensors");
}

bool EncodingCache::read(const fs::path& file, const Fits& fits, NamedTensors& tensors) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return false;
  try {
    const SafetensorsFile saved = SafetensorsFile::open(file);
    const auto& metadata = saved.metadata();
    check(metadata.contains(kFormat) && metadata.at(kFormat) == kVersion, "{}: of another version", file.string());
    std::map<std::string, Tensor> all;
    for (const auto& [name, info] : saved.tensors()) all[name] = saved.load(name);
    check(metadata.contains(kHash) && metadata.at(kHash) == sha256_of_tensors(all), "{}: damaged", file.string());
    const std::string on_host = metadata.contains(kHost) ? metadata.at(kHost) : "";
    NamedTensors found;
    for (const auto& [name, value] : all) {
      check(name.size() > kNumber, "{}: has a tensor {}, which no encoder makes", file.string(), quote(name));
      found.add(name.substr(kNumber), on_host.find(name) != on_host.npos ? value : value.to(device_()));
    }
    check(!fits || fits(found), "{}: is not of this picture or caption", file.string());
    tensors = found;
    ++found_;
    return true;
  } catch (const OutOfMemory&) {
    throw;
  } catch (const TooManyFiles&) {
    throw;
  } catch (const Error&) {
    ++stale_;
    return false;
  }
}

void EncodingCache::write(const fs::path& file, const NamedTensors& tensors) {
  constexpr uint64_t kLeft = uint64_t{1} << 30;  // for results and states
  if (const auto free = free_disk(folder_); free && *free < kLeft) {
    failure_ = fmt::format("{}: only {} are free there", folder_.string(), readable_bytes(*free));
    return;
  }
  std::map<std::string, Tensor> all;
  std::string on_host;
  for (const auto& [name, value] : tensors) {
    const std::string numbered = name_in_file(all.size(), name);
    if (value.memory().on_host()) on_host += numbered + "\n";
    all[numbered] = contiguous(value).to(host_memory());
  }
  try {
    save_safetensors(file, all, {{kFormat, kVersion}, {kHash, sha256_of_tensors(all)}, {kHost, on_host}});
  } catch (const OutOfMemory&) {
    throw;
  } catch (const TooManyFiles&) {
    throw;
  } catch (const Error& e) {
    failure_ = e.what();
  }
}

std::vector<std::string> EncodingCache::remarks() const {
  std::vector<std::string> all;
  const size_t read = found_ + made_, found = found_ - std::min(found_, shared_);
  if (found > 0)
    all.push_back(fmt::format("{} of {} were in {}.", found, count_of(read, "encoding"), folder_.string()));
  if (stale_ > 0)
    all.push_back(fmt::format("{} in {} {} of another version of Wick or damaged, and made again.",
                              count_of(stale_, "encoding"), folder_.string(), stale_ == 1 ? "was" : "were"));
  if (!failure_.empty()) all.push_back(fmt::format("Encodings are not kept: {}.", failure_));
  return all;
}

}  // namespace wick

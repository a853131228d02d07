#include "wick/train/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/train/event_file.h"
#include "wick/train/loss_plot.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr const char *kFoundLr = "d*lr", *kPartNorms = "grad_norms";

std::string metrics_line(const StepRecord& r) {
  nlohmann::ordered_json line = {{"step", r.step}, {"loss", r.loss}, {"lr", r.lr}, {"grad_norm", r.grad_norm}};
  for (const auto& [part, norm] : r.part_norms) line[kPartNorms][part] = norm;
  if (r.found_lr) line[kFoundLr] = *r.found_lr;
  if (r.val_loss) line["val_loss"] = *r.val_loss;
  line["seconds"] = r.seconds;
  line["time"] = r.time;
  return line.dump() + "\n";
}

std::string event_record(const StepRecord& r) {
  ScalarEvent event{.wall_time = r.time,
                    .step = r.step,
                    .scalars = {{"loss", float(r.loss)}, {"lr", float(r.lr)}, {"grad_norm", float(r.grad_norm)}}};
  for (const auto& [part, norm] : r.part_norms) event.scalars.emplace_back("grad_norm/" + part, float(norm));
  if (r.found_lr) event.scalars.emplace_back(kFoundLr, float(*r.found_lr));
  if (r.val_loss) event.scalars.emplace_back("val_loss", float(*r.val_loss));
  return scalar_record(event);
}

// The unbroken row of steps 1, 2, ... `last`; a line that a killed run left unfinished ends it.
std::vector<StepRecord> read_metrics(const fs::path& file, int64_t last) {
  std::vector<StepRecord> records;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return records;
  std::istringstream lines(read_file(file));
  for (std::string line; int64_t(records.size()) < last && std::getline(lines, line);) {
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    const auto number = [&](const char* key) { return json.is_object() ? json.value(key, 0.0) : 0.0; };
    if (number("step") != double(records.size() + 1)) break;
    records.push_back({.step = int64_t(records.size()) + 1,
                       .loss = number("loss"),
                       .lr = number("lr"),
                       .grad_norm = number("grad_norm"),
                       .seconds = number("seconds"),
                       .time = number("time")});
    if (json.contains(kFoundLr)) records.back().found_lr = number(kFoundLr);
    if (json.contains(kPartNorms) && json[kPartNorms].is_object())
      for (const auto& [part, norm] : json[kPartNorms].items())
        if (norm.is_number()) records.back().part_norms.emplace_back(part, norm.get<double>());
    if (json.contains("val_loss")) records.back().val_loss = number("val_loss");
  }
  return records;
}

// Every record as `line` has it, behind `first`.
std::string text_of(const std::vector<StepRecord>& records, std::string (*line)(const StepRecord&), std::string first) {
  for (const StepRecord& record : records) first += line(record);
  return first;
}

}  // namespace

AppendedFile::AppendedFile(fs::path path, const std::string& content) : path_(std::move(path)) {
  make_directories(path_.parent_path());
  write_file_atomically(path_, content);
  fd_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  check(fd_ >= 0, "{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

AppendedFile::~AppendedFile() { close(fd_); }

void AppendedFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    check(written > 0, "{}: cannot be written: {}", path_.string(), std::strerror(errno));
    bytes.remove_prefix(size_t(written));
  }
}

void AppendedFile::sync() {
  check(fdatasync(fd_) == 0, "{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

RunLog::RunLog(const fs::path& output, int64_t step, std::string title)
    : output_(output),
      title_(std::move(title)),
      records_(read_metrics(output / "metrics.jsonl", step)),
      metrics_(output / "metrics.jsonl", text_of(records_, metrics_line, "")),
      events_(output / "logs" / "events.out.tfevents.wick",  // TensorBoard knows them by "tfevents"
              text_of(records_, event_record, file_version_record(records_.empty() ? 0 : records_.front().time))) {}

void RunLog::add(const StepRecord& record) {
  records_.push_back(record);
  metrics_.write(metrics_line(record));
  events_.write(event_record(record));
}

void RunLog::sync() {
  metrics_.sync();
  events_.sync();
}

void RunLog::draw_plot() const {
  std::vector<LossPoint> points;
  for (const StepRecord& r : records_) points.push_back({r.step, r.loss, r.found_lr.value_or(r.lr), r.val_loss});
  if (!points.empty()) write_image(output_ / "loss.png", plot_loss(points, title_));
}

}  // namespace wick

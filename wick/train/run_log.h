// The log of a run: metrics.jsonl (a line per step), TensorBoard events under logs/, and loss.png.
//
// metrics.jsonl is the record; the other two are made from it. Lines are written whole as steps end, so a killed run
// has lines beyond its last saved state; a run that continues drops them first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace wick {

struct StepRecord {
  int64_t step = 0;  // counts from 1
  double loss = 0, lr = 0, grad_norm = 0;
  double seconds = 0;                   // duration of the step
  double time = 0;                      // end of the step, seconds since 1970
  std::optional<double> val_loss = {};  // after the step, where it was asked for
  // With Prodigy the rate that it found by then: its estimate d times lr, which sd-scripts logs as d*lr too.
  std::optional<double> found_lr = {};
  std::vector<std::pair<std::string, double>> part_norms = {};  // of grad_norm, by part of the model
};

// A file that begins anew with `content`, and is not a link to one elsewhere.
class AppendedFile {
 public:
  AppendedFile(std::filesystem::path path, const std::string& content);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  void write(std::string_view bytes);
  void sync();

 private:
  std::filesystem::path path_;
  int fd_;
};

class RunLog {
 public:
  // Keeps the records in `output` of steps 1 to `step`, and nothing else.
  RunLog(const std::filesystem::path& output, int64_t step, std::string title);

  void add(const StepRecord& record);
  void sync();             // before the state is saved, which must not be ahead of its log
  void draw_plot() const;  // loss.png
  const std::vector<StepRecord>& records() const { return records_; }

 private:
  std::filesystem::path output_;
  std::string title_;
  std::vector<StepRecord> records_;
  AppendedFile metrics_, events_;
};

}  // namespace wick

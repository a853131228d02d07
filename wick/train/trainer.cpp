#include "wick/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "wick/backend/registry.h"
#include "wick/io/count.h"
#include "wick/io/file.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/io/sha256.h"
#include "wick/pipelines/model_folder.h"
#include "wick/pipelines/weight_flags.h"
#include "wick/text/chat.h"
#include "wick/train/dataset_file.h"
#include "wick/train/fault.h"
#include "wick/train/finite.h"
#include "wick/train/interrupt.h"
#include "wick/train/job.h"
#include "wick/train/memory_choice.h"
#include "wick/train/output_folder.h"
#include "wick/train/plan.h"
#include "wick/train/preview_folder.h"
#include "wick/train/progress.h"
#include "wick/train/rank_memory.h"
#include "wick/train/rank_sums.h"
#include "wick/train/rank_watch.h"
#include "wick/train/run_log.h"
#include "wick/train/run_page.h"
#include "wick/train/state.h"
#include "wick/train/step.h"
#include "wick/train/summary.h"
#include "wick/train/time_left.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Interrupted {};                                             // before the first step
constexpr const char* kStopped = "stopped before the first step";  // of a rank

// Keys of a run's fingerprint, beside its settings.
constexpr const char *kDataContents = "dataset contents", *kModelContents = "model contents",
                     *kChatTemplate = "the chat template";
constexpr const char* kTemplateDate = "--template-date";

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Run {
 public:
  Run(TrainConfig config, const Checkpoint& model, Ranks& ranks, const std::string& device, bool takes_signals,
      std::shared_ptr<HostCopies> copies)
      : config_(std::move(config)),
        model_(model),
        ranks_(ranks),
        watch_(ranks),
        output_(config_.output),
        states_(output_ / "state"),
        backend_(open_backend(device)),
        kind_(device_kind(backend_.name(), architecture_of(backend_.name()))),
        rng_(uint64_t(config_.seed)),
        copies_(std::move(copies)) {
    config_.ranks = ranks.count();
    if (takes_signals) interrupt_.emplace();
    if (!ranks.is_first()) progress_.be_silent();
    backend_.allow_tf32(config_.tf32);
    if (config_.fp8_compute) check_fp8_compute(backend_);
  }

  RunResult operator()() try {
    fix_template_date();
    job_ = open_job(config_, model_, setup_progress());
    progress_.clear();
    if (!job_->tells_time()) config_.template_date.clear();
    memory_ = least_memory(ranks_, backend_.name(), config_.host_memory, copies_ != nullptr);
    begun_with_ = read_begun();
    if (config_.batch_size == 0) choose_batch();
    ranks_.check();
    set_order();
    if (config_.epochs > 0) config_.steps = job_->steps(config_.epochs);
    plan();
    fingerprint_ = fingerprint();
    for (const TrainOption& option : train_options())
      if (option.key == "model" || option.key == "lr") settings_[option.flag()] = option.toml(config_);
    if (config_.model.empty()) settings_["--model"] = quote(config_.transformer);
    check_same_settings();
    if (is_first()) open_output();
    if (from_first([&] { return is_finished() ? "finished" : ""; }) == "finished") return RunResult::finished;
    prepare();
    const RunResult result = loop();
    ranks_.barrier();
    return result;
  } catch (const Interrupted&) {
    ranks_.fail(kStopped);
    progress_.say("Stopped before the first step.");
    return RunResult::interrupted;
  } catch (const RankError& e) {
    if (!std::string_view(e.what()).ends_with(kStopped)) throw;
    progress_.say("Stopped before the first step.");
    return RunResult::interrupted;
  } catch (const OutOfMemory& e) {
    progress_.close();
    // How much was missing beyond the plan is not known: a fifth of it counts.
    fail("{}; {}", e.what(),
         plan_ ? savings(planned(), model_, *plan_, plan_->total() / 5) : "it was still reading the data set");
  }

 private:
  // Refuses a run whose largest batches need more memory than there is, before anything is written.
  void plan() {
    if (!config_.memory.empty()) choose_for_memory();
    plan_ = plan_memory(planned(), model_, kind_, job_->largest(), nullptr, memory_.host);
    free_ = free_memory(backend_.name());
    if (free_) check_fits(planned(), model_, *plan_, backend_.name(), *free_);
    check_host(*plan_, memory_.host);
    if (plan_->staged > 0) progress_.say(staging_in_words(plan_->staged));
    if (is_first()) check_disk();
  }

  // The settings of the rank that takes the most: a run that goes on may have other shares of a step than --accumulate.
  TrainConfig planned() const {
    TrainConfig config = job_->planned(config_);
    config.accumulate = (job_->order().batches + ranks_.count() - 1) / ranks_.count();
    return config;
  }

  bool is_first() const { return ranks_.is_first(); }

  // What `text` gives on rank 0.
  template <class F>
  std::string from_first(const F& text) {
    return ranks_.exchange(is_first() ? std::string(text()) : std::string()).front();
  }

  // The time that a chat template tells: of a run that goes on the one that it began with.
  void fix_template_date() {
    if (!config_.template_date.empty() || kind_of(model_) != ModelKind::text) return;
    config_.template_date = from_first([&]() -> std::string {
      const std::optional<TrainState> state = config_.resume ? SavedState::glimpse(state_folder()) : std::nullopt;
      if (!state) return template_date_now();
      const auto saved = state->fingerprint.find(kTemplateDate);
      if (saved == state->fingerprint.end() || saved->second.size() < 2) return "";
      return saved->second.substr(1, saved->second.size() - 2);  // in quotes, as TrainOption::toml() gives it
    });
  }

  // A run keeps the batches of a step on however many ranks it goes on, and one of a version before the order in which
  // it began.
  void set_order() {
    const std::string before = from_first([&] {
      const std::optional<TrainState> state = config_.resume ? SavedState::glimpse(state_folder()) : std::nullopt;
      return !state ? "" : state->sample ? fmt::format("{}", state->batches) : "older";
    });
    const bool is_older = before == "older";
    check(!is_older || ranks_.count() == 1,
          "--resume: {} was begun by a version of Wick whose steps one device makes alone; expected one device",
          output_.string());
    const int64_t batches =
        before.empty() || is_older ? config_.accumulate * ranks_.count() : int64_t(std::stoll(before));
    check(batches >= ranks_.count(),
          "--resume: a step of the run in {} has {} {}; expected at most as many devices, found {}", output_.string(),
          batches, batches == 1 ? "batch" : "batches", ranks_.count());
    StepOrder order = StepOrder::of(batches, ranks_.rank(), ranks_.count());
    order.is_older = is_older;
    job_->set_order(order);
  }

  // Ranks that were started with other settings, data or models would train something that nobody asked for.
  void check_same_settings() {
    if (ranks_.count() == 1) return;
    std::map<std::string, std::string> all = fingerprint_;
    for (const TrainOption& option : train_options())
      for (const char* key : {"lr", "steps", "save_every", "save_every_epochs", "sample_every", "sample_every_epochs",
                              "val_every", "val_every_epochs"})
        if (option.key == key) all[option.flag()] = option.toml(config_);
    all["--val"] = config_.val.empty() ? "not given" : "given";  // their paths may differ
    all["--sample-prompts"] = config_.sample_prompts.empty() ? "not given" : "given";
    std::string text;
    for (const auto& [key, value] : all) text += fmt::format("{}\n{}\n", key, value);
    const std::vector<std::string> texts = ranks_.exchange(text);
    for (size_t rank = 1; rank < texts.size(); ++rank)
      check(texts[rank] == texts[0], "rank {} was started otherwise than rank 0: {}", rank,
            first_difference(texts[rank], texts[0]));
  }

  // "--lr is 0.001 there, and 0.0001 here", of texts with a line for each key and one for its value.
  static std::string first_difference(const std::string& there, const std::string& here) {
    std::istringstream a(there), b(here);
    std::string key, value, other_key, other;
    while (std::getline(a, key) && std::getline(a, value) && std::getline(b, other_key) && std::getline(b, other))
      if (key != other_key || value != other) return fmt::format("{} is {} there, and {} on rank 0", key, value, other);
    return "it has other settings";
  }

  // What a run that goes on keeps of that with which it began. Rank 0 has the folder, and tells all.
  std::optional<TrainConfig> read_begun() {
    static constexpr const char* kKept[] = {"batch_size", "quantize", "fp8_compute", "dtype"};
    const std::string text = from_first([&] {
      std::error_code missing;
      const fs::path before = output_ / "config.toml";
      const bool is_asked = config_.batch_size == 0 || !config_.memory.empty();
      if (!is_asked || !config_.resume || !fs::exists(before, missing)) return std::string();
      TrainConfig begun;
      read_toml(begun, before);
      std::string words;
      for (const char* key : kKept) words += option_named(key).toml(begun) + " ";
      std::erase(words, '"');
      return words;
    });
    if (text.empty()) return {};
    TrainConfig begun;
    std::istringstream words(text);
    for (const char* key : kKept) {
      std::string word;
      words >> word;
      option_named(key).set(begun, {word});
    }
    return begun;
  }

  void choose_batch() {
    config_.batch_size = 1;
    job_->set_memory(config_);
    if (begun_with_) {
      config_.batch_size = begun_with_->batch_size;
    } else {
      const std::optional<size_t> size =
          config_.memory.empty() ? memory_.device : memory_sizes(config_, backend_.name(), memory_.device).front();
      check(size.has_value(), "--batch-size auto: how much memory is free on {} is not known; expected a number",
            backend_.name());
      config_.batch_size =
          batch_that_fits({.size = *size, .host = memory_.host}, config_, known_plans_, job_->largest(),
                          std::clamp<int64_t>(job_->steps(1) / ranks_.count(), 1, 64));
    }
    progress_.say(fmt::format("--batch-size auto: {}.", config_.batch_size));
    job_->set_memory(config_);
  }

  void choose_for_memory() {
    const std::vector<size_t> sizes = memory_sizes(config_, backend_.name(), memory_.device);
    check_usage(sizes.size() == 1, "--memory: expected one size, found {}", sizes.size());
    TrainConfig asked = planned();
    if (begun_with_) {
      asked.quantize = begun_with_->quantize;
      asked.fp8_compute = begun_with_->fp8_compute;
      asked.dtype = begun_with_->dtype;
    }
    const MemoryChoices choices = wick::choose_for_memory(
        {.size = sizes.front(), .host = memory_.host, .keeps_precision = begun_with_.has_value()}, asked, known_plans_,
        job_->largest());
    const std::string words = fmt::format("--memory {}: {}", config_.memory, choices.in_words());
    check(choices.best.has_value(), "{}", words);
    progress_.say(words + ".");
    for (const TrainOption& option : train_options())
      if (option.subject == Subject::memory) option.copy(choices.best->config, config_);
    job_->set_memory(config_);
  }

  void open_output() {
    check_links(config_, model_);
    make_directories(state_folder());
    lock_.emplace(state_folder());
    check_output(config_);  // again: another run may have been there while the data were read
    remove_leftovers(config_);
    const auto say = [this](const std::string& text) { progress_.say(text); };
    if (config_.resume) resumed_ = states_.open_newest(say);
    if (resumed_)
      check_resumable();
    else if (config_.resume)
      say(fmt::format("No state was saved in {}: the run begins anew.", state_folder().string()));
    write_file_atomically(output_ / "config.toml", to_toml(config_));
    write_data_files(data_list(), job_->data_files());
  }

  void show_run(const RunLog& log) {
    write_page(log);
    log.draw_plot();
  }

  // The numbers are kept in metrics.jsonl: where the page fails the run goes on.
  void write_page(const RunLog& log) try {
    if (log.records().empty()) return;  // nothing that would be lost with its folder
    const std::string result = result_path().filename().string();
    const RunPage page{.title = title(),
                       .steps = config_.steps,
                       .result = result,
                       .settings = page_settings(config_),
                       .facts = facts_,
                       .commands = page_commands(config_, kind_of(model_), result),
                       .previews = page_previews()};
    write_file_atomically(output_ / "index.html", run_page(page, log.records()));
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    progress_.say(fmt::format("{}; the run goes on without its page", e.what()));
  }

  std::vector<PagePreview> page_previews() const {
    if (!previews_) return {};
    std::vector<PagePreview> all;
    for (const StoredPreview& preview : previews_->all()) {
      const bool is_text = preview.file.extension() == ".txt";
      all.push_back({.step = preview.step,
                     .index = preview.number,
                     .prompt = preview.prompt,
                     .file = is_text ? "" : preview.file.lexically_relative(output_).string(),
                     .text = is_text ? read_file(preview.file) : ""});
    }
    return all;
  }

  std::vector<PageLine> facts() const {
    std::vector<PageLine> all{{"Model", config_.model.empty() ? config_.transformer : config_.model}};
    if (task_) all.push_back({"Trained", task_->describe()});
    all.push_back({"Steps", steps_in_words()});
    for (const std::string& path : data_paths(config_)) all.push_back({"Data set", path});
    all.push_back({"Contents", fmt::format("{}; {}", job_->describe(), count_of(job_->data_files().size(), "file"))});
    for (const std::string& path : config_.val) all.push_back({"Validation", path});
    all.push_back({"Memory", fmt::format("{} needed on {}, {} of them for activations", readable_bytes(plan_->total()),
                                         backend_.name(), readable_bytes(plan_->activations))});
    std::vector<std::string> remarks = job_->remarks();
    if (task_) std::ranges::copy(task_->remarks(), std::back_inserter(remarks));
    for (const std::string& remark : remarks) all.push_back({"Remark", remark});
    return all;
  }

  // How many results the disk will have to hold is not known; one, and a state beside it, it must.
  void check_disk() {
    const std::optional<uint64_t> free = free_disk(output_);
    const uint64_t result = uint64_t(plan_->trained) * size_of(config_.save_dtype) + job_->copied_bytes();
    if (!free || *free >= result + 2 * plan_->state) return;
    check(
        *free >= result + plan_->state,
        "--output {}: {} are free there, expected at least {} for a result and {} for a state to go on from; free some "
        "space or choose another disk",
        output_.string(), readable_bytes(*free), readable_bytes(result), readable_bytes(plan_->state));
    progress_.say(fmt::format("Only {} are free in {}: a result takes {}, and each of the two states that are kept {}.",
                              readable_bytes(*free), output_.string(), readable_bytes(result),
                              readable_bytes(plan_->state)));
  }

  void check_resumable() {
    const TrainState& saved = resumed_->state();
    const std::string file = resumed_->path().string();
    const auto differs = [&](const char* key) {
      const auto found = saved.fingerprint.find(key);
      return found == saved.fingerprint.end() || found->second != fingerprint_.at(key);
    };
    const auto setting = [&](const char* key) {
      const auto found = saved.settings.find(key);
      return found == saved.settings.end() ? std::string() : found->second;
    };
    if (differs(kDataContents)) {
      const std::vector<DataFile> before = read_data_files(data_list());
      fail("--resume: the data set is not as it was for {} ({}); start anew without --resume, or change it back", file,
           before.empty() ? "there is no list of what it was" : changes_of(before, job_->data_files()));
    }
    check(
        !differs(kModelContents),
        "--resume: {} was made with the model {}, and {} has other contents; start anew without --resume, or change it "
        "back",
        file, setting("--model"), model_.name());
    resumed_->check_same_run(fingerprint_, settings_of_bits(TrainConfig{}));
    if (!resumed_->has_hash())
      progress_.say(fmt::format("{}: was written by the version before, without a hash: taken as it is.", file));
    if (const std::string lr = settings_.at("--lr"); setting("--lr") != lr)
      progress_.say(
          fmt::format("--lr was {} up to step {}, and is {} from there on.", setting("--lr"), saved.step, lr));
  }

  // The plot comes last, and a run that was killed before it has only that to do.
  bool is_finished() {
    if (!resumed_ || !resumed_->state().finished || resumed_->state().step < config_.steps) return false;
    if (!fs::exists(job_->last_file(output_ / config_.name))) return false;
    std::error_code missing;
    const fs::file_time_type drawn = fs::last_write_time(output_ / "loss.png", missing);
    if (missing || drawn < fs::last_write_time(resumed_->path())) {
      facts_ = facts();
      open_previews(resumed_->state().step);
      show_run(RunLog(output_, resumed_->state().step, title()));
    }
    progress_.say(fmt::format("Already finished: {} holds step {} of {}. More --steps would go on from there.",
                              output_.string(), resumed_->state().step, config_.steps));
    return true;
  }

  // What the run is about, before its details.
  void say_what_begins() {
    const fs::path model = config_.model.empty() ? config_.transformer : config_.model;
    progress_.say(fmt::format("Training {} on {}; {}{}.", model.string(), job_->describe(), steps_in_words(),
                              resumed_ ? fmt::format(", going on after step {}", resumed_->state().step) : ""));
    progress_.say(
        fmt::format("The result will be {}; {} shows how the run goes. The time left is shown after some steps.",
                    result_path().string(), (output_ / "index.html").string()));
  }

  void prepare() {
    say_what_begins();
    progress_.say(fmt::format("Memory on {}: {} needed, {} of them for activations{}.", backend_.name(),
                              readable_bytes(plan_->total()), readable_bytes(plan_->activations),
                              free_ ? fmt::format("; {} free", readable_bytes(*free_)) : ""));
    for (const std::string& remark : job_->remarks()) progress_.say(remark);
    task_ = job_->load(backend_, plan_->block_schedule.with_host_copies(copies_), setup_progress(), ranks_);
    for (const std::string& remark : task_->remarks()) progress_.say(remark);
    OptimizerOptions options = OptimizerOptions::of(config_);
    options.scale_loss = config_.dtype == DType::f16 && on_device();
    optimizer_.emplace(task_->parameters(), options, shard_of(config_, ranks_.rank()));
    sums_.emplace(ranks_, watch_, backend_, plan_->are_sums_light(ranks_.count()));
    train_step_.emplace(*task_, *optimizer_, job_->order(), !config_.no_graph, ranks_.count() > 1 ? &*sums_ : nullptr);
    go_on();
    check_same_weights();
    if (!is_first()) return;
    log_.emplace(output_, step_, title());
    open_previews(resumed_ ? std::optional(step_) : std::nullopt);
    facts_ = facts();
    progress_.say(task_->describe() + ".");
  }

  // From the state that rank 0 has read, if there is one.
  void go_on() {
    const std::string position = from_first([&] {
      if (!resumed_) return std::string();
      const TrainState& s = resumed_->state();
      return fmt::format("{} {} {} {} {}", s.step, s.epoch, s.batch, s.sample.value_or(0), s.ranks);
    });
    if (position.empty()) return;
    TrainState saved;
    if (is_first()) {
      saved = resumed_->state();
    } else {
      saved.sample = 0;
      std::istringstream(position) >> saved.step >> saved.epoch >> saved.batch >> *saved.sample >> saved.ranks;
    }
    const std::string file = is_first() ? resumed_->path().string() : "the state of rank 0";
    check(saved.epoch <= saved.step * job_->order().batches, "{}: {} cannot have been epoch {}", file,
          count_of(saved.step, "step"), saved.epoch);
    try {
      seek(saved);
    } catch (const Error& e) {
      fail("{}: {}", file, e.what());
    }
    restore(*optimizer_, is_first() ? &*resumed_ : nullptr, ranks_);
    step_ = saved.step;
    if (saved.ranks != ranks_.count())
      progress_.say(
          fmt::format("The run was on {} and goes on on {}, with the same samples a step: from here on sums "
                      "of gradients are added in another order.",
                      count_of(saved.ranks, "device"), ranks_.count()));
  }

  // Where ranks were to drift apart the run would go on, and learn something else on each.
  void check_same_weights() {
    if (ranks_.count() == 1) return;
    std::map<std::string, Tensor> values;
    for (const Parameter& p : optimizer_->parameters()) values[p.name] = p.value.detached();
    const std::vector<std::string> hashes = ranks_.exchange(sha256_of_tensors(values));
    for (size_t rank = 1; rank < hashes.size(); ++rank)
      check(
          hashes[rank] == hashes[0],
          "step {}: rank {} has other weights than rank 0; they should be the same bits: is it another kind of device?",
          step_, rank);
  }

  // "120 steps of 4 pictures, in 2 batches of 2"
  std::string steps_in_words() const {
    const int64_t batch = job_->batch_size(), batches = job_->order().batches;
    const std::string item(job_->item());
    std::string text = fmt::format("{} of {}{}", count_of(config_.steps, "step"),
                                   batch == config_.batch_size ? "" : "up to ", count_of(batches * batch, item));
    if (batches > 1) text += fmt::format(", in {} batches of {}", batches, batch);
    return ranks_.count() == 1 ? text : text + fmt::format(" on {} devices", ranks_.count());
  }

  RunResult loop() {
    loop_began_ = last_ended_ = last_saved_ = last_result_ = Clock::now();
    loop_first_step_ = step_;
    expect_times();
    if (from_first([&] { return fs::exists(job_->last_file(result_at(step_))) ? "saved" : ""; }) == "saved")
      saved_step_ = step_;
    if (resumed_ && is_first()) remove_older_results(config_);  // a kill may have come before
    if (is_previewed(step_) && step_ < config_.steps) make_previews();
    while (step_ < config_.steps) {
      begin_step();
      const Due now = due_on_all();
      const bool due = is_save_due(now.result);
      const bool stop = now.stop && step_ < config_.steps;
      const bool timely = !due && !stop && now.state;
      const bool shows = step_ < config_.steps && !stop && is_previewed(step_);
      if (due || stop || timely || shows || is_validated(step_)) end_step();
      if (due || timely) {
        const Clock::time_point began = Clock::now();
        due ? save_checkpoint() : save_state_in_time();
        saved_seconds_ = seconds_since(began);
        if (due) time_left_.took(Between::save, saved_seconds_);
      }
      if (shows) make_previews();
      if (is_first() && (due || timely || shows || is_validated(step_))) write_page(*log_);
      if (stop) {
        if (!due) save_state_of(state());
        if (is_first()) show_run(*log_);
        progress_.say(fmt::format("Stopped after step {} of {}. To go on: wick train --config {} --resume", step_,
                                  config_.steps, (output_ / "config.toml").string()));
        return RunResult::interrupted;
      }
    }
    const fs::path result = save_result(output_ / config_.name);
    if (!config_.sample_prompts.empty()) make_previews();
    TrainState last = state();
    last.finished = true;
    save_state_of(last);
    if (!is_first()) return RunResult::finished;
    show_run(*log_);
    for (const std::string& line : summary(result)) progress_.say(line);
    return RunResult::finished;
  }

  // Steps that take saves by the clock too are few.
  void expect_times() {
    const auto per_step = [&](int64_t steps, int64_t epochs) {
      const double by_steps = steps > 0 ? 1 / double(steps) : 0;
      return by_steps + (epochs > 0 ? 1 / double(epochs * job_->steps(1)) : 0);
    };
    const double saves = per_step(config_.save_every, config_.save_every_epochs),
                 previews = per_step(config_.sample_every, config_.sample_every_epochs),
                 validations = per_step(config_.val_every, config_.val_every_epochs);
    time_left_ = TimeLeft(config_.steps);
    time_left_.expect(Between::save, saves);
    time_left_.expect(Between::preview, previews > 0 ? previews : saves);
    time_left_.expect(Between::validation, validations > 0 ? validations : saves);
  }

  // What signals and the time ask for behind this step. All ranks do the same: a signal to any of them counts for all,
  // and the time is rank 0's.
  struct Due {
    bool stop, result, state;
  };
  Due due_on_all() {
    const bool result = config_.save_every_minutes > 0 && step_ < config_.steps &&
                        seconds_since(last_result_) >= 60 * config_.save_every_minutes;
    const std::vector<std::string> all =
        ranks_.exchange({is_interrupted() ? '1' : '0', result ? '1' : '0', is_state_due() ? '1' : '0'});
    const bool stop = std::ranges::any_of(all, [](const std::string& one) { return one[0] == '1'; });
    return {stop, all.front()[1] == '1', all.front()[2] == '1'};
  }

  // Something is saved behind this step, for later use beside the last one's result.
  bool is_save_due(bool timely) {
    const bool due =
        timely || (config_.save_every > 0 && step_ % config_.save_every == 0) || is_end_of(saved_epochs_, step_);
    if (due) saved_step_ = step_, last_result_ = Clock::now();
    return due;
  }

  // Whether a step, none before the one asked for last, takes the last batch of so many epochs as are to be saved.
  struct EpochEnds {
    int64_t each, epochs = 0, end = -1;  // the next epochs that end a multiple of `each`, and their last step
  };
  bool is_end_of(EpochEnds& ends, int64_t step) const {
    if (ends.each == 0) return false;
    while (ends.end < step) ends.end = job_->steps(ends.epochs += ends.each);
    return ends.end == step;
  }

  // Enqueues a step, and only then waits for the one before it.
  void begin_step() {
    const TrainState before = state();
    const double lr = learning_rate(config_, step_);
    if (fault_) fault_->strike(ranks_.rank(), step_ + 1, backend_.name());
    StepReport report = (*train_step_)(rng_, float(lr));
    ++step_;
    if (begun_) end_step();
    begun_.emplace(Begun{before, step_, lr, std::move(report)});
  }

  void end_step() {
    const Begun begun = std::move(*begun_);
    begun_.reset();
    const StepOutcome outcome = begun.report.wait();
    if (outcome.halted) stop_at_nan(begun.before);
    const bool skipped = !std::isfinite(outcome.grad_norm);
    if (skipped)
      progress_.say(fmt::format("step {}: the gradients overflow f16; skipped, the loss is scaled by {} from now on",
                                begun.step, outcome.loss_scale));
    const auto now = Clock::now();
    StepRecord record{.step = begun.step,
                      .loss = double(outcome.loss),
                      .lr = begun.lr,
                      .grad_norm = skipped ? 0 : double(outcome.grad_norm),
                      .seconds = std::chrono::duration<double>(now - std::exchange(last_ended_, now)).count(),
                      .time = unix_time()};
    const std::vector<std::string>& parts = optimizer_->part_names();
    for (size_t i = 0; parts.size() > 1 && i < parts.size(); ++i)
      record.part_norms.emplace_back(parts[i], skipped ? 0 : double(outcome.norms_by_part[i]));
    if (outcome.estimate) record.found_lr = double(*outcome.estimate) * begun.lr;
    if (is_validated(record.step)) {
      const Clock::time_point began = Clock::now();
      record.val_loss = validation_loss();
      leave_out(Clock::now() - last_ended_);
      if (record.val_loss) time_left_.took(Between::validation, seconds_since(began));
    }
    if (!is_first()) return;
    log_->add(record);
    time_left_.step(record.step, record.seconds - std::exchange(saved_seconds_, 0));
    report_step(record);
  }

  // The last step is, and so are those after which something is saved, unless --val-every says which.
  bool is_validated(int64_t step) {
    if (step == config_.steps || !job_->validates()) return step == config_.steps;
    if (config_.val_every == 0 && config_.val_every_epochs == 0) return step == saved_step_;
    return (config_.val_every > 0 && step % config_.val_every == 0) || is_end_of(validated_epochs_, step);
  }

  // Of the steps' time and speed: validation and previews.
  void leave_out(Clock::duration taken) { last_ended_ += taken, loop_began_ += taken; }

  // The loss of the parameters that would be saved, on rank 0.
  std::optional<double> validation_loss() {
    if (!job_->validates()) return {};
    train_step_->swap_averages();
    const std::optional<double> loss = is_first() ? task_->validation_loss() : std::nullopt;
    train_step_->swap_averages();
    return loss;
  }

  // Neither that step nor one that was enqueued after it has changed anything, so the state before is still at hand.
  [[noreturn]] void stop_at_nan(const TrainState& before) {
    progress_.close();
    step_ = before.step;
    if (step_ > 0 && not_finite_in_values(optimizer_->parameters()).empty()) save_state_of(before);
    const std::string kept = from_first([&] {
      const auto step = states_.newest_step();
      return step ? fmt::format("the state of step {} is kept in {}", *step, state_folder().string())
                  : "no state was saved";
    });
    if (is_first()) show_run(*log_);
    const std::vector<std::string> found = ranks_.exchange(first_not_finite(before));
    const auto first = std::ranges::find_if(found, [](const std::string& what) { return !what.empty(); });
    const bool has_one = first != found.end();
    if (has_one && first - found.begin() != ranks_.rank()) ranks_.barrier();  // throws what that rank tells
    fail("step {}: not a finite number, first in {}; {}; a lower --lr may help", step_ + 1,
         has_one ? *first : "the norm of all gradients, whose square overflows", kept);
  }

  // Of this rank's batches; empty where there is none.
  std::string first_not_finite(const TrainState& before) {
    if (std::string found = not_finite_in_files(model_); !found.empty()) return found;
    if (std::string found = not_finite_in_values(optimizer_->parameters()); !found.empty()) return found;
    seek(before);  // and compute the step again, to watch it
    for (int64_t i = 0; i < job_->order().count; ++i)
      if (std::string found = not_finite_in_batch(*task_, rng_, optimizer_->loss_scale()); !found.empty()) return found;
    return {};
  }

  // A file, or a folder.
  fs::path result_path() const {
    return output_ / *job_->last_file(output_ / config_.name).lexically_relative(output_).begin();
  }
  fs::path result_at(int64_t step) const { return output_ / fmt::format("{}-{:06}", config_.name, step); }

  fs::path save_result(const fs::path& stem) {
    check_same_weights();
    check(!is_first() || not_finite_in_values(optimizer_->parameters()).empty(),
          "step {}: the weights overflowed and are not saved; a lower --lr may help", step_);
    train_step_->swap_averages();
    const fs::path written = is_first() ? task_->save(stem, step_) : fs::path();
    train_step_->swap_averages();
    return written;
  }

  void save_checkpoint() {
    save_result(result_at(step_));
    save_state_of(state());
    if (is_first()) remove_older_results(config_);
  }

  // Those of a run that goes on without them stay.
  void open_previews(std::optional<int64_t> step) {
    std::error_code missing;
    prompts_ = sample_prompts(config_);
    if (!prompts_.empty() || (step && fs::exists(output_ / "samples", missing)))
      previews_.emplace(output_, config_.name, prompts_, step);
  }

  // Before the first step, and when they are asked for; else when something is saved. The last step's come with the
  // result.
  bool is_previewed(int64_t step) {
    if (config_.sample_prompts.empty()) return false;
    if (step == 0) return true;
    const int64_t each = config_.sample_every, epochs = config_.sample_every_epochs;
    return (each > 0 && step % each == 0) || is_end_of(shown_epochs_, step) ||
           (each == 0 && epochs == 0 && step == saved_step_);
  }

  // Rank 0 makes them, of the parameters that would be saved.
  void make_previews() {
    if (from_first([&] { return previews_->has(step_) ? "made" : ""; }) == "made") return;
    const Clock::time_point began = Clock::now();
    train_step_->swap_averages();
    if (is_first()) draw_previews();
    train_step_->swap_averages();
    leave_out(Clock::now() - began);
    time_left_.took(Between::preview, seconds_since(began));
  }

  // A failure costs the run nothing, and a signal ends them.
  void draw_previews() {
    try {
      for (size_t i = 0; i < prompts_.size(); ++i)
        previews_->add(step_, i, task_->preview(i, [&](int64_t step, int64_t steps) {
          if (is_interrupted()) throw Interrupted{};
          progress_.show(fmt::format("step {}: preview {} of {}  {}/{}", step_, i + 1, prompts_.size(), step, steps));
        }));
      previews_->draw_sheet();
    } catch (const Interrupted&) {
    } catch (const std::exception& e) {
      progress_.say(fmt::format("step {}: no previews: {}; training goes on", step_, e.what()));
    }
  }

  bool is_state_due() const {
    return config_.state_every_minutes > 0 && step_ < config_.steps &&
           seconds_since(last_saved_) >= 60 * config_.state_every_minutes;
  }

  // This save was not asked for: where it fails the run goes on.
  void save_state_in_time() {
    const std::map<std::string, Tensor> elsewhere = states_of_others();
    if (!is_first()) return;
    constexpr uint64_t kHeader = uint64_t{1} << 20;
    const auto tell = [&](const std::string& why) {
      const auto step = states_.newest_step();
      progress_.say(fmt::format("step {}: {}; training goes on, {}", step_, why,
                                step ? fmt::format("and the state of step {} stays", *step) : "without a saved state"));
    };
    const std::optional<uint64_t> free = free_disk(output_);
    last_saved_ = Clock::now();
    const uint64_t needed = plan_->state + kHeader;
    if (free && *free < needed)
      return tell(fmt::format("a state takes up to {}, and {} are free in {}", readable_bytes(needed),
                              readable_bytes(*free), output_.string()));
    try {
      write_state(state(), elsewhere);
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error& e) {
      tell(e.what());
    }
  }

  // They come behind a barrier: where a rank has given up, others' sums of the step are undefined, and nothing is
  // saved.
  std::map<std::string, Tensor> states_of_others() {
    ranks_.barrier();
    return fetch_states(*optimizer_, ranks_);
  }

  void save_state_of(const TrainState& state) {
    const std::map<std::string, Tensor> elsewhere = states_of_others();
    if (is_first()) write_state(state, elsewhere);
  }

  void write_state(const TrainState& state, const std::map<std::string, Tensor>& elsewhere) {
    log_->sync();
    states_.save(state, *optimizer_, elsewhere);
    last_saved_ = Clock::now();
  }

  TrainState state() const {
    const Batches& batches = task_->batches();
    const bool is_older = job_->order().is_older;
    return {.step = step_,
            .epoch = batches.epoch(),
            .batch = batches.batch(),
            .sample = is_older ? std::nullopt : std::optional(batches.sample()),
            .rng = is_older ? rng_.positions() : std::map<std::string, uint64_t>(),
            .batches = job_->order().batches,
            .ranks = ranks_.count(),
            .fingerprint = fingerprint_,
            .settings = settings_};
  }

  void seek(const TrainState& state) {
    if (!state.sample) rng_.seek(state.rng);
    task_->batches().seek(state.epoch, state.batch, state.sample.value_or(0));
  }

  // The settings that decide the bits of a run. The number of steps does where the learning rate follows it.
  static std::map<std::string, std::string> settings_of_bits(const TrainConfig& config) {
    std::map<std::string, std::string> all;
    for (const TrainOption& option : train_options())
      if (option.traits.fixed || (option.key == "steps" && config.lr_schedule != LrSchedule::constant))
        all[option.flag()] = option.toml(config);
    return all;
  }
  std::map<std::string, std::string> fingerprint() const {
    std::map<std::string, std::string> all = settings_of_bits(config_);
    all[kDataContents] = job_->data_hash();
    all[kModelContents] = model_.fingerprint();
    if (const std::string jinja = job_->chat_template(); !jinja.empty()) all[kChatTemplate] = sha256_hex(jinja);
    return all;
  }

  // Of the curve and the page: "fox: a LoRA of sdxl".
  std::string title() const {
    const std::string what = config_.train == TrainMode::lora   ? "a LoRA of "
                             : config_.train == TrainMode::full ? "all of "
                                                                : "the VAE of ";
    return config_.name + ": " + what +
           fs::path(config_.model.empty() ? config_.transformer : config_.model).filename().string();
  }
  bool is_interrupted() const { return interrupt_ && interrupt_->requested(); }
  bool on_device() const { return !backend_.memory().on_host(); }
  fs::path state_folder() const { return output_ / "state"; }
  fs::path data_list() const { return state_folder() / "dataset.sha256"; }
  // As the plan counts it: with memory taken outside the device's Memory.
  size_t most_taken() const { return backend_.memory().stats().most_reserved + plan_->beside(); }

  Progress setup_progress() {
    return [this](const std::string& what, size_t done, size_t total) {
      if (is_interrupted()) throw Interrupted{};
      ranks_.check();
      progress_.show(fmt::format("{}: {} of {}", what, done, total), done == total);
    };
  }

  std::string speed(int64_t step) const {
    const double seconds = seconds_since(loop_began_);
    return task_->tokens() > 0 ? fmt::format("{:.0f} tokens/s", double(task_->tokens()) / seconds)
                               : fmt::format("{:.2f} steps/s", double(step - loop_first_step_) / seconds);
  }

  std::vector<std::string> summary(const fs::path& result) const {
    const std::string trained = task_->describe();
    RunSummary run{.trained = trained.substr(0, trained.find(';')),
                   .data = job_->describe(),
                   .steps = steps_in_words(),
                   .speed = speed(step_),
                   .memory = fmt::format("{}: {} at the peak, {} of them in use", backend_.name(),
                                         readable_bytes(most_taken()), readable_bytes(backend_.memory().peak())),
                   .result = result,
                   .saved_before = results_before(config_),
                   .prompt = prompts_.empty() ? "" : prompts_.front().prompt};
    for (const StepRecord& r : log_->records()) run.seconds += r.seconds;
    return summary_of(run, config_, kind_of(model_), log_->records());
  }

  // "  2.00 steps/s  1:23 left"; empty until it is sound.
  std::string time_in_words(int64_t step) const {
    const std::optional<double> seconds = time_left_.seconds_per_step();
    if (!seconds) return {};
    const std::string now = task_->tokens() > 0 ? speed(step) : fmt::format("{:.2f} steps/s", 1 / *seconds);
    return fmt::format("  {}  {} left", now, duration(*time_left_.seconds_left()));
  }

  void report_step(const StepRecord& record) {
    constexpr double kKeep = 0.98;
    average_loss_ = kKeep * average_loss_ + record.loss;
    average_weight_ = kKeep * average_weight_ + 1;
    const std::string line = fmt::format(
        "step {}/{}  loss {:.4f} (average {:.4f}){}{}{}", record.step, config_.steps, record.loss,
        average_loss_ / average_weight_, record.found_lr ? fmt::format("  d*lr {:.3g}", *record.found_lr) : "",
        record.val_loss ? fmt::format("  validation loss {:.4f}", *record.val_loss) : "", time_in_words(record.step));
    if (record.val_loss) return progress_.say(line);
    progress_.show(line, record.step == config_.steps || record.step == loop_first_step_ + 1);
  }

  std::optional<Interrupt> interrupt_;  // first, to outlive the rest; none on a thread beside the main one
  TrainConfig config_;
  Checkpoint model_;
  Ranks& ranks_;
  RankWatch watch_;
  const std::optional<Fault> fault_ = Fault::from_environment();
  fs::path output_;
  StateFolder states_;
  Backend& backend_;
  const DeviceKind kind_;
  TrainRng rng_;
  const std::shared_ptr<HostCopies> copies_;  // of weights that are streamed, where all ranks are of this process
  KnownPlans known_plans_{model_, kind_};
  std::unique_ptr<Job> job_;
  std::map<std::string, std::string> fingerprint_, settings_;
  RankMemory memory_;
  std::optional<TrainConfig> begun_with_;  // where the run goes on and chooses for itself
  std::optional<SavedState> resumed_;
  std::optional<MemoryPlan> plan_;
  std::optional<size_t> free_;  // memory of the device before the run
  std::optional<OutputLock> lock_;

  std::unique_ptr<Task> task_;
  std::optional<Optimizer> optimizer_;
  std::optional<RankSums> sums_;
  std::optional<TrainStep> train_step_;
  std::optional<RunLog> log_;
  std::vector<SamplePrompt> prompts_;
  std::optional<PreviewFolder> previews_;  // with --sample-prompts, or where there are some
  std::vector<PageLine> facts_;            // for the page
  int64_t step_ = 0;                       // optimizer steps done, or enqueued

  // A step that the device may still be computing, while the host prepares the next.
  struct Begun {
    TrainState before;
    int64_t step;
    double lr;
    StepReport report;
  };
  std::optional<Begun> begun_;
  Clock::time_point last_ended_;

  ProgressLine progress_;
  Clock::time_point loop_began_, last_saved_, last_result_;
  int64_t saved_step_ = 0;  // behind which a result was saved last
  EpochEnds saved_epochs_{config_.save_every_epochs}, shown_epochs_{config_.sample_every_epochs},
      validated_epochs_{config_.val_every_epochs};
  int64_t loop_first_step_ = 0;
  TimeLeft time_left_;
  double saved_seconds_ = 0;  // that a save took behind the step before
  double average_loss_ = 0, average_weight_ = 0;
};

}  // namespace

RunResult train(TrainConfig config, const Checkpoint& model) {
  Ranks alone;
  const std::string device = config.device;
  return train(std::move(config), model, alone, device);
}

RunResult train(TrainConfig config, const Checkpoint& model, Ranks& ranks, const std::string& device,
                bool takes_signals, std::shared_ptr<HostCopies> copies) try {
  resolve(config);
  if (ranks.is_first()) {
    check_elsewhere(model.path(), fs::path(config.output) / config.name);
    check_links(config, model);
    check_not_written(config.output);
    check_output(config);
    check_apart(config, model);
  }
  return Run(std::move(config), model, ranks, device, takes_signals, std::move(copies))();
} catch (const RankError&) {
  throw;
} catch (const UsageError& e) {
  ranks.fail(e.what());
  throw;
} catch (const std::exception& e) {
  if (ranks.count() == 1) throw;
  ranks.fail(e.what());
  throw Error(ranks.failure().value_or(e.what()));  // with the rank and its machine
}

}  // namespace wick

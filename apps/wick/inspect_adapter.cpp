#include "inspect_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/pipelines/adapter_report.h"

namespace wick {
namespace {

constexpr size_t kColumns = 80, kMostNames = 10;

void print_groups(const AdapterReport& report) {
  fmt::print("\n{:<16} {:<18} {:>8} {:>6} {:>8}\n", "component", "kind", "modules", "rank", "alpha");
  for (const auto& [component, kind, rank, alpha, modules] : report.groups)
    fmt::print("{:<16} {:<18} {:>8} {:>6} {:>8}\n", excerpt(component), kind, modules,
               rank ? fmt::format("{}", *rank) : "-", alpha ? fmt::format("{:g}", *alpha) : "none");
}

// A bar for each block, the longest for the largest norm.
void print_norms(const AdapterReport& report) {
  if (report.blocks.empty()) return;
  double most = 0;
  size_t width = 0;
  for (const auto& [name, norm] : report.blocks) {
    most = std::max(most, norm);
    width = std::max(width, excerpt(name).size());
  }
  constexpr size_t kNumber = 10;
  const size_t bar = kColumns - std::min(width, kColumns - kNumber - 20) - kNumber - 3;
  fmt::print("\nnorms of the changes by block\n");
  for (const auto& [name, norm] : report.blocks) {
    const auto length = most > 0 ? size_t(norm / most * double(bar) + 0.5) : 0;
    fmt::print("{:<{}} {:>{}.4g}{}{}\n", excerpt(name), width, norm, kNumber, length > 0 ? "  " : "",
               std::string(length, '#'));
  }
  if (report.unmeasured > 0)
    fmt::print("{} not among them: what they change depends on the model's weights\n",
               count_of(report.unmeasured, "module"));
}

void print_names(const std::string& title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  fmt::print("\n{}\n", title);
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) fmt::print("  {}\n", names[i]);
  if (names.size() > kMostNames) fmt::print("  and {} more\n", names.size() - kMostNames);
}

void print_programs(const AdapterReport& report) {
  fmt::print("\nloaded by\n");
  if (report.programs.empty()) fmt::print("  none of the programs that Wick knows\n");
  for (const auto& [name, modules, remark] : report.programs)
    fmt::print("  {:<22} {}{}{}\n", name,
               modules == report.modules ? std::string("all modules")
               : modules == 0            ? std::string("no module")
                                         : fmt::format("{} of {} modules", modules, report.modules),
               remark.empty() ? "" : "; ", remark);
}

}  // namespace

void print_adapter(const std::filesystem::path& path) {
  const AdapterReport report = AdapterReport::of(path);
  print_groups(report);
  print_norms(report);
  std::vector<std::string> dead, doubled, embeddings;
  for (const std::string& name : report.dead) dead.push_back(excerpt(name));
  for (const auto& [a, b] : report.duplicates) doubled.push_back(excerpt(a) + " and " + excerpt(b));
  for (const std::string& key : report.embeddings) embeddings.push_back(excerpt(key));
  print_names(
      fmt::format("dead: {} {} nothing", count_of(dead.size(), "module"), dead.size() == 1 ? "changes" : "change"),
      dead);
  print_names("on the same rows of one layer", doubled);
  print_names("embeddings", embeddings);
  print_programs(report);
}

}  // namespace wick

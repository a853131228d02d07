// The page of a run as a browser shows it from the disk: Chromium without a window.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "source_dir.h"
#include "train/process.h"
#include "wick/io/image.h"
#include "wick/train/run_page.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

struct Shown {
  std::string dom, log;  // the document after its scripts have run, and what Chromium says meanwhile
};

class RunPageBrowser : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v chromium >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "chromium is not installed (scripts/setup ci)";
  }

  Shown open(const fs::path& page) const {
    const std::string dom = (folder_ / "dom").string(), log = (folder_ / "log").string();
    const std::string command =
        "timeout 120 chromium --headless --no-sandbox --disable-gpu --enable-logging=stderr --window-size=1400,2000"
        " --virtual-time-budget=5000 --user-data-dir='" +
        (folder_ / "browser").string() + "' --dump-dom 'file://" + page.string() + "' >'" + dom + "' 2>'" + log + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << read_plain(log);
    Shown shown{read_plain(dom), read_plain(log)};
    EXPECT_EQ(shown.log.find("CONSOLE"), std::string::npos) << shown.log;
    return shown;
  }

  TemporaryDirectory folder_;
};

// The number of points of each curve, all of which must be numbers within the picture.
std::map<std::string, size_t> curves(const std::string& dom) {
  std::map<std::string, size_t> found;
  static const std::regex path("<path class=\"series[^>]*data-name=\"([^\"]*)\"[^>]* d=\"M([^\"]*)h0\"");
  for (std::sregex_iterator match(dom.begin(), dom.end(), path), end; match != end; ++match) {
    std::string points = (*match)[2];
    std::ranges::replace(points, 'L', '\n');
    std::istringstream lines(points);
    for (std::string line; std::getline(lines, line); ++found[(*match)[1]]) {
      std::istringstream point(line);
      double x = NAN, y = NAN;
      EXPECT_TRUE(point >> x >> y && point.eof() && x > 0 && x < 1400 && std::isfinite(y)) << line;
    }
  }
  return found;
}

void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST_F(RunPageBrowser, ShowsARun) {
  const fs::path golden = test::source_dir() / "tests/golden", out = folder_ / "a #1 run%";
  const std::string hostile = "</script><img src=x onerror=\"document.title='executed'\">";
  const Outcome outcome = ChildProcess({"train",
                                        "--model",
                                        (golden / "sdxl").string(),
                                        "--dataset",
                                        (golden / "replay/pictures").string(),
                                        "--val",
                                        (golden / "replay/objective/pictures").string(),
                                        "--val-every",
                                        "10",
                                        "--output",
                                        out.string(),
                                        "--name",
                                        "<b>fox",
                                        "--steps",
                                        "30",
                                        "--rank",
                                        "3",
                                        "--resolution",
                                        "32",
                                        "--bucket-step",
                                        "32",
                                        "--caption-prefix",
                                        hostile,
                                        "--device",
                                        "cpu"},
                                       folder_.path())
                              .wait();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  fs::rename(out, folder_ / "moved");  // the page stays one
  const std::string dom = open(folder_ / "moved/index.html").dom;

  expect_parts(dom,
               {"<title>&lt;b&gt;fox: a LoRA of sdxl</title>", ">Finished after 30 steps, ", ">caption_prefix</th>",
                "&lt;/script&gt;&lt;img src=x onerror=", "<th scope=\"row\">rank</th><td>3</td>",
                "<dd>5 pictures in 1 bucket; 10 files</dd>", "<a href=\"%3Cb%3Efox.safetensors\">"});
  EXPECT_EQ(dom.find("<img src=\"x\""), std::string::npos);
  EXPECT_EQ(dom.find("executed</title>"), std::string::npos);
  std::map<std::string, size_t> expected{
      {"each step", 30}, {"moving average", 30}, {"validation", 3}, {"learning rate", 30}, {"all", 30}};
  std::istringstream metrics(read_plain(folder_ / "moved/metrics.jsonl"));
  std::string line;
  std::getline(metrics, line);
  const auto first = nlohmann::json::parse(line);
  for (const auto& [part, norm] : first["grad_norms"].items()) {
    expected[part] = 30;
    expect_parts(dom, {"</i>" + part + " <b>"});  // in the legend
  }
  EXPECT_EQ(expected.size(), 8u);
  EXPECT_EQ(curves(dom), expected);
}

RunPage page_with_previews(const fs::path& folder, int64_t steps) {
  RunPage page{.title = "fox", .steps = steps};
  for (const int64_t step : {0, 250, 500})
    for (size_t index = 0; index < 3; ++index) {
      const std::string file = "samples/fox #" + std::to_string(step) + "%.png";
      page.previews.push_back({.step = step,
                               .index = index,
                               .prompt = "prompt <i>" + std::to_string(index),
                               .file = index < 2 ? file : "",
                               .text = index < 2 ? "" : "Once <i>upon</i> a time"});
      fs::create_directories(folder / "samples");
      write_image(folder / file, {24, 16, std::vector<uint8_t>(24 * 16 * 3, uint8_t(step / 2))});
    }
  return page;
}

std::vector<StepRecord> long_run(int64_t steps) {
  std::vector<StepRecord> records;
  for (int64_t step = 1; step <= steps; ++step)
    records.push_back({.step = step,
                       .loss = 1.1 + 0.9 * std::sin(double(step)),
                       .lr = 1e-4,
                       .grad_norm = step == 5 ? 0 : double(step),  // a step that was skipped
                       .seconds = 0.5,
                       .time = 1.7e9});
  return records;
}

// A script that plays the reader: it clicks and hovers, and keeps in the document the texts that the page shows then.
constexpr const char* kReader = R"(<script>addEventListener("load", () => setTimeout(() => {
  const note = (name, value) => document.body.setAttribute("data-" + name, value);
  const plot = document.querySelector("#loss .plot"), box = plot.getBoundingClientRect();
  const steps = () => [...document.querySelectorAll("output")].map((one) => one.textContent).join("|");
  plot.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + 50}));
  note("hovered", steps());
  plot.dispatchEvent(new PointerEvent("pointerleave"));
  note("left", steps());
  plot.dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
  note("home", steps());
  const ticks = () => [...document.querySelectorAll("#loss .grid + text")].map((one) => one.textContent).join(" ");
  note("linear", ticks());
  document.querySelector(".choice input").click();
  note("log", ticks());
  document.querySelectorAll(".previews button")[1].click();
  document.querySelectorAll("#viewer button")[1].click();
  const viewer = document.querySelector("#viewer");
  note("open", viewer.open + " " + viewer.querySelector("figcaption").textContent);
  setTimeout(() => {
    note("picture", viewer.querySelector("img").naturalWidth);
    document.querySelectorAll("#viewer button")[2].click();
    note("closed", viewer.open);
    note("wider", document.documentElement.scrollWidth > innerWidth);
  }, 500);
}, 100));</script>)";

TEST_F(RunPageBrowser, ShowsLongRunsAndPreviewsToItsReader) {
  constexpr int64_t kSteps = 100000;
  const std::string html = run_page(page_with_previews(folder_.path(), 2 * kSteps), long_run(kSteps));
  write_plain(folder_ / "index.html", html + kReader);
  const std::string dom = open(folder_ / "index.html").dom;

  const auto found = curves(dom);
  for (const char* name : {"each step", "moving average", "learning rate", "all"}) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_GT(found.at(name), 1000u);
    EXPECT_LE(found.at(name), 2000u);
  }
  expect_parts(
      dom,
      {">Step 100,000 of 200,000, as of ", "<progress id=\"progress\" aria-label=\"Steps done\" max=\"200000\"",
       "<span>prompt &lt;i&gt;1</span>", "<p>Once &lt;i&gt;upon&lt;/i&gt; a time</p>",
       "data-left=\"step 100,000|step 100,000|step 100,000\"", "data-home=\"step 1|step 1|step 1\"",
       "data-linear=\"0 0.5 1 1.5 2\"", "data-log=\"0.2 0.5 1 2\"", "data-open=\"true Step 500 · prompt &lt;i&gt;0\"",
       "data-picture=\"24\"", "data-closed=\"false\"", "data-wider=\"false\""});
  std::smatch hovered;
  ASSERT_TRUE(std::regex_search(dom, hovered, std::regex("data-hovered=\"step (\\d+),\\d+\\|step (\\d+),")));
  EXPECT_NEAR(std::stod(hovered[1]), 49, 2) << "the middle, in thousands";
  EXPECT_EQ(hovered[1], hovered[2]) << "of all charts";
}

TEST_F(RunPageBrowser, ShowsOneStepAndNone) {
  for (const int64_t steps : {1, 0}) {
    write_plain(folder_ / "index.html", run_page({.title = "fox", .steps = 1}, long_run(steps)));
    const std::string dom = open(folder_ / "index.html").dom;
    EXPECT_EQ(curves(dom).size(), steps == 1 ? 4u : 0u);
    expect_parts(dom, {steps == 1 ? ">Finished after 1 step, " : ">None of 1 step is done yet<"});
  }
}

}  // namespace
}  // namespace wick

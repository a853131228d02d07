// ggml's side of bench/quantised_linear: y = x w^T on its CPU backend, with the weights as they are or repacked, as
// llama.cpp does where it can. The rows, their names and the protocol are those of bench/quantised_linear.cpp.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

int threads() {
  const char* given = std::getenv("OMP_NUM_THREADS");
  return given ? std::atoi(given) : 2;
}

// Milliseconds: of the clock, or a lone thread's CPU time, which other processes do not slow down.
double now() {
  timespec time{};
  clock_gettime(threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) * 1e3 + double(time.tv_nsec) * 1e-6;
}

std::vector<float> noise(int64_t n) {
  std::mt19937 rng(1);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = float(rng()) * 0x1p-31f - 1;
  return values;
}

ggml_backend_buffer_type_t repacking(ggml_backend_t cpu) {
  ggml_backend_dev_t device = ggml_backend_get_device(cpu);
  const auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  for (auto* type = get ? get(device) : nullptr; type && *type; ++type)
    if (std::string(ggml_backend_buft_name(*type)) == "CPU_REPACK") return *type;
  return nullptr;
}

class Row {
 public:
  Row(ggml_backend_t cpu, ggml_type type, int64_t m, int64_t k, int64_t n, int64_t copies, bool repack)
      : cpu_(cpu), copies_(copies) {
    context_ = ggml_init({ggml_tensor_overhead() * size_t(copies + 8), nullptr, true});
    work_ = ggml_init({ggml_tensor_overhead() * size_t(copies + 8) + ggml_graph_overhead(), nullptr, true});
    std::vector<ggml_tensor*> weights;
    for (int64_t i = 0; i < copies; ++i) weights.push_back(ggml_new_tensor_2d(context_, type, k, n));
    ggml_tensor* x = ggml_new_tensor_2d(work_, GGML_TYPE_F32, k, m);
    graph_ = ggml_new_graph(work_);
    std::vector<ggml_tensor*> products;
    for (ggml_tensor* w : weights) products.push_back(ggml_mul_mat(work_, w, x));
    for (ggml_tensor* y : products) ggml_build_forward_expand(graph_, y);
    auto* type_of_buffer = repack ? repacking(cpu) : nullptr;
    weights_ = type_of_buffer ? ggml_backend_alloc_ctx_tensors_from_buft(context_, type_of_buffer)
                              : ggml_backend_alloc_ctx_tensors(context_, cpu);
    activations_ = ggml_backend_alloc_ctx_tensors(work_, cpu);
    if (!weights_ || !activations_ || !ggml_backend_supports_op(cpu, products[0])) return;
    const std::vector<float> values = noise(n * k), input = noise(m * k);
    std::vector<char> blocks(ggml_nbytes(weights[0]));
    if (type == GGML_TYPE_F32)
      blocks.assign(reinterpret_cast<const char*>(values.data()), reinterpret_cast<const char*>(values.data() + n * k));
    else
      ggml_quantize_chunk(type, values.data(), blocks.data(), 0, n, k, nullptr);
    for (ggml_tensor* w : weights) ggml_backend_tensor_set(w, blocks.data(), 0, blocks.size());
    ggml_backend_tensor_set(x, input.data(), 0, input.size() * sizeof(float));
    runs_ = true;
  }
  ~Row() {
    ggml_backend_buffer_free(weights_);
    ggml_backend_buffer_free(activations_);
    ggml_free(context_);
    ggml_free(work_);
  }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  bool runs() const { return runs_; }

  double ms() const {  // a product
    const double start = now();
    ggml_backend_graph_compute(cpu_, graph_);
    return (now() - start) / double(copies_);
  }

 private:
  ggml_backend_t cpu_;
  int64_t copies_;
  bool runs_ = false;
  ggml_context *context_ = nullptr, *work_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_backend_buffer_t weights_ = nullptr, activations_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const bool repack = argc > 1 && std::string(argv[1]) == "--repack";
  ggml_backend_t cpu = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(cpu, threads());
  std::printf("ggml %s, g++ %s, %s%d threads\n", ggml_version(), __VERSION__, repack ? "repacked, " : "", threads());
  std::fflush(stdout);
  std::string type;
  for (int64_t runs, m, k, n, copies; std::cin >> runs >> type >> m >> k >> n >> copies;) {
    const std::map<std::string, ggml_type> kinds{{"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0},
                                                 {"q4_k", GGML_TYPE_Q4_K}, {"q5_k", GGML_TYPE_Q5_K},
                                                 {"q6_k", GGML_TYPE_Q6_K}, {"f32", GGML_TYPE_F32}};
    const Row row(cpu, kinds.at(type), m, k, n, copies, repack);
    std::string times;
    if (row.runs()) row.ms();
    for (int64_t i = 0; row.runs() && i < runs; ++i) times += (i ? ", " : "") + std::to_string(row.ms());
    std::printf("[%s]\n", times.c_str());
    std::fflush(stdout);
  }
  ggml_backend_free(cpu);
}

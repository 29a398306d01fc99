#include "tools/calibration/measure_cores.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/base/thread_pool.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/cpu/fma_peak.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/rope.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/stream.h"

namespace megatron {
namespace {

constexpr double kShareOfProducts = 0.6;  // the products' share of the time
constexpr double kShareOfAttention = 0.2;
constexpr double kMostShares = 10;
constexpr double kLongestKernel = 1.0;  // seconds of one kernel's runs
// Bytes of the operands that a kernel goes through in turn, on each core.
constexpr int64_t kColdBytes = 32 << 20;

// A rank of some threads with tensors of its own.
class Rank {
 public:
  explicit Rank(int threads) : pool_(threads), stream_(Stream::Cpu(&pool_)) {}

  const Stream& stream() const { return stream_; }

  Tensor Make(const Shape& shape, DType dtype = DType::kFloat32) {
    return MakeMany(1, shape, dtype).front();
  }

  std::vector<Tensor> MakeMany(int64_t count, const Shape& shape, DType dtype) {
    const int64_t bytes = shape.numel() * SizeOf(dtype);
    buffers_.emplace_back(Device{}, count * bytes, "calibration", nullptr);
    // Values around 0.5 in any of the formats: no denormals, no infinities.
    uint16_t* const words = static_cast<uint16_t*>(buffers_.back().data());
    for (int64_t i = 0; i < bytes / 2; ++i) words[i] = uint16_t(0x3f00 + i % 7);
    std::vector<Tensor> tensors;
    for (int64_t i = 0; i < count; ++i) {
      if (i > 0) std::memcpy(words + i * bytes / 2, words, bytes);
      tensors.push_back(buffers_.back().At(i * bytes, dtype, shape));
    }
    return tensors;
  }

 private:
  ThreadPool pool_;
  Stream stream_;
  std::deque<Buffer> buffers_;
};

// Returns how many sets of operands of so many bytes a kernel goes through.
int64_t ColdSets(int64_t bytes) { return std::max<int64_t>(1, kColdBytes / bytes); }

using Kernel = std::function<void()>;
using MakeKernel = std::function<Kernel(Rank*)>;

using Clock = double (*)();

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Other processes' turns on the core don't count.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Returns the median seconds of a run, of as many as the time suffices for.
double MedianSeconds(const Kernel& kernel, double seconds, Clock clock) {
  std::vector<double> runs;
  double sum = 0;
  while (runs.empty() || (sum < seconds && runs.size() < 1000)) {
    const double start = clock();
    kernel();
    runs.push_back(clock() - start);
    sum += runs.back();
  }
  return Median(std::move(runs));
}

// Returns the mean over ranks of their median seconds on their cores, while all of them run.
double SecondsOnAllCores(int cores, const MakeKernel& make, double seconds) {
  std::vector<double> medians(cores);
  std::atomic<int> ready{0};
  std::atomic<int> measured{0};
  std::vector<std::thread> threads;
  for (int core = 0; core < cores; ++core) {
    threads.emplace_back([&, core] {
      Rank rank(1);
      const Kernel kernel = make(&rank);
      kernel();
      ++ready;
      while (ready < cores) std::this_thread::yield();
      medians[core] = MedianSeconds(kernel, seconds, ThreadSeconds);
      // The others shall not see an idle core.
      ++measured;
      while (measured < cores) kernel();
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (double median : medians) sum += median;
  return sum / cores;
}

// A step comes back to a layer's weights, their gradients and saved activations when caches have
// lost them, whether it reads or writes them. What the kernel before has just written is still
// there, and so are temporaries.
MakeKernel Product(const KernelShape& shape, DType dtype = DType::kFloat32) {
  return [shape, dtype](Rank* rank) -> Kernel {
    const int64_t m = int64_t(shape.m), n = int64_t(shape.n), k = int64_t(shape.k);
    const Stream& stream = rank->stream();
    const int64_t x_bytes = SizeOf(dtype) * m * k, y_bytes = SizeOf(dtype) * m * n;
    int64_t i = 0;
    if (shape.pass == "weight_gradient") {
      const int64_t count = ColdSets(4 * n * k + x_bytes);
      const auto dw = rank->MakeMany(count, {n, k}, DType::kFloat32);
      const auto x = rank->MakeMany(count, {m, k}, dtype);
      const Tensor dy = rank->Make({m, n}, dtype);
      return [=, &stream]() mutable {
        i = (i + 1) % count;
        ops::LinearBackwardWeight(stream, dy, x[i], dw[i], Tensor());
      };
    }
    const bool is_forward = shape.pass == "forward";
    const int64_t count = ColdSets(SizeOf(dtype) * n * k + (is_forward ? y_bytes : 0));
    const auto w = rank->MakeMany(count, {n, k}, dtype);
    const auto y = rank->MakeMany(is_forward ? count : 1, {m, n}, dtype);
    const Tensor x = rank->Make({m, k}, dtype);
    if (is_forward) {
      return [=, &stream]() mutable {
        i = (i + 1) % count;
        ops::LinearForward(stream, x, w[i], Tensor(), y[i]);
      };
    }
    return [=, &stream]() mutable {
      i = (i + 1) % count;
      ops::LinearBackwardInput(stream, y[0], w[i], x);
    };
  };
}

// Forward, the product before it has just written its inputs; backward comes back to all that was
// saved.
MakeKernel AttentionOf(const KernelShape& shape) {
  return [shape](Rank* rank) -> Kernel {
    const int64_t positions = int64_t(shape.m), heads = int64_t(shape.n), dim = int64_t(shape.k);
    const Stream& stream = rank->stream();
    const bool is_forward = shape.pass == "forward";
    const Shape all = {positions, heads, 1, dim}, kv = {positions, heads, dim};
    const int64_t count = ColdSets((is_forward ? 1 : 4) * 4 * all.numel());
    const auto q = rank->MakeMany(is_forward ? 1 : count, all, DType::kFloat32);
    const auto k = rank->MakeMany(is_forward ? 1 : count, kv, DType::kFloat32);
    const auto v = rank->MakeMany(is_forward ? 1 : count, kv, DType::kFloat32);
    const auto out = rank->MakeMany(count, all, DType::kFloat32);
    const Tensor dout = rank->Make(all);
    const ops::AttentionInputs gradients = {rank->Make(all), rank->Make(kv), rank->Make(kv), {}};
    const Tensor lse = rank->Make({positions, heads, 1});
    ops::Attention attention;
    attention.scale = float(1 / std::sqrt(double(dim)));
    const Tensor ends = rank->Make({2}, DType::kInt32);
    ends.data<int32_t>()[0] = 0;
    ends.data<int32_t>()[1] = int32_t(positions);
    attention.cu_seqlens_q = attention.cu_seqlens_k = ends;
    attention.max_seqlen_q = attention.max_seqlen_k = positions;
    ops::AttentionForward(stream, attention, {q[0], k[0], v[0], {}}, out[0], lse);
    int64_t i = 0;
    if (is_forward) {
      return [=, &stream]() mutable {
        i = (i + 1) % count;
        ops::AttentionForward(stream, attention, {q[0], k[0], v[0], {}}, out[i], lse);
      };
    }
    return [=, &stream]() mutable {
      i = (i + 1) % count;
      ops::AttentionBackward(stream, attention, {q[i], k[i], v[i], {}}, out[i], lse, dout,
                             gradients);
    };
  };
}

double Flops(const KernelShape& shape) {
  if (shape.kernel != "attention") return 2 * shape.m * shape.n * shape.k;
  return (shape.pass == "forward" ? 4 : 10) * shape.m * shape.m * shape.n * shape.k;
}

std::vector<KernelShape> Products() {
  std::vector<KernelShape> shapes;
  for (double m : {32, 128, 512, 2048}) {
    for (double n : {64, 128, 256, 512, 1024, 2048}) {
      for (double k : {64, 128, 256, 512, 1024, 2048}) {
        for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
          shapes.push_back({"product", pass, m, n, k});
        }
      }
    }
  }
  return shapes;
}

std::vector<KernelShape> AttentionShapes() {
  std::vector<KernelShape> shapes;
  for (double positions : {32, 64, 128, 256, 512, 1024}) {
    for (double heads : {1, 2, 4, 8}) {
      for (double channels : {32, 64}) {
        for (const char* pass : {"forward", "input_gradient"}) {
          shapes.push_back({"attention", pass, positions, heads, channels});
        }
      }
    }
  }
  return shapes;
}

// Leaves out kernels of which a single run takes many times its share of the time.
void MeasureKernels(int cores, const std::vector<KernelShape>& shapes, double seconds, double peak,
                    std::vector<KernelRate>* rates) {
  const double each = std::min(kLongestKernel, seconds / double(shapes.size()));
  for (const KernelShape& shape : shapes) {
    if (Flops(shape) / peak > kMostShares * each) continue;
    const MakeKernel make = shape.kernel == "product" ? Product(shape) : AttentionOf(shape);
    rates->push_back({shape, Flops(shape) / SecondsOnAllCores(cores, make, each)});
  }
}

// Products of a small layer, by one rank of all cores and by as many ranks of one.
double ThreadEfficiency(int cores, double seconds) {
  double logs = 0;
  int count = 0;
  for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
    for (double n : {256, 1024}) {
      const KernelShape shape = {"product", pass, 512, n, 256};
      const double alone = SecondsOnAllCores(cores, Product(shape), seconds / 12);
      Rank rank(cores);
      const Kernel kernel = Product(shape)(&rank);
      kernel();
      logs += std::log(alone / cores / MedianSeconds(kernel, seconds / 12, WallSeconds));
      ++count;
    }
  }
  return std::exp(logs / count);
}

// The kernels between the products of a layer, forward and backward. Layers without biases lack
// the sum of their gradient, and those with gates have another activation.
Kernel BetweenProducts(Rank* rank, int64_t tokens, int64_t hidden) {
  constexpr int64_t kHeadDim = 32;
  const Stream& stream = rank->stream();
  const int64_t count = ColdSets(4 * tokens * hidden * 10);
  const auto x = rank->MakeMany(count, {tokens, hidden}, DType::kFloat32);
  const auto y = rank->MakeMany(count, {tokens, hidden}, DType::kFloat32);
  const auto wide = rank->MakeMany(count, {tokens, 4 * hidden}, DType::kFloat32);
  const auto gate = rank->MakeMany(count, {tokens, 4 * hidden}, DType::kFloat32);
  const Tensor gamma = rank->Make({hidden}), beta = rank->Make({hidden});
  const ops::NormTensors norm = {gamma, beta, rank->Make({tokens}), rank->Make({tokens})};
  const Tensor dgamma = rank->Make({hidden}), dbeta = rank->Make({hidden});
  const Tensor dbias = rank->Make({4 * hidden});
  const Tensor queries_and_keys = rank->Make({tokens, 2 * hidden / kHeadDim, kHeadDim});
  const Tensor cos = rank->Make({1, kHeadDim / 2}), sin = rank->Make({1, kHeadDim / 2});
  const Tensor position = rank->Make({tokens}, DType::kInt32);
  ops::Zero(stream, position);
  ops::Zero(stream, sin);
  int64_t i = 0;
  return [=, &stream]() mutable {
    i = (i + 1) % count;
    for (int half = 0; half < 2; ++half) {
      ops::NormForward(stream, ops::Norm(), x[i], norm, y[i]);
      ops::Add(stream, y[i], x[i]);
      ops::NormBackward(stream, ops::Norm(), y[i], x[i], norm, x[i], y[i], dgamma, dbeta);
      // Sums would grow from run to run.
      ops::Scale(stream, 0.5f, x[i]);
      ops::Rope(stream, cos, sin, position, false, half == 1, queries_and_keys);
    }
    ops::ActivationForward(stream, ops::Activation::kGeluTanh, wide[i], gate[i]);
    ops::ActivationBackward(stream, ops::Activation::kGeluTanh, gate[i], wide[i], gate[i]);
    ops::BiasBackward(stream, gate[i], dbias);
  };
}

// The same with RMSNorm and a gate, and without biases.
Kernel BetweenGatedProducts(Rank* rank, int64_t tokens, int64_t hidden) {
  constexpr int64_t kHeadDim = 32;
  const Stream& stream = rank->stream();
  const int64_t count = ColdSets(4 * tokens * hidden * 22);
  const auto x = rank->MakeMany(count, {tokens, hidden}, DType::kFloat32);
  const auto y = rank->MakeMany(count, {tokens, hidden}, DType::kFloat32);
  const auto halves = rank->MakeMany(count, {tokens, 8 * hidden}, DType::kFloat32);
  const auto d_halves = rank->MakeMany(count, {tokens, 8 * hidden}, DType::kFloat32);
  const auto wide = rank->MakeMany(count, {tokens, 4 * hidden}, DType::kFloat32);
  ops::Norm rms;
  rms.kind = ops::Norm::kRmsNorm;
  const ops::NormTensors norm = {rank->Make({hidden}), Tensor(), Tensor(), rank->Make({tokens})};
  const Tensor dgamma = rank->Make({hidden});
  const Tensor queries_and_keys = rank->Make({tokens, 2 * hidden / kHeadDim, kHeadDim});
  const Tensor cos = rank->Make({1, kHeadDim / 2}), sin = rank->Make({1, kHeadDim / 2});
  const Tensor position = rank->Make({tokens}, DType::kInt32);
  ops::Zero(stream, position);
  ops::Zero(stream, sin);
  const ops::Gate gate = ops::Activation::kSilu;
  int64_t i = 0;
  return [=, &stream]() mutable {
    i = (i + 1) % count;
    for (int half = 0; half < 2; ++half) {
      ops::NormForward(stream, rms, x[i], norm, y[i]);
      ops::Add(stream, y[i], x[i]);
      ops::NormBackward(stream, rms, y[i], x[i], norm, x[i], y[i], dgamma, Tensor());
      // Sums would grow from run to run.
      ops::Scale(stream, 0.5f, x[i]);
      ops::Rope(stream, cos, sin, position, false, half == 1, queries_and_keys);
    }
    ops::GateForward(stream, gate, halves[i], wide[i]);
    ops::GateBackward(stream, gate, wide[i], halves[i], d_halves[i]);
  };
}

// What step_prediction.cc counts of these kernels, whose MLP is four times as wide: so many numbers
// of each token and channel forward, and 1.6 times as many backward.
constexpr double kPasses = 2.6;
constexpr double kNumbers = 18, kGatedNumbers = 22;

// A few tokens and many tell what bytes take, and what each run takes besides.
void MeasureBetween(int cores, double seconds, CoreRates* rates) {
  constexpr int64_t kFewTokens = 128, kTokens = 512, kHidden = 256;
  const auto time = [&](int64_t tokens) {
    return SecondsOnAllCores(
        cores, [=](Rank* rank) { return BetweenProducts(rank, tokens, kHidden); }, seconds / 3);
  };
  const double few = time(kFewTokens), many = time(kTokens);
  const double of_token = std::max(many - few, 0.5 * many) / double(kTokens - kFewTokens);
  const auto efficiency = [&](double numbers, double seconds_of_token) {
    return 4.0 * double(kHidden) * numbers * kPasses / seconds_of_token / rates->memory_bytes_per_s;
  };
  rates->memory_efficiency = efficiency(kNumbers, of_token);
  rates->layer_overhead_seconds = std::max(0.0, many - of_token * double(kTokens));
  const double gated = SecondsOnAllCores(
      cores, [](Rank* rank) { return BetweenGatedProducts(rank, kTokens, kHidden); }, seconds / 3);
  rates->gated_memory_efficiency = efficiency(
      kGatedNumbers, std::max(0.5 * gated, gated - rates->layer_overhead_seconds) / kTokens);
}

double MemoryRate(int cores, double seconds) {
  constexpr int64_t kCount = 1 << 23;
  const double scaling = SecondsOnAllCores(
      cores,
      [](Rank* rank) -> Kernel {
        const Tensor x = rank->Make({kCount});
        return [rank, x] { ops::Scale(rank->stream(), 1.0f, x); };
      },
      seconds);
  return 8.0 * kCount / scaling;
}

void MeasureMemory(int cores, double seconds, CoreRates* rates) {
  rates->memory_bytes_per_s = MemoryRate(cores, seconds / 3);
  MeasureBetween(cores, seconds / 3, rates);
  constexpr int64_t kParameters = 1 << 21;
  const double update = SecondsOnAllCores(
      cores,
      [](Rank* rank) -> Kernel {
        const Tensor grad = rank->Make({kParameters}), m = rank->Make({kParameters});
        const Tensor v = rank->Make({kParameters}), w = rank->Make({kParameters});
        const Tensor sum = rank->Make({2});
        const ops::OptimizerSegment all = {0, kParameters, 1e-9f, 0};
        return [=] {
          const Stream& stream = rank->stream();
          ops::SumOfSquares(stream, 1.0f, grad, sum);
          ops::AdamWUpdate(stream, {}, {all}, grad, m, v, w, Tensor());
          ops::Zero(stream, grad);
        };
      },
      seconds / 3);
  rates->optimizer_efficiency = 32.0 * kParameters / update / rates->memory_bytes_per_s;
}

}  // namespace

CoreRates MeasureCores(int cores, double seconds) {
  CoreRates rates;
  ThreadPool pool(cores);
  std::vector<double> peaks;
  for (int i = 0; i < 20; ++i) peaks.push_back(ops::MeasureFmaPeak(&pool) / cores);
  rates.peak_flops_per_s = Median(std::move(peaks));
  const double rest = (1 - kShareOfProducts - kShareOfAttention) * seconds;
  const KernelShape shape = ProbeShape();
  rates.bf16_products = SecondsOnAllCores(cores, Product(shape), rest / 10) /
                        SecondsOnAllCores(cores, Product(shape, DType::kBFloat16), rest / 10);
  rates.thread_efficiency = ThreadEfficiency(cores, 0.4 * rest);
  MeasureMemory(cores, 0.4 * rest, &rates);
  MeasureKernels(cores, Products(), kShareOfProducts * seconds, rates.peak_flops_per_s,
                 &rates.kernels);
  MeasureKernels(cores, AttentionShapes(), kShareOfAttention * seconds, rates.peak_flops_per_s,
                 &rates.kernels);
  return rates;
}

KernelShape ProbeShape() { return {"product", "forward", 512, 1024, 256}; }

ProbeRates MeasureProbe(int cores, double seconds) {
  ProbeRates rates;
  rates.flops_per_s =
      Flops(ProbeShape()) / SecondsOnAllCores(cores, Product(ProbeShape()), seconds);
  rates.memory_bytes_per_s = MemoryRate(cores, seconds);
  return rates;
}

}  // namespace megatron

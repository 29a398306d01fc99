#include "tools/calibration/measure_cores.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "megatron/base/median.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/bias_gradient.h"
#include "megatron/ops/cpu/fma_peak.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/moe/permute.h"
#include "megatron/ops/moe/router.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/ops/rope.h"
#include "megatron/tensor/stream.h"
#include "tools/calibration/calibration_rank.h"
#include "tools/calibration/recurrence_kernels.h"

namespace megatron {
namespace {

using calibration::ColdSets;
using calibration::IsRecurrence;
using calibration::Kernel;
using calibration::MakeKernel;
using calibration::Rank;
using calibration::RecurrenceFlops;
using calibration::RecurrenceOfShape;
using calibration::RecurrenceShapes;
using calibration::SecondsOfARank;
using calibration::SecondsOnAllCores;

constexpr double kShareOfProducts = 0.55;  // the products' share of the time
constexpr double kShareOfAttention = 0.2;
constexpr double kShareOfRecurrences = 0.05;
constexpr double kMostShares = 10;
constexpr double kLongestKernel = 1.0;  // seconds of one kernel's runs

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
    const Tensor ends = rank->MakeEnds(positions);
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
  if (IsRecurrence(shape)) return RecurrenceFlops(shape);
  if (shape.kernel != "attention") return 2 * shape.m * shape.n * shape.k;
  return (shape.pass == "forward" ? 4 : 10) * shape.m * shape.m * shape.n * shape.k;
}

MakeKernel KernelOf(const KernelShape& shape) {
  if (IsRecurrence(shape)) return RecurrenceOfShape(shape);
  return shape.kernel == "product" ? Product(shape) : AttentionOf(shape);
}

// An expert may have as few rows as 16, of which products have kernels of their own, and a router
// as few outputs as 8. All combinations are there, so that what lies between them is between
// measured shapes.
std::vector<KernelShape> Products() {
  std::vector<KernelShape> shapes;
  for (double m : {16, 32, 128, 512, 2048}) {
    for (double n : {8, 64, 128, 256, 512, 1024, 2048}) {
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
    rates->push_back({shape, Flops(shape) / SecondsOnAllCores(cores, KernelOf(shape), each)});
  }
}

struct ThreadCosts {
  double efficiency = 1;
  double meeting = 0;  // seconds
};

// Products of a small layer, of few rows and of many, by one rank of all cores and by as many ranks
// of one. Beside the ideal share, what the rank takes is a share of it and a time that is the same
// for all: the line through them all is that with the least squares of relative errors.
ThreadCosts MeasureThreadCosts(int cores, double seconds) {
  if (cores == 1) return {};
  double count = 0, u = 0, v = 0, uu = 0, uv = 0, shortest = INFINITY;
  for (const char* pass : {"forward", "input_gradient", "weight_gradient"}) {
    for (double m : {128, 512}) {
      for (double n : {256, 1024}) {
        const KernelShape shape = {"product", pass, m, n, 256};
        const double share = SecondsOnAllCores(cores, Product(shape), seconds / 24) / double(cores);
        const double taken = SecondsOfARank(cores, Product(shape), seconds / 24);
        ++count;
        u += 1 / share;
        v += taken / share;
        uu += 1 / (share * share);
        uv += taken / (share * share);
        shortest = std::min(shortest, taken);
      }
    }
  }
  // On a busy machine the line's start is noise, which may take all of a short product.
  const double meeting = std::clamp((count * uv - u * v) / (count * uu - u * u), 0.0, shortest / 2);
  return {std::min(1.0, count / (v - meeting * u)), meeting};
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

// Returns the rate at which each core passes over so many numbers.
double MemoryRate(int cores, int64_t count, double seconds) {
  const double scaling = SecondsOnAllCores(
      cores,
      [count](Rank* rank) -> Kernel {
        const Tensor x = rank->Make({count});
        return [rank, x] { ops::Scale(rank->stream(), 1.0f, x); };
      },
      seconds);
  return 8.0 * double(count) / scaling;
}

constexpr int64_t kNearNumbers = 1 << 23, kFarNumbers = 1 << 26;  // of 32 and of 256 MiB

// Returns how fast memory is that the machine's caches don't hold either, as a share of its rate.
// Machines that have little memory for so many cores aren't asked.
double FarMemory(int cores, double seconds, double rate) {
  struct sysinfo info = {};
  const double bytes = 4.0 * kFarNumbers * cores;
  if (sysinfo(&info) != 0 || 4 * bytes > double(info.totalram) * info.mem_unit) return 1;
  return std::min(1.0, MemoryRate(cores, kFarNumbers, seconds) / rate);
}

// The bytes of a row that is brought to its expert and back, and so is its gradient, as
// mixture_costs.cc counts them: each time it is read and written.
constexpr double kPermutationBytes = 4 * 2 * 4;

// Returns the share of the memory's rate at which tokens' rows are brought to the order of their
// experts and back, in both passes. A step comes back to the rows that an expert reads and to those
// that it writes.
double PermutationEfficiency(int cores, double seconds, double memory_bytes_per_s) {
  constexpr int64_t kTokens = 256, kHidden = 256, kChoices = 2, kExperts = 8;
  constexpr int64_t kRows = kTokens * kChoices;
  const MakeKernel make = [](Rank* rank) -> Kernel {
    const Stream& stream = rank->stream();
    const Tensor expert = rank->Make({kTokens, kChoices}, DType::kInt32);
    for (int64_t i = 0; i < expert.numel(); ++i)
      expert.data<int32_t>()[i] = int32_t(i * 7919 % kExperts);
    const Tensor place = rank->Make({kTokens, kChoices, 1}, DType::kInt32);
    const Tensor rows = rank->Make({1, 1, kExperts}, DType::kInt64);
    ops::PlaceByExpert(stream, expert, place, rows, /*padded=*/0);
    const Tensor x = rank->Make({kTokens, kHidden}), y = rank->Make({kTokens, kHidden});
    const Tensor gradients = rank->Make({kRows, kHidden});
    const Tensor probability = rank->Make({kTokens, kChoices});
    const Tensor dprobability = rank->Make({kTokens, kChoices});
    const int64_t count = ColdSets(2 * 4 * kRows * kHidden);
    const auto sent = rank->MakeMany(count, {kRows, kHidden}, DType::kFloat32);
    const auto returned = rank->MakeMany(count, {kRows, kHidden}, DType::kFloat32);
    int64_t i = 0;
    return [=, &stream]() mutable {
      i = (i + 1) % count;
      ops::Permute(stream, x, place, sent[i]);
      ops::Unpermute(stream, returned[i], place, probability, y);
      ops::UnpermuteBackward(stream, y, returned[i], place, probability, gradients, dprobability);
      ops::PermuteBackward(stream, gradients, place, x);
    };
  };
  return kPermutationBytes * double(kRows * kHidden) / SecondsOnAllCores(cores, make, seconds) /
         memory_bytes_per_s;
}

// Returns the seconds of a router's kernels in both passes for each token and expert.
double RoutingSeconds(int cores, double seconds) {
  constexpr int64_t kTokens = 512, kExperts = 8;
  const MakeKernel make = [](Rank* rank) -> Kernel {
    const ops::Router router;
    const Stream& stream = rank->stream();
    const Tensor logits = rank->Make({kTokens, kExperts}), dlogits = rank->Make(logits.shape());
    for (int64_t i = 0; i < logits.numel(); ++i)
      logits.data<float>()[i] = float(i * 7919 % 101) / 50;
    const Shape choices = {kTokens, router.topk};
    const Tensor expert = rank->Make(choices, DType::kInt32);
    const Tensor probability = rank->Make(choices), dprobability = rank->Make(choices);
    const Tensor place = rank->Make({kTokens, router.topk, 1}, DType::kInt32);
    const Tensor rows = rank->Make({1, 1, kExperts}, DType::kInt64);
    const Tensor values = rank->Make({kTokens, 2}), sums = rank->Make({2});
    ops::RouterLosses losses;
    losses.counts_UE = rank->Make({1, kExperts}, DType::kInt64);
    losses.units = {0, kTokens, Tensor()};
    losses.balance_weight = 0.01f;
    return [=, &stream] {
      ops::RouterForward(stream, router, logits, Tensor(), expert, probability);
      ops::PlaceByExpert(stream, expert, place, rows, /*padded=*/0);
      ops::Zero(stream, losses.counts_UE);
      ops::CountChoices(stream, expert, losses.units, losses.counts_UE);
      ops::RouterBackward(stream, router, logits, expert, dprobability, losses, dlogits, values);
      ops::Zero(stream, sums);
      ops::AddRouterLosses(stream, values, 1, 0, sums);
    };
  };
  return SecondsOnAllCores(cores, make, seconds) / double(kTokens * kExperts);
}

void MeasureMemory(int cores, double seconds, CoreRates* rates) {
  rates->memory_bytes_per_s = MemoryRate(cores, kNearNumbers, seconds / 3);
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
  rates.peak_flops_per_s = Median(peaks);
  const double rest = (1 - kShareOfProducts - kShareOfAttention - kShareOfRecurrences) * seconds;
  const KernelShape shape = ProbeShape();
  rates.bf16_products = SecondsOnAllCores(cores, Product(shape), rest / 10) /
                        SecondsOnAllCores(cores, Product(shape, DType::kBFloat16), rest / 10);
  const ThreadCosts threads = MeasureThreadCosts(cores, 0.3 * rest);
  rates.thread_efficiency = threads.efficiency;
  rates.thread_meeting_seconds = threads.meeting;
  MeasureMemory(cores, 0.3 * rest, &rates);
  rates.far_memory_efficiency = FarMemory(cores, 0.05 * rest, rates.memory_bytes_per_s);
  rates.routing_score_seconds = RoutingSeconds(cores, 0.05 * rest);
  rates.permutation_efficiency =
      PermutationEfficiency(cores, 0.05 * rest, rates.memory_bytes_per_s);
  MeasureKernels(cores, Products(), kShareOfProducts * seconds, rates.peak_flops_per_s,
                 &rates.kernels);
  MeasureKernels(cores, AttentionShapes(), kShareOfAttention * seconds, rates.peak_flops_per_s,
                 &rates.kernels);
  MeasureKernels(cores, RecurrenceShapes(), kShareOfRecurrences * seconds, rates.peak_flops_per_s,
                 &rates.kernels);
  return rates;
}

KernelShape ProbeShape() { return {"product", "forward", 512, 1024, 256}; }

ProbeRates MeasureProbe(int cores, double seconds) {
  ProbeRates rates;
  rates.flops_per_s =
      Flops(ProbeShape()) / SecondsOnAllCores(cores, Product(ProbeShape()), seconds);
  rates.memory_bytes_per_s = MemoryRate(cores, kNearNumbers, seconds);
  return rates;
}

}  // namespace megatron

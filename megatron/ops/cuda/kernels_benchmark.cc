// Speed of the ops on a GPU, at the shapes of one micro-batch of a GPT of hidden size 1024 with
// 8 x 2048 tokens, on random data.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "megatron/base/philox.h"
#include "megatron/ops/activation.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/compression/group_codes.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/cuda/cudnn/cudnn_kernels.h"
#include "megatron/ops/cuda/gemm/blas_product.h"
#include "megatron/ops/cuda/gemm/gemm_planner.h"
#include "megatron/ops/cuda/gemm/linear_gemm.h"
#include "megatron/ops/cuda/gpu_benchmark.h"
#include "megatron/ops/cuda/own_attention.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/embedding.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/norm.h"
#include "megatron/ops/optimizer.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"

namespace megatron::ops {
namespace {

void BM_Linear(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  Measure(state, {2.0 * (kTokens * (in + out) + in * out), 2.0 * kTokens * in * out},
          [&](Gpu& gpu) {
            const Tensor x = gpu.Normal({kTokens, in}, kBf16), w = gpu.Normal({out, in}, kBf16),
                         bias = gpu.Normal({out}, kBf16), y = gpu.Normal({kTokens, out}, kBf16);
            return [=, &gpu] { LinearForward(gpu.stream(), x, w, bias, y); };
          });
}

void BM_LinearBackwardInput(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  Measure(state, {2.0 * (kTokens * (in + out) + in * out), 2.0 * kTokens * in * out},
          [&](Gpu& gpu) {
            const Tensor dx = gpu.Normal({kTokens, in}, kBf16), w = gpu.Normal({out, in}, kBf16),
                         dy = gpu.Normal({kTokens, out}, kBf16);
            return [=, &gpu] { LinearBackwardInput(gpu.stream(), dy, w, dx); };
          });
}

void BM_LinearBackwardWeight(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  Measure(state, {2.0 * kTokens * (in + out) + 8.0 * in * out, 2.0 * kTokens * in * out},
          [&](Gpu& gpu) {
            const Tensor x = gpu.Normal({kTokens, in}, kBf16),
                         dy = gpu.Normal({kTokens, out}, kBf16), dw = gpu.Normal({out, in}, kFp32),
                         dbias = gpu.Normal({out}, kFp32);
            return [=, &gpu] { LinearBackwardWeight(gpu.stream(), dy, x, dw, dbias); };
          });
}

// Products with what cuBLASLt can do besides, each to be compared with ours:
// BM_LinearBackwardWeight, BM_LinearGelu, BM_LinearBackwardInputGelu.
void MeasureProduct(benchmark::State& state,
                    const std::function<cuda::LinearGemm(Gpu& gpu)>& make_linear) {
  if (!HasGpu(state)) return;
  Gpu choosing;
  const cuda::LinearGemm linear = make_linear(choosing);
  const cuda::Gemm& gemm = linear.gemm;
  const cuda::BlasProduct product(choosing.cuda()->blas(), gemm, cuda::BlasProduct::kCandidates);
  if (product.kernels().empty()) {
    for (auto _ : state) state.SetIterationTime(0);
    state.SetLabel("cuBLASLt has no such kernel");
    return;
  }
  cuda::TimedProduct timed(&product, choosing.cuda(), linear.operands);
  const int fastest = cuda::TimeCandidates(&timed).fastest;
  const double bytes = SizeOf(gemm.in) * static_cast<double>(gemm.m + gemm.n) * gemm.k +
                       SizeOf(gemm.out) *
                           (linear.operands.aux != nullptr || gemm.accumulate ? 2.0 : 1.0) *
                           gemm.m * gemm.n;
  Measure(state, {bytes, 2.0 * gemm.m * gemm.n * gemm.k}, [&](Gpu& gpu) {
    const cuda::GemmOperands operands = make_linear(gpu).operands;
    return [&gpu, &product, &gemm, fastest, operands] {
      CHECK(product.Run(gpu.cuda(), fastest, operands)) << gemm;
    };
  });
}

void BM_BlasBackwardWeightAndBias(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  MeasureProduct(state, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal({kTokens, in}, kBf16), dy = gpu.Normal({kTokens, out}, kBf16),
                 dw = gpu.Normal({out, in}, kFp32), sums = gpu.Normal({out}, kFp32);
    return cuda::BackwardWeightAndBiasGemm(dy, x, dw, sums);
  });
}

// The two products of an MLP that have an activation beside them.
struct GeluOperands {
  explicit GeluOperands(Gpu* gpu)
      : x_TH(gpu->Normal({kTokens, kHidden}, kBf16)),
        w_IH(gpu->Normal({kFfn, kHidden}, kBf16)),
        w_HI(gpu->Normal({kHidden, kFfn}, kBf16)),
        bias_I(gpu->Normal({kFfn}, kBf16)),
        pre_TI(gpu->Normal({kTokens, kFfn}, kBf16)),
        y_TI(gpu->Normal({kTokens, kFfn}, kBf16)),
        sums_I(gpu->Normal({kFfn}, kFp32)) {}
  static constexpr double kBytes = 2.0 * (kTokens * (kHidden + 2 * kFfn) + kHidden * kFfn),
                          kOperations = 2.0 * kTokens * kHidden * kFfn;

  Tensor x_TH, w_IH, w_HI, bias_I, pre_TI, y_TI, sums_I;
};

void BM_LinearGelu(benchmark::State& state) {
  Measure(state, {GeluOperands::kBytes, GeluOperands::kOperations}, [&](Gpu& gpu) {
    const GeluOperands at(&gpu);
    return [=, &gpu] {
      LinearActivationForward(gpu.stream(), Activation::kGeluTanh, at.x_TH, at.w_IH, at.bias_I,
                              at.pre_TI, at.y_TI);
    };
  });
}

void BM_BlasLinearGelu(benchmark::State& state) {
  MeasureProduct(state, [](Gpu& gpu) {
    const GeluOperands at(&gpu);
    return cuda::ForwardGeluGemm(at.x_TH, at.w_IH, at.bias_I, at.pre_TI, at.y_TI);
  });
}

// The product with the derivative of the activation and the gradient of the bias in front of it.
void BM_LinearBackwardInputGelu(benchmark::State& state) {
  Measure(state, {GeluOperands::kBytes, GeluOperands::kOperations}, [&](Gpu& gpu) {
    const GeluOperands at(&gpu);
    return [=, &gpu] {
      LinearActivationBackwardInput(gpu.stream(), Activation::kGeluTanh, at.x_TH, at.w_HI,
                                    at.pre_TI, at.y_TI, at.sums_I);
    };
  });
}

void BM_BlasLinearBackwardInputGelu(benchmark::State& state) {
  MeasureProduct(state, [](Gpu& gpu) {
    const GeluOperands at(&gpu);
    return cuda::BackwardInputGeluGemm(at.x_TH, at.w_HI, at.pre_TI, at.y_TI, at.bias_I);
  });
}

#define MEGATRON_LINEAR_SHAPES   \
  Args({kHidden, 3 * kHidden})   \
      ->Args({kHidden, kHidden}) \
      ->Args({kHidden, kFfn})    \
      ->Args({kFfn, kHidden})
BENCHMARK(BM_Linear)->MEGATRON_LINEAR_SHAPES->Args({kHidden, kVocab})->UseManualTime();
BENCHMARK(BM_LinearBackwardInput)->MEGATRON_LINEAR_SHAPES->Args({kHidden, kVocab})->UseManualTime();
BENCHMARK(BM_LinearBackwardWeight)
    ->MEGATRON_LINEAR_SHAPES->Args({kHidden, kVocab})
    ->UseManualTime();
BENCHMARK(BM_BlasBackwardWeightAndBias)->MEGATRON_LINEAR_SHAPES->UseManualTime();
BENCHMARK(BM_LinearGelu)->UseManualTime();
BENCHMARK(BM_BlasLinearGelu)->UseManualTime();
BENCHMARK(BM_LinearBackwardInputGelu)->UseManualTime();
BENCHMARK(BM_BlasLinearBackwardInputGelu)->UseManualTime();

// The kernel that the trainer takes with system.time_gemm_kernels, and cuBLASLt's first choice
// (which it takes without), each as the share of the speed of the fastest of all kernels that the
// library has, also with twice the workspace.
void ReportPlan(benchmark::State& state, Gpu* gpu, const cuda::LinearGemm& linear) {
  constexpr int kAll = 64;
  const cuda::GemmPlace place = cuda::PlaceOfDevice(0);
  cuda::GemmPlanner planner;
  cuda::GemmPlanning planning;
  planning.time_products = true;
  planner.Use(planning);
  const cuda::BlasProduct offered(gpu->cuda()->blas(), linear.gemm, cuda::BlasProduct::kCandidates);
  const cuda::BlasProduct all(gpu->cuda()->blas(), linear.gemm, kAll,
                              2 * cuda::kGemmWorkspaceBytes);
  for (auto _ : state) {
    cuda::TimedProduct timed(&offered, gpu->cuda(), linear.operands),
        timed_all(&all, gpu->cuda(), linear.operands);
    const int chosen = planner.Choose(place, linear.gemm, /*may_time=*/true, &timed);
    const cuda::GemmTiming best = cuda::TimeCandidates(&timed_all);
    // Both again, in turns.
    std::vector<double> plan, first, fastest;
    for (int round = 0; round < 9; ++round) {
      plan.push_back(timed.Seconds(chosen));
      first.push_back(timed.Seconds(0));
      fastest.push_back(timed_all.Seconds(best.fastest));
    }
    for (std::vector<double>* times : {&plan, &first, &fastest})
      std::sort(times->begin(), times->end());
    state.counters["plan"] = fastest[4] / plan[4];
    state.counters["floor"] = 0.95;
    state.counters["first"] = fastest[4] / first[4];
    state.counters["candidates"] = static_cast<double>(all.kernels().size());
    state.counters["us"] = plan[4] * 1e6;
  }
}

void BM_GemmPlan(benchmark::State& state) {
  if (!HasGpu(state)) return;
  Gpu gpu;
  const int64_t in = state.range(0), out = state.range(1);
  const Tensor x = gpu.Normal({kTokens, in}, kBf16), w = gpu.Normal({out, in}, kBf16),
               bias = gpu.Normal({out}, kBf16), y = gpu.Normal({kTokens, out}, kBf16);
  ReportPlan(state, &gpu, cuda::ForwardGemm(x, w, bias, y));
}

void BM_GemmPlanBackwardInput(benchmark::State& state) {
  if (!HasGpu(state)) return;
  Gpu gpu;
  const int64_t in = state.range(0), out = state.range(1);
  const Tensor dx = gpu.Normal({kTokens, in}, kBf16), w = gpu.Normal({out, in}, kBf16),
               dy = gpu.Normal({kTokens, out}, kBf16);
  ReportPlan(state, &gpu, cuda::BackwardInputGemm(dy, w, dx));
}

void BM_GemmPlanBackwardWeight(benchmark::State& state) {
  if (!HasGpu(state)) return;
  Gpu gpu;
  const int64_t in = state.range(0), out = state.range(1);
  const Tensor x = gpu.Normal({kTokens, in}, kBf16), dy = gpu.Normal({kTokens, out}, kBf16),
               dw = gpu.Normal({out, in}, kFp32);
  ReportPlan(state, &gpu, cuda::BackwardWeightGemm(dy, x, dw));
}
BENCHMARK(BM_GemmPlan)->MEGATRON_LINEAR_SHAPES->Args({kHidden, kVocab})->Iterations(1);
BENCHMARK(BM_GemmPlanBackwardInput)->MEGATRON_LINEAR_SHAPES->Args({kHidden, kVocab})->Iterations(1);
BENCHMARK(BM_GemmPlanBackwardWeight)
    ->MEGATRON_LINEAR_SHAPES->Args({kHidden, kVocab})
    ->Iterations(1);

void BM_ResidualNorm(benchmark::State& state) {
  const Shape shape = {kTokens, kHidden};
  Measure(state, {4 * 2.0 * kTokens * kHidden}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal(shape, kBf16), residual = gpu.Normal(shape, kBf16),
                 sum = gpu.Normal(shape, kBf16), y = gpu.Normal(shape, kBf16),
                 bias = gpu.Normal({kHidden}, kBf16);
    const NormTensors tensors = {gpu.Normal({kHidden}, kBf16), gpu.Normal({kHidden}, kBf16),
                                 gpu.Normal({kTokens}, kFp32), gpu.Normal({kTokens}, kFp32)};
    return [=, &gpu] {
      ResidualNormForward(gpu.stream(), Norm(), Dropout(), x, bias, residual, sum, tensors, y);
    };
  });
}
BENCHMARK(BM_ResidualNorm)->UseManualTime();

void BM_ResidualNormWithDropout(benchmark::State& state) {
  const Shape shape = {kTokens, kHidden};
  Measure(state, {4 * 2.0 * kTokens * kHidden}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal(shape, kBf16), residual = gpu.Normal(shape, kBf16),
                 sum = gpu.Normal(shape, kBf16), y = gpu.Normal(shape, kBf16),
                 bias = gpu.Normal({kHidden}, kBf16);
    const NormTensors tensors = {gpu.Normal({kHidden}, kBf16), gpu.Normal({kHidden}, kBf16),
                                 gpu.Normal({kTokens}, kFp32), gpu.Normal({kTokens}, kFp32)};
    const Dropout dropout = {
        0.1f, {1, 2}, gpu.Of(std::vector<int64_t>(kTokens, 5), DType::kInt64), gpu.Ids(2048), 0};
    return [=, &gpu] {
      ResidualNormForward(gpu.stream(), Norm(), dropout, x, bias, residual, sum, tensors, y);
    };
  });
}
BENCHMARK(BM_ResidualNormWithDropout)->UseManualTime();

void BM_NormBackward(benchmark::State& state) {
  const Shape shape = {kTokens, kHidden};
  Measure(state, {4 * 2.0 * kTokens * kHidden, 0, kNormBackwardFloor}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal(shape, kBf16), around = gpu.Normal(shape, kBf16),
                 dy = gpu.Normal(shape, kBf16), dx = gpu.Normal(shape, kBf16),
                 dgamma = gpu.Normal({kHidden}, kFp32), dbeta = gpu.Normal({kHidden}, kFp32);
    const NormTensors tensors = {gpu.Normal({kHidden}, kBf16), gpu.Normal({kHidden}, kBf16),
                                 gpu.Normal({kTokens}, kFp32), gpu.Normal({kTokens}, kFp32)};
    return [=, &gpu] {
      NormBackward(gpu.stream(), Norm(), dy, x, tensors, around, dx, dgamma, dbeta);
    };
  });
}
BENCHMARK(BM_NormBackward)->UseManualTime();

void BM_Gelu(benchmark::State& state) {
  Measure(state, {2 * 2.0 * kTokens * kFfn}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal({kTokens, kFfn}, kBf16), y = gpu.Normal({kTokens, kFfn}, kBf16);
    return [=, &gpu] { ActivationForward(gpu.stream(), Activation::kGeluTanh, x, y); };
  });
}
BENCHMARK(BM_Gelu)->UseManualTime();

void BM_SwiGlu(benchmark::State& state) {
  Measure(state, {3 * 2.0 * kTokens * kFfn}, [&](Gpu& gpu) {
    const Tensor gate_up = gpu.Normal({kTokens, 2 * kFfn}, kBf16),
                 y = gpu.Normal({kTokens, kFfn}, kBf16);
    return [=, &gpu] { GateForward(gpu.stream(), Activation::kSilu, gate_up, y); };
  });
}
BENCHMARK(BM_SwiGlu)->UseManualTime();

void BM_BiasDropoutAdd(benchmark::State& state) {
  const Shape shape = {kTokens, kHidden};
  Measure(state, {3 * 2.0 * kTokens * kHidden}, [&](Gpu& gpu) {
    const Tensor x = gpu.Normal(shape, kBf16), residual = gpu.Normal(shape, kBf16),
                 bias = gpu.Normal({kHidden}, kBf16), out = gpu.Normal(shape, kBf16);
    const Dropout dropout = {
        0.1f, {1, 2}, gpu.Of(std::vector<int64_t>(kTokens, 5), DType::kInt64), gpu.Ids(2048), 0};
    return [=, &gpu] { BiasDropoutAdd(gpu.stream(), dropout, x, bias, residual, out); };
  });
}
BENCHMARK(BM_BiasDropoutAdd)->UseManualTime();

// The gradient of a bias: the columns' sums.
void BM_BiasBackward(benchmark::State& state) {
  const int64_t columns = state.range(0);
  Measure(state, {2.0 * kTokens * columns}, [&](Gpu& gpu) {
    const Tensor dy = gpu.Normal({kTokens, columns}, kBf16), dbias = gpu.Normal({columns}, kFp32);
    return [=, &gpu] { DropoutBackward(gpu.stream(), Dropout(), dy, dy, dbias); };
  });
}
BENCHMARK(BM_BiasBackward)->Arg(kHidden)->Arg(kFfn)->UseManualTime();

void BM_EmbeddingBackward(benchmark::State& state) {
  Measure(state, {kTokens * kHidden * (2.0 + 8.0)}, [&](Gpu& gpu) {
    const Tensor ids = gpu.Ids(state.range(0)), dy = gpu.Normal({kTokens, kHidden}, kBf16),
                 dtable = gpu.Normal({kVocab, kHidden}, kFp32);
    return [=, &gpu] { EmbeddingBackward(gpu.stream(), ids, dy, 0, dtable); };
  });
}
BENCHMARK(BM_EmbeddingBackward)->Arg(kVocab)->Arg(200)->UseManualTime();

void BM_CrossEntropy(benchmark::State& state) {
  const int64_t tokens = kTokens / 4;
  const VocabRange range = {0, 50257};
  Measure(state, {2 * 2.0 * tokens * kVocab}, [&](Gpu& gpu) {
    const Tensor logits = gpu.Normal({tokens, kVocab}, kBf16),
                 labels = gpu.Ids(kVocab).Slice(0, 0, tokens), loss = gpu.Normal({tokens}, kFp32),
                 weight = gpu.Normal({tokens}, kFp32);
    return [=, &gpu] { CrossEntropy(gpu.stream(), logits, labels, range, weight, loss, Tensor()); };
  });
}
BENCHMARK(BM_CrossEntropy)->UseManualTime();

void BM_AdamW(benchmark::State& state) {
  const int64_t count = int64_t{128} << 20;
  const std::vector<OptimizerSegment> segments = {{0, count, 1e-4f, 0.1f}};
  Measure(state, {count * (4.0 * 7 + 2)}, [&](Gpu& gpu) {
    const Tensor grad = gpu.Normal({count}, kFp32), m = gpu.Normal({count}, kFp32),
                 v = gpu.Allocate(kFp32, {count}), master = gpu.Normal({count}, kFp32),
                 out = gpu.Normal({count}, kBf16);
    Copy(gpu.stream(), grad, v);
    ActivationForward(gpu.stream(), Activation::kSquaredRelu, v.View({1, count}),
                      v.View({1, count}));  // second moments are not negative
    return
        [=, &gpu] { AdamWUpdate(gpu.stream(), AdamWOptions(), segments, grad, m, v, master, out); };
  });
}
BENCHMARK(BM_AdamW)->UseManualTime();

// What a rank of a host of 8 does with the gradients of a large block: encodes all of it, and sums
// the codes of its own eighth that 8 ranks sent.
void BM_GroupCodes(benchmark::State& state) {
  const CodeBits bits = state.range(0) == 4 ? CodeBits::k4 : CodeBits::k8;
  constexpr int64_t kRanks = 8, kShard = int64_t{8} << 20;
  const int64_t bytes = GroupMessageBytes(bits, kShard);
  Measure(
      state, {kRanks * (4.0 * kShard + bytes) + kRanks * (8.0 * kShard + bytes)}, [&](Gpu& gpu) {
        const Tensor gradients = gpu.Normal({kRanks, kShard}, kFp32),
                     messages = gpu.Allocate(DType::kUInt8, {kRanks, bytes}),
                     sum = gpu.Normal({kShard}, kFp32);
        return [=, &gpu] {
          for (int64_t rank = 0; rank < kRanks; ++rank)
            EncodeGroups(gpu.stream(), bits, gradients.Select(0, rank), messages.Select(0, rank));
          for (int64_t rank = 0; rank < kRanks; ++rank)
            AddDecodedGroups(gpu.stream(), bits, messages.Select(0, rank), sum);
        };
      });
}
BENCHMARK(BM_GroupCodes)->Arg(4)->Arg(8)->UseManualTime();

// A causal layer of 1024 channels in heads of kHeadDim, counted without the half that nobody
// computes.
template <int kHeadDim>
struct AttentionOperands {
  AttentionOperands(Gpu* gpu, AttentionKernel kernel) {
    constexpr int64_t kHeads = 1024 / kHeadDim;
    const Shape q_shape = {kTokens, kHeads, 1, kHeadDim}, k_shape = {kTokens, kHeads, kHeadDim};
    in = {gpu->Normal(q_shape, kBf16), gpu->Normal(k_shape, kBf16), gpu->Normal(k_shape, kBf16)};
    gradients = {gpu->Normal(q_shape, kBf16), gpu->Normal(k_shape, kBf16),
                 gpu->Normal(k_shape, kBf16)};
    out = gpu->Normal(q_shape, kBf16);
    dout = gpu->Normal(q_shape, kBf16);
    lse = gpu->Normal({kTokens, kHeads, 1}, kFp32);
    std::vector<int32_t> begins;
    for (int32_t s = 0; s <= 8; ++s) begins.push_back(2048 * s);
    attention.kernels = {kernel};
    attention.scale = 0.125f;
    attention.cu_seqlens_q = attention.cu_seqlens_k = gpu->Of(begins, DType::kInt32);
    attention.max_seqlen_q = attention.max_seqlen_k = 2048;
  }
  static constexpr double kOperations = 2.0 * 2 * kTokens * 1024 * 2048 / 2;
  static constexpr double kBytes = 4 * 2.0 * kTokens * 1024;

  Attention attention;
  AttentionInputs in, gradients;
  Tensor out, dout, lse;
};

// Returns whether the device has the kernel; else the benchmark says so and is over.
bool HasKernel(benchmark::State& state, AttentionKernel kernel) {
  if (!HasGpu(state)) return false;
  std::string why;
  if (kernel == AttentionKernel::kHopper && !cuda::HopperAttentionIsAvailable())
    why = "not a Hopper";
  if (kernel == AttentionKernel::kCudnn || kernel == AttentionKernel::kCudnnDeterministic)
    why = std::string(cuda::CudnnVersion().status().message());
  if (why.empty()) return true;
  state.SkipWithError(why.c_str());
  return false;
}

template <AttentionKernel kKernel, int kHeadDim>
void BM_Attention(benchmark::State& state) {
  if (!HasKernel(state, kKernel)) return;
  using Operands = AttentionOperands<kHeadDim>;
  Measure(state, {Operands::kBytes, Operands::kOperations}, [&](Gpu& gpu) {
    const Operands at(&gpu, kKernel);
    return [=, &gpu] { AttentionForward(gpu.stream(), at.attention, at.in, at.out, at.lse); };
  });
}
BENCHMARK_TEMPLATE(BM_Attention, AttentionKernel::kOwn, 64)->UseManualTime();
BENCHMARK_TEMPLATE(BM_Attention, AttentionKernel::kOwn, 128)->UseManualTime();
BENCHMARK_TEMPLATE(BM_Attention, AttentionKernel::kHopper, 64)->UseManualTime();
BENCHMARK_TEMPLATE(BM_Attention, AttentionKernel::kHopper, 128)->UseManualTime();
BENCHMARK_TEMPLATE(BM_Attention, AttentionKernel::kCudnn, 64)->UseManualTime();
BENCHMARK_TEMPLATE(BM_Attention, AttentionKernel::kCudnn, 128)->UseManualTime();

template <AttentionKernel kKernel, int kHeadDim>
void BM_AttentionBackward(benchmark::State& state) {
  if (!HasKernel(state, kKernel)) return;
  using Operands = AttentionOperands<kHeadDim>;
  Measure(state, {2 * Operands::kBytes, 2.5 * Operands::kOperations}, [&](Gpu& gpu) {
    const Operands at(&gpu, kKernel);
    AttentionForward(gpu.stream(), at.attention, at.in, at.out, at.lse);
    return [=, &gpu] {
      AttentionBackward(gpu.stream(), at.attention, at.in, at.out, at.lse, at.dout, at.gradients);
    };
  });
}
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kOwn, 64)->UseManualTime();
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kOwn, 128)->UseManualTime();
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kHopper, 64)->UseManualTime();
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kHopper, 128)->UseManualTime();
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kCudnn, 64)->UseManualTime();
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kCudnn, 128)->UseManualTime();
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kCudnnDeterministic, 64)->UseManualTime();
BENCHMARK_TEMPLATE(BM_AttentionBackward, AttentionKernel::kCudnnDeterministic, 128)
    ->UseManualTime();

}  // namespace
}  // namespace megatron::ops

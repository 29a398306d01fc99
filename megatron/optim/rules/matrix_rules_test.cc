// Muon and LAMB against plain programs in double precision, and on tensor-parallel ranks against
// one rank.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;

constexpr int64_t kGroups = 2, kHeads = 2, kHead = 3, kHidden = 8, kFfn = 12;

// The weights of a layer and a norm, as tensor-parallel rank `rank` of `size` has them.
struct Layer {
  explicit Layer(const OptimizerOptions& options, int rank = 0, int size = 1) : model(options) {
    const int64_t per_group = kHeads + 2;
    const Shape qkv = {kGroups, per_group, kHead, kHidden};
    if (size <= kGroups) {
      Add("qkv", SplitOverTensor(qkv, 0, size, rank), {0, {kHeads, 1, 1}});
    } else {
      const int sharing = size / kGroups;
      const int64_t heads = kHeads / sharing;
      Sharding own = Replicated(qkv);
      own.sharded = {Axis::kTensor};
      own.offset = {rank / sharing, rank % sharing * heads, 0, 0};
      own.local_shape = {1, heads, kHead, kHidden};
      Add("qkv", own, {0, {kHeads, 1, 1}});
      own.offset[1] = kHeads;
      own.local_shape[1] = 2;
      own.tensor_replicas = sharing;
      Add("qkv", own, {0, {kHeads, 1, 1}});
    }
    Add("fc1", SplitOverTensor({2, kFfn, kHidden}, 1, size, rank), {1, {}});
    Add("fc2", SplitOverTensor({kHidden, kFfn}, 1, size, rank), {});
    Add("router", Replicated({4, kHidden}), {});
    model.Add("norm", Replicated({kHidden}), /*decays=*/false);
    model.Add("words", SplitOverTensor({16, kHidden}, 0, size, rank));
    model.Build();
  }
  void Add(const std::string& name, const Sharding& sharding, const MatrixDims& dims) {
    model.Add(name, sharding)->matrix = dims;
  }

  // Sets the gradients of the elements that this rank has.
  void FillGradients(int step) {
    for (const auto& parameter : model.parameters) {
      float* const grad = parameter->grad.data<float>();
      ForEachElement(*parameter, [&](int64_t local, int64_t global) {
        grad[local] = GradientOf(parameter->name, step, global);
      });
    }
  }
  static float GradientOf(const std::string& name, int step, int64_t global) {
    uint64_t bits = global * 64 + step * 8 + static_cast<uint64_t>(name[0]) * 1000003;
    for (const uint64_t factor : {0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu}) {
      bits = (bits ^ (bits >> 30)) * factor;
      bits ^= bits >> 27;
    }
    return static_cast<float>(static_cast<double>(bits >> 40) / (1 << 23) - 1);
  }
  // Calls body(local, global) with the position of each element in the block and in the tensor.
  static void ForEachElement(const Parameter& parameter,
                             const std::function<void(int64_t, int64_t)>& body) {
    const Sharding& sharding = parameter.sharding;
    const int rank = sharding.local_shape.rank();
    for (int64_t local = 0; local < sharding.local_shape.numel(); ++local) {
      int64_t global = 0, stride = 1, rest = local;
      for (int d = rank - 1; d >= 0; --d) {
        global += (sharding.offset[d] + rest % sharding.local_shape[d]) * stride;
        rest /= sharding.local_shape[d];
        stride *= sharding.global_shape[d];
      }
      body(local, global);
    }
  }

  TestModel model;
};

StepOptions HowToStep() {
  StepOptions options;
  options.lr = 0.02;
  options.weight_decay = 0.1;
  return options;
}

using Weights = std::map<std::string, std::map<int64_t, float>>;

Weights Train(const OptimizerOptions& options, int steps, const ProcessGroup& tensor = {}) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  ProcessGroups groups;
  groups.world = groups.tensor = tensor;
  Layer layer(options, tensor.rank(), tensor.size());
  layer.model.buffers->InitializeWeights(7, stream);
  layer.model.Connect(groups, stream);
  for (int step = 0; step < steps; ++step) {
    layer.FillGradients(step);
    const absl::StatusOr<StepResult> result =
        layer.model.optimizer->Step(HowToStep(), groups, stream);
    CHECK(result.ok()) << result.status();
  }
  Weights weights;
  for (const auto& parameter : layer.model.parameters) {
    Layer::ForEachElement(*parameter, [&](int64_t local, int64_t global) {
      weights[parameter->name][global] = parameter->data.data<float>()[local];
    });
  }
  return weights;
}

// One matrix, or vector of one row, in double precision: positions in its parameter, and values.
struct NaiveMatrix {
  std::string parameter;
  int64_t rows, columns;
  std::vector<int64_t> positions;
  bool is_hidden, decays;
  std::vector<double> w, m, v;
};

std::vector<NaiveMatrix> NaiveMatrices(const OptimizerOptions& options) {
  std::vector<NaiveMatrix> matrices;
  const auto add = [&](const std::string& name, int64_t columns, bool hidden, bool decays,
                       const std::vector<int64_t>& rows) {
    NaiveMatrix matrix = {
        name, static_cast<int64_t>(rows.size()), columns, {}, hidden, decays, {}, {}, {}};
    for (const int64_t row : rows) {
      for (int64_t j = 0; j < columns; ++j) matrix.positions.push_back(row * columns + j);
    }
    matrices.push_back(matrix);
  };
  const auto rows = [](int64_t begin, int64_t end) {
    std::vector<int64_t> all;
    for (int64_t row = begin; row < end; ++row) all.push_back(row);
    return all;
  };
  std::vector<int64_t> parts[3];
  for (int64_t row = 0; row < kGroups * (kHeads + 2) * kHead; ++row) {
    const int64_t slot = row / kHead % (kHeads + 2);
    parts[std::max<int64_t>(0, slot - kHeads + 1)].push_back(row);
  }
  if (options.muon.split_qkv) {
    for (const auto& part : parts) add("qkv", kHidden, true, true, part);
  } else {
    add("qkv", kHidden, true, true, rows(0, kGroups * (kHeads + 2) * kHead));
  }
  add("fc1", kHidden, true, true, rows(0, kFfn));
  add("fc1", kHidden, true, true, rows(kFfn, 2 * kFfn));
  add("fc2", kFfn, true, true, rows(0, kHidden));
  add("router", kHidden, true, true, rows(0, 4));
  add("norm", kHidden, false, false, rows(0, 1));
  add("words", kHidden, false, true, rows(0, 16));
  const Weights initial = Train(options, 0);
  for (NaiveMatrix& matrix : matrices) {
    for (const int64_t at : matrix.positions)
      matrix.w.push_back(initial.at(matrix.parameter).at(at));
    matrix.m.assign(matrix.w.size(), 0);
    matrix.v = matrix.m;
  }
  return matrices;
}

double NormOf(const std::vector<double>& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares);
}

// The matrix with the singular vectors of x, R x C, whose singular values went through the
// polynomials.
std::vector<double> NaiveOrthogonal(std::vector<double> x, int64_t rows, int64_t columns) {
  const double coefficients[5][3] = {{4.0848, -6.8946, 2.9270},
                                     {3.9505, -6.3029, 2.6377},
                                     {3.7418, -5.5913, 2.3037},
                                     {2.8769, -3.1427, 1.2046},
                                     {2.8366, -3.0525, 1.2012}};
  const double norm = NormOf(x);
  for (double& value : x) value /= norm;
  const auto times_gram = [&](const std::vector<double>& y) {  // X Xᵀ y
    std::vector<double> product(x.size(), 0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < rows; ++k) {
        double gram = 0;
        for (int64_t j = 0; j < columns; ++j) gram += x[i * columns + j] * x[k * columns + j];
        for (int64_t j = 0; j < columns; ++j) product[i * columns + j] += gram * y[k * columns + j];
      }
    }
    return product;
  };
  for (const auto& [a, b, c] : coefficients) {
    const std::vector<double> first = times_gram(x), second = times_gram(first);
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + b * first[i] + c * second[i];
  }
  return x;
}

void NaiveAdamStep(NaiveMatrix* matrix, const std::vector<double>& g, int step,
                   std::vector<double>* u) {
  for (size_t i = 0; i < g.size(); ++i) {
    matrix->m[i] = 0.9 * matrix->m[i] + 0.1 * g[i];
    matrix->v[i] = 0.999 * matrix->v[i] + 0.001 * g[i] * g[i];
    u->push_back(matrix->m[i] / (1 - std::pow(0.9, step)) /
                 (std::sqrt(matrix->v[i] / (1 - std::pow(0.999, step))) + 1e-8));
  }
}

std::vector<double> GradientsOf(const NaiveMatrix& matrix, int step) {
  std::vector<double> g;
  for (const int64_t at : matrix.positions)
    g.push_back(Layer::GradientOf(matrix.parameter, step, at));
  return g;
}

void ExpectWeights(const Weights& got, const std::vector<NaiveMatrix>& want, double tolerance) {
  for (const NaiveMatrix& matrix : want) {
    SCOPED_TRACE(matrix.parameter);
    for (size_t i = 0; i < matrix.w.size(); ++i) {
      ASSERT_NEAR(got.at(matrix.parameter).at(matrix.positions[i]), matrix.w[i], tolerance) << i;
    }
  }
}

OptimizerOptions Muon() {
  OptimizerOptions options;
  options.kind = OptimizerOptions::kMuon;
  options.muon.product_dtype = DType::kFloat32;
  return options;
}

TEST(MatrixRulesTest, MuonDoesWhatAPlainProgramDoes) {
  std::vector<OptimizerOptions> all(4, Muon());
  all[1].muon.nesterov = true;
  all[1].muon.momentum = 0.8;
  all[2].muon.split_qkv = false;
  all[2].muon.scale_mode = MuonScaleMode::kUnitRmsNorm;
  all[3].muon.extra_scale_factor = 0.2;
  all[3].muon.scale_mode = MuonScaleMode::kShapeScaling;
  const StepOptions how = HowToStep();
  for (const OptimizerOptions& options : all) {
    std::vector<NaiveMatrix> naive = NaiveMatrices(options);
    const double beta = options.muon.momentum;
    for (int step = 0; step < 4; ++step) {
      for (NaiveMatrix& matrix : naive) {
        const std::vector<double> g = GradientsOf(matrix, step);
        std::vector<double> u;
        double scale = 1;
        if (!matrix.is_hidden) {
          NaiveAdamStep(&matrix, g, step + 1, &u);
        } else {
          for (size_t i = 0; i < g.size(); ++i) {
            matrix.m[i] = beta * matrix.m[i] + (1 - beta) * g[i];
            u.push_back(options.muon.nesterov ? (1 - beta) * g[i] + beta * matrix.m[i]
                                              : matrix.m[i]);
          }
          u = NaiveOrthogonal(u, matrix.rows, matrix.columns);
          const double rows = static_cast<double>(matrix.rows),
                       columns = static_cast<double>(matrix.columns);
          scale = options.muon.scale_mode == MuonScaleMode::kSpectral
                      ? std::sqrt(std::max(rows, columns))
                  : options.muon.scale_mode == MuonScaleMode::kUnitRmsNorm
                      ? std::sqrt(rows / columns)
                      : std::sqrt(std::max(1.0, rows / columns));
          scale *= options.muon.extra_scale_factor;
        }
        for (size_t i = 0; i < g.size(); ++i) {
          if (matrix.decays) matrix.w[i] -= how.lr * how.weight_decay * matrix.w[i];
          matrix.w[i] -= how.lr * scale * u[i];
        }
      }
    }
    ExpectWeights(Train(options, 4), naive, 2e-5);
  }
}

TEST(MatrixRulesTest, LambDoesWhatAPlainProgramDoes) {
  OptimizerOptions options;
  options.kind = OptimizerOptions::kLamb;
  options.lamb_max_coeff = 0.6;  // which some matrices reach
  std::vector<NaiveMatrix> naive = NaiveMatrices(options);
  const StepOptions how = HowToStep();
  int bounded = 0, free = 0;
  for (int step = 0; step < 4; ++step) {
    for (NaiveMatrix& matrix : naive) {
      std::vector<double> u;
      NaiveAdamStep(&matrix, GradientsOf(matrix, step), step + 1, &u);
      for (size_t i = 0; i < u.size(); ++i) {
        if (matrix.decays) u[i] += how.weight_decay * matrix.w[i];
      }
      const double norm = NormOf(matrix.w);
      double ratio = 1;
      if (norm > 0) {
        ratio = std::clamp(norm / NormOf(u), options.lamb_min_coeff, options.lamb_max_coeff);
        ++(ratio == options.lamb_max_coeff ? bounded : free);
      }
      for (size_t i = 0; i < u.size(); ++i) matrix.w[i] -= how.lr * ratio * u[i];
    }
  }
  EXPECT_GT(bounded, 0);
  EXPECT_GT(free, 0);
  ExpectWeights(Train(options, 4), naive, 1e-6);
}

void ExpectTheSameOnRanks(const OptimizerOptions& options, double tolerance) {
  const Weights want = Train(options, 4);
  for (const int size : {2, 4}) {
    SCOPED_TRACE(testing::Message() << size << " ranks");
    EXPECT_THAT(RunRanks(size,
                         [&](int, const ProcessGroup& world) -> absl::Status {
                           for (const auto& [name, elements] : Train(options, 4, world)) {
                             for (const auto& [at, value] : elements)
                               EXPECT_NEAR(value, want.at(name).at(at), tolerance)
                                   << name << " " << at;
                           }
                           return absl::OkStatus();
                         }),
                IsOk());
  }
}

// With four ranks, two share each group's keys and values.
TEST(MatrixRulesTest, TensorParallelRanksDoWhatOneDoes) {
  for (const MuonTensorMode mode : {MuonTensorMode::kDuplicated, MuonTensorMode::kDistributed}) {
    OptimizerOptions options = Muon();
    options.muon.tensor_mode = mode;
    options.muon.scale_mode = MuonScaleMode::kUnitRmsNorm;  // which depends on both sizes
    ExpectTheSameOnRanks(options, 5e-6);
  }
  OptimizerOptions lamb;
  lamb.kind = OptimizerOptions::kLamb;
  ExpectTheSameOnRanks(lamb, 1e-6);
}

// The biases of four experts, which are cut over ranks with different experts as `offset` and
// `local` say, and over tensor-parallel ranks where `is_cut`.
Weights TrainExpertBiases(const Shape& offset, const Shape& local, bool is_cut,
                          const ProcessGroup& expert_tensor) {
  OptimizerOptions options;
  options.kind = OptimizerOptions::kLamb;
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  ProcessGroups groups;
  groups.world = groups.expert_tensor = expert_tensor;
  TestModel model(options);
  Sharding sharding = Replicated({4, 2, 6});
  sharding.expert_grid = true;
  sharding.sharded = {Axis::kExpert};
  if (is_cut) sharding.sharded = {Axis::kExpert, Axis::kTensor};
  sharding.offset = offset;
  sharding.local_shape = local;
  Parameter& bias = *model.Add("bias", sharding, /*decays=*/false);
  model.Build();
  model.buffers->InitializeWeights(7, stream);
  model.Connect(groups, stream);
  for (int step = 0; step < 3; ++step) {
    float* const grad = bias.grad.data<float>();
    Layer::ForEachElement(bias, [&](int64_t element, int64_t global) {
      grad[element] = Layer::GradientOf(bias.name, step, global);
    });
    const absl::StatusOr<StepResult> result = model.optimizer->Step(HowToStep(), groups, stream);
    CHECK(result.ok()) << result.status();
  }
  Weights weights;
  Layer::ForEachElement(bias, [&](int64_t element, int64_t global) {
    weights[bias.name][global] = bias.data.data<float>()[element];
  });
  return weights;
}

TEST(MatrixRulesTest, LambsRatioOfAnExpertsBiasDoesNotDependOnItsRank) {
  const Weights want = TrainExpertBiases({0, 0, 0}, {4, 2, 6}, /*is_cut=*/false, {});
  for (const int64_t experts : {1, 2}) {
    for (int64_t first = 0; first < 4; first += experts) {
      SCOPED_TRACE(testing::Message() << experts << " experts from " << first);
      const Weights got = TrainExpertBiases({first, 0, 0}, {experts, 2, 6}, /*is_cut=*/false, {});
      for (const auto& [at, value] : got.at("bias"))
        EXPECT_NEAR(value, want.at("bias").at(at), 1e-6) << at;
    }
  }
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         const Weights got =
                             TrainExpertBiases({2, 0, 3 * rank}, {2, 2, 3}, /*is_cut=*/true, world);
                         for (const auto& [at, value] : got.at("bias"))
                           EXPECT_NEAR(value, want.at("bias").at(at), 1e-6) << at;
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(MatrixRulesTest, BlockwiseRanksTakeTheirBlocksForMatrices) {
  const OptimizerOptions options = Muon();
  const Weights want = Train(options, 1);
  EXPECT_THAT(RunRanks(2,
                       [&](int, const ProcessGroup& world) -> absl::Status {
                         const Weights got = Train(options, 1, world);
                         double difference = 0;
                         for (const auto& [at, value] : got.at("fc2"))
                           difference = std::max<double>(difference,
                                                         std::abs(value - want.at("fc2").at(at)));
                         EXPECT_GT(difference, 1e-3);
                         for (const auto& [at, value] : got.at("router"))
                           EXPECT_EQ(value, want.at("router").at(at));
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(MatrixRulesTest, BFloat16ProductsAreNearFp32Ones) {
  OptimizerOptions options = Muon();
  const Weights before = Train(options, 0), want = Train(options, 1);
  options.muon.product_dtype = DType::kBFloat16;
  double difference = 0, step = 0;
  for (const auto& [name, elements] : Train(options, 1)) {
    for (const auto& [at, value] : elements) {
      difference += std::pow(value - want.at(name).at(at), 2);
      step += std::pow(want.at(name).at(at) - before.at(name).at(at), 2);
    }
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(std::sqrt(difference / step), 0.1);
}

// Muon keeps one number for an element of a matrix, AdamW two for one of the others.
TEST(MatrixRulesTest, AStateTakesMemoryForTheParametersThatHaveIt) {
  const Layer layer(Muon());
  std::map<std::string, int64_t> elements;
  const std::vector<OptimizerState> states = layer.model.optimizer->rule().states();
  for (size_t i = 0; i < states.size(); ++i)
    elements[states[i].name] = layer.model.buffers->state(i).numel();
  EXPECT_THAT(elements, ElementsAre(std::pair("exp_avg", 192), std::pair("exp_avg_sq", 192),
                                    std::pair("momentum_buffer", 576)));
}

// Each rank has memory for as much as the one that has most, and no rank's parameters overlap.
TEST(MatrixRulesTest, ShardsOfAStateDoNotOverlap) {
  std::map<std::string, int64_t> held;
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < 3; ++rank) {
    Layer layer(Muon());
    layer.model.buffer_options.data = {3, rank};
    layer.model.buffer_options.sharding = DataSharding::kStates;
    layer.model.rule = MakeUpdateRule(Muon());
    layer.model.Build();
    for (const ParameterState& state : layer.model.buffers->States()) {
      EXPECT_EQ(state.states[2].empty(), !state.parameter->matrix.has_value());
      EXPECT_EQ(state.states[0].empty(), state.parameter->matrix.has_value());
      for (const Tensor& tensor : state.states) {
        if (tensor.empty()) continue;
        float* const at = tensor.data<float>();
        for (int64_t i = 0; i < tensor.numel(); ++i) EXPECT_EQ(at[i]++, 0);
      }
      held[state.parameter->name] += state.range.size();
    }
    sizes.push_back(layer.model.buffers->state(2).numel());
  }
  EXPECT_EQ(held["words"], 16 * kHidden);
  EXPECT_EQ(held["fc1"], 2 * kFfn * kHidden);
  EXPECT_EQ(held["norm"], kHidden);
  EXPECT_THAT(sizes, ElementsAre(sizes[0], sizes[0], sizes[0]));
}

}  // namespace
}  // namespace megatron

// Every kind of sharding, with and without overlap, trains the same bits as none and takes no more
// memory than the header of data_parallel.h says.
#include "megatron/optim/data_parallel.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

constexpr int kBlocks = 4, kMicroBatches = 3, kSteps = 3;
constexpr int64_t kRows = 30, kColumns = 5;

// Four blocks of a matrix, a bias and a part of an expert. The gradients of a block depend on the
// signs of its weights, so that a missing or stale weight changes the result.
class Model {
 public:
  // `unit` is that of the optimizer's rule.
  Model(const ProcessGroups& groups, DataSharding sharding, const DataParallelOptions& how,
        DType dtype = DType::kFloat32, ShardUnit unit = ShardUnit::kElement, bool has_parts = false)
      : groups_(groups),
        dtype_(dtype),
        how_(how),
        sharding_(sharding),
        unit_(unit),
        has_parts_(has_parts) {}

  void Build(const Stream& stream, const WholeBlockSizes& sizes) {
    model_ = std::make_unique<TestModel>(OptimizerOptions(), dtype_);
    std::vector<Parameter*> all;
    for (int b = 0; b < kBlocks; ++b) {
      Parameter* matrix = model_->Add(absl::StrCat("matrix", b), Replicated({kRows + b, kColumns}));
      Parameter* bias = model_->Add(absl::StrCat("bias", b), Replicated({7}), /*decays=*/false);
      Parameter* expert = model_->Add(absl::StrCat("expert", b), Replicated({3, 3}));
      expert->sharding.expert_grid = true;
      blocks_.push_back({matrix, bias, expert});
      AppendBlock(blocks_.back(), &all);
    }
    model_->buffer_options.data =
        DataRankOf(groups_.data_context_shards, groups_.data_context_replicas);
    model_->buffer_options.expert_data =
        DataRankOf(groups_.expert_data_shards, groups_.expert_data_replicas);
    model_->buffer_options.shards_states_by_parts = has_parts_;
    model_->buffer_options.sharding = sharding_;
    if (unit_ == ShardUnit::kParameter) model_->rule = std::make_unique<NormedMomentumRule>();
    model_->Build(stream.device());
    model_->Connect(groups_, stream, how_, sizes);
  }

  // Runs forward and backward of a micro-batch. Gradients depend on the data-parallel rank.
  void RunMicroBatch(int micro_batch, const Stream& stream) {
    DataParallel* const parallel = model_->parallel.get();
    for (int b = 0; b < kBlocks; ++b) {
      const WeightsInUse weights(parallel, b, b + 1 < kBlocks ? b + 1 : WeightBlocks::kNone);
      for (const Parameter* parameter : blocks_[b]) EXPECT_FALSE(parameter->data.empty());
    }
    for (int b = kBlocks; b-- > 0;) {
      const WeightsInUse weights(parallel, b, b - 1);
      const GradientsInUse gradients(parallel, b);
      if (stream.is_meta()) continue;
      for (Parameter* parameter : blocks_[b]) {
        float* grad = parameter->grad.data<float>();
        for (int64_t i = 0; i < parameter->grad.numel(); ++i) {
          grad[i] += Fraction(i + micro_batch + 3 * groups_.world.rank()) *
                     (Value(parameter->data, i) > 0 ? 1 : 2);
        }
      }
    }
  }

  static float Value(const Tensor& tensor, int64_t i) {
    return tensor.dtype() == DType::kFloat32 ? tensor.data<float>()[i]
                                             : ToFloat(tensor.data<BFloat16>()[i]);
  }

  TestModel& model() { return *model_; }
  std::vector<std::vector<Parameter*>>& blocks() { return blocks_; }

 private:
  const ProcessGroups& groups_;
  const DType dtype_;
  const DataParallelOptions how_;
  const DataSharding sharding_;
  const ShardUnit unit_;
  const bool has_parts_;
  std::unique_ptr<TestModel> model_;
  std::vector<std::vector<Parameter*>> blocks_;
};

struct Outcome {
  std::vector<double> norms;
  std::vector<std::vector<float>> weights;  // one vector for each parameter
  WholeBlockSizes whole;
};

struct Case {
  DataSharding sharding = DataSharding::kNone;
  DataParallelOptions how;
  int micro_batches = kMicroBatches;
  DType dtype = DType::kFloat32;
  ShardUnit unit = ShardUnit::kElement;
  int instances = 1;
  bool has_parts = false;  // instances share the states of a shard
  int hosts = 1;
};

absl::StatusOr<Outcome> Train(const Case& c, const ProcessGroups& groups,
                              const ProcessGroups& planned) {
  Model plan(planned, c.sharding, c.how, c.dtype, c.unit, c.has_parts);
  plan.Build(Stream::Meta(), {});
  plan.model().parallel->StartStep(c.micro_batches);
  for (int m = 0; m < c.micro_batches; ++m) plan.RunMicroBatch(m, Stream::Meta());
  plan.model().parallel->FinalizeGradients();

  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  Outcome outcome;
  outcome.whole = plan.model().parallel->HighWater();
  Model model(groups, c.sharding, c.how, c.dtype, c.unit, c.has_parts);
  model.Build(stream, outcome.whole);
  model.model().buffers->InitializeWeights(4, stream);
  for (int step = 0; step < kSteps; ++step) {
    model.model().parallel->StartStep(c.micro_batches);
    for (int m = 0; m < c.micro_batches; ++m) model.RunMicroBatch(m, stream);
    StepOptions options;
    options.lr = 1e-2;
    options.clip_grad = 1;
    MEGATRON_ASSIGN_OR_RETURN(const StepResult result, model.model().Step(options, groups, stream));
    outcome.norms.push_back(result.grad_norm);
  }
  for (int b = 0; b < kBlocks; ++b) {
    const WeightsInUse weights(model.model().parallel.get(), b);
    for (const Parameter* parameter : model.blocks()[b]) {
      outcome.weights.emplace_back();
      for (int64_t i = 0; i < parameter->data.numel(); ++i)
        outcome.weights.back().push_back(Model::Value(parameter->data, i));
    }
  }
  EXPECT_EQ(model.model().parallel->HighWater().weights, outcome.whole.weights);
  EXPECT_EQ(model.model().parallel->HighWater().gradients, outcome.whole.gradients);
  return outcome;
}

// Runs `body` on four data-parallel ranks, with experts sharded over two, so that two ranks have
// the same experts. There may be one or two optimizer instances, and one or two hosts.
absl::Status RunCases(const std::function<void(std::function<Outcome(const Case&)>)>& body) {
  return RunRanks(4, [&](int rank, const ProcessGroup& world) -> absl::Status {
    std::map<std::pair<int, int>, ProcessGroups> groups, planned;  // by instances and hosts
    for (const auto& key : {std::pair(1, 1), {2, 1}, {1, 2}}) {
      ParallelSizes sizes;
      sizes.expert = 2;
      sizes.optimizer_instances = key.first;
      sizes.hosts = key.second;
      MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, 4));
      MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, 4));
      MEGATRON_ASSIGN_OR_RETURN(groups[key], MakeGroups(dense, expert, world.communicator()));
      planned[key] = GroupsForPlanning(dense, expert, rank);
    }
    body([&](const Case& c) {
      const std::pair key(c.instances, c.hosts);
      const absl::StatusOr<Outcome> outcome = Train(c, groups.at(key), planned.at(key));
      EXPECT_THAT(outcome, IsOk());
      return outcome.ok() ? *outcome : Outcome();
    });
    return absl::OkStatus();
  });
}

void ExpectSame(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.weights, b.weights);
}

// The gradients are small fractions: their sums are exact in any order.
absl::Status CompareShardings(ShardUnit unit) {
  return RunCases([unit](const auto& train) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Case c;
      c.dtype = dtype;
      c.unit = unit;
      const Outcome plain = train(c);
      EXPECT_GT(plain.norms[0], 1);
      for (auto sharding : {DataSharding::kNone, DataSharding::kStates, DataSharding::kGradients,
                            DataSharding::kWeights}) {
        for (const auto& [instances, has_parts] : {std::pair(1, false), {2, false}, {2, true}}) {
          if (has_parts && sharding == DataSharding::kNone) continue;
          for (int overlap = 0; overlap < 4; ++overlap) {
            SCOPED_TRACE(absl::StrCat("sharding ", static_cast<int>(sharding), " instances ",
                                      instances, has_parts ? " of parts" : "", " overlap ",
                                      overlap));
            c.sharding = sharding;
            c.instances = instances;
            c.has_parts = has_parts;
            c.how.overlap_grad_reduce = (overlap & 1) != 0;
            c.how.overlap_param_gather = (overlap & 2) != 0;
            ExpectSame(train(c), plain);
          }
        }
      }
    }
  });
}

TEST(DataParallelTest, EveryShardingWithOverlapOrWithoutTrainsTheSameBits) {
  EXPECT_THAT(CompareShardings(ShardUnit::kElement), IsOk());
}

TEST(DataParallelTest, EveryShardingTrainsTheSameBitsByARuleForWholeParameters) {
  EXPECT_THAT(CompareShardings(ShardUnit::kParameter), IsOk());
}

// Experts have one copy on a host, of which a rank keeps all.
TEST(DataParallelTest, SecondaryShardsTrainTheSameBits) {
  EXPECT_THAT(RunCases([](const auto& train) {
                for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
                  for (ShardUnit unit : {ShardUnit::kElement, ShardUnit::kParameter}) {
                    Case c;
                    c.dtype = dtype;
                    c.unit = unit;
                    const Outcome plain = train(c);
                    c.sharding = DataSharding::kWeights;
                    c.how.secondary_shards = true;
                    c.hosts = 2;
                    for (const bool overlap : {false, true}) {
                      c.how.overlap_grad_reduce = c.how.overlap_param_gather = overlap;
                      ExpectSame(train(c), plain);
                    }
                  }
                }
              }),
              IsOk());
}

double Distance(const Outcome& a, const Outcome& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.weights.size(); ++i) {
    for (size_t j = 0; j < a.weights[i].size(); ++j) {
      difference += std::pow(double{a.weights[i][j]} - b.weights[i][j], 2);
      norm += std::pow(double{b.weights[i][j]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

// A weight near zero may lose its sign, on which its gradient depends.
TEST(DataParallelTest, QuantizedWeightsAreTheSameFromSecondaryShards) {
  EXPECT_THAT(RunCases([](const auto& train) {
                Case c;
                const Outcome plain = train(c);
                c.sharding = DataSharding::kWeights;
                c.how.quantized_weights = true;
                const Outcome quantized = train(c);
                for (size_t i = 0; i < plain.norms.size(); ++i)
                  EXPECT_NEAR(quantized.norms[i], plain.norms[i], 0.05 * plain.norms[i]);
                EXPECT_LT(Distance(quantized, plain), 0.02);
                EXPECT_GT(Distance(quantized, plain), 1e-4);
                c.hosts = 2;
                for (const bool secondary : {false, true}) {
                  c.how.secondary_shards = secondary;
                  for (const bool overlap : {false, true}) {
                    c.how.overlap_grad_reduce = c.how.overlap_param_gather = overlap;
                    ExpectSame(train(c), quantized);
                  }
                }
              }),
              IsOk());
}

TEST(DataParallelTest, QuantizedWeightsLeaveWhatIsStoredExact) {
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         ProcessGroups groups;
                         groups.world = groups.data_context_shards = world;
                         DataParallelOptions how;
                         how.quantized_weights = true;
                         Model model(groups, DataSharding::kWeights, how);
                         model.Build(stream, {2048, 2048});
                         const ParameterBuffers& buffers = *model.model().buffers;
                         model.model().buffers->InitializeWeights(4, stream);
                         const std::vector<float> stored = Floats(buffers.weights());
                         const Parameter& weight = *model.blocks()[1][0];
                         {
                           const WeightsInUse in_use(model.model().parallel.get(), 1);
                           std::vector<float> exact(weight.sharding.local_shape.numel());
                           FillInitial(
                               weight, 4,
                               Tensor(exact.data(), DType::kFloat32, weight.sharding.local_shape));
                           int equal = 0;
                           for (size_t i = 0; i < exact.size(); ++i)
                             equal += weight.data.data<float>()[i] == exact[i];
                           // The owner's elements are decoded too.
                           EXPECT_LT(equal, static_cast<int>(exact.size()) / 8);
                         }
                         EXPECT_EQ(Floats(buffers.weights()), stored);
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(DataParallelTest, QuantizedGradientsAreTheSumsButForRounding) {
  EXPECT_THAT(RunCases([](const auto& train) {
                Case c;
                const Outcome plain = train(c);
                c.sharding = DataSharding::kWeights;
                c.how.quantized_gradients = true;
                for (const int hosts : {1, 2}) {
                  c.hosts = hosts;
                  c.how.overlap_grad_reduce = c.how.overlap_param_gather = false;
                  const Outcome quantized = train(c);
                  for (size_t i = 0; i < plain.norms.size(); ++i)
                    EXPECT_NEAR(quantized.norms[i], plain.norms[i], 0.1 * plain.norms[i]);
                  EXPECT_NE(quantized.norms, plain.norms);
                  c.how.overlap_grad_reduce = c.how.overlap_param_gather = true;
                  ExpectSame(train(c), quantized);
                }
              }),
              IsOk());
}

// Elements of a block. The matrix of 33 * 5 = 165 elements and the bias of 7, which begins at a
// multiple of 64, are padded to a multiple of 4 * 64, and the expert's 9 to a multiple of 64. The
// other blocks are as large as this one, the largest.
constexpr int64_t kBlock = 256 + 64;

TEST(DataParallelTest, GatheredTensorsTakeTheMemoryOfOneOrTwoBlocks) {
  EXPECT_THAT(RunCases([](const auto& train) {
                Case c;
                const auto whole = [&](DataSharding sharding, bool overlap) {
                  c.sharding = sharding;
                  c.how.overlap_grad_reduce = c.how.overlap_param_gather = overlap;
                  const WholeBlockSizes sizes = train(c).whole;
                  return std::make_tuple(sizes.weights / 4, sizes.gradients / 4);
                };
                EXPECT_EQ(whole(DataSharding::kNone, true), std::make_tuple(0, 0));
                EXPECT_EQ(whole(DataSharding::kStates, true), std::make_tuple(0, 0));
                EXPECT_EQ(whole(DataSharding::kGradients, false), std::make_tuple(0, kBlock));
                EXPECT_EQ(whole(DataSharding::kGradients, true), std::make_tuple(0, 2 * kBlock));
                EXPECT_EQ(whole(DataSharding::kWeights, false), std::make_tuple(kBlock, kBlock));
                EXPECT_EQ(whole(DataSharding::kWeights, true),
                          std::make_tuple(2 * kBlock, 2 * kBlock));
              }),
              IsOk());
}

TEST(DataParallelTest, Bf16ReductionRoundsSummandsAndSumOnce) {
  for (auto sharding : {DataSharding::kNone, DataSharding::kStates, DataSharding::kGradients}) {
    for (bool overlap : {false, true}) {
      EXPECT_THAT(RunRanks(3,
                           [&](int rank, const ProcessGroup& world) -> absl::Status {
                             ThreadPool pool(1);
                             const Stream stream = Stream::Cpu(&pool);
                             ProcessGroups groups;
                             groups.world = groups.data_context_shards = world;
                             TestModel model({}, DType::kBFloat16);
                             Parameter* weight = model.Add("weight", Replicated({3 * 64}));
                             model.buffer_options.data = {3, rank};
                             model.buffer_options.sharding = sharding;
                             model.Build();
                             DataParallelOptions how;
                             how.gradient_dtype = DType::kBFloat16;
                             how.overlap_grad_reduce = overlap;
                             model.Connect(groups, stream, how, {0, 3 * 64 * 6});
                             model.parallel->StartStep(1);
                             {
                               const GradientsInUse gradients(model.parallel.get(), 0);
                               const float summands[] = {1 + 1.0f / 512, 256, 1};
                               for (int64_t i = 0; i < 3 * 64; ++i)
                                 weight->grad.data<float>()[i] = summands[rank];
                             }
                             model.parallel->FinalizeGradients();
                             const Bucket& bucket = model.buffers->buckets()[0];
                             const Tensor sum = model.buffers->Gradients(bucket, bucket.shard);
                             // The first summand is rounded to 1. The sum in fp32 is 258, which
                             // bf16 has; in bf16, 1 + 256 would be 256.
                             for (float value : Floats(sum)) EXPECT_EQ(value, 258);
                             return absl::OkStatus();
                           }),
                  IsOk());
    }
  }
}

// Returns the sum over three ranks of gradients that are all `summand`, sent in fp16.
float SumInFp16(float summand, float scale, DataSharding sharding) {
  float result = 0;
  const auto run = [&](int rank, const ProcessGroup& world) -> absl::Status {
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    ProcessGroups groups;
    groups.world = groups.data_context_shards = world;
    TestModel model;
    Parameter* weight = model.Add("weight", Replicated({3 * 64}));
    model.buffer_options.data = {3, rank};
    model.buffer_options.sharding = sharding;
    model.Build();
    DataParallelOptions how;
    how.gradient_dtype = DType::kFloat16;
    how.gradient_scale = scale;
    model.Connect(groups, stream, how, {0, 3 * 64 * 6});
    model.parallel->StartStep(1);
    {
      const GradientsInUse gradients(model.parallel.get(), 0);
      for (int64_t i = 0; i < 3 * 64; ++i) weight->grad.data<float>()[i] = summand;
    }
    model.parallel->FinalizeGradients();
    const Bucket& bucket = model.buffers->buckets()[0];
    const std::vector<float> sum = Floats(model.buffers->Gradients(bucket, bucket.shard));
    for (const float value : sum) EXPECT_EQ(value, sum[0]);
    if (rank == 0) result = sum[0];
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(3, run), IsOk());
  return result;
}

// The largest number in fp16 is 65504, and the smallest one above 0 is 2^-24.
TEST(DataParallelTest, AScaleKeepsGradientsInTheRangeOfFp16) {
  const float tiny = std::ldexp(1.0f, -26);
  for (auto sharding : {DataSharding::kNone, DataSharding::kStates, DataSharding::kGradients}) {
    EXPECT_EQ(SumInFp16(tiny, 1, sharding), 0);
    EXPECT_EQ(SumInFp16(tiny, 1024, sharding), 3 * tiny);
    // Each summand is in the range, and their sum is not.
    EXPECT_EQ(SumInFp16(32768, 1, sharding), std::numeric_limits<float>::infinity());
    EXPECT_EQ(SumInFp16(32768, 0.25f, sharding), 3 * 32768);
    EXPECT_EQ(SumInFp16(1e5f, 1, sharding), std::numeric_limits<float>::infinity());
    // 1 + 2^-11 is between two numbers of fp16 and rounded to the even one.
    EXPECT_EQ(SumInFp16(1 + std::ldexp(1.0f, -11), 1, sharding), 3);
  }
}

// A table between other weights: on each rank other rows have gradients, and some all ranks' do.
// The sums have the bits of a sum of the whole table, and so has all that is not the table.
TEST(DataParallelTest, ASparseTableIsSummedByItsRows) {
  constexpr int kRanks = 3;
  constexpr int64_t kRows = 100, kColumns = 7;
  struct Outcome {
    std::vector<float> gradients;
    DataParallel::SentElements sent;
    int64_t message_bytes = 0;
  };
  const auto run = [&](DataSharding sharding, bool overlap, int64_t most_rows, int64_t rows) {
    std::vector<Outcome> outcomes(kRanks);
    const auto train = [&](int rank, const ProcessGroup& world) -> absl::Status {
      ThreadPool pool(2);
      const Stream stream = Stream::Cpu(&pool);
      ProcessGroups groups;
      groups.world = groups.data_context_shards = world;
      TestModel model;
      model.Add("before", Replicated({50}));
      Parameter* table = model.Add("table", Replicated({kRows, kColumns}));
      model.Add("behind", Replicated({20, 3}));
      for (int i = 0; i < 3; ++i) model.parameters[i]->block = i;
      model.buffer_options.data = {kRanks, rank};
      model.buffer_options.sharding = sharding;
      model.Build();
      DataParallelOptions how;
      how.overlap_grad_reduce = overlap;
      if (most_rows > 0) how.sparse_table = table->name;
      how.most_sparse_rows = most_rows;
      model.Connect(groups, stream, how);
      model.parallel->StartStep(1);
      for (int i = 2; i >= 0; --i) {
        const GradientsInUse gradients(model.parallel.get(), i);
        if (i != 1) FillGradients(*model.parameters[i], rank);
        for (int64_t r = 0; i == 1 && r < rows; ++r) {
          const int64_t row = (r * (rank + 1) * 11) % kRows;
          for (int64_t c = 0; c < kColumns; ++c)
            table->grad.data<float>()[row * kColumns + c] = 0.1f * static_cast<float>(rank + c + r);
        }
      }
      model.parallel->FinalizeGradients();
      Outcome& outcome = outcomes[rank];
      for (const Bucket& bucket : model.buffers->buckets()) {
        const FlatRange range = model.buffers->reduced_range(bucket);
        const std::vector<float> part = Floats(model.buffers->Gradients(bucket, range));
        outcome.gradients.insert(outcome.gradients.end(), part.begin(), part.end());
      }
      outcome.sent = model.parallel->sent();
      const auto held = model.ledger.AtPeak();
      if (const auto found = held.find("gradients/messages"); found != held.end())
        outcome.message_bytes = found->second;
      return absl::OkStatus();
    };
    EXPECT_THAT(RunRanks(kRanks, train), IsOk());
    return outcomes;
  };
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kStates}) {
    for (const bool overlap : {false, true}) {
      for (const int64_t rows : {0, 1, 9, 90}) {
        const std::vector<Outcome> plain = run(sharding, overlap, 0, rows),
                                   sparse = run(sharding, overlap, 10, rows);
        for (int rank = 0; rank < kRanks; ++rank) {
          EXPECT_EQ(sparse[rank].gradients, plain[rank].gradients) << rows << " on rank " << rank;
          EXPECT_EQ(plain[rank].sent.all, 0);
          EXPECT_EQ(sparse[rank].sent.all, kRows * kColumns);
          // 10 rows of room; more than that are summed with all others.
          EXPECT_EQ(sparse[rank].sent.sent, (rows == 90 ? kRows : rows) * kColumns);
          EXPECT_EQ(sparse[rank].message_bytes, kRanks * (4 + 10 * (4 + 4 * kColumns)));
        }
      }
    }
  }
}

// Two instances of two ranks: 1 + 256 is rounded to 256 and 1 + 1 is 2, where one instance would
// round 1 + 256 + 1 + 1 = 259 to 260.
TEST(DataParallelTest, Bf16ReductionRoundsTheSumOfEachInstanceAndTheSumOfInstances) {
  constexpr int64_t kElements = 4 * 64;
  struct Way {
    DataSharding sharding;
    bool has_parts;
  };
  for (const Way& way : {Way{DataSharding::kStates, false}, Way{DataSharding::kGradients, false},
                         Way{DataSharding::kWeights, false}, Way{DataSharding::kStates, true},
                         Way{DataSharding::kWeights, true}}) {
    const auto run = [&way](int rank, const ProcessGroup& world) -> absl::Status {
      ThreadPool pool(1);
      const Stream stream = Stream::Cpu(&pool);
      ParallelSizes sizes;
      sizes.optimizer_instances = 2;
      MEGATRON_ASSIGN_OR_RETURN(const RankGrid grid, RankGrid::Create(sizes, 4));
      MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups,
                                MakeGroups(grid, grid, world.communicator()));
      TestModel model({}, DType::kBFloat16);
      Parameter* weight = model.Add("weight", Replicated({kElements}));
      model.buffer_options.data =
          DataRankOf(groups.data_context_shards, groups.data_context_replicas);
      model.buffer_options.sharding = way.sharding;
      model.buffer_options.shards_states_by_parts = way.has_parts;
      model.Build();
      DataParallelOptions how;
      how.gradient_dtype = DType::kBFloat16;
      model.Connect(groups, stream, how, {kElements * 2, kElements * 6});
      model.parallel->StartStep(1);
      {
        const GradientsInUse gradients(model.parallel.get(), 0);
        const float summands[] = {1, 256, 1, 1};
        for (int64_t i = 0; i < kElements; ++i) weight->grad.data<float>()[i] = summands[rank];
      }
      model.parallel->FinalizeGradients();
      const Bucket& bucket = model.buffers->buckets()[0];
      const FlatRange optimized = model.buffers->optimizer_range(bucket);
      EXPECT_EQ(optimized.size(), way.has_parts ? kElements / 4 : kElements / 2);
      for (float value : Floats(model.buffers->Gradients(bucket, optimized))) EXPECT_EQ(value, 258);
      return absl::OkStatus();
    };
    EXPECT_THAT(RunRanks(4, run), IsOk());
  }
}

// Rank 1 begins its backward when rank 0 has ended its own, and likewise its next forward. Without
// overlap this would be a deadlock.
TEST(DataParallelTest, WithOverlapARankComputesWithoutWaitingForOthers) {
  absl::Notification ended, shared;
  const auto after_rank_0 = [](int rank, absl::Notification* notification) {
    return rank == 0 || notification->WaitForNotificationWithTimeout(absl::Minutes(5));
  };
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         ProcessGroups groups;
                         groups.world = groups.data_context_shards = world;
                         groups.expert_data_shards = world;
                         DataParallelOptions how;
                         how.overlap_grad_reduce = how.overlap_param_gather = true;
                         Model model(groups, DataSharding::kStates, how);
                         model.Build(stream, {});
                         DataParallel& parallel = *model.model().parallel;
                         parallel.StartStep(1);
                         EXPECT_TRUE(after_rank_0(rank, &ended));
                         for (int b = kBlocks; b-- > 0;) GradientsInUse(&parallel, b);
                         if (rank == 0) ended.Notify();
                         parallel.FinalizeGradients();
                         EXPECT_TRUE(after_rank_0(rank, &shared));
                         parallel.ShareWeights();
                         if (rank == 0) shared.Notify();
                         const WeightsInUse weights(&parallel, 0);
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(DataParallelTest, ShardedWeightsAreFreedWhenNobodyUsesThem) {
  EXPECT_THAT(RunRanks(2,
                       [&](int rank, const ProcessGroup& world) -> absl::Status {
                         ThreadPool pool(1);
                         const Stream stream = Stream::Cpu(&pool);
                         ProcessGroups groups;
                         groups.world = groups.data_context_shards = world;
                         Model model(groups, DataSharding::kWeights, {});
                         model.Build(stream, {2048, 2048});
                         model.model().buffers->InitializeWeights(4, stream);
                         const Parameter* weight = model.blocks()[1][0];
                         EXPECT_TRUE(weight->data.empty());
                         EXPECT_TRUE(weight->grad.empty());
                         {
                           const WeightsInUse outer(model.model().parallel.get(), 1);
                           { const WeightsInUse inner(model.model().parallel.get(), 1); }
                           std::vector<float> expected(weight->sharding.local_shape.numel());
                           FillInitial(*weight, 4,
                                       Tensor(expected.data(), DType::kFloat32,
                                              weight->sharding.local_shape));
                           EXPECT_EQ(Floats(weight->data), expected);
                         }
                         EXPECT_TRUE(weight->data.empty());
                         return absl::OkStatus();
                       }),
              IsOk());
}

}  // namespace
}  // namespace megatron

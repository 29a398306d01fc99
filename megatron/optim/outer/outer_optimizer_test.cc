#include "megatron/optim/outer/outer_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/forwarding_communicator.h"
#include "megatron/comm/island_groups.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;

absl::StatusOr<ProcessGroups> GroupsOf(const ParallelSizes& sizes, const ProcessGroup& world) {
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid dense, RankGrid::Create(sizes, world.size()));
  MEGATRON_ASSIGN_OR_RETURN(const RankGrid expert, RankGrid::CreateExpert(sizes, world.size()));
  return MakeGroups(dense, expert, world.communicator());
}

// The weights and the momentum of one number after each outer step, where the islands had these
// results.
struct Trajectory {
  std::vector<float> weights, momentum;
};

Trajectory Follow(const OuterOptimizerOptions& options,
                  const std::vector<std::vector<float>>& results) {
  const int islands = static_cast<int>(results[0].size());
  std::vector<Trajectory> all(islands);
  const absl::Status status =
      RunRanks(islands, [&](int rank, const ProcessGroup& world) -> absl::Status {
        ParallelSizes sizes;
        sizes.data = sizes.optimizer_instances = islands;
        MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));
        ThreadPool pool(1);
        const Stream stream = Stream::Cpu(&pool);
        TestModel model;
        const Parameter* const number = model.Add("number", Replicated({1}));
        model.Build();
        OuterOptimizer outer(options, groups, model.buffers.get(), &model.ledger);
        *number->data.data<float>() = 1;
        outer.Start(stream);
        for (const std::vector<float>& result : results) {
          *number->data.data<float>() = result[rank];
          outer.Step(stream);
          const FlatParameter& flat = model.buffers->parameters()[0];
          const Bucket& bucket = model.buffers->bucket_of(flat);
          EXPECT_EQ(Floats(outer.Global(bucket, flat.range)), Floats(number->data));
          all[rank].weights.push_back(*number->data.data<float>());
          if (outer.has_momentum())
            all[rank].momentum.push_back(*outer.Momentum(bucket, flat.range).data<float>());
        }
        return world.status();
      });
  EXPECT_THAT(status, IsOk());
  for (const Trajectory& other : all) EXPECT_EQ(other.weights, all[0].weights);
  return all[0];
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-7) << i;
}

const std::vector<std::vector<float>>& Results() {
  static const auto* const results =
      new std::vector<std::vector<float>>{{0.9f, 0.8f}, {0.75f, 0.65f}, {0.5f, 0.6f}};
  return *results;
}

// The numbers are torch.optim.SGD's with nesterov=True.
TEST(OuterOptimizerTest, NesterovsStepsAreTorchs) {
  const Trajectory got = Follow({1, 0.7, 0.9, true}, Results());
  ExpectNear(got.weights, {0.8005, 0.581785, 0.40598245});
  ExpectNear(got.momentum, {0.15, 0.2355, 0.243735});
}

TEST(OuterOptimizerTest, MomentumWithoutNesterovIsTorchs) {
  // v = 0.15, then 0.135 + 0.195, then 0.297 + (0.664 - 0.55).
  const Trajectory got = Follow({1, 0.7, 0.9, false}, Results());
  ExpectNear(got.momentum, {0.15, 0.33, 0.411});
  ExpectNear(got.weights, {0.895, 0.664, 0.3763});
}

TEST(OuterOptimizerTest, WithoutMomentumAndWithLearningRate1ItIsTheMean) {
  const Trajectory got = Follow({1, 1, 0, true}, Results());
  EXPECT_TRUE(got.momentum.empty());
  ExpectNear(got.weights, {0.85, 0.7, 0.55});
}

TEST(OuterOptimizerTest, OneIslandHasMomentumAlone) {
  // d = 0.5; then 0.525 - 0.25 = 0.275.
  const Trajectory got = Follow({1, 0.5, 0.9, true}, {{0.5f}, {0.25f}});
  ExpectNear(got.momentum, {0.5, 0.725});
  ExpectNear(got.weights, {0.525, 0.525 - 0.5 * (0.275 + 0.9 * 0.725)});
}

// Four ranks in two islands, each of which shards its states over two ranks. Their masters are
// small fractions, whose mean is exact.
TEST(OuterOptimizerTest, EachRankAveragesItsShard) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const absl::Status status =
        RunRanks(4, [&](int rank, const ProcessGroup& world) -> absl::Status {
          ParallelSizes sizes;
          sizes.data = 4;
          sizes.optimizer_instances = 2;
          MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));
          MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups island, GroupsOfIsland(groups, false));
          ThreadPool pool(1);
          const Stream stream = Stream::Cpu(&pool);
          TestModel model({}, dtype);
          model.Add("matrix", Replicated({6, 5}));
          model.Add("bias", Replicated({7}));
          model.buffer_options.sharding = DataSharding::kStates;
          model.buffer_options.data =
              DataRankOf(island.data_context_shards, island.data_context_replicas);
          model.Build();
          OuterOptimizer outer({1, 1, 0.5, true}, groups, model.buffers.get(), &model.ledger);
          ParameterBuffers& buffers = *model.buffers;
          const int k = rank / 2;
          EXPECT_EQ(outer.islands(), 2);
          EXPECT_EQ(outer.island(), k);
          const auto fill = [&](int add) {
            for (const Bucket& bucket : buffers.buckets()) {
              const FlatRange range = buffers.optimizer_range(bucket);
              float* const masters = buffers.Masters(bucket, range).data<float>();
              for (int64_t i = 0; i < range.size(); ++i)
                masters[i] = Fraction(range.begin + i) + static_cast<float>(add);
            }
          };
          fill(0);
          outer.Start(stream);
          // The islands go 1 and 3 down: the mean is 2, and Nesterov's step is 1.5 times that.
          fill(k == 0 ? -1 : -3);
          outer.Step(stream);
          int64_t seen = 0, all = 0;
          for (const Bucket& bucket : buffers.buckets()) {
            const FlatRange range = buffers.optimizer_range(bucket);
            all += bucket.range.size();
            const std::vector<float> masters = Floats(buffers.Masters(bucket, range));
            EXPECT_EQ(Floats(outer.Global(bucket, range)), masters);
            for (int64_t i = 0; i < range.size(); ++i, ++seen) {
              const float want = Fraction(range.begin + i) - 3;
              EXPECT_EQ(masters[i], want);
              if (dtype == DType::kBFloat16) {
                EXPECT_EQ(ToFloat(buffers.Weights(bucket, range).data<BFloat16>()[i]), want);
              }
            }
          }
          EXPECT_GE(seen, 37 / 2);
          EXPECT_EQ(2 * seen, all);
          fill(5);
          outer.SwapWithMasters(stream);
          const Bucket& first = buffers.buckets()[0];
          const FlatRange range = buffers.optimizer_range(first);
          EXPECT_EQ(buffers.Masters(first, range).data<float>()[0], Fraction(range.begin) - 3);
          EXPECT_EQ(outer.Global(first, range).data<float>()[0], Fraction(range.begin) + 5);
          return world.status();
        });
    EXPECT_THAT(status, IsOk());
  }
}

// 0.15 is 0.125 in four bits, and 0.375 is exactly halfway from 0.25 to 0.5. Eight bits have a
// scale for the one number, and lose its last bits only.
TEST(OuterOptimizerTest, CodesAreRoundedOnceByEachIslandAndSummedInFp32) {
  const std::vector<std::vector<float>> results = {{0.85f, 0.625f}};
  ExpectNear(Follow({1, 1, 0, true, OuterGradientType::kE3M0}, results).weights,
             {1 - (0.125 + 0.5) / 2});
  ExpectNear(Follow({1, 1, 0, true, OuterGradientType::kInt8}, results).weights,
             {1 - (0.15 + 0.375) / 2});
  // One island sends nothing, and rounds nothing.
  ExpectNear(Follow({1, 1, 0, true, OuterGradientType::kE3M0}, {{0.85f}}).weights, {0.85});
}

TEST(FragmentTest, LayersTakeTurnsAndTheOthersStandAtTheEnds) {
  EXPECT_EQ(FragmentOf("decoder.layers.0.mlp.linear_fc1.weight", 3), 0);
  EXPECT_EQ(FragmentOf("decoder.layers.5.input_layernorm.weight", 3), 2);
  EXPECT_EQ(FragmentOf("encoder.layers.13.mlp.experts.linear_fc1.weight", 3), 1);
  EXPECT_EQ(FragmentOf("embedding.word_embeddings.weight", 3), 0);
  EXPECT_EQ(FragmentOf("decoder.final_layernorm.weight", 3), 2);
  EXPECT_EQ(FragmentOf("output_layer.weight", 3), 2);
  EXPECT_EQ(FragmentOf("output_layer.weight", 1), 0);
}

// The parameters of the model of the tests of fragments, and how a step of an island changes them.
struct NamedSize {
  std::string name;
  int64_t size;
};

const std::vector<NamedSize>& SmallModel() {
  static const auto* const model = new std::vector<NamedSize>{
      {"embedding.word_embeddings.weight", 5}, {"decoder.layers.0.weight", 70},
      {"decoder.layers.1.weight", 9},          {"decoder.layers.2.weight", 3},
      {"decoder.layers.3.weight", 130},        {"decoder.final_layernorm.weight", 2}};
  return *model;
}

float Changed(float weight, int island, int64_t step, int64_t parameter, int64_t i) {
  const float pull = Fraction(3 * step + 5 * parameter + i) + static_cast<float>(island);
  return weight * 0.96875f + pull * 0.013f;
}

using Values = std::vector<std::vector<float>>;  // the elements of each parameter

// Streaming DiLoCo as the paper has it, on vectors.
class PlainStreaming {
 public:
  PlainStreaming(const OuterOptimizerOptions& options, int islands, const Values& start)
      : options_(options), weights_(islands, start), global_(start), momentum_(start) {
    for (std::vector<float>& values : momentum_) values.assign(values.size(), 0);
  }

  void Step(int64_t t) {
    for (size_t k = 0; k < weights_.size(); ++k) {
      for (size_t p = 0; p < global_.size(); ++p) {
        for (size_t i = 0; i < global_[p].size(); ++i)
          weights_[k][p][i] = Changed(weights_[k][p][i], static_cast<int>(k), t, p, i);
      }
    }
    const float alpha = static_cast<float>(options_.update_alpha);
    if (t == options_.last_step) {
      if (sent_at_ > 0) Apply(sent_fragment_, alpha);
      for (int f = 0; f < options_.num_fragments; ++f) {
        Send(f);
        Apply(f, 0);
      }
      return;
    }
    if (sent_at_ > 0 && t == sent_at_ + options_.sync_delay) Apply(sent_fragment_, alpha);
    for (int f = 0; f < options_.num_fragments; ++f) {
      const int64_t offset = (f + 1) * options_.sync_every / options_.num_fragments;
      if ((t - offset) % options_.sync_every != 0) continue;
      Send(f);
      sent_fragment_ = f;
      sent_at_ = t;
      if (options_.sync_delay == 0) Apply(f, alpha);
    }
  }

  const Values& weights(int island) const { return weights_[island]; }
  const Values& global() const { return global_; }

 private:
  void Send(int f) {
    sums_ = global_;
    for (size_t p = 0; p < global_.size(); ++p) {
      if (FragmentOf(SmallModel()[p].name, options_.num_fragments) != f) continue;
      for (size_t i = 0; i < global_[p].size(); ++i) {
        sums_[p][i] = global_[p][i] - weights_[0][p][i];
        for (size_t k = 1; k < weights_.size(); ++k)
          sums_[p][i] += global_[p][i] - weights_[k][p][i];
      }
    }
  }

  void Apply(int f, float alpha) {
    const float mu = static_cast<float>(options_.momentum), lr = static_cast<float>(options_.lr);
    const float share = static_cast<float>(1.0 / static_cast<double>(weights_.size()));
    for (size_t p = 0; p < global_.size(); ++p) {
      if (FragmentOf(SmallModel()[p].name, options_.num_fragments) != f) continue;
      for (size_t i = 0; i < global_[p].size(); ++i) {
        const float d = sums_[p][i] * share;
        float& v = momentum_[p][i];
        v = mu * v;
        v += d;
        float change = v;
        if (options_.nesterov) {
          change = mu * v;
          change += d;
        }
        change *= -lr;
        global_[p][i] += change;
        for (Values& weights : weights_) {
          const float local = alpha * weights[p][i];
          weights[p][i] = static_cast<float>(1 - options_.update_alpha) * global_[p][i];
          if (alpha == 0) weights[p][i] = global_[p][i];
          weights[p][i] += local;
        }
      }
    }
    sent_at_ = 0;
  }

  const OuterOptimizerOptions options_;
  std::vector<Values> weights_;
  Values global_, momentum_, sums_;
  int sent_fragment_ = 0;
  int64_t sent_at_ = 0;
};

Values StartOfSmallModel() {
  Values start;
  for (size_t p = 0; p < SmallModel().size(); ++p) {
    start.emplace_back();
    for (int64_t i = 0; i < SmallModel()[p].size; ++i)
      start.back().push_back(Fraction(11 * static_cast<int64_t>(p) + i));
  }
  return start;
}

TEST(FragmentTest, StreamsAreThoseOfThePlainAlgorithmBitForBit) {
  constexpr int kIslands = 3;
  const auto with = [](int64_t sync_every, int fragments, int64_t delay, double alpha) {
    OuterOptimizerOptions options{sync_every, 0.7, 0.9, true};
    options.num_fragments = fragments;
    options.sync_delay = delay;
    options.update_alpha = alpha;
    options.last_step = 24;
    return options;
  };
  std::vector<OuterOptimizerOptions> cases = {with(6, 1, 0, 0),   with(6, 1, 5, 0),
                                              with(6, 1, 0, 0.5), with(8, 4, 1, 0.5),
                                              with(6, 3, 0, 0.3), with(12, 2, 4, 0.25)};
  cases.push_back(with(8, 4, 1, 0.5));
  cases.back().nesterov = false;
  cases.push_back(with(8, 2, 2, 0.5));
  cases.back().momentum = 0;
  for (const OuterOptimizerOptions& options : cases) {
    SCOPED_TRACE(testing::Message() << options.sync_every << " " << options.num_fragments << " "
                                    << options.sync_delay << " " << options.update_alpha);
    const absl::Status status =
        RunRanks(kIslands, [&](int rank, const ProcessGroup& world) -> absl::Status {
          ParallelSizes sizes;
          sizes.data = sizes.optimizer_instances = kIslands;
          MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));
          ThreadPool pool(1);
          const Stream stream = Stream::Cpu(&pool);
          TestModel model;
          std::vector<Parameter*> parameters;
          for (const NamedSize& named : SmallModel()) {
            parameters.push_back(model.Add(named.name, Replicated({named.size})));
            parameters.back()->block = static_cast<int>(parameters.size()) / 2;
          }
          model.Build();
          const Values start = StartOfSmallModel();
          for (size_t p = 0; p < start.size(); ++p)
            std::copy(start[p].begin(), start[p].end(), parameters[p]->data.data<float>());
          OuterOptimizer outer(options, groups, model.buffers.get(), &model.ledger);
          MEGATRON_RETURN_IF_ERROR(outer.PrepareLane(stream));
          outer.Start(stream);
          PlainStreaming plain(options, kIslands, start);
          for (int64_t t = 1; t <= options.last_step; ++t) {
            plain.Step(t);
            for (size_t p = 0; p < start.size(); ++p) {
              float* const weights = parameters[p]->data.data<float>();
              for (size_t i = 0; i < start[p].size(); ++i)
                weights[i] = Changed(weights[i], rank, t, p, i);
            }
            model.buffers->ZeroGradients(stream);
            outer.FinishStep(t, stream);
            for (const FlatParameter& flat : model.buffers->parameters()) {
              const size_t p = std::find(parameters.begin(), parameters.end(), flat.parameter) -
                               parameters.begin();
              EXPECT_EQ(Floats(flat.parameter->data), plain.weights(rank)[p]) << t << " " << p;
              EXPECT_EQ(Floats(outer.Global(model.buffers->bucket_of(flat), flat.range)),
                        plain.global()[p])
                  << t << " " << p;
            }
          }
          EXPECT_EQ(plain.weights(rank), plain.global());
          EXPECT_NE(plain.global(), start);
          return world.status();
        });
    EXPECT_THAT(status, IsOk());
  }
}

// A communicator whose parts begin no call before the gate is open.
class GatedCommunicator : public ForwardingCommunicator {
 public:
  GatedCommunicator(std::shared_ptr<Communicator> communicator, absl::Notification* gate,
                    bool waits)
      : ForwardingCommunicator(std::move(communicator)), gate_(gate), waits_(waits) {}
  void Run(const CollectiveCall& call, const Stream& stream) override {
    if (waits_) {
      EXPECT_TRUE(gate_->WaitForNotificationWithTimeout(absl::Seconds(60)))
          << "the step waited for what it sends";
    }
    inner().Run(call, stream);
  }

 private:
  std::shared_ptr<Communicator> Wrap(std::shared_ptr<Communicator> part) override {
    return std::make_shared<GatedCommunicator>(std::move(part), gate_, /*waits=*/true);
  }

  absl::Notification* const gate_;
  const bool waits_;
};

TEST(FragmentTest, StepsGoOnWhileALinkIsSlow) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ParallelSizes sizes;
    sizes.data = sizes.optimizer_instances = 2;
    MEGATRON_ASSIGN_OR_RETURN(ProcessGroups groups, GroupsOf(sizes, world));
    absl::Notification gate;
    groups.data_context_replicas = ProcessGroup(std::make_shared<GatedCommunicator>(
        groups.data_context_replicas.communicator(), &gate, /*waits=*/false));
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    TestModel model;
    const Parameter* const number = model.Add("number", Replicated({1}));
    model.Build();
    OuterOptimizerOptions options{4, 1, 0, true};
    options.sync_delay = 3;
    options.update_alpha = 0.5;
    OuterOptimizer outer(options, groups, model.buffers.get(), &model.ledger);
    MEGATRON_RETURN_IF_ERROR(outer.PrepareLane(stream));
    float* const weight = number->data.data<float>();
    *weight = 1;
    outer.Start(stream);
    *weight = rank == 0 ? 0.5f : 0.25f;
    EXPECT_FALSE(outer.FinishStep(4, stream));
    EXPECT_EQ(outer.in_flight().fragment, 0);
    for (const int64_t step : {5, 6}) {
      *weight += 1;
      EXPECT_FALSE(outer.FinishStep(step, stream));
    }
    gate.Notify();
    EXPECT_TRUE(outer.FinishStep(7, stream));
    EXPECT_EQ(outer.in_flight().fragment, -1);
    // Half of the mean of what was sent, and half of what has become of it.
    EXPECT_EQ(*weight, 0.375f / 2 + (rank == 0 ? 2.5f : 2.25f) / 2);
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

// Two islands of one rank each. Their gradients have the norms 4 and 2.
TEST(OuterOptimizerTest, AnIslandClipsByItsOwnNormAndSkipsStepsWithTheOthers) {
  const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) -> absl::Status {
    ParallelSizes sizes;
    sizes.data = sizes.optimizer_instances = 2;
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups groups, GroupsOf(sizes, world));
    MEGATRON_ASSIGN_OR_RETURN(const ProcessGroups island, GroupsOfIsland(groups, false));
    ThreadPool pool(1);
    const Stream stream = Stream::Cpu(&pool);
    OptimizerOptions sgd;
    sgd.kind = OptimizerOptions::kSgd;
    sgd.sgd_momentum = 0;
    TestModel model(sgd);
    const Parameter* const number = model.Add("number", Replicated({1}));
    model.Build();
    float* const weight = number->data.data<float>();
    float* const gradient = number->grad.data<float>();
    StepOptions options;
    options.lr = 1;
    options.clip_grad = 3;
    options.islands = &groups.data_context_replicas;
    *weight = 0;
    *gradient = rank == 0 ? 4.0f : 2.0f;
    options.stop_requested = rank == 1;
    MEGATRON_ASSIGN_OR_RETURN(StepResult result, model.optimizer->Step(options, island, stream));
    EXPECT_TRUE(result.applied);
    EXPECT_TRUE(result.stop_requested);
    EXPECT_FALSE(result.log_requested);
    EXPECT_NEAR(result.grad_norm, std::sqrt((16.0 + 4) / 2), 1e-6);
    EXPECT_NEAR(*weight, rank == 0 ? -3 : -2, 1e-5);
    // An island with a gradient that is not finite holds back the other.
    if (rank == 1) *gradient = std::numeric_limits<float>::infinity();
    const float before = *weight;
    MEGATRON_ASSIGN_OR_RETURN(result, model.optimizer->Step(options, island, stream));
    EXPECT_FALSE(result.finite);
    EXPECT_FALSE(result.applied);
    EXPECT_EQ(*weight, before);
    EXPECT_EQ(model.optimizer->applied_steps(), 1);
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace megatron

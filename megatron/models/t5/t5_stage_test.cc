// A model with an encoder and a decoder on pipeline stages and tensor-parallel ranks gives what it
// gives on one. What it computes there is tested with the other models, in stack_stage_test.

#include "megatron/models/t5/t5_stage.h"

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/models/make_stage.h"
#include "megatron/models/model_harness.h"
#include "megatron/ops/elementwise.h"
#include "megatron/pipeline/executor.h"
#include "megatron/pipeline/schedule_kind.h"
#include "megatron/pipeline/stage_plan.h"

namespace megatron {
namespace {

constexpr int kMicroBatches = 4;

struct Layout {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int stages = 1, chunks = 1;
  std::vector<int64_t> layers = {5};  // layers of each part; the encoder has 2, the decoder 3
  int tensor = 1;
};

// Loss and gradients of the whole model, whichever ranks computed them.
struct Result {
  double loss = 0;  // the sum over micro-batches
  std::map<std::string, std::vector<double>> gradients;
};

// whole[block] += gradient.
void AddBlock(const Sharding& sharding, const Tensor& gradient, std::vector<double>* whole) {
  whole->resize(sharding.global_shape.numel());
  const float* values = gradient.data<float>();
  for (int64_t i = 0; i < gradient.numel(); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (int d = gradient.rank() - 1; d >= 0; --d) {
      at += (rest % gradient.dim(d) + sharding.offset[d]) * stride;
      rest /= gradient.dim(d);
      stride *= sharding.global_shape[d];
    }
    (*whole)[at] += values[i];
  }
}

// One rank's part of a step: its stage and all that it needs.
class StageOnRank {
 public:
  StageOnRank(const ModelOptions& options, const Layout& layout, int stage,
              const ProcessGroup& tensor_group)
      : plan_(PlanStage(MakeSchedule({layout.kind, layout.stages, kMicroBatches, layout.chunks}),
                        stage)),
        stage_(MakeStage(
            options, {Device(),
                      /*ledger=*/nullptr,
                      {stage, layout.stages, layout.chunks, OrderOf(layout.kind), layout.layers},
                      tensor_group})),
        memory_({}, Sizes(plan_), nullptr) {
    for (Parameter* parameter : stage_->parameters()) {
      const Shape& shape = parameter->sharding.local_shape;
      for (Tensor* tensor : {&parameter->data, &parameter->grad}) {
        buffers_.emplace_back(Device(), shape.numel() * SizeOf(DType::kFloat32), "test", nullptr);
        *tensor = buffers_.back().At(0, DType::kFloat32, shape);
      }
      FillInitial(*parameter, /*seed=*/5, parameter->data);
      ops::Zero(stream_, parameter->grad);
    }
  }

  void Run(const std::vector<MicroBatch>& batches, const ProcessGroup& pipeline) {
    stage_->StartStep({&memory_, nullptr, &batches, StageMode::kTrain});
    const absl::Status status = RunSchedule(plan_, stage_.get(), pipeline, &memory_.edges, stream_);
    EXPECT_TRUE(status.ok()) << status;
  }

  void AddTo(bool first_tensor_rank, Result* result) {
    if (stage_->placement().last() && first_tensor_rank)
      result->loss += stage_->loss_sums().data<float>()[0];
    for (Parameter* parameter : stage_->parameters()) {
      const Sharding& sharding = parameter->sharding;
      const bool the_same_elsewhere =
          sharding.sharded.empty() && !sharding.partial.contains(Axis::kTensor);
      if (first_tensor_rank || !the_same_elsewhere)
        AddBlock(sharding, parameter->grad, &result->gradients[parameter->name]);
    }
  }

 private:
  static StageMemorySizes Sizes(const StagePlan& plan) {
    constexpr int64_t kEnough = 1 << 20;
    StageMemorySizes sizes;
    sizes.slots.clear();
    sizes.deferred.clear();
    for (int chunk = 0; chunk < plan.chunks(); ++chunk) {
      sizes.slots.push_back({plan.slots[chunk], kEnough});
      sizes.deferred.push_back({plan.deferred_slots[chunk], kEnough});
    }
    sizes.recompute = sizes.scratch = sizes.edges = kEnough;
    return sizes;
  }

  ThreadPool pool_{1};
  Stream stream_ = Stream::Cpu(&pool_);
  StagePlan plan_;
  std::unique_ptr<ModelStage> stage_;
  StageMemory memory_;
  std::vector<Buffer> buffers_;
};

// Tensor-parallel ranks are neighbours.
ProcessGroup Split(const ProcessGroup& world, const Layout& layout, bool tensor) {
  const int size = tensor ? layout.tensor : layout.stages;
  if (size == world.size()) return world;
  if (size == 1) return ProcessGroup();
  std::vector<std::vector<int>> partition(world.size() / size);
  for (int rank = 0; rank < world.size(); ++rank)
    partition[tensor ? rank / size : rank % layout.tensor].push_back(rank);
  auto communicator = world.communicator()->Split(partition, tensor ? "tp" : "pp");
  EXPECT_TRUE(communicator.ok()) << communicator.status();
  return ProcessGroup(*communicator);
}

Result RunLayout(ModelOptions options, const Layout& layout) {
  options.transformer.sequence_parallel =
      layout.tensor > 1 && options.transformer.sequence_parallel;
  Result result;
  std::mutex mutex;
  const absl::Status status =
      RunRanks(layout.tensor * layout.stages, [&](int rank, const ProcessGroup& world) {
        // Lengths of their own; even sums on both sides, for sequence parallelism.
        std::vector<HostBatch> host;
        std::vector<MicroBatch> batches;
        for (int m = 0; m < kMicroBatches; ++m)
          host.push_back(RandomBatch({9 + m, 13 - m}, options.vocab_size, 3 + m, 10 * m));
        for (HostBatch& batch : host) batches.push_back(batch.View());
        StageOnRank stage(options, layout, rank / layout.tensor, Split(world, layout, true));
        stage.Run(batches, Split(world, layout, false));
        const std::lock_guard<std::mutex> lock(mutex);
        stage.AddTo(rank % layout.tensor == 0, &result);
        return world.status();
      });
  EXPECT_TRUE(status.ok()) << status;
  return result;
}

void ExpectEqual(const Result& got, const Result& want) {
  EXPECT_NEAR(got.loss, want.loss, 1e-6 * want.loss);
  EXPECT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) {
    ASSERT_EQ(got.gradients.count(name), 1u) << name;
    double distance = 0, norm = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      distance += std::pow(got.gradients.at(name)[i] - gradient[i], 2);
      norm += gradient[i] * gradient[i];
    }
    EXPECT_GT(norm, 0) << name;
    EXPECT_LE(std::sqrt(distance), 1e-5 * (std::sqrt(norm) + 0.1)) << name;
  }
}

std::vector<ModelOptions> Models() {
  std::vector<ModelOptions> models = {SmallMegatronT5(), SmallT5(), SmallT5()};
  models[0].transformer.hidden_dropout = models[0].transformer.attention_dropout = 0.2f;
  models[1].layer_recompute = {LayerRecompute::kUniform, 2};
  models[1].transformer.attention_dropout = 0.1f;
  models[2].tied_embeddings = false;
  models[2].transformer.gated = true;
  models[2].transformer.recompute = {true, true, true};
  return models;
}

void ExpectLayoutsGiveWhatOneRankGives(const std::vector<Layout>& layouts) {
  for (size_t model = 0; model < Models().size(); ++model) {
    const Result want = RunLayout(Models()[model], {});
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "model " << model << ", layout " << i);
      ExpectEqual(RunLayout(Models()[model], layouts[i]), want);
    }
  }
}

TEST(T5StageTest, StagesGiveWhatOneRankGivesWhereverTheEncoderEnds) {
  constexpr auto k1F1B = ScheduleKind::kOneForwardOneBackward;
  ExpectLayoutsGiveWhatOneRankGives({
      {k1F1B, 2, 1, {2, 3}},     // an end between two stages
      {k1F1B, 2, 1, {1, 4}},     // an end on the second
      {k1F1B, 2, 1, {3, 2}},     // an end on the first
      {k1F1B, 3, 1, {1, 2, 2}},  // an end in the middle
      {k1F1B, 3, 1, {0, 2, 3}},  // behind a stage that only embeds
      {k1F1B, 3, 1, {2, 0, 3}},  // an empty part in front of one that hands on
      {k1F1B, 3, 1, {5, 0, 0}},
      {ScheduleKind::kGPipe, 2, 1, {2, 3}},
  });
}

TEST(T5StageTest, StagesWithSeveralPartsDoToo) {
  constexpr auto kInterleaved = ScheduleKind::kOneForwardOneBackward;
  ExpectLayoutsGiveWhatOneRankGives({
      {kInterleaved, 2, 2, {1, 1, 2, 1}},
      {kInterleaved, 2, 2, {1, 2, 1, 1}},
      {kInterleaved, 2, 3, {1, 1, 0, 1, 1, 1}},
  });
}

TEST(T5StageTest, BackwardsInTwoPartsDoToo) {
  ExpectLayoutsGiveWhatOneRankGives({
      {ScheduleKind::kZeroBubbleH1, 2, 1, {3, 2}},
      {ScheduleKind::kZeroBubbleH1, 3, 1, {2, 1, 2}},
      {ScheduleKind::kZeroBubbleV, 2, 2, {1, 2, 1, 1}},
  });
}

TEST(T5StageTest, TensorParallelRanksOfStagesDoToo) {
  constexpr auto k1F1B = ScheduleKind::kOneForwardOneBackward;
  const std::vector<Layout> layouts = {{k1F1B, 1, 1, {5}, 2}, {k1F1B, 2, 1, {3, 2}, 2}};
  for (bool sequence_parallel : {false, true}) {
    for (ModelOptions options : Models()) {
      options.transformer.sequence_parallel = sequence_parallel;
      const Result want = RunLayout(options, {});
      for (const Layout& layout : layouts) ExpectEqual(RunLayout(options, layout), want);
    }
  }
}

}  // namespace
}  // namespace megatron

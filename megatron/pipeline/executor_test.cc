#include "megatron/pipeline/executor.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/pipeline/zero_bubble_v.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

constexpr int64_t kWidth = 3;

// The rows of a micro-batch: unequal, so that edges change their shapes.
int64_t Rows(int microbatch) { return 1 + microbatch * 2 % 5; }

float Data(int microbatch, int64_t i) { return std::sin(1.0f + microbatch + 0.1f * i); }

// A model of parts that map a pair (a, b) to (w a + b, a b), elementwise; w is the only parameter
// of a part. The loss is the sum of a' + 2 b' of the last part.
class ProductStage : public Stage {
 public:
  ProductStage(const Schedule& schedule, int stage)
      : schedule_(schedule), stage_(stage), gradients_(schedule.chunks) {}

  // Off means that nothing is kept for a backward.
  void set_training(bool training) { training_ = training; }

  double loss() const { return loss_; }
  float weight_gradient(int chunk) const { return gradients_[chunk]; }
  int max_slot() const { return max_slot_; }
  int max_deferred_slot() const { return max_deferred_slot_; }

  std::vector<TensorSpec> InputSpecs(int microbatch, int chunk) const override {
    if (Position(chunk) == 0) return {};
    return {{DType::kFloat32, {Rows(microbatch), kWidth}},
            {DType::kFloat32, {Rows(microbatch) * kWidth}}};
  }
  std::vector<TensorSpec> OutputSpecs(int microbatch, int chunk) const override {
    if (IsLast(chunk)) return {};
    return {{DType::kFloat32, {Rows(microbatch), kWidth}},
            {DType::kFloat32, {Rows(microbatch) * kWidth}}};
  }

  void Forward(const WorkItem& item, absl::Span<const Tensor> inputs,
               absl::Span<const Tensor> outputs, const Stream& stream) override {
    max_slot_ = std::max(max_slot_, item.slot);
    if (stream.is_meta()) return;
    Saved& saved = saved_[{item.chunk, item.slot}];
    EXPECT_FALSE(saved.live) << "the slot is in use";
    saved.live = training_ && Position(item.chunk) >= schedule_.first_trained;
    saved.microbatch = item.microbatch;
    saved.inputs.assign(inputs.begin(), inputs.end());
    const int64_t count = Rows(item.microbatch) * kWidth;
    for (int64_t i = 0; i < count; ++i) {
      const auto [a, b] = Input(saved, i);
      const float next_a = Weight(item.chunk) * a + b, next_b = a * b;
      if (IsLast(item.chunk)) {
        EXPECT_TRUE(outputs.empty());
        loss_ += double{next_a} + 2 * double{next_b};
      } else {
        outputs[0].data<float>()[i] = next_a;
        outputs[1].data<float>()[i] = next_b;
      }
    }
  }

  void Backward(const WorkItem& item, absl::Span<const Tensor> output_gradients,
                absl::Span<const Tensor> input_gradients, const Stream& stream) override {
    max_deferred_slot_ = std::max(max_deferred_slot_, item.deferred_slot);
    if (stream.is_meta()) return;
    Saved& saved = saved_[{item.chunk, item.slot}];
    EXPECT_TRUE(saved.live);
    EXPECT_EQ(saved.microbatch, item.microbatch);
    std::vector<float>& kept = deferred_[{item.chunk, item.deferred_slot}];
    EXPECT_TRUE(kept.empty()) << "the deferred slot is in use";
    for (int64_t i = 0; i < Rows(item.microbatch) * kWidth; ++i) {
      const auto [a, b] = Input(saved, i);
      const auto [da, db] = Gradient(item.chunk, output_gradients, i);
      kept.push_back(da);
      EXPECT_EQ(input_gradients.empty(), Position(item.chunk) == schedule_.first_trained);
      if (input_gradients.empty()) continue;
      input_gradients[0].data<float>()[i] = Weight(item.chunk) * da + b * db;
      input_gradients[1].data<float>()[i] = da + a * db;
    }
    if (item.deferred_slot < 0) BackwardWeight(item, stream);
  }

  void BackwardWeight(const WorkItem& item, const Stream& stream) override {
    if (stream.is_meta()) return;
    Saved& saved = saved_[{item.chunk, item.slot}];
    EXPECT_EQ(saved.microbatch, item.microbatch);
    std::vector<float>& kept = deferred_[{item.chunk, item.deferred_slot}];
    for (int64_t i = 0; i < Rows(item.microbatch) * kWidth; ++i) {
      gradients_[item.chunk] += Input(saved, i).first * kept[i];
    }
    kept.clear();
    saved.live = false;
  }

 private:
  struct Saved {
    bool live = false;
    int microbatch = 0;
    std::vector<Tensor> inputs;  // the executor's, uncopied
  };

  int Position(int chunk) const { return schedule_.PositionAt(stage_, chunk); }
  bool IsLast(int chunk) const { return Position(chunk) == schedule_.positions() - 1; }
  float Weight(int chunk) const { return 0.7f + 0.1f * Position(chunk); }
  static std::pair<float, float> Input(const Saved& saved, int64_t i) {
    if (saved.inputs.empty()) return {Data(saved.microbatch, i), Data(saved.microbatch, -i)};
    return {saved.inputs[0].data<float>()[i], saved.inputs[1].data<float>()[i]};
  }
  std::pair<float, float> Gradient(int chunk, absl::Span<const Tensor> gradients, int64_t i) const {
    if (IsLast(chunk)) return {1.0f, 2.0f};
    return {gradients[0].data<float>()[i], gradients[1].data<float>()[i]};
  }

  const Schedule& schedule_;
  const int stage_;
  std::map<std::pair<int, int>, Saved> saved_;  // indexed by chunk and slot
  std::map<std::pair<int, int>, std::vector<float>> deferred_;
  std::vector<float> gradients_;
  double loss_ = 0;
  bool training_ = true;
  int max_slot_ = -1, max_deferred_slot_ = -1;
};

struct Result {
  double loss = 0;
  std::vector<float> gradients;  // indexed by position in the model

  friend bool operator==(const Result& a, const Result& b) {
    return a.loss == b.loss && a.gradients == b.gradients;
  }
};

Result RunStages(const Schedule& schedule, bool beside) {
  Result result;
  result.gradients.resize(schedule.stages * schedule.chunks);
  const absl::Status status =
      RunRanks(schedule.stages, [&](int rank, const ProcessGroup& world) -> absl::Status {
        ThreadPool pool(1);
        const Stream stream = Stream::Cpu(&pool);
        ProcessGroup pipeline = world;
        if (beside) {
          MEGATRON_ASSIGN_OR_RETURN(pipeline, WithAsyncCalls(world, stream));
        }
        MemoryLedger ledger;
        Arena arena(stream.device(), 1 << 16, "edges", &ledger);
        ProductStage stage(schedule, rank);
        const StagePlan plan = PlanStage(schedule, rank);
        const std::vector<Action>& actions = schedule.actions[rank];
        stage.set_training(actions.back().kind != ActionKind::kForward);
        absl::Status ran = RunSchedule(plan, &stage, pipeline, &arena, stream);
        EXPECT_EQ(arena.Mark(), 0) << "memory is not given back";
        for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
          result.gradients[schedule.PositionAt(rank, chunk)] = stage.weight_gradient(chunk);
        }
        if (rank == PlaceOf(schedule.order, schedule.stages, schedule.positions() - 1).stage)
          result.loss = stage.loss();
        return ran;
      });
  EXPECT_THAT(status, IsOk());
  return result;
}

// Messages beside computing give the same bits.
Result RunStages(const Schedule& schedule) {
  const Result result = RunStages(schedule, /*beside=*/false);
  EXPECT_EQ(RunStages(schedule, /*beside=*/true), result);
  return result;
}

// All parts of the model as chunks of one stage: no messages.
Result RunSerially(int parts, int microbatches) {
  return RunStages(InterleavedSchedule({1, microbatches, parts, microbatches}));
}

// Halves every backward, the weights' half as late as the stage can.
Schedule SplitBackwards(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.actions) {
    std::vector<Action> split, weights;
    for (Action action : actions) {
      if (action.kind == ActionKind::kBackward) {
        weights.push_back({ActionKind::kBackwardWeight, action.microbatch, action.chunk});
        action.kind = ActionKind::kBackwardInput;
      }
      split.push_back(action);
    }
    split.insert(split.end(), weights.begin(), weights.end());
    actions = split;
  }
  return schedule;
}

TEST(ExecutorTest, OneStageComputesTheDerivative) {
  // d loss / d w of a single part is the sum of its inputs.
  const Result result = RunStages(InterleavedSchedule({1, 3}));
  float expected = 0;
  double loss = 0;
  for (int m = 0; m < 3; ++m) {
    for (int64_t i = 0; i < Rows(m) * kWidth; ++i) {
      expected += Data(m, i);
      loss += 0.7 * Data(m, i) + Data(m, -i) + 2 * Data(m, i) * Data(m, -i);
    }
  }
  EXPECT_EQ(result.gradients, std::vector<float>({expected}));
  EXPECT_NEAR(result.loss, loss, 1e-4);
}

TEST(ExecutorTest, AnyNumberOfStagesGivesTheSerialResultBitForBit) {
  for (int microbatches : {1, 2, 3, 8}) {
    const Result serial = RunSerially(4, microbatches);
    EXPECT_NE(serial.loss, 0);
    EXPECT_EQ(RunStages(GPipeSchedule(4, microbatches)), serial) << microbatches;
    EXPECT_EQ(RunStages(InterleavedSchedule({4, microbatches})), serial) << microbatches;
    EXPECT_EQ(RunStages(SplitBackwards(InterleavedSchedule({4, microbatches}))), serial);
    EXPECT_EQ(RunStages(InterleavedSchedule({2, microbatches, 2, 0})), serial) << microbatches;
    EXPECT_EQ(RunStages(SplitBackwards(InterleavedSchedule({2, microbatches, 2, 3}))), serial);
    EXPECT_EQ(RunStages(ZeroBubbleSchedule(4, microbatches)), serial) << microbatches;
    EXPECT_EQ(RunStages(ZeroBubbleVSchedule(2, microbatches)), serial) << microbatches;
  }
}

// What the parts in front of the first trained one have no gradients of.
TEST(ExecutorTest, BackwardEndsAtTheFirstTrainedPart) {
  const Result all = RunSerially(4, 8);
  for (const int first : {1, 2, 3}) {
    Result expected = all;
    std::fill(expected.gradients.begin(), expected.gradients.begin() + first, 0);
    for (Schedule schedule :
         {GPipeSchedule(4, 8), InterleavedSchedule({4, 8}), InterleavedSchedule({2, 8, 2, 0}),
          ZeroBubbleSchedule(4, 8), ZeroBubbleVSchedule(2, 8), InterleavedSchedule({1, 8, 4, 8})}) {
      schedule.first_trained = first;
      EXPECT_EQ(RunStages(schedule), expected) << first << ", " << schedule.stages << " stages";
    }
  }
}

TEST(ExecutorTest, ForwardsAloneGiveTheSameLoss) {
  EXPECT_EQ(RunStages(ForwardSchedule({4, 6, 1, 0})).loss, RunSerially(4, 6).loss);
  for (PartOrder order : {PartOrder::kRoundRobin, PartOrder::kBackAndForth})
    EXPECT_EQ(RunStages(ForwardSchedule({2, 6, 2, 0}, order)).loss, RunSerially(4, 6).loss);
}

TEST(ExecutorTest, TheMetaDeviceMeasuresWhatARunNeeds) {
  const Schedule schedule = InterleavedSchedule({2, 4, 2, 0});
  for (int rank = 0; rank < 2; ++rank) {
    MemoryLedger ledger;
    const Stream stream = Stream::Meta();
    Arena arena(stream.device(), 0, "edges", &ledger);
    ProductStage stage(schedule, rank);
    const StagePlan plan = PlanStage(schedule, rank);
    EXPECT_THAT(
        RunSchedule(plan, &stage, ProcessGroup::ForPlanning(2, rank, "pp-0"), &arena, stream),
        IsOk());
    EXPECT_EQ(stage.max_slot() + 1, *std::max_element(plan.slots.begin(), plan.slots.end()));
    // Two tensors of at most 5 rows of 3 floats, each in 128 bytes, for each slot and two to send.
    int edges = 2;
    for (int chunk = 0; chunk < 2; ++chunk) {
      if (plan.has_input(chunk)) edges += plan.input_slots[chunk];
      if (plan.has_output(chunk)) edges += plan.gradient_slots[chunk];
    }
    EXPECT_EQ(arena.high_water(), edges * 2 * 128) << rank;
  }
}

TEST(ExecutorTest, StopsWhenAPeerFails) {
  const Schedule schedule = InterleavedSchedule({2, 8});
  for (const bool beside : {false, true}) {
    const absl::Status status = RunRanks(2, [&](int rank, const ProcessGroup& world) {
      ThreadPool pool(1);
      const Stream stream = Stream::Cpu(&pool);
      const absl::StatusOr<ProcessGroup> pipeline =
          beside ? WithAsyncCalls(world, stream) : absl::StatusOr<ProcessGroup>(world);
      if (rank == 1) return absl::InternalError("lost");
      // The peer may have failed before this rank had its lane.
      if (!pipeline.ok()) return absl::OkStatus();
      MemoryLedger ledger;
      Arena arena(stream.device(), 1 << 16, "edges", &ledger);
      ProductStage stage(schedule, rank);
      const absl::Status ran =
          RunSchedule(PlanStage(schedule, rank), &stage, *pipeline, &arena, stream);
      EXPECT_EQ(ran.code(), absl::StatusCode::kInternal);
      return absl::OkStatus();
    });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal));
  }
}

}  // namespace
}  // namespace megatron

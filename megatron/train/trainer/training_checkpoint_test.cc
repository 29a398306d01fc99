#include "megatron/train/trainer/training_checkpoint.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/thread_pool.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/models/model_harness.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

class TrainingCheckpointTest : public ::testing::Test {
 protected:
  std::unique_ptr<Trainer> MakeTrainer(OptimizerOptions::Kind kind) {
    OptimizerOptions optimizer;
    optimizer.kind = kind;
    return MakeTrainer(optimizer);
  }
  std::unique_ptr<Trainer> MakeTrainer(const OptimizerOptions& optimizer,
                                       DType dtype = DType::kFloat32) {
    TrainerOptions options;
    options.model = SmallGpt2();
    options.model.transformer.dtype = dtype;
    options.optimizer = optimizer;
    options.schedule.max_lr = 1e-2;
    options.schedule.lr_decay_steps = 1000;
    options.packing.seq_length = 16;
    options.packing.layout.micro_batch_size = options.packing.layout.data_parallel_size = 1;
    options.batch_size.global_batch_size = options.packing.max_micro_batches = 1;
    const LossScaler scaler = LossScaler::MakeConstant(1);
    auto plan = Trainer::Create(options, scaler, {}, {}, Stream::Meta(), nullptr);
    CHECK_EQ(plan.status(), absl::OkStatus());
    auto trainer =
        Trainer::Create(options, scaler, {}, (*plan)->Measure(), Stream::Cpu(&pool_), nullptr);
    CHECK_EQ(trainer.status(), absl::OkStatus());
    (*trainer)->InitializeWeights(1234);
    return *std::move(trainer);
  }

  // Gives all states of the optimizer values that are not zero.
  static void FillStates(Trainer& trainer) {
    for (size_t i = 0; i < trainer.buffers().num_states(); ++i) {
      const Tensor state = trainer.buffers().state(i);
      for (int64_t j = 0; j < state.numel(); ++j) {
        const float value = static_cast<float>(j % 101 + i + 1);
        if (state.dtype() == DType::kFloat32) {
          state.data<float>()[j] = value;
        } else if (state.dtype() == DType::kUInt8) {
          state.data<uint8_t>()[j] = static_cast<uint8_t>(1000 * value);
        } else if (state.dtype() == DType::kUInt16) {
          state.data<uint16_t>()[j] = static_cast<uint16_t>(1000 * value);
        } else {
          state.data<BFloat16>()[j] = ToBFloat16(value);
        }
      }
    }
  }

  absl::StatusOr<CheckpointReader> Save(const CheckpointState& state) {
    SaveOptions save;
    save.directory = absl::StrCat(::testing::TempDir(), "/", "training_checkpoint_", ++saved_);
    const absl::Status status = SaveCheckpoint(PosixFileSystem(), save, state);
    if (!status.ok()) return status;
    const auto found = LocateCheckpoint(PosixFileSystem(), save.directory);
    if (!found.ok()) return found.status();
    return CheckpointReader::Open(PosixFileSystem(), found->directory);
  }

  // Restores the state into the trainer through a file.
  absl::Status RestoreFrom(const CheckpointState& state, Trainer* trainer) {
    const absl::StatusOr<CheckpointReader> reader = Save(state);
    if (!reader.ok()) return reader.status();
    std::vector<std::string> warnings;
    return RestoreCheckpoint(*reader, Restore::kEverything, description_, trainer, &warnings);
  }

  // Expects the same bits in all states of both trainers.
  static void ExpectSameStates(Trainer& a, Trainer& b) {
    const std::vector<ParameterState> of_a = a.buffers().States(), of_b = b.buffers().States();
    ASSERT_EQ(of_a.size(), of_b.size());
    for (size_t i = 0; i < of_a.size(); ++i) {
      ASSERT_FALSE(of_a[i].states.empty());
      ASSERT_EQ(of_a[i].states.size(), of_b[i].states.size());
      for (size_t j = 0; j < of_a[i].states.size(); ++j) {
        ASSERT_EQ(of_a[i].states[j].empty(), of_b[i].states[j].empty());
        if (of_a[i].states[j].empty()) continue;
        EXPECT_EQ(std::memcmp(of_a[i].states[j].raw(), of_b[i].states[j].raw(),
                              of_a[i].states[j].bytes()),
                  0)
            << of_a[i].parameter->name;
      }
    }
  }

  const RunDescription description_ = {"a run", "config"};
  ThreadPool pool_{1};
  int saved_ = 0;
};

TEST_F(TrainingCheckpointTest, EveryOptimizerRestoresItsStates) {
  for (auto kind : {OptimizerOptions::kAdamW, OptimizerOptions::kSgd, OptimizerOptions::kLion,
                    OptimizerOptions::kMuon, OptimizerOptions::kLamb, OptimizerOptions::kOneBitAdam,
                    OptimizerOptions::kOneBitLamb}) {
    const auto saved = MakeTrainer(kind), loaded = MakeTrainer(kind);
    FillStates(*saved);
    ASSERT_THAT(RestoreFrom(MakeCheckpointState(*saved, description_), loaded.get()), IsOk());
    ExpectSameStates(*saved, *loaded);
  }
}

TEST_F(TrainingCheckpointTest, StatesAreSavedUnderTheNamesOfTheRule) {
  const auto names = [&](OptimizerOptions::Kind kind,
                         const std::string& suffix = ".decoder.final_layernorm.weight") {
    std::vector<std::string> states;
    const auto trainer = MakeTrainer(kind);
    for (const ShardedTensor& block : MakeCheckpointState(*trainer, description_).tensors) {
      const size_t at = block.name.rfind(suffix);
      if (at != std::string::npos) states.push_back(block.name.substr(0, at));
    }
    return states;
  };
  EXPECT_THAT(names(OptimizerOptions::kAdamW),
              ::testing::ElementsAre("optimizer.state.exp_avg", "optimizer.state.exp_avg_sq"));
  EXPECT_THAT(names(OptimizerOptions::kSgd),
              ::testing::ElementsAre("optimizer.state.momentum_buffer"));
  EXPECT_THAT(names(OptimizerOptions::kLion), ::testing::ElementsAre("optimizer.state.exp_avg"));
  EXPECT_THAT(names(OptimizerOptions::kMuon),
              ::testing::ElementsAre("optimizer.state.exp_avg", "optimizer.state.exp_avg_sq"));
  EXPECT_THAT(names(OptimizerOptions::kMuon, ".decoder.layers.0.mlp.linear_fc1.weight"),
              ::testing::ElementsAre("optimizer.state.momentum_buffer"));
  EXPECT_THAT(names(OptimizerOptions::kOneBitAdam),
              ::testing::ElementsAre("optimizer.state.exp_avg", "optimizer.state.exp_avg_sq"));
  // Ranks are alike: there is nothing to add to the masters.
  EXPECT_THAT(names(OptimizerOptions::kZeroOneAdam),
              ::testing::ElementsAre("optimizer.state.fp32_param", "optimizer.state.exp_avg",
                                     "optimizer.state.exp_avg_sq"));
  EXPECT_THAT(names(OptimizerOptions::kOneBitLamb),
              ::testing::UnorderedElementsAre(
                  "optimizer.state.exp_avg", "optimizer.state.exp_avg_sq",
                  "optimizer.state.exp_avg_sq_fresh", "optimizer.state.numbers"));
  EXPECT_THAT(names(OptimizerOptions::kLamb),
              ::testing::ElementsAre("optimizer.state.exp_avg", "optimizer.state.exp_avg_sq"));
}

// Older checkpoints have SGD's momentum buffer as exp_avg.
TEST_F(TrainingCheckpointTest, ACheckpointWithTheFormerNameOfAStateStillLoads) {
  const auto saved = MakeTrainer(OptimizerOptions::kSgd);
  FillStates(*saved);
  CheckpointState state = MakeCheckpointState(*saved, description_);
  for (ShardedTensor& block : state.tensors) {
    block.name = absl::StrReplaceAll(
        block.name, {{"optimizer.state.momentum_buffer.", "optimizer.state.exp_avg."}});
  }
  const auto loaded = MakeTrainer(OptimizerOptions::kSgd);
  ASSERT_THAT(RestoreFrom(state, loaded.get()), IsOk());
  ExpectSameStates(*saved, *loaded);
}

TEST_F(TrainingCheckpointTest, AnotherInstructionSetThanTheCheckpointsIsNamed) {
  const auto trainer = MakeTrainer(OptimizerOptions::kAdamW);
  RunDescription avx2 = description_, amx = description_;
  avx2.instruction_set = "avx2";
  amx.instruction_set = "amx_bf16";
  const absl::StatusOr<CheckpointReader> of_avx2 = Save(MakeCheckpointState(*trainer, avx2));
  ASSERT_THAT(of_avx2.status(), IsOk());
  EXPECT_THAT(OtherInstructionSet(*of_avx2, amx),
              HasSubstr("computed with avx2, and this run computes with amx_bf16"));
  EXPECT_EQ(OtherInstructionSet(*of_avx2, avx2), "");
  EXPECT_EQ(OtherInstructionSet(*of_avx2, description_), "");  // another device
  const absl::StatusOr<CheckpointReader> silent = Save(MakeCheckpointState(*trainer, description_));
  ASSERT_THAT(silent.status(), IsOk());
  EXPECT_EQ(OtherInstructionSet(*silent, amx), "");
}

TEST_F(TrainingCheckpointTest, ACheckpointOfAnotherOptimizerIsRefused) {
  const auto saved = MakeTrainer(OptimizerOptions::kAdamW);
  const auto loaded = MakeTrainer(OptimizerOptions::kSgd);
  EXPECT_THAT(RestoreFrom(MakeCheckpointState(*saved, description_), loaded.get()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("optimizer.optimizer = adam and this run has sgd")));
}

TEST_F(TrainingCheckpointTest, RemaindersAreRestoredAndDoNotMixWithMasters) {
  OptimizerOptions remainders;
  remainders.store_param_remainders = true;
  const auto saved = MakeTrainer(remainders, DType::kBFloat16);
  const auto loaded = MakeTrainer(remainders, DType::kBFloat16);
  const auto whole = MakeTrainer(OptimizerOptions(), DType::kBFloat16);
  saved->InitializeWeights(77);
  FillStates(*saved);
  const CheckpointState state = MakeCheckpointState(*saved, description_);
  ASSERT_THAT(RestoreFrom(state, loaded.get()), IsOk());
  ExpectSameStates(*saved, *loaded);
  const Tensor theirs = saved->buffers().weights(), ours = loaded->buffers().weights();
  EXPECT_EQ(std::memcmp(theirs.raw(), ours.raw(), ours.bytes()), 0);
  EXPECT_THAT(RestoreFrom(state, whole.get()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("optimizer.store_param_remainders=true loads it")));
  EXPECT_THAT(RestoreFrom(MakeCheckpointState(*whole, description_), loaded.get()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("has main weights in fp32, and this run keeps their remainders")));
}

TEST_F(TrainingCheckpointTest, MomentsInFewerBytesAreRestored) {
  for (const auto& [dtype, name] : std::vector<std::pair<DType, std::string>>{
           {DType::kBFloat16, "bf16"}, {DType::kUInt8, "fp8"}}) {
    OptimizerOptions narrow;
    narrow.exp_avg_dtype = dtype;
    const auto saved = MakeTrainer(narrow), loaded = MakeTrainer(narrow);
    FillStates(*saved);
    const CheckpointState state = MakeCheckpointState(*saved, description_);
    ASSERT_THAT(RestoreFrom(state, loaded.get()), IsOk());
    ExpectSameStates(*saved, *loaded);
    const auto in_fp32 = MakeTrainer(OptimizerOptions());
    EXPECT_THAT(RestoreFrom(state, in_fp32.get()),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("in " + name + ", and this run keeps it in fp32")));
  }
}

}  // namespace
}  // namespace megatron

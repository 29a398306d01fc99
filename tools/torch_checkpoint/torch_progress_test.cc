#include "tools/torch_checkpoint/torch_progress.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "tools/torch_checkpoint/torch_test_writer.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

// Begins a common.pt whose optimizer comes next.
void Begin(PickleWriter* pickle) {
  pickle->BeginDict().Text("args").BeginObject("argparse", "Namespace");
  pickle->Text("consumed_train_samples").Int(800).Text("consumed_valid_samples").Int(40);
  pickle->EndObject().Text("iteration").Int(100);
  pickle->Text("opt_param_scheduler").BeginDict().Text("num_steps").Int(784).EndDict();
  pickle->Text("optimizer");
}

// A group of parameters.
void Group(int64_t step, PickleWriter* pickle) {
  pickle->BeginDict().Text("lr").Float(1e-4).Text("step").Int(step).EndDict();
}

absl::StatusOr<TorchProgress> Read(const std::string& bytes, bool is_fp16) {
  const absl::StatusOr<TorchFile> file = TorchFile::Parse(bytes);
  if (!file.ok()) return file.status();
  return MegatronProgress(*file, {}, is_fp16);
}

// Optimizers of dense parameters and of experts, with a loss scale.
std::string Chained(int64_t step, int64_t of_experts) {
  TorchFileWriter file;
  PickleWriter& pickle = file.pickle();
  Begin(&pickle);
  pickle.BeginDict();
  for (int64_t i = 0; i < 2; ++i) {
    pickle.Int(i).BeginDict().Text("optimizer").BeginDict().Text("param_groups").BeginList();
    Group(i == 0 ? step : of_experts, &pickle);
    pickle.BeginDict().Text("step").None().EndDict();  // without parameters
    pickle.EndList().EndDict().Text("grad_scaler").BeginDict().Text("scale");
    file.Tensor({{1}, {65536}});
    pickle.Text("growth_tracker").Int(17).Text("hysteresis_tracker").Int(2).EndDict().EndDict();
  }
  pickle.EndDict().EndDict();
  return file.Finish();
}

TEST(TorchProgressTest, ReadsARunWithALossScaleAndTwoOptimizers) {
  const auto progress = Read(Chained(98, 98), /*is_fp16=*/true);
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->iteration, 100);
  EXPECT_EQ(progress->consumed_train_samples, 800);
  EXPECT_EQ(progress->consumed_valid_samples, 40);
  EXPECT_EQ(progress->schedule_steps, 784);
  EXPECT_EQ(progress->applied_steps, 98);
  EXPECT_EQ(progress->scaler.scale, 65536);
  EXPECT_EQ(progress->scaler.clean_steps, 17);
  EXPECT_EQ(progress->scaler.hysteresis_left, 2);
  CheckpointState state;
  SetProgress(*progress, &state);
  EXPECT_EQ(state.iteration, 100);
  EXPECT_EQ(state.ints.at("optimizer.applied_steps"), 98);
  EXPECT_EQ(state.ints.at("opt_param_scheduler.num_steps"), 784);
  EXPECT_EQ(state.floats.at("loss_scaler.scale"), 65536);
}

// Adam of PyTorch's has its step as a tensor, which Megatron keeps once for all parameters.
TEST(TorchProgressTest, TheStepMayBeATensor) {
  const auto file_of = [](const TestTensor& step) {
    TorchFileWriter file;
    Begin(&file.pickle());
    file.pickle().BeginDict().Text("state").BeginDict().Text("common_step");
    file.Tensor(step);
    file.pickle().EndDict().EndDict().EndDict();
    return file.Finish();
  };
  const auto progress = Read(file_of({{}, {100}}), /*is_fp16=*/false);
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->applied_steps, 100);
  EXPECT_EQ(progress->scaler.scale, 1);
  for (const float step : {99.5f, -1.0f})
    EXPECT_THAT(Read(file_of({{}, {step}}), false).status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no step of Adam's")));
  EXPECT_THAT(Read(file_of({{2}, {1, 1}}), false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no step of Adam's")));
}

TEST(TorchProgressTest, ParametersWithDifferentStepsAreRefused) {
  EXPECT_THAT(Read(Chained(98, 97), true).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("with 97 and with 98 updates")));
  TorchFileWriter file;
  Begin(&file.pickle());
  file.pickle().BeginList();
  Group(98, &file.pickle());
  file.pickle().EndList().EndDict();
  EXPECT_THAT(Read(file.Finish(), false), IsOk());
  EXPECT_THAT(Read(file.Finish(), true).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no state of the loss scale")));
}

// The distributed optimizer's form dp_reshardable has what is no tensor in objects, a list with one
// value each, for every group of data-parallel ranks.
TEST(TorchProgressTest, ReadsTheStepsOfOptimizersThatAreObjects) {
  TorchFileWriter common;
  Begin(&common.pickle());
  common.pickle().BeginDict().Text("param_state_sharding_type").Text("dp_reshardable");
  common.pickle().EndDict().EndDict();
  const auto groups = [](int64_t step) {
    TorchFileWriter file;
    file.pickle().BeginList().BeginDict().Text("param_groups").BeginList();
    Group(step, &file.pickle());
    file.pickle().EndList().EndDict().EndList();
    return file.Finish();
  };
  TorchFileWriter scaler;
  scaler.pickle().BeginList().BeginDict().Text("scale");
  scaler.Tensor({{1}, {4096}});
  scaler.pickle().Text("growth_tracker").Int(5).Text("hysteresis_tracker").Int(2);
  scaler.pickle().EndDict().EndList();
  const auto read = [&](const std::vector<std::string>& objects, bool is_fp16) {
    const std::string bytes = common.Finish();
    return MegatronProgress(*TorchFile::Parse(bytes), objects, is_fp16);
  };
  auto progress = read({groups(98), groups(98), scaler.Finish()}, /*is_fp16=*/true);
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->iteration, 100);
  EXPECT_EQ(progress->applied_steps, 98);
  EXPECT_EQ(progress->scaler.scale, 4096);
  EXPECT_EQ(progress->scaler.clean_steps, 5);
  EXPECT_THAT(read({groups(98), groups(97)}, false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("with 97 and with 98 updates")));
  EXPECT_THAT(read({groups(98)}, true).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no state of the loss scale")));
  EXPECT_THAT(read({}, false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no step of Adam's")));
  // What is common may be an object, too.
  TorchFileWriter listed;
  listed.pickle().BeginList();
  Begin(&listed.pickle());
  listed.pickle().None().EndDict().EndList();
  common = listed;
  progress = read({groups(98)}, false);
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->schedule_steps, 784);
  EXPECT_THAT(read({"no archive"}, false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("an object of an optimizer")));
}

TEST(TorchProgressTest, ReadsTheStepsOfAUniversalCheckpoint) {
  const std::string zero = JoinPath(testing::TempDir(), "universal_progress/zero");
  ASSERT_THAT(PosixFileSystem().CreateDirs(JoinPath(zero, "1.word_embeddings.weight")), IsOk());
  ASSERT_THAT(PosixFileSystem().CreateDirs(JoinPath(zero, "3.mlp.dense_h_to_4h.weight")), IsOk());
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(JoinPath(zero, name), std::ios::binary) << bytes;
  };
  write("1.word_embeddings.weight/step.pt", TorchFileOf({{}, {9}}));
  write("3.mlp.dense_h_to_4h.weight/step.pt", TorchFileOf({{}, {9}}));
  TorchFileWriter states;
  PickleWriter& pickle = states.pickle();
  pickle.BeginDict().Text("args").BeginObject("argparse", "Namespace");
  pickle.Text("consumed_train_samples").Int(80).EndObject().Text("iteration").Int(10);
  pickle.Text("opt_param_scheduler").None();
  pickle.Text("lr_scheduler").BeginDict().Text("num_steps").Int(72).EndDict().EndDict();
  const std::string bytes = states.Finish();
  const auto file = TorchFile::Parse(bytes);
  ASSERT_THAT(file, IsOk());
  auto progress = UniversalProgress(*file, zero, /*is_fp16=*/false);
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->applied_steps, 9);
  EXPECT_EQ(progress->schedule_steps, 72);
  // What all have in common may have the step too, and has the loss scale.
  EXPECT_THAT(UniversalProgress(*file, zero, /*is_fp16=*/true).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("optimizer_state.pt")));
  TorchFileWriter common;
  common.pickle().BeginDict().Text("param_groups").BeginList();
  Group(9, &common.pickle());
  common.pickle().EndList().Text("loss_scaler");
  common.pickle().BeginObject("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler");
  common.pickle().Text("cur_scale").Float(1024).Text("cur_hysteresis").Int(1);
  common.pickle().EndObject().EndDict();
  write("optimizer_state.pt", common.Finish());
  progress = UniversalProgress(*file, zero, /*is_fp16=*/true);
  ASSERT_THAT(progress, IsOk());
  EXPECT_EQ(progress->scaler.scale, 1024);
  EXPECT_EQ(progress->scaler.hysteresis_left, 1);
  write("1.word_embeddings.weight/step.pt", TorchFileOf({{}, {8}}));
  EXPECT_THAT(UniversalProgress(*file, zero, false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("with 8 and with 9")));
  write("1.word_embeddings.weight/step.pt", "no archive");
  EXPECT_THAT(UniversalProgress(*file, zero, false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step.pt")));
}

// No byte that is changed makes the program end.
TEST(TorchProgressTest, DamageIsRefusedOrReadsAsOtherValues) {
  const std::string whole = Chained(98, 98);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int mask : {0x01, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      const auto progress = Read(damaged, /*is_fp16=*/true);
      if (!progress.ok()) continue;
      EXPECT_GE(progress->iteration, 0);
      EXPECT_GE(progress->applied_steps, 0);
      EXPECT_GT(progress->scaler.scale, 0);
    }
  }
}

}  // namespace
}  // namespace megatron

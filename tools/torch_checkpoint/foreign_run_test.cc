// Runs that Megatron-LM or DeepSpeed saved go on here: each test trains a run of ours, writes its
// state in the middle as these programs would, imports that and goes on. What comes of it must be
// the bits of the run that never left.
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "tools/torch_checkpoint/bucket_test_writer.h"
#include "tools/torch_checkpoint/torch_test_writer.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::string_view kStates = "optimizer.state.";
constexpr int64_t kMiddle = 6;  // of 12 iterations

using Tensors = std::map<std::string, TestTensor>;

// A run in the middle.
struct Saved {
  Tensors tensors;
  int64_t iteration = 0, train_samples = 0, valid_samples = 0, schedule_steps = 0;
  std::vector<int64_t> adam_steps;  // of the groups of parameters
};

// How Megatron keeps the optimizer's states.
enum class Form { kFullyReshardable, kModelSpace };

// Takes "optimizer.state.exp_avg." off the name, and returns "exp_avg"; "" for a weight.
absl::string_view TakeState(absl::string_view* name) {
  if (!absl::ConsumePrefix(name, kStates)) return "";
  const absl::string_view state = name->substr(0, name->find('.'));
  name->remove_prefix(state.size() + 1);
  return state;
}

// Returns the tensors of all layers as one each, whose first dim they are.
Tensors Together(const Tensors& tensors) {
  constexpr absl::string_view kLayers = ".layers.";
  Tensors together;
  for (const auto& [name, tensor] : tensors) {
    const size_t at = name.find(kLayers);
    if (at == std::string::npos) {
      together[name] = tensor;
      continue;
    }
    // Numbers of layers have one digit, and so ascend as the names do.
    TestTensor& all =
        together[absl::StrCat(name.substr(0, at + kLayers.size()), name.substr(at + 10))];
    if (all.shape.empty()) {
      all.shape = tensor.shape;
      all.shape.insert(all.shape.begin(), 0);
    }
    ++all.shape[0];
    all.values.insert(all.values.end(), tensor.values.begin(), tensor.values.end());
  }
  return together;
}

// Parts as those of two pipeline stages and two tensor-parallel ranks.
std::vector<int64_t> PartsOf(const std::string& name, const TestTensor& tensor) {
  std::vector<int64_t> parts(tensor.shape.size(), 1);
  const size_t first = absl::StrContains(name, ".layers.") ? 1 : 0;
  if (first == 1) parts[0] = 2;
  if (tensor.shape.size() > first + 1 && tensor.shape[first] % 2 == 0) parts[first] = 2;
  return parts;
}

void WriteProgress(const Saved& saved, PickleWriter* pickle) {
  pickle->Text("consumed_train_samples").Int(saved.train_samples);
  pickle->Text("consumed_valid_samples").Int(saved.valid_samples);
}

// Writes the values of a common.pt. `more` writes further arguments, `optimizer` what is there of
// the optimizer.
void WriteCommon(const Saved& saved, const std::function<void(PickleWriter*)>& more,
                 const std::function<void(PickleWriter*)>& optimizer, PickleWriter* common) {
  PickleWriter& pickle = *common;
  pickle.BeginDict().Text("args").BeginObject("argparse", "Namespace");
  WriteProgress(saved, &pickle);
  if (more != nullptr) more(&pickle);
  pickle.EndObject().Text("iteration").Int(saved.iteration);
  pickle.Text("optimizer").BeginDict();
  optimizer(&pickle);
  pickle.EndDict();
  pickle.Text("opt_param_scheduler").BeginDict().Text("max_lr").Float(1);
  pickle.Text("num_steps").Int(saved.schedule_steps).EndDict().EndDict();
}

void WriteCommonFile(const TorchFileWriter& common, const std::string& directory) {
  std::ofstream(JoinPath(directory, "common.pt"), std::ios::binary) << common.Finish();
}

// Writes a checkpoint of Megatron's. `more` writes further arguments.
void WriteMegatron(const Saved& saved, Form form, const std::string& directory,
                   const std::function<void(PickleWriter*)>& more = nullptr) {
  ASSERT_TRUE(PosixFileSystem().CreateDirs(directory).ok());
  const Tensors together = Together(saved.tensors);
  bool has_experts = false;
  for (const auto& [name, tensor] : together) has_experts |= absl::StrContains(name, ".experts.");
  DcpWriter writer;
  for (const auto& [name, tensor] : together) {
    absl::string_view weight = name;
    const absl::string_view state = TakeState(&weight);
    if (state.empty()) {
      writer.Add(name, tensor, PartsOf(name, tensor));
      continue;
    }
    // Experts have an optimizer of their own.
    const std::string chain = !has_experts                           ? ""
                              : absl::StrContains(name, ".experts.") ? "chained_1."
                                                                     : "chained_0.";
    if (form == Form::kModelSpace) {
      writer.AddFlattened(absl::StrCat(chain, name), tensor, PartsOf(name, tensor), 3);
    } else {
      writer.Add(absl::StrCat(chain, kStates, state == "fp32_param" ? "param" : state, ".", weight),
                 tensor, PartsOf(name, tensor));
    }
  }
  writer.Write(directory);
  TorchFileWriter common;
  const auto optimizer = [&](PickleWriter* pickle) {
    pickle->Int(0).BeginDict().Text("optimizer").BeginDict().Text("param_groups").BeginList();
    for (const int64_t step : saved.adam_steps)
      pickle->BeginDict().Text("lr").Float(0.5).Text("step").Int(step).EndDict();
    pickle->EndList().EndDict().EndDict();
  };
  WriteCommon(saved, more, optimizer, &common.pickle());
  WriteCommonFile(common, directory);
}

// Writes a checkpoint of Megatron's whose optimizer's states are in buffers. What is in common.pt
// may be an object of the checkpoint, as the newest Megatrons have it.
void WriteMegatronBuffers(const Saved& saved, const BucketTestLayout& layout, bool has_common_file,
                          const std::string& directory) {
  ASSERT_TRUE(PosixFileSystem().CreateDirs(directory).ok());
  DcpWriter writer;
  for (const auto& [name, tensor] : Together(saved.tensors)) {
    if (!absl::StartsWith(name, kStates)) writer.Add(name, tensor, PartsOf(name, tensor));
  }
  AddBuckets(saved.tensors, layout, saved.adam_steps, &writer);
  TorchFileWriter common;
  if (!has_common_file) common.pickle().BeginList();
  WriteCommon(
      saved, [&](PickleWriter* pickle) { WriteLayout(layout, pickle); },
      [](PickleWriter* pickle) {
        pickle->Text("param_state_sharding_type").Text("dp_reshardable");
      },
      &common.pickle());
  if (has_common_file) {
    WriteCommonFile(common, directory);
  } else {
    common.pickle().EndList();
    writer.AddObject("common_state/shard_0_1", common.Finish());
  }
  writer.Write(directory);
}

// Returns Megatron-DeepSpeed's name of a weight.
std::string NameThere(absl::string_view ours) {
  const std::map<absl::string_view, const char*> of_layer = {
      {"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"},
      {"self_attention.linear_qkv.layer_norm_bias", "input_layernorm.bias"},
      {"self_attention.linear_qkv.weight", "self_attention.query_key_value.weight"},
      {"self_attention.linear_qkv.bias", "self_attention.query_key_value.bias"},
      {"self_attention.linear_proj.weight", "self_attention.dense.weight"},
      {"self_attention.linear_proj.bias", "self_attention.dense.bias"},
      {"mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight"},
      {"mlp.linear_fc1.layer_norm_bias", "post_attention_layernorm.bias"},
      {"mlp.linear_fc1.weight", "mlp.dense_h_to_4h.weight"},
      {"mlp.linear_fc1.bias", "mlp.dense_h_to_4h.bias"},
      {"mlp.linear_fc2.weight", "mlp.dense_4h_to_h.weight"},
      {"mlp.linear_fc2.bias", "mlp.dense_4h_to_h.bias"},
  };
  if (absl::ConsumePrefix(&ours, "decoder.layers.")) {
    return absl::StrCat("language_model.encoder.layers.", ours.substr(0, 2),
                        of_layer.at(ours.substr(2)));
  }
  if (absl::ConsumePrefix(&ours, "decoder.")) return absl::StrCat("language_model.encoder.", ours);
  return absl::StrCat("language_model.", ours);
}

// Writes a universal checkpoint, as ds_to_universal.py does.
void WriteUniversal(const Saved& saved, const std::string& directory) {
  for (const auto& [name, tensor] : saved.tensors) {
    absl::string_view weight = name;
    const absl::string_view state = TakeState(&weight);
    const std::string folder = absl::StrCat(directory, "/zero/", NameThere(weight));
    ASSERT_TRUE(PosixFileSystem().CreateDirs(folder).ok());
    TorchFileWriter file;
    file.pickle().BeginDict().Text("param");
    file.Tensor(tensor);
    file.pickle().Text("cat_dim").Int(0).EndDict();
    std::ofstream(absl::StrCat(folder, "/", state.empty() ? "fp32" : state, ".pt"),
                  std::ios::binary)
        << file.Finish();
    std::ofstream(absl::StrCat(folder, "/step.pt"), std::ios::binary)
        << TorchFileOf({{}, {static_cast<float>(saved.adam_steps[0])}});
  }
  TorchFileWriter states;
  PickleWriter& pickle = states.pickle();
  pickle.BeginDict().Text("args").BeginObject("argparse", "Namespace");
  WriteProgress(saved, &pickle);
  pickle.EndObject().Text("iteration").Int(saved.iteration).Text("optimizer").None();
  pickle.Text("lr_scheduler").BeginDict().Text("num_steps").Int(saved.schedule_steps);
  pickle.EndDict().EndDict();
  std::ofstream(JoinPath(directory, "mp_rank_00_model_states.pt"), std::ios::binary)
      << states.Finish();
}

// The arguments of the tiny configuration, as far as they are not Megatron's defaults.
void WriteArguments(PickleWriter* pickle) {
  const auto number = [&](const char* name, int64_t value) { pickle->Text(name).Int(value); };
  number("num_layers", 2);
  number("hidden_size", 32);
  number("num_attention_heads", 2);
  number("seq_length", 64);
  number("max_position_embeddings", 64);
  number("micro_batch_size", 2);
  number("global_batch_size", 4);
  number("train_iters", 12);
  number("lr_warmup_iters", 2);
  pickle->Text("lr").Float(3e-3).Text("optimizer").Text("adam").Text("split").Text("8, 2");
  pickle->Text("lr_decay_style").Text("linear").Text("weight_decay_incr_style").Text("constant");
}

class ForeignRunTest : public PretrainProgramTest {
 protected:
  // Trains a run, "whole", and returns its state in the middle.
  Saved Train(const Arguments& model) {
    model_ = model;
    const Outcome outcome = Run(
        Joined(model, {SaveTo("whole"), absl::StrCat("--set=checkpoint.save_interval=", kMiddle)}));
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    const auto reader = CheckpointReader::Open(PosixFileSystem(), Middle());
    Saved saved;
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return saved;
    for (const TensorEntry& entry : reader->manifest().tensors)
      saved.tensors[entry.name] = Read(*reader, entry);
    saved.iteration = reader->Int("iteration").value_or(-1);
    EXPECT_EQ(saved.iteration, kMiddle);
    saved.train_samples = reader->Int("consumed_train_samples").value_or(-1);
    saved.valid_samples = reader->Int("consumed_valid_samples").value_or(-1);
    saved.schedule_steps = reader->Int("opt_param_scheduler.num_steps").value_or(-1);
    const int64_t steps = reader->Int("optimizer.applied_steps").value_or(-1);
    saved.adam_steps = {steps, steps};
    return saved;
  }

  std::string Middle() const { return Path("whole/iter_0000006"); }

  // Imports "theirs" to `name` with the model of this test's runs.
  Outcome Import(const std::string& name) const {
    Arguments command = {ProgramPath("tools/torch_checkpoint/import_megatron"),
                         goes_on_ ? "--continue_run" : "--nocontinue_run",
                         absl::StrCat("--save=", Path(name))};
    if (has_config_) command.push_back(absl::StrCat("--config=", EffectiveConfig()));
    command.push_back(Path("theirs"));
    const std::string log = Path("import.txt");
    return FinishProgram(StartProgram(command, log), log);
  }

  Outcome GoOn(const std::string& from, const std::string& save, const Arguments& more = {}) const {
    return Run(Joined(Joined(model_, more),
                      {SaveTo(save), absl::StrCat("--set=checkpoint.load=\"", from, "\"")}));
  }

  // Imports "theirs", goes on, and expects the bits and the last loss of the run that never left.
  void ExpectSameRun() const {
    const Outcome imported = Import("imported");
    ASSERT_EQ(imported.exit_code, 0) << imported.output;
    EXPECT_THAT(imported.output, HasSubstr("to go on after iteration 6"));
    const Outcome outcome = GoOn(Path("imported"), "gone_on");
    ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    ExpectEqualCheckpoints("gone_on", "whole");
  }

  // Returns whether the run that goes on from "theirs" ends as the run that never left.
  bool EndsTheSame(const std::string& name) const {
    const Outcome imported = Import(name);
    EXPECT_EQ(imported.exit_code, 0) << imported.output;
    const Outcome outcome = GoOn(Path(name), name + "_on");
    EXPECT_EQ(outcome.exit_code, kExitDone) << outcome.output;
    constexpr char kShard[] = "shard_00000_of_00001.bin";
    return Checkpoint(name + "_on")[kShard] == Checkpoint("whole")[kShard];
  }

  bool has_config_ = true;
  bool goes_on_ = true;

 private:
  // A file with the whole configuration of the run, which its checkpoint keeps.
  std::string EffectiveConfig() const {
    const auto reader = CheckpointReader::Open(PosixFileSystem(), Middle());
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (reader.ok())
      std::ofstream(Path("model.textproto")) << reader->String("config").value_or("");
    return Path("model.textproto");
  }

  static TestTensor Read(const CheckpointReader& reader, const TensorEntry& entry) {
    TestTensor tensor;
    Shape start = entry.shape;
    for (int d = 0; d < entry.shape.rank(); ++d) {
      tensor.shape.push_back(entry.shape[d]);
      start[d] = 0;
    }
    const auto count = static_cast<size_t>(entry.shape.numel());
    tensor.values.resize(count);
    if (entry.dtype == DType::kFloat32) {
      EXPECT_TRUE(
          reader.Read(entry.name, start, Tensor(tensor.values.data(), DType::kFloat32, entry.shape))
              .ok());
      return tensor;
    }
    EXPECT_EQ(entry.dtype, DType::kBFloat16) << entry.name;
    std::vector<BFloat16> values(count);
    EXPECT_TRUE(
        reader.Read(entry.name, start, Tensor(values.data(), DType::kBFloat16, entry.shape)).ok());
    for (size_t i = 0; i < count; ++i) tensor.values[i] = ToFloat(values[i]);
    return tensor;
  }

  Arguments model_;
};

TEST_F(ForeignRunTest, ATiedModelGoesOnWithTheSameBits) {
  WriteMegatron(Train({}), Form::kFullyReshardable, Path("theirs"));
  ExpectSameRun();
}

TEST_F(ForeignRunTest, AnImportThatDidNotComeToItsEndIsRunAgain) {
  WriteMegatron(Train({}), Form::kFullyReshardable, Path("theirs"));
  const std::string in_the_way = Path("imported/config.textproto");
  ASSERT_TRUE(PosixFileSystem().CreateDirs(in_the_way).ok());
  ASSERT_NE(Import("imported").exit_code, 0);
  ASSERT_TRUE(PosixFileSystem().RemoveTree(in_the_way).ok());
  ExpectSameRun();
}

TEST_F(ForeignRunTest, AConfigurationOfTheUsersIsNotReplaced) {
  WriteMegatron(Train({}), Form::kFullyReshardable, Path("theirs"));
  FileSystem& fs = PosixFileSystem();
  const std::string config = Path("imported/config.textproto");
  const std::string latest = Path("imported/latest_checkpointed_iteration.txt");
  ASSERT_TRUE(fs.CreateDirs(Path("imported")).ok());
  std::ofstream(config) << "# Mine.\n";
  const Outcome outcome = Import("imported");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("config.textproto' is there already"));
  EXPECT_EQ(ReadTextFile(config), "# Mine.\n");
  EXPECT_FALSE(fs.Stat(latest).ok());
  // What an import has left that did not get as far as its checkpoint is the same text.
  ASSERT_TRUE(fs.Remove(config).ok());
  ASSERT_EQ(Import("imported").exit_code, 0);
  ASSERT_TRUE(fs.RemoveTree(Path("imported/iter_0000006")).ok());
  ASSERT_TRUE(fs.Remove(latest).ok());
  ASSERT_TRUE(fs.Stat(config).ok());
  ExpectSameRun();
}

TEST_F(ForeignRunTest, AnUntiedModelInBf16GoesOnFromItsMasters) {
  const Saved saved =
      Train({"--set=model.untie_embeddings_and_output_weights=true", "--set=precision.bf16=true"});
  ASSERT_TRUE(saved.tensors.count("optimizer.state.fp32_param.output_layer.weight"));
  WriteMegatron(saved, Form::kModelSpace, Path("theirs"));
  ExpectSameRun();
}

TEST_F(ForeignRunTest, ExpertsWithAnOptimizerOfTheirOwnGoOn) {
  const Saved saved = Train({"--set=model.num_experts=4", "--set=model.disable_bias_linear=true"});
  WriteMegatron(saved, Form::kModelSpace, Path("theirs"));
  ExpectSameRun();
}

TEST_F(ForeignRunTest, ATiedModelGoesOnFromBuffersOfItsRanks) {
  const BucketTestLayout layout = {/*tensor=*/2, /*stages=*/2, /*chunks=*/1, /*data=*/3,
                                   /*bucket_size=*/4000};
  WriteMegatronBuffers(Train({}), layout, /*has_common_file=*/true, Path("theirs"));
  ExpectSameRun();
}

TEST_F(ForeignRunTest, AnUntiedModelInBf16GoesOnFromBuffersOfItsRanks) {
  const Saved saved = Train(
      {"--set=model.untie_embeddings_and_output_weights=true", "--set=precision.bf16=true",
       "--set=model.num_layers=4", "--set=model.swiglu=true", "--set=model.num_attention_heads=4",
       "--set=model.group_query_attention=true", "--set=model.num_query_groups=2"});
  const BucketTestLayout layout = {/*tensor=*/2, /*stages=*/2, /*chunks=*/2, /*data=*/2};
  WriteMegatronBuffers(saved, layout, /*has_common_file=*/false, Path("theirs"));
  ExpectSameRun();
  // What the weights don't show to be the run's is refused, and nothing is written.
  Saved changed = saved;
  changed.tensors["optimizer.state.fp32_param.decoder.layers.3.mlp.linear_fc2.weight"].values[0] +=
      1;
  WriteMegatronBuffers(changed, layout, /*has_common_file=*/false, Path("theirs"));
  const Outcome outcome = Import("none");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("--dist-ckpt-optim-fully-reshardable"));
  EXPECT_FALSE(PosixFileSystem().Stat(Path("none/latest_checkpointed_iteration.txt")).ok());
}

TEST_F(ForeignRunTest, ExpertsGoOnFromBuffersOfTheirRanks) {
  BucketTestLayout layout = {/*tensor=*/2, /*stages=*/2, /*chunks=*/1, /*data=*/2};
  layout.expert = 2;
  WriteMegatronBuffers(Train({"--set=model.num_experts=4", "--set=model.disable_bias_linear=true",
                              "--set=precision.bf16=true"}),
                       layout, /*has_common_file=*/true, Path("theirs"));
  ExpectSameRun();
}

// Every layout goes on from the imported checkpoint as from the run's own.
TEST_F(ForeignRunTest, AnyLayoutGoesOn) {
  WriteMegatron(Train({}), Form::kModelSpace, Path("theirs"));
  ASSERT_EQ(Import("imported").exit_code, 0);
  const std::vector<Arguments> layouts = {
      {"--set=parallel.pipeline_model_parallel_size=2"},
      {"--set=parallel.tensor_model_parallel_size=2"},
      {"--set=parallel.data_parallel_size=2", "--set=parallel.use_distributed_optimizer=true"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string own = absl::StrCat("own", i), foreign = absl::StrCat("foreign", i);
    const Outcome there = GoOn(Middle(), own, layouts[i]);
    ASSERT_EQ(there.exit_code, kExitDone) << there.output;
    const Outcome here = GoOn(Path("imported"), foreign, layouts[i]);
    ASSERT_EQ(here.exit_code, kExitDone) << here.output;
    ExpectEqualCheckpoints(foreign, own);
    EXPECT_EQ(NumberAfter(here.output, "lm loss: "), NumberAfter(there.output, "lm loss: "));
  }
}

TEST_F(ForeignRunTest, AUniversalCheckpointGoesOn) {
  WriteUniversal(Train({}), Path("theirs"));
  ExpectSameRun();
}

// The run would not be the same without any one of them.
TEST_F(ForeignRunTest, EachPartOfTheStateCounts) {
  const Saved saved = Train({});
  const auto differs = [&](const std::string& name, const std::function<void(Saved*)>& change) {
    Saved changed = saved;
    change(&changed);
    WriteMegatron(changed, Form::kFullyReshardable, Path("theirs"));
    EXPECT_FALSE(EndsTheSame(name)) << name;
  };
  for (const char* state : {"exp_avg", "exp_avg_sq"}) {
    differs(state, [&](Saved* changed) {
      TestTensor& moment =
          changed->tensors[absl::StrCat(kStates, state, ".decoder.layers.1.mlp.linear_fc2.weight")];
      ASSERT_FALSE(moment.values.empty());
      moment.values[0] += 1;
    });
  }
  differs("steps", [](Saved* changed) { changed->adam_steps = {1, 1}; });
  differs("schedule", [](Saved* changed) { changed->schedule_steps -= 4; });
  differs("samples", [](Saved* changed) { changed->train_samples -= 4; });
}

TEST_F(ForeignRunTest, TheArgumentsMakeTheRun) {
  WriteMegatron(Train({}), Form::kFullyReshardable, Path("theirs"), WriteArguments);
  has_config_ = false;
  const Outcome imported = Import("imported");
  ASSERT_EQ(imported.exit_code, 0) << imported.output;
  const std::string config = ReadTextFile(Path("imported/config.textproto"));
  EXPECT_THAT(config, AllOf(HasSubstr("lr: 0.003"), HasSubstr("train_iters: 12"),
                            HasSubstr("global_batch_size: 4"), HasSubstr("split: \"8,2\""),
                            HasSubstr("finetune: false")));
  const std::string log = Path("on.txt");
  const Outcome outcome =
      FinishProgram(StartProgram({ProgramPath("megatron/train/pretrain_gpt"),
                                  absl::StrCat("--config=", Path("imported/config.textproto")),
                                  SaveTo("gone_on"), "--set=train.eval_iters=1"},
                                 log),
                    log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const auto found = FindLatestCheckpoint(PosixFileSystem(), Path("gone_on"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->iteration, 12);
  const auto reader = CheckpointReader::Open(PosixFileSystem(), found->directory);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Int("consumed_train_samples").value_or(-1), 48);
  EXPECT_EQ(reader->Int("optimizer.applied_steps").value_or(-1), 12);
}

TEST_F(ForeignRunTest, WeightsAloneLeaveTheTrainingToTheUser) {
  WriteMegatron(Train({}), Form::kFullyReshardable, Path("theirs"), WriteArguments);
  has_config_ = goes_on_ = false;
  const Outcome imported = Import("imported");
  ASSERT_EQ(imported.exit_code, 0) << imported.output;
  const std::string log = Path("tuned.txt");
  const Outcome outcome = FinishProgram(
      StartProgram({ProgramPath("megatron/train/pretrain_gpt"),
                    absl::StrCat("--config=", Path("imported/config.textproto")), SaveTo("tuned"),
                    "--set=train.micro_batch_size=2", "--set=train.train_iters=2",
                    "--set=train.eval_iters=1", "--set=optimizer.weight_decay=0.1"},
                   log),
      log);
  ASSERT_EQ(outcome.exit_code, kExitDone) << outcome.output;
  const auto found = FindLatestCheckpoint(PosixFileSystem(), Path("tuned"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->iteration, 2);
  const auto reader = CheckpointReader::Open(PosixFileSystem(), found->directory);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->Int("consumed_train_samples").value_or(-1), 4);
  EXPECT_THAT(reader->String("config").value_or(""),
              AllOf(HasSubstr("lr_decay_iters: 2\n"), HasSubstr("start_weight_decay: 0.1\n")));
}

TEST_F(ForeignRunTest, WhatIsMissingIsRefusedByName) {
  const Saved saved = Train({});
  const auto refused = [&](const Saved& changed, const char* message) {
    WriteMegatron(changed, Form::kFullyReshardable, Path("theirs"));
    const Outcome outcome = Import("none");
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.output, HasSubstr(message));
    EXPECT_FALSE(PosixFileSystem().Stat(Path("none/latest_checkpointed_iteration.txt")).ok());
  };
  Saved changed = saved;
  changed.tensors.erase("optimizer.state.exp_avg_sq.decoder.final_layernorm.weight");
  refused(changed, "'optimizer.state.exp_avg_sq.decoder.final_layernorm.weight' is missing");
  changed = saved;
  changed.tensors["optimizer.state.momentum_buffer.decoder.final_layernorm.weight"] =
      saved.tensors.at("decoder.final_layernorm.weight");
  refused(changed, "momentum_buffer is none of Adam's");
  changed = saved;
  changed.adam_steps = {6, 5};
  refused(changed, "has parameters with 5 and with 6 updates");
  changed = saved;
  changed.adam_steps = {};
  refused(changed, "has no step of Adam's");
  changed = saved;
  changed.schedule_steps = -1;
  refused(changed, "has no num_steps");
}

TEST_F(ForeignRunTest, ARunWithAnotherModelIsRefused) {
  WriteMegatron(Train({}), Form::kFullyReshardable, Path("theirs"));
  ASSERT_EQ(Import("imported").exit_code, 0);
  const Outcome outcome = GoOn(Path("imported"), "other", {"--set=model.hidden_dropout=0.25"});
  EXPECT_NE(outcome.exit_code, kExitDone);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("is of a run of Megatron-LM"), HasSubstr("model.hidden_dropout")));
}

}  // namespace
}  // namespace megatron

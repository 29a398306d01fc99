// Tests of pretrain_gpt where limits of the process (ulimit) or a disk leave too little.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/pretrain_harness.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using Json = nlohmann::json;

class PretrainLimitsTest : public PretrainProgramTest {
 protected:
  // Runs the program in a shell that has run `before`; `after` stands behind its arguments.
  Outcome RunBehind(const std::string& before, const Arguments& more, const std::string& after = "",
                    const Variables& environment = {}) const {
    const std::string script =
        absl::StrCat(before, "; exec '", absl::StrJoin(Command(more), "' '"), "' ", after);
    const std::string log = Path("log.txt");
    return FinishProgram(StartProgram({"/bin/bash", "-c", script}, log, environment), log);
  }

  static void ExpectSays(const Outcome& outcome, const std::vector<std::string>& texts) {
    for (const std::string& text : texts)
      EXPECT_TRUE(absl::StrContains(outcome.output, text)) << text << "\n" << outcome.output;
  }

  // Returns the object that the dry run prints.
  static Json Parsed(const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, kExitDone);
    Json json = Json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << outcome.output;
    return json.is_object() ? json : Json({{"memory", Json::object()}});
  }
};

TEST_F(PretrainLimitsTest, ALimitOfFilesThatIsLessThanAShardIsToldAtTheStart) {
  const Outcome outcome = RunBehind("ulimit -f 64", {SaveTo("save")});
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  ExpectSays(outcome,
             {"checkpoint.save: a rank's shard of a checkpoint in '", "64.00 KiB (ulimit -f)"});
  EXPECT_FALSE(PosixFileSystem().Stat(Path("save")).ok());
  const Outcome files =
      RunBehind("ulimit -f 64", {"--set=optimizer.optimizer_cpu_offload=true",
                                 "--set=optimizer.optimizer_offload_path=" + Path("states")});
  EXPECT_EQ(files.exit_code, kExitConfig);
  ExpectSays(files, {"optimizer.optimizer_offload_path: a rank's file of states in '",
                     "64.00 KiB (ulimit -f)"});
}

TEST_F(PretrainLimitsTest, AShardIsAsLongAsPlanned) {
  const Json json = Parsed(Run({SaveTo("save"), "--dry_run", "--json"}));
  ASSERT_EQ(Run({SaveTo("save")}).exit_code, kExitDone);
  int64_t bytes = 0;
  for (const auto& [name, contents] : Checkpoint("save")) {
    if (absl::EndsWith(name, ".bin")) bytes += static_cast<int64_t>(contents.size());
  }
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(json["memory"]["stages"][0]["checkpoint_shard_bytes"], bytes);
  // The header of the file has 128 bytes.
  EXPECT_EQ(json["memory"]["checkpoint_bytes"], bytes - 128);
}

// There is an upper bound for what manifests have of pieces, which shards cut anew.
TEST_F(PretrainLimitsTest, ACheckpointTakesNoMoreThanThePlannedRoom) {
  const std::vector<Arguments> layouts = {
      {},
      {"--set=parallel.tensor_model_parallel_size=2"},
      {"--set=parallel.pipeline_model_parallel_size=2"},
      {"--set=parallel.data_parallel_size=2", "--set=parallel.use_distributed_optimizer=true"},
      // A rank's queries and its share of a group's keys and values are blocks of one tensor.
      {"--set=model.num_attention_heads=4", "--set=model.group_query_attention=true",
       "--set=model.num_query_groups=2", "--set=parallel.tensor_model_parallel_size=4"},
      {"--set=model.hidden_size=128", "--set=optimizer.optimizer_cpu_offload=true",
       "--set=optimizer.delayed_update=true", "--set=optimizer.delayed_update_warmup_steps=1"},
      {"--set=model.hidden_size=128", "--set=parallel.data_parallel_size=2",
       "--set=parallel.use_distributed_optimizer=true",
       "--set=parallel.num_distributed_optimizer_instances=2", "--set=diloco.sync_every=3"},
      // Ranks have states of their own after the last step.
      {"--set=model.hidden_size=128", "--set=parallel.data_parallel_size=2",
       "--set=optimizer.optimizer=zero_one_adam", "--set=optimizer.var_freeze_step=1",
       "--set=optimizer.local_step_scaler=1"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string name = absl::StrCat("save", i);
    const Arguments arguments = Joined(layouts[i], {SaveTo(name), "--set=train.train_iters=6"});
    SCOPED_TRACE(absl::StrJoin(arguments, " "));
    const Json memory = Parsed(Run(Joined(arguments, {"--dry_run", "--json"})))["memory"];
    ASSERT_EQ(Run(arguments).exit_code, kExitDone);
    int64_t bytes = 0, values = 0;
    for (const auto& [file, contents] : Checkpoint(name)) {
      bytes += static_cast<int64_t>(contents.size());
      if (absl::EndsWith(file, ".bin")) values += static_cast<int64_t>(contents.size()) - 128;
    }
    const auto planned = memory["checkpoint_bytes"].get<int64_t>();
    if (i + 1 < layouts.size()) {
      EXPECT_EQ(values, planned);
    } else {
      EXPECT_GT(values, planned);
    }
    EXPECT_LE(bytes, memory["checkpoint_room_bytes"].get<int64_t>());
  }
}

TEST_F(PretrainLimitsTest, AFileAtTheLimitIsAnErrorAndNoSignal) {
  const Outcome outcome = RunBehind("ulimit -f 1", {"--dry_run=full"}, "> " + Path("plan.txt"));
  EXPECT_EQ(outcome.exit_code, kExitIo) << outcome.output;
  ExpectSays(outcome, {"error: the output could not be written"});
  EXPECT_EQ(ReadTextFile(Path("plan.txt")).size(), 1024u);
}

TEST_F(PretrainLimitsTest, ALimitOfAddressesIsToldAtTheStartAndByADryRun) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer takes more addresses than any limit leaves";
#endif
  const std::string limit = "ulimit -v 50000000";
  const Arguments large = {"--set=model.hidden_size=1048576", "--set=model.num_layers=1000"};
  const Outcome outcome = RunBehind(limit, large);
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  ExpectSays(outcome, {"a process of the run allocates ", "(ulimit -v) leaves "});
  const Json memory = Parsed(RunBehind(limit, Joined(large, {"--dry_run", "--json"})))["memory"];
  EXPECT_EQ(memory["fits"], false);
  EXPECT_TRUE(absl::StrContains(memory["shortages"].dump(), "(ulimit -v) leaves "))
      << memory["shortages"];
}

// Whatever a limit leaves, threads' stacks and workspaces are counted: no run ends by a signal.
TEST_F(PretrainLimitsTest, BehindAnyLimitOfAddressesARunIsRefusedOrTrains) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer takes more addresses than any limit leaves";
#endif
  const Arguments alone = {"--set=system.num_threads=2", "--set=train.train_iters=4"};
  const Arguments processes =
      Joined(alone, {"--set=parallel.data_parallel_size=2", "--set=parallel.ranks_as=processes"});
  const Arguments threads = Joined(alone, {"--set=parallel.tensor_model_parallel_size=2"});
  for (const Arguments& arguments : {alone, processes, threads}) {
    int refused = 0, trained = 0;
    for (const int kibibytes : {40000, 60000, 90000, 500000}) {
      SCOPED_TRACE(absl::StrCat(absl::StrJoin(arguments, " "), ", ", kibibytes));
      const std::string limit = absl::StrCat("ulimit -v ", kibibytes);
      const Outcome outcome = RunBehind(limit, arguments);
      const Json plan = Parsed(RunBehind(limit, Joined(arguments, {"--dry_run", "--json"})));
      if (outcome.exit_code == kExitDone) {
        ++trained;
        EXPECT_EQ(plan["memory"]["fits"], true) << plan["memory"];
      } else {
        ++refused;
        EXPECT_EQ(outcome.exit_code, kExitConfig) << outcome.output;
        ExpectSays(outcome, {"error: a process of the run allocates up to ", " threads, "});
        EXPECT_EQ(plan["memory"]["fits"], false) << plan["memory"];
      }
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(trained, 0);
  }
}

TEST_F(PretrainLimitsTest, ALimitOfOpenFilesIsToldBeforeRanksMeet) {
  const Outcome outcome = RunBehind(
      "ulimit -n 64",
      {"--set=parallel.data_parallel_size=1000", "--set=train.global_batch_size=2000"}, "",
      {{"MEGATRON_RANK", "0"},
       {"MEGATRON_WORLD_SIZE", "1000"},
       {"MEGATRON_LOCAL_RANK", "0"},
       {"MEGATRON_LOCAL_WORLD_SIZE", "1000"}});
  EXPECT_EQ(outcome.exit_code, kExitConfig);
  ExpectSays(outcome,
             {"each of 1000 ranks has connections to every other and opens up to 3029 files",
              "(ulimit -n) leaves "});
}

// No rank is started.
TEST_F(PretrainLimitsTest, ALimitOfOpenFilesIsToldByTheProcessThatIsStarted) {
  const Arguments processes = {"--set=parallel.data_parallel_size=2",
                               "--set=parallel.ranks_as=processes"};
  const Outcome several = RunBehind("ulimit -n 20", processes);
  EXPECT_EQ(several.exit_code, kExitConfig);
  ExpectSays(several, {"each of 2 ranks has connections to every other and opens up to 35 files",
                       "(ulimit -n) leaves "});
  EXPECT_FALSE(absl::StrContains(several.output, "[rank ")) << several.output;
  const Outcome alone = RunBehind("ulimit -n 20", {SaveTo("save")});
  EXPECT_EQ(alone.exit_code, kExitConfig);
  ExpectSays(alone, {"the process opens up to 32 files", "(ulimit -n) leaves "});
  EXPECT_FALSE(PosixFileSystem().Stat(Path("save")).ok());
  const Json memory = Parsed(RunBehind("ulimit -n 20", {"--dry_run", "--json"}))["memory"];
  EXPECT_EQ(memory["fits"], false);
  EXPECT_TRUE(absl::StrContains(memory["shortages"].dump(), "(ulimit -n) leaves "))
      << memory["shortages"];
}

// No file system of this kind has a free byte.
TEST_F(PretrainLimitsTest, AFullDiskIsToldByARunAndByADryRun) {
  const Arguments in_file = {"--set=optimizer.optimizer_cpu_offload=true",
                             "--set=optimizer.optimizer_offload_path=/proc/states"};
  const Outcome run = Run(in_file);
  EXPECT_EQ(run.exit_code, kExitConfig);
  ExpectSays(run, {"optimizer.optimizer_offload_path: the files of 1 rank take ",
                   " in '/proc/states' and 0 B are free; "});
  const Json memory = Parsed(Run(Joined(in_file, {"--dry_run", "--json"})))["memory"];
  EXPECT_EQ(memory["fits"], false);
  EXPECT_EQ(memory["disk_bytes_available"], 0);
  ASSERT_EQ(memory["shortages"].size(), 1u) << memory["shortages"];
  // The words are those of the run.
  EXPECT_TRUE(absl::StrContains(run.output, memory["shortages"][0].get<std::string>()))
      << memory["shortages"] << run.output;
  ExpectSays(Run(Joined(in_file, {"--dry_run"})), {"WARNING: optimizer.optimizer_offload_path: "});
}

TEST_F(PretrainLimitsTest, ADryRunSaysThatNoCheckpointFindsRoom) {
  const Json json = Parsed(Run({"--set=checkpoint.save=/proc/save", "--dry_run", "--json"}));
  EXPECT_TRUE(absl::StrContains(json["warnings"].dump(), "checkpoint.save: a checkpoint takes "))
      << json["warnings"];
  EXPECT_TRUE(absl::StrContains(json["warnings"].dump(), " in '/proc/save' and 0 B are free"))
      << json["warnings"];
  EXPECT_EQ(json["memory"]["shortages"], Json::array());
  // Local checkpoints there need room as well.
  const Json both = Parsed(RunBehind(
      "export FAST=local", {"--set=checkpoint.save=/proc/save",
                            "--set=checkpoint.local_save=\"/proc/$FAST\"", "--dry_run", "--json"}));
  EXPECT_TRUE(absl::StrContains(both["warnings"].dump(), " of local checkpoints in '/proc/local'"))
      << both["warnings"];
}

}  // namespace
}  // namespace megatron

#include "megatron/checkpoint/async_checkpoint_writer.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/checkpoint_reader.h"
#include "megatron/checkpoint/find_checkpoint.h"
#include "megatron/checkpoint/test_state.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;

SaveOptions Options() {
  SaveOptions options;
  options.directory = "/save";
  return options;
}

TEST(AsyncCheckpointWriterTest, WritesTheBytesThatSaveCheckpointWrites) {
  MemoryFileSystem expected, fs;
  const TestState state(1);
  ASSERT_THAT(SaveCheckpoint(expected, Options(), state.Whole()), IsOk());
  AsyncCheckpointWriter writer(fs, Options());
  writer.Start(state.Whole());
  EXPECT_TRUE(writer.in_progress());
  ASSERT_THAT(writer.Wait(), IsOk());
  EXPECT_FALSE(writer.in_progress());
  for (const char* name : {"manifest.json", "shard_00000_of_00001.bin"}) {
    const std::string path = JoinPath("/save/iter_0000001", name);
    EXPECT_EQ(*ReadFileToString(fs, path), *ReadFileToString(expected, path));
  }
}

TEST(AsyncCheckpointWriterTest, AfterWaitUntilReadTheStateMayChange) {
  MemoryFileSystem fs;
  for (int64_t iteration = 1; iteration <= 20; ++iteration) {
    const TestState state(iteration, 1000);
    const CheckpointState whole = state.Whole();
    AsyncCheckpointWriter writer(fs, Options());
    writer.Start(whole);
    writer.WaitUntilRead();
    for (const ShardedTensor& tensor : whole.tensors) {
      if (tensor.tensor.bytes() == 0) continue;
      std::memset(tensor.tensor.raw(), 0, static_cast<size_t>(tensor.tensor.bytes()));
    }
    ASSERT_THAT(writer.Wait(), IsOk());
    const auto found = FindLatestCheckpoint(fs, "/save");
    ASSERT_THAT(found, IsOk());
    const auto reader = CheckpointReader::Open(fs, found->directory);
    ASSERT_THAT(reader, IsOk());
    EXPECT_THAT(TestState(iteration, 1000).Compare(*reader), IsOk());
  }
}

TEST(AsyncCheckpointWriterTest, AFailureFreesTheStateAndIsToldOnce) {
  MemoryFileSystem base;
  FaultFileSystem fs(&base);
  fs.FailAt(0, ENOSPC, /*lasting=*/true);
  const TestState state(1);
  AsyncCheckpointWriter writer(fs, Options());
  writer.Start(state.Whole());
  writer.WaitUntilRead();
  EXPECT_THAT(writer.Wait(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(writer.Wait(), IsOk());
}

TEST(AsyncCheckpointWriterTest, WithoutASaveThereIsNothingToWaitFor) {
  MemoryFileSystem fs;
  AsyncCheckpointWriter writer(fs, Options());
  writer.WaitUntilRead();
  EXPECT_THAT(writer.Wait(), IsOk());
}

TEST(AsyncCheckpointWriterTest, DestructionWaits) {
  MemoryFileSystem fs;
  const TestState state(1, 1000);
  {
    AsyncCheckpointWriter writer(fs, Options());
    writer.Start(state.Whole());
  }
  EXPECT_THAT(fs.Stat("/save/iter_0000001/manifest.json"), IsOk());
}

}  // namespace
}  // namespace megatron

#include "megatron/checkpoint/checkpoint_reader.h"

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/checkpoint/save_checkpoint.h"
#include "megatron/checkpoint/test_state.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kDirectory[] = "/save/iter_0000001";

class CheckpointReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SaveOptions options;
    options.directory = "/save";
    options.chunk_bytes = 64;
    ASSERT_THAT(SaveCheckpoint(fs_, options, saved_.Whole()), IsOk());
  }

  CheckpointReader Open() { return *CheckpointReader::Open(fs_, kDirectory); }

  MemoryFileSystem fs_;
  const TestState saved_{1};
};

TEST_F(CheckpointReaderTest, SavedTensorsAreLoaded) {
  EXPECT_THAT(saved_.Compare(Open()), IsOk());
  EXPECT_FALSE(TestState(2).Compare(Open()).ok());
}

TEST_F(CheckpointReaderTest, NamedValuesAreFoundOrMissed) {
  const CheckpointReader reader = Open();
  EXPECT_THAT(reader.Int("consumed_train_samples"), IsOkAndHolds(16));
  EXPECT_THAT(reader.Float("loss_scale"), IsOkAndHolds(65536.0));
  EXPECT_THAT(reader.String("config"), IsOkAndHolds(HasSubstr("lr: 0.1")));
  EXPECT_THAT(reader.Int("other"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'other'")));
}

TEST_F(CheckpointReaderTest, AnotherModelIsRefusedByTensor) {
  std::vector<float> data(6 * 9);
  ShardedTensor block = {
      "decoder.weight", Tensor(data.data(), DType::kFloat32, {6, 9}), {6, 9}, {0, 0}, 0};
  EXPECT_THAT(Open().Load(block), StatusIs(absl::StatusCode::kFailedPrecondition,
                                           AllOf(HasSubstr("'decoder.weight'"), HasSubstr("[6, 8]"),
                                                 HasSubstr("[6, 9]"), HasSubstr(kDirectory))));
  block.name = "decoder.other";
  EXPECT_THAT(Open().Load(block),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'decoder.other'")));
}

TEST_F(CheckpointReaderTest, NothingIsConverted) {
  std::vector<BFloat16> data(6 * 8);
  EXPECT_THAT(Open().Read("decoder.weight", {0, 0}, Tensor(data.data(), DType::kBFloat16, {6, 8})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("decoder.weight"), HasSubstr("fp32"), HasSubstr("bf16"))));
}

TEST_F(CheckpointReaderTest, ARectangleOutsideIsRefused) {
  std::vector<float> data(6 * 8);
  const Tensor out(data.data(), DType::kFloat32, {6, 8});
  EXPECT_THAT(Open().Read("decoder.weight", {1, 0}, out),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("decoder.weight")));
  EXPECT_FALSE(Open().Read("decoder.weight", {0, 0, 0}, out).ok());
}

// A random cut of a shape by a grid, as parallel layouts make them.
std::vector<Rectangle> RandomGrid(const Shape& shape, std::mt19937* random) {
  std::vector<Rectangle> blocks = {{{0, 0, 0}, shape}};
  for (int d = 0; d < 3; ++d) {
    const int64_t parts = 1 + static_cast<int64_t>((*random)() % 4);
    std::vector<Rectangle> cut;
    for (const Rectangle& block : blocks) {
      for (int64_t p = 0; p < parts; ++p) {
        Rectangle piece = block;
        piece.start[d] = shape[d] * p / parts;
        piece.extent[d] = shape[d] * (p + 1) / parts - piece.start[d];
        cut.push_back(piece);
      }
    }
    blocks = std::move(cut);
  }
  return blocks;
}

std::vector<int32_t> Contents(const Rectangle& block, const Shape& shape,
                              const std::vector<int32_t>& whole) {
  std::vector<int32_t> contents;
  for (int64_t i = 0; i < block.extent[0]; ++i) {
    for (int64_t j = 0; j < block.extent[1]; ++j) {
      for (int64_t k = 0; k < block.extent[2]; ++k) {
        const int64_t row = (block.start[0] + i) * shape[1] + block.start[1] + j;
        contents.push_back(whole[static_cast<size_t>(row * shape[2] + block.start[2] + k)]);
      }
    }
  }
  return contents;
}

TEST(ReshardingTest, AnyRectangleComesFromAnyLayout) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 100; ++trial) {
    const Shape shape = {1 + static_cast<int64_t>(random() % 9),
                         1 + static_cast<int64_t>(random() % 9),
                         1 + static_cast<int64_t>(random() % 9)};
    std::vector<int32_t> whole(static_cast<size_t>(shape.numel()));
    std::iota(whole.begin(), whole.end(), 1);

    CheckpointState state;
    state.run_id = kTestRunId;
    std::vector<std::vector<int32_t>> buffers;
    for (const Rectangle& block : RandomGrid(shape, &random)) {
      buffers.push_back(Contents(block, shape, whole));
      state.tensors.push_back(
          {"t", Tensor(buffers.back().data(), DType::kInt32, block.extent), shape, block.start, 0});
    }
    MemoryFileSystem fs;
    SaveOptions options;
    options.directory = "/save";
    options.chunk_bytes = 1 + static_cast<int64_t>(random() % 100);
    ASSERT_THAT(SaveCheckpoint(fs, options, state), IsOk());

    const auto reader = CheckpointReader::Open(fs, "/save/iter_0000000");
    ASSERT_THAT(reader, IsOk());
    for (const Rectangle& block : RandomGrid(shape, &random)) {
      const std::vector<int32_t> expected = Contents(block, shape, whole);
      std::vector<int32_t> loaded(expected.size() + 1, -1);
      const Tensor out(loaded.data(), DType::kInt32, block.extent);
      ASSERT_THAT(reader->Load({"t", out, shape, block.start, 0}), IsOk());
      EXPECT_EQ(loaded.back(), -1);
      loaded.pop_back();
      EXPECT_EQ(loaded, expected) << "trial " << trial << " " << ToString(block);
    }
  }
}

TEST(ReshardingTest, ReadsOnlyTheChunksThatItNeeds) {
  const TestState saved(1, 100);
  MemoryFileSystem fs;
  SaveOptions options;
  options.directory = "/save";
  options.chunk_bytes = 32;  // a row of decoder.weight
  ASSERT_THAT(SaveCheckpoint(fs, options, saved.Whole()), IsOk());
  const auto reader = CheckpointReader::Open(fs, kDirectory);
  ASSERT_THAT(reader, IsOk());
  const Piece& piece = FindTensor(reader->manifest(), "decoder.weight")->pieces[0];
  std::string* const bytes = fs.MutableContents("/save/iter_0000001/shard_00000_of_00001.bin");
  (*bytes)[static_cast<size_t>(piece.offset + 32 * 50)] ^= 1;

  std::vector<float> row(8);
  const Tensor out(row.data(), DType::kFloat32, {1, 8});
  EXPECT_THAT(reader->Read("decoder.weight", {49, 0}, out), IsOk());
  EXPECT_THAT(reader->Read("decoder.weight", {50, 0}, out), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(reader->Read("decoder.weight", {51, 0}, out), IsOk());
}

}  // namespace
}  // namespace megatron

#include "megatron/optim/weight_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/scripted_engine.h"
#include "megatron/base/status_macros.h"
#include "megatron/optim/test_model.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Device kCuda = {DeviceType::kCuda, 0};
constexpr int kBlocks = 6;

std::string TestPath() { return absl::StrCat(testing::TempDir(), "weights"); }

int64_t MoveAll(const Block& block) { return block.bytes; }

// Counts the transfers that were started.
class CountingEngine : public ScriptedEngine {
 public:
  CountingEngine(int fd, Script script, int64_t* started)
      : ScriptedEngine(fd, std::move(script)), started_(started) {}
  void Start(const Block& block) override {
    *started_ += !block.is_write;
    ScriptedEngine::Start(block);
  }

 private:
  int64_t* const started_;
};

// A model of blocks of one parameter on the emulated device, whose weights lie on the host or in a
// file, of which each block has more than one extent. Without a script it is a file of the system.
class BlockModel {
 public:
  explicit BlockModel(DType dtype, bool in_file, const ScriptedEngine::Script& script = MoveAll,
                      bool overlap = true)
      : cuda_(0), stream_(Stream::Cuda(0, &cuda_)), model_(OptimizerOptions(), dtype) {
    for (int block = 0; block < kBlocks; ++block)
      model_.Add(absl::StrCat("w", block), Replicated({7, 11 + block}))->block = block;
    model_.buffer_options.weights_on_host = true;
    model_.buffer_options.weights_in_file = in_file;
    model_.buffer_options.host_fraction = 1;
    model_.buffer_options.extent_elements = 64;
    model_.Build(kCuda);
    StateFile* const file = model_.buffers->weight_file();
    if (file != nullptr && script == nullptr) {
      EXPECT_THAT(model_.buffers->OpenWeightFile(TestPath()), IsOk());
    } else if (file != nullptr) {
      const int fd = open(TestPath().c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
      EXPECT_GE(fd, 0);
      EXPECT_EQ(ftruncate(fd, file->bytes()), 0);
      unlink(TestPath().c_str());
      const auto counted = [this, script](const Block& block) {
        reads_ += !block.is_write;
        return script(block);
      };
      file->Open(std::make_unique<BlockFile>(
          TestPath(), fd, file->bytes(), std::make_unique<CountingEngine>(fd, counted, &started_),
          BlockFileOptions()));
    }
    model_.buffers->InitializeWeights(5, stream_);
    DataParallelOptions how;
    how.overlap_grad_reduce = how.overlap_param_gather = overlap;
    model_.Connect({}, stream_, how, {1 << 20, 1 << 20});
    EXPECT_THAT(model_.optimizer->PrepareHostUpdate(stream_, 1, &model_.ledger), IsOk());
  }

  // Uses the weights of all blocks in turn, as the forward pass does, and returns them.
  std::string Forward() {
    std::string bits;
    DataParallel& blocks = *model_.parallel;
    for (int block = 0; block < kBlocks; ++block) {
      blocks.Acquire(block, block + 1 < kBlocks ? block + 1 : WeightBlocks::kNone);
      AppendBits(block, &bits);
      blocks.Release(block);
    }
    return bits;
  }

  // The same in the order of the backward pass, with gradients.
  std::string Backward(int step) {
    std::string bits;
    DataParallel& blocks = *model_.parallel;
    for (int block = kBlocks - 1; block >= 0; --block) {
      blocks.Acquire(block, block > 0 ? block - 1 : WeightBlocks::kNone);
      blocks.BeginGradients(block);
      AppendBits(block, &bits);
      const Tensor& grad = model_.parameters[block]->grad;
      std::vector<float> values(grad.numel());
      for (int64_t i = 0; i < grad.numel(); ++i) values[i] = Fraction(3 * step + block + i);
      Transport(stream_, Tensor(values.data(), DType::kFloat32, grad.shape()), grad);
      blocks.EndGradients(block);
      blocks.Release(block);
    }
    return bits;
  }

  absl::Status Update() {
    model_.parallel->FinalizeGradients();
    MEGATRON_RETURN_IF_ERROR(model_.buffers->status());
    StepOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.clip_grad = 1;
    const absl::Status status = model_.optimizer->Step(options, {}, stream_).status();
    MEGATRON_RETURN_IF_ERROR(status);
    model_.parallel->ShareWeights();
    return model_.buffers->status();
  }

  // A step; returns the weights that it used.
  absl::StatusOr<std::string> Step(int step) {
    model_.parallel->StartStep(1);
    std::string bits = Forward();
    bits += Backward(step);
    MEGATRON_RETURN_IF_ERROR(Update());
    return bits;
  }

  // The reads that were started, and those that were waited for.
  int64_t started() const { return started_; }
  int64_t reads() const { return reads_; }
  double Norm() { return model_.optimizer->ParametersNorm({}, stream_); }
  TestModel& model() { return model_; }
  const Stream& stream() const { return stream_; }

 private:
  void AppendBits(int block, std::string* bits) {
    const Tensor& weights = model_.parameters[block]->data;
    std::vector<char> copy(weights.bytes());
    Transport(stream_, weights, Tensor(copy.data(), weights.dtype(), weights.shape()));
    bits->append(copy.data(), copy.size());
  }

  CudaStream cuda_;
  Stream stream_;
  int64_t started_ = 0, reads_ = 0;
  TestModel model_;
};

TEST(WeightReaderTest, StepsHaveTheBitsOfWeightsInMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool overlap : {false, true}) {
      SCOPED_TRACE(absl::StrCat(SizeOf(dtype), " bytes, overlap ", overlap));
      BlockModel in_memory(dtype, false, MoveAll, overlap), in_file(dtype, true, MoveAll, overlap);
      std::string before;
      for (int step = 0; step < 4; ++step) {
        const auto want = in_memory.Step(step), got = in_file.Step(step);
        ASSERT_THAT(want, IsOk());
        ASSERT_THAT(got, IsOk());
        EXPECT_TRUE(*got == *want) << step;
        EXPECT_FALSE(*got == before) << step;
        EXPECT_EQ(in_file.Norm(), in_memory.Norm());
        before = *got;
      }
    }
  }
}

TEST(WeightReaderTest, WeightsThatAreThereAreNotReadAgainAndChangedOnesAre) {
  BlockModel model(DType::kFloat32, true);
  model.Forward();
  const int64_t all = model.reads();
  EXPECT_GT(all, 0);
  // The slots have the last three of six blocks, and then, backward, the first three.
  model.model().parallel->StartStep(1);
  model.Backward(0);
  const int64_t half = model.reads() - all;
  EXPECT_LT(half, all);
  EXPECT_GT(half, 0);
  model.Forward();
  EXPECT_LT(model.reads() - all - half, all);
  const std::string before = model.Forward();
  ASSERT_THAT(model.Update(), IsOk());
  const int64_t updated = model.reads();
  const std::string after = model.Forward();
  EXPECT_EQ(model.reads() - updated, all);
  EXPECT_FALSE(after == before);
}

TEST(WeightReaderTest, BlocksAreReadAheadOfTheirUse) {
  BlockModel model(DType::kBFloat16, true);
  DataParallel& blocks = *model.model().parallel;
  blocks.Acquire(0, 1);
  for (int block = 1; block + 2 < kBlocks; ++block) {
    // The next block is on its way to the device, and the one behind it is being read.
    EXPECT_GT(model.started(), model.reads()) << block;
    blocks.Release(block - 1);
    blocks.Acquire(block, block + 1);
  }
  blocks.Release(kBlocks - 3);
}

// As a checkpoint is written while the next step goes on.
TEST(WeightReaderTest, AnotherThreadReadsTheFileMeanwhile) {
  BlockModel model(DType::kFloat32, true, nullptr);
  const std::string bits = model.Forward();
  const ParameterBuffers& buffers = *model.model().buffers;
  const auto read = [&buffers] {
    std::vector<float> all;
    for (const Bucket& bucket : buffers.buckets()) {
      std::vector<float> weights(bucket.range.size());
      const Tensor out(weights.data(), DType::kFloat32, {bucket.range.size()});
      EXPECT_THAT(buffers.ReadWeights(bucket, bucket.range.begin, out), IsOk());
      all.insert(all.end(), weights.begin(), weights.end());
    }
    return all;
  };
  const std::vector<float> want = read();
  std::thread reader([&] {
    for (int i = 0; i < 30; ++i) EXPECT_EQ(read(), want);
  });
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(model.Forward() == bits);
  reader.join();
}

TEST(WeightReaderTest, MemoryIsThatOfThreeBlocksAndIsPlanned) {
  BlockModel model(DType::kBFloat16, true);
  // The last block has 7 * 16 elements, which padding makes a multiple of 64, in two or three
  // extents, each of which is a page.
  const auto held = model.model().ledger.AtPeak();
  const int64_t bytes = held.at("host/weights read ahead");
  EXPECT_EQ(bytes % BlockFile::kAlignment, 0);
  EXPECT_GE(bytes, (3 * 2 + 1) * BlockFile::kAlignment);
  EXPECT_LE(bytes, (3 * 3 + 1) * BlockFile::kAlignment);
  EXPECT_EQ(held.count("host/weights"), 0u);

  TestModel planned({}, DType::kBFloat16);
  for (int block = 0; block < kBlocks; ++block)
    planned.Add(absl::StrCat("w", block), Replicated({7, 11 + block}))->block = block;
  planned.buffer_options = model.model().buffer_options;
  planned.Build({DeviceType::kMeta});
  planned.Connect({}, Stream::Meta());
  EXPECT_EQ(planned.ledger.AtPeak().at("host/weights read ahead"), bytes);
  EXPECT_EQ(planned.ledger.AtPeak().at("host/weight extents"), held.at("host/weight extents"));
}

// A thousand faults: a step either has the bits of a disk without faults, or fails with the file
// and the offset.
TEST(WeightReaderTest, FaultsAreToldOrChangeNoBits) {
  constexpr int kSteps = 8;
  std::string expected;
  {
    BlockModel plain(DType::kBFloat16, true, MoveAll, /*overlap=*/false);
    for (int step = 0; step < kSteps; ++step) expected += *plain.Step(step);
  }
  std::mt19937 random(7);
  int faults = 0, failed = 0, whole = 0;
  while (faults < 1000) {
    const auto script = [&](const Block& block) -> int64_t {
      if (random() % 12 != 0) return block.bytes;
      ++faults;
      // Few of them are errors that cannot be mended.
      switch (random() % 96) {
        case 0:
          return -EIO;
        case 1:
          return block.is_write ? -ENOSPC : 0;
        case 2:
          return 1 + static_cast<int64_t>(random() % block.bytes);
        case 3:
          return -EAGAIN;
        default:
          return -EINTR;
      }
    };
    BlockModel model(DType::kBFloat16, true, script, /*overlap=*/false);
    std::string bits;
    absl::Status status = model.model().buffers->status();
    for (int step = 0; status.ok() && step < kSteps; ++step) {
      const auto used = model.Step(step);
      status = used.status();
      if (status.ok()) bits += *used;
    }
    if (status.ok()) {
      ++whole;
      ASSERT_TRUE(bits == expected);
    } else {
      ++failed;
      ASSERT_THAT(status.message(), AllOf(HasSubstr(TestPath()), HasSubstr("' at ")));
      ASSERT_EQ(model.model().buffers->status(), status);
    }
  }
  std::cout << failed << " runs failed, " << whole << " were whole\n";
  EXPECT_GT(failed, 5);
  EXPECT_GT(whole, 10);
}

TEST(WeightReaderTest, MemoryThatCannotBeLockedIsAnError) {
  BlockModel model(DType::kBFloat16, true);
  LimitPageLockedMemory(100);
  EXPECT_THAT(WeightReader::Create(*model.model().buffers, model.stream(), nullptr).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("weights read ahead")));
  LimitPageLockedMemory(int64_t{1} << 60);
}

}  // namespace
}  // namespace megatron

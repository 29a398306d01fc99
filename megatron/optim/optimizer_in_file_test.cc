// Updates of masters and states that are in a file have the bits of those in memory, or fail.
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/scripted_engine.h"
#include "megatron/base/thread_pool.h"
#include "megatron/optim/test_model.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPage = BlockFile::kAlignment;

std::string TestPath(const std::string& name) { return absl::StrCat(testing::TempDir(), name); }

int64_t MoveAll(const Block& block) { return block.bytes; }

// A model on the CPU, of whose masters and states a part is in a file.
class Filed {
 public:
  Filed(double fraction, DType dtype, const OptimizerOptions& options,
        const ScriptedEngine::Script& script = MoveAll)
      : pool_(2), stream_(Stream::Cpu(&pool_)), model_(options, dtype) {
    model_.Add("behind", Replicated({70}));
    model_.Add("a", Replicated({7, 11}));
    model_.Add("b", Replicated({5}), /*decays=*/false);
    model_.Add("c", Replicated({130}));
    model_.buffer_options.host_part_in_file = fraction > 0;
    model_.buffer_options.host_fraction = fraction;
    model_.buffer_options.extent_elements = 64;
    model_.Build();
    if (StateFile* const file = model_.buffers->state_file())
      file->Open(ScriptedBlockFile(TestPath("model"), file->bytes(), kPage, script));
    model_.buffers->InitializeWeights(5, stream_);
  }

  absl::Status Step(int step, UpdateObserver* observer = nullptr) {
    for (const auto& parameter : model_.parameters) FillGradients(*parameter, 3 * step);
    StepOptions options;
    options.lr = 0.01;
    options.weight_decay = 0.1;
    options.clip_grad = 1;
    options.observer = observer;
    return model_.optimizer->Step(options, {}, stream_).status();
  }

  double Norm() { return model_.optimizer->ParametersNorm({}, stream_); }
  ParameterBuffers& buffers() { return *model_.buffers; }
  const Stream& stream() const { return stream_; }

  // Weights with their padding, and masters and states of every parameter.
  std::string Bits() {
    std::string bits;
    const auto append = [&](const Tensor& tensor) {
      bits.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
    };
    ParameterBuffers& buffers = *model_.buffers;
    append(buffers.weights());
    for (const FlatParameter& flat : buffers.parameters()) {
      const Bucket& bucket = buffers.bucket_of(flat);
      const bool in_file =
          buffers.state_file() != nullptr && buffers.HostRange(bucket, flat.range).size() > 0;
      std::vector<int64_t> memory(flat.range.size());
      if (buffers.has_masters()) {
        const Tensor masters(memory.data(), DType::kFloat32, {flat.range.size()});
        if (in_file) {
          EXPECT_THAT(buffers.ReadMasters(bucket, flat.range.begin, masters), IsOk());
        }
        append(in_file ? masters : buffers.Masters(bucket, flat.range));
      }
      for (size_t i = 0; i < buffers.num_states(); ++i) {
        const Tensor state(memory.data(), buffers.options().states[i].dtype, {flat.range.size()});
        if (in_file) {
          EXPECT_THAT(buffers.ReadState(i, bucket, flat.range.begin, state), IsOk());
        }
        append(in_file ? state : buffers.State(i, bucket, flat.range));
      }
    }
    return bits;
  }

 private:
  ThreadPool pool_;
  Stream stream_;
  TestModel model_;
};

std::vector<OptimizerOptions> AllOptimizers() {
  std::vector<OptimizerOptions> all(6);
  all[1].exp_avg_dtype = DType::kBFloat16;
  all[1].exp_avg_sq_dtype = DType::kBFloat16;
  all[2].exp_avg_dtype = DType::kUInt8;
  all[2].exp_avg_sq_dtype = DType::kUInt8;
  all[3].kind = OptimizerOptions::kLion;
  all[4].kind = OptimizerOptions::kSgd;
  all[5].kind = OptimizerOptions::kSgd;
  all[5].sgd_momentum = 0;
  return all;
}

TEST(OptimizerInFileTest, WeightsStatesAndNormsHaveTheSameBits) {
  int optimizer = 0;
  for (const OptimizerOptions& options : AllOptimizers()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const double fraction : {0.4, 1.0}) {
        SCOPED_TRACE(absl::StrCat("optimizer ", optimizer, ", ", SizeOf(dtype), " bytes, fraction ",
                                  fraction));
        Filed plain(0, dtype, options), with(fraction, dtype, options);
        EXPECT_EQ(plain.buffers().state_file(), nullptr);
        // fp32 weights without momentum have nothing to put there.
        EXPECT_EQ(with.buffers().state_file() != nullptr, optimizer < 5 || SizeOf(dtype) == 2);
        EXPECT_EQ(with.Bits(), plain.Bits());
        for (int step = 0; step < 3; ++step) {
          ASSERT_THAT(plain.Step(step), IsOk());
          ASSERT_THAT(with.Step(step), IsOk());
          EXPECT_EQ(with.Bits(), plain.Bits()) << step;
          EXPECT_EQ(with.Norm(), plain.Norm()) << step;
        }
      }
    }
    ++optimizer;
  }
}

TEST(OptimizerInFileTest, MastersAreRoundedToWeightsAndStatesChangedInTheFile) {
  Filed plain(0, DType::kBFloat16, {}), with(1, DType::kBFloat16, {});
  for (Filed* model : {&plain, &with}) {
    const auto change = [](const ParameterState& state) {
      if (state.master.empty()) return absl::OkStatus();
      for (int64_t i = 0; i < state.range.size(); ++i) {
        state.master.data<float>()[i] = static_cast<float>(state.range.begin + i) / 8;
        state.states[1].data<float>()[i] = static_cast<float>(state.range.begin + i);
      }
      return absl::OkStatus();
    };
    for (const ParameterState& state : model->buffers().States())
      EXPECT_THAT(change(state), IsOk());
    EXPECT_THAT(model->buffers().ChangeStatesInFile(change), IsOk());
    model->buffers().CopyMastersToWeights(model->stream());
  }
  for (const ParameterState& state : with.buffers().States())
    EXPECT_TRUE(state.master.empty() && state.states.empty());
  EXPECT_EQ(with.Bits(), plain.Bits());
  EXPECT_THAT(with.buffers().ChangeStatesInFile(
                  [](const ParameterState&) { return absl::AbortedError("no more"); }),
              StatusIs(absl::StatusCode::kAborted, "no more"));
  EXPECT_THAT(with.buffers().status(), IsOk());
}

// Adds up all masters that it is shown, before and after.
class SumOfMasters : public UpdateObserver {
 public:
  explicit SumOfMasters(const ParameterBuffers& buffers) : buffers_(buffers) {}
  void BeforeUpdate(const FlatParameter& flat, const FlatRange& range,
                    const Stream& stream) override {
    std::vector<float> copy(range.size());
    const Tensor masters =
        buffers_.MastersOnDevice(buffers_.bucket_of(flat), range,
                                 Tensor(copy.data(), DType::kFloat32, {range.size()}), stream);
    for (int64_t i = 0; i < range.size(); ++i) sum_ = 1.25 * sum_ + masters.data<float>()[i];
  }
  void AfterUpdate(const FlatParameter& flat, const FlatRange& range,
                   const Stream& stream) override {
    elements_ += range.size();
    BeforeUpdate(flat, range, stream);
    sum_ = std::fmod(sum_, 1000);
  }
  double sum_ = 0;
  int64_t elements_ = 0;

 private:
  const ParameterBuffers& buffers_;
};

TEST(OptimizerInFileTest, AnObserverSeesMastersAndChangesNoBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Filed plain(0, dtype, {}), with(1, dtype, {});
    SumOfMasters seen(with.buffers());
    for (int step = 0; step < 3; ++step) {
      ASSERT_THAT(plain.Step(step), IsOk());
      ASSERT_THAT(with.Step(step, &seen), IsOk());
    }
    EXPECT_EQ(with.Bits(), plain.Bits());
    EXPECT_EQ(seen.elements_, 3 * (70 + 77 + 5 + 130));
    EXPECT_NE(seen.sum_, 0);
  }
}

// A thousand faults: a step either has the bits of a disk without faults, or fails with the file
// and the offset.
TEST(OptimizerInFileTest, FaultsAreToldOrChangeNoBits) {
  constexpr int kSteps = 3;
  Filed plain(0, DType::kBFloat16, {});
  std::vector<std::string> expected = {plain.Bits()};
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_THAT(plain.Step(step), IsOk());
    expected.push_back(plain.Bits());
  }
  std::mt19937 random(7);
  int faults = 0, failed = 0, whole = 0;
  while (faults < 1000) {
    bool faulty = true;
    Filed model(1, DType::kBFloat16, {}, [&](const Block& block) -> int64_t {
      if (!faulty || random() % 64 != 0) return block.bytes;
      ++faults;
      switch (random() % 6) {
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
    });
    int done = 0;
    absl::Status status = model.buffers().status();
    while (status.ok() && done < kSteps) {
      status = model.Step(done);
      if (status.ok()) ++done;
    }
    if (status.ok()) {
      faulty = false;
      ++whole;
      ASSERT_EQ(model.Bits(), expected[kSteps]);
    } else {
      ++failed;
      ASSERT_THAT(status.message(), AllOf(HasSubstr(TestPath("model")), HasSubstr("' at ")));
      ASSERT_EQ(model.buffers().status(), status);
    }
  }
  EXPECT_GT(failed, 100);
  EXPECT_GT(whole, 50);
}

}  // namespace
}  // namespace megatron

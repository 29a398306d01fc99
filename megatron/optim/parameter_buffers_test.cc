#include "megatron/optim/parameter_buffers.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

Parameter MakeParameter(const std::string& name, const Sharding& sharding) {
  Parameter parameter;
  parameter.name = name;
  parameter.sharding = sharding;
  parameter.initializer = Initializer::Normal(0.02f);
  return parameter;
}

// The states of AdamW.
const std::vector<OptimizerState> kMoments = {{"exp_avg"}, {"exp_avg_sq"}};

std::vector<float> Floats(const Tensor& tensor) {
  const float* data = tensor.data<float>();
  return std::vector<float>(data, data + tensor.numel());
}

class ParameterBuffersTest : public ::testing::Test {
 protected:
  Parameter* Add(const std::string& name, const Sharding& sharding) {
    owned_.push_back(std::make_unique<Parameter>(MakeParameter(name, sharding)));
    parameters_.push_back(owned_.back().get());
    return owned_.back().get();
  }

  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> parameters_;
  MemoryLedger ledger_;
};

TEST_F(ParameterBuffersTest, LaysParametersOutInReverseAtMultiplesOf64) {
  Add("first", Replicated({10}));
  Add("second", Replicated({2, 65}));
  Add("third", Replicated({64}));
  ParameterBuffers buffers(parameters_, {}, &ledger_);
  ASSERT_EQ(buffers.parameters().size(), 3u);
  EXPECT_EQ(buffers.parameters()[0].parameter->name, "third");
  EXPECT_EQ(buffers.parameters()[0].range.begin, 0);
  EXPECT_EQ(buffers.parameters()[0].range.end, 64);
  EXPECT_EQ(buffers.parameters()[1].parameter->name, "second");
  EXPECT_EQ(buffers.parameters()[1].range.begin, 64);
  EXPECT_EQ(buffers.parameters()[1].range.end, 194);
  EXPECT_EQ(buffers.parameters()[2].parameter->name, "first");
  EXPECT_EQ(buffers.parameters()[2].range.begin, 256);
  EXPECT_EQ(buffers.layout().num_elements, 384);
}

TEST_F(ParameterBuffersTest, TheSizeIsAMultipleOfTheDataParallelRanks) {
  Add("weight", Replicated({10}));
  ParameterBuffersOptions options;
  options.data = {3, 0};
  ParameterBuffers buffers(parameters_, options, &ledger_);
  EXPECT_EQ(buffers.layout().num_elements, 384);
}

TEST_F(ParameterBuffersTest, PutsCopiesOfTiedWeightsFirstAndExpertsLast) {
  Parameter* expert = Add("expert", Replicated({5}));
  expert->sharding.expert_grid = true;
  Add("dense", Replicated({6}));
  Parameter* copy = Add("copy", Replicated({7}));
  copy->tied = true;
  copy->owner = false;
  Parameter* owner = Add("owner", Replicated({8}));
  owner->tied = true;
  ParameterBuffersOptions options;
  options.model_dtype = DType::kBFloat16;
  options.states = kMoments;
  ParameterBuffers buffers(parameters_, options, &ledger_);
  EXPECT_EQ(buffers.parameters()[0].parameter, copy);
  EXPECT_EQ(buffers.layout().optimized_begin, 128);
  EXPECT_EQ(buffers.parameters()[1].parameter, owner);
  EXPECT_EQ(buffers.parameters()[1].range.begin, 128);
  EXPECT_EQ(buffers.layout().experts_begin, 256);
  EXPECT_EQ(buffers.parameters()[3].parameter, expert);
  EXPECT_EQ(buffers.layout().num_elements, 384);
  EXPECT_EQ(buffers.weights().numel(), 384);
  EXPECT_EQ(ledger_.AtPeak()["master weights"], 256 * 4);
  EXPECT_EQ(ledger_.AtPeak()["exp_avg"], 256 * 4);
  EXPECT_EQ(buffers.States().size(), 3u);
}

TEST_F(ParameterBuffersTest, BindsDataAndGradientToTheFlatMemory) {
  Parameter* weight = Add("weight", Replicated({2, 3}));
  Add("bias", Replicated({3}));
  ParameterBuffers buffers(parameters_, {}, &ledger_);
  EXPECT_EQ(weight->data.shape(), Shape({2, 3}));
  EXPECT_EQ(weight->grad.shape(), Shape({2, 3}));
  const int64_t begin = buffers.parameters()[1].range.begin;
  EXPECT_EQ(weight->data.raw(), buffers.weights().data<float>() + begin);
  EXPECT_EQ(weight->grad.raw(), buffers.gradients().data<float>() + begin);
}

TEST_F(ParameterBuffersTest, Fp32WeightsAreTheirOwnMasters) {
  Parameter* weight = Add("weight", Replicated({2, 3}));
  ParameterBuffersOptions options;
  options.states = kMoments;
  ParameterBuffers buffers(parameters_, options, &ledger_);
  EXPECT_FALSE(buffers.has_masters());
  ASSERT_EQ(buffers.States().size(), 1u);
  EXPECT_EQ(buffers.States()[0].master.raw(), weight->data.raw());
  EXPECT_THAT(ledger_.AtPeak(), ElementsAre(Pair("exp_avg", 512), Pair("exp_avg_sq", 512),
                                            Pair("gradients", 512), Pair("weights", 512)));
}

TEST_F(ParameterBuffersTest, StatesHaveTheElementsOfTheBlock) {
  Parameter* weight = Add("weight", SplitOverTensor({4, 3}, 0, 2, 1));
  ParameterBuffersOptions options;
  options.model_dtype = DType::kFloat16;
  options.states = {{"momentum_buffer"}};
  ParameterBuffers buffers(parameters_, options, &ledger_);
  const std::vector<ParameterState> states = buffers.States();
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].parameter, weight);
  EXPECT_EQ(states[0].master.dtype(), DType::kFloat32);
  EXPECT_EQ(states[0].range.begin, 0);
  EXPECT_EQ(states[0].range.end, 6);
  EXPECT_EQ(states[0].master.shape(), Shape({6}));
  ASSERT_EQ(states[0].states.size(), 1u);
  EXPECT_EQ(states[0].states[0].shape(), Shape({6}));
  EXPECT_EQ(ledger_.AtPeak()["momentum_buffer"], 128 * 4);
  EXPECT_EQ(weight->data.dtype(), DType::kFloat16);
  EXPECT_EQ(weight->grad.dtype(), DType::kFloat32);
}

TEST_F(ParameterBuffersTest, ShardedStatesCoverEachElementOnceAndStartFromTheSameWeights) {
  ThreadPool pool(2);
  constexpr int kRanks = 3;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    ParameterBuffersOptions options;
    options.model_dtype = dtype;
    options.states = kMoments;
    Parameter weight = MakeParameter("weight", Replicated({23, 31}));
    Parameter bias = MakeParameter("bias", Replicated({31}));
    ParameterBuffers whole({&weight, &bias}, options, &ledger_);
    whole.InitializeWeights(3, Stream::Cpu(&pool));
    const std::vector<ParameterState> all = whole.States();
    ASSERT_EQ(all[0].parameter, &weight);
    int64_t covered = 0, bytes = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      Parameter same_weight = MakeParameter("weight", Replicated({23, 31}));
      Parameter same_bias = MakeParameter("bias", Replicated({31}));
      options.sharding = DataSharding::kStates;
      options.data = {kRanks, rank};
      MemoryLedger ledger;
      ParameterBuffers part({&same_weight, &same_bias}, options, &ledger);
      part.InitializeWeights(3, Stream::Cpu(&pool));
      EXPECT_EQ(std::memcmp(same_weight.data.raw(), weight.data.raw(), weight.data.bytes()), 0);
      for (const ParameterState& state : part.States()) {
        const Tensor& want = all[state.parameter == &same_weight ? 0 : 1].master;
        EXPECT_EQ(Floats(state.master), Floats(want.Slice(0, state.range.begin, state.range.end)));
        covered += state.range.size();
      }
      bytes += ledger.AtPeak()["exp_avg"];
    }
    EXPECT_EQ(covered, 23 * 31 + 31);
    EXPECT_EQ(bytes, 960 * 4);  // 31 and 713 elements at multiples of 64, to a multiple of 192
    options = {};
  }
}

TEST_F(ParameterBuffersTest, AStateHasItsOwnTypeAndDevice) {
  Add("weight", Replicated({100}));
  ParameterBuffersOptions options;
  options.device = {DeviceType::kMeta, 0};
  options.states = {{"first"}, {"second", DType::kBFloat16, Device()}};
  ParameterBuffers buffers(parameters_, options, &ledger_);
  const ParameterState state = buffers.States()[0];
  EXPECT_EQ(state.states[0].dtype(), DType::kFloat32);
  EXPECT_EQ(state.states[0].device().type, DeviceType::kMeta);
  EXPECT_EQ(state.states[1].dtype(), DType::kBFloat16);
  EXPECT_EQ(state.states[1].device().type, DeviceType::kCpu);
  EXPECT_EQ(state.states[1].shape(), Shape({100}));
  EXPECT_EQ(ToFloat(state.states[1].data<BFloat16>()[99]), 0);
  EXPECT_EQ(buffers.state(1).bytes(), 128 * 2);
}

TEST_F(ParameterBuffersTest, TheMetaDeviceCountsTheBytesThatARealDeviceTakes) {
  Add("weight", Replicated({37, 29}));
  Add("bias", Replicated({37}));
  ParameterBuffersOptions options;
  options.model_dtype = DType::kBFloat16;
  options.states = kMoments;
  MemoryLedger planned;
  {
    options.device = {DeviceType::kMeta, 0};
    ParameterBuffers buffers(parameters_, options, &planned);
    buffers.InitializeWeights(1, Stream::Meta());
    buffers.ZeroGradients(Stream::Meta());
    EXPECT_EQ(parameters_[0]->data.raw(), nullptr);
    EXPECT_EQ(parameters_[0]->data.shape(), Shape({37, 29}));
    EXPECT_EQ(buffers.States()[0].states[1].raw(), nullptr);
  }
  options.device = {};
  ParameterBuffers buffers(parameters_, options, &ledger_);
  EXPECT_EQ(ledger_.AtPeak(), planned.AtPeak());
  EXPECT_EQ(ledger_.peak_bytes(), buffers.layout().num_elements * (2 + 4 + 4 + 4 + 4));
  EXPECT_EQ(planned.current_bytes(), 0);
}

TEST_F(ParameterBuffersTest, InitialWeightsDoNotDependOnThreads) {
  Parameter* weight = Add("weight", Replicated({300, 701}));  // several pieces
  Parameter* bias = Add("bias", Replicated({300}));
  bias->initializer = Initializer::Ones();
  ParameterBuffers buffers(parameters_, {}, &ledger_);
  std::vector<float> expected(300 * 701);
  FillInitial(*weight, 7, Tensor(expected.data(), DType::kFloat32, {300, 701}));
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    buffers.InitializeWeights(7, Stream::Cpu(&pool));
    EXPECT_EQ(Floats(weight->data), expected) << threads;
    EXPECT_THAT(Floats(bias->data), ::testing::Each(1.0f));
  }
}

TEST_F(ParameterBuffersTest, BlocksOfAShardedWeightStartAsSlicesOfTheWholeWeight) {
  ThreadPool pool(2);
  Parameter* whole = Add("weight", Replicated({4, 6}));
  ParameterBuffers buffers(parameters_, {}, &ledger_);
  buffers.InitializeWeights(7, Stream::Cpu(&pool));
  for (int part = 0; part < 2; ++part) {
    Parameter block = MakeParameter("weight", SplitOverTensor({4, 6}, 1, 2, part));
    ParameterBuffers block_buffers({&block}, {}, &ledger_);
    block_buffers.InitializeWeights(7, Stream::Cpu(&pool));
    for (int row = 0; row < 4; ++row) {
      EXPECT_EQ(Floats(block.data.Select(0, row)),
                Floats(whole->data.Select(0, row).Slice(0, part * 3, part * 3 + 3)));
    }
  }
}

TEST_F(ParameterBuffersTest, SixteenBitWeightsAreTheRoundedMasters) {
  ThreadPool pool(2);
  Parameter* weight = Add("weight", Replicated({40, 30}));
  ParameterBuffersOptions options;
  options.model_dtype = DType::kBFloat16;
  ParameterBuffers buffers(parameters_, options, &ledger_);
  buffers.InitializeWeights(3, Stream::Cpu(&pool));
  std::vector<float> expected(1200);
  FillInitial(*weight, 3, Tensor(expected.data(), DType::kFloat32, {40, 30}));
  EXPECT_EQ(Floats(buffers.States()[0].master), expected);
  const BFloat16* rounded = weight->data.data<BFloat16>();
  for (int i = 0; i < 1200; ++i) EXPECT_EQ(rounded[i].bits, ToBFloat16(expected[i]).bits) << i;

  buffers.States()[0].master.data<float>()[17] = 2;  // values as if loaded
  buffers.CopyMastersToWeights(Stream::Cpu(&pool));
  EXPECT_EQ(ToFloat(rounded[17]), 2);
}

TEST_F(ParameterBuffersTest, ACopyOfATiedWeightStartsAsItsOwner) {
  ThreadPool pool(2);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Parameter owner = MakeParameter("embedding", Replicated({50, 8}));
    owner.tied = true;
    Parameter copy = owner;
    copy.owner = false;
    Parameter other = MakeParameter("other", Replicated({9}));
    ParameterBuffersOptions options;
    options.model_dtype = dtype;
    ParameterBuffers first({&owner, &other}, options, &ledger_);
    first.InitializeWeights(5, Stream::Cpu(&pool));
    ParameterBuffers last({&copy}, options, &ledger_);
    last.InitializeWeights(5, Stream::Cpu(&pool));
    EXPECT_EQ(std::memcmp(owner.data.raw(), copy.data.raw(), owner.data.bytes()), 0) << dtype;
    EXPECT_TRUE(last.States().empty());
  }
}

TEST_F(ParameterBuffersTest, ZeroGradientsClearsAllOfThem) {
  ThreadPool pool(2);
  Parameter* weight = Add("weight", Replicated({5, 5}));
  ParameterBuffers buffers(parameters_, {}, &ledger_);
  for (int i = 0; i < 25; ++i) weight->grad.data<float>()[i] = i;
  buffers.ZeroGradients(Stream::Cpu(&pool));
  EXPECT_THAT(Floats(weight->grad), ::testing::Each(0.0f));
}

}  // namespace
}  // namespace megatron

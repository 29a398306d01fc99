#include "megatron/comm/process_group.h"

#include <array>

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron {
namespace {

using Values = std::array<float, 4>;

Tensor Over(Values* values) { return Tensor(values->data(), DType::kFloat32, {4}); }

TEST(ProcessGroupTest, OneRankAloneIsTheIdentity) {
  ThreadPool pool(1);
  const Stream stream = Stream::Cpu(&pool);
  const ProcessGroup alone;
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.rank(), 0);
  const Values expected = {1, 2, 3, 4};
  Values in = expected;
  alone.AllReduce(Over(&in), ReduceOp::kSum, stream);
  alone.Broadcast(Over(&in), 0, stream);
  alone.Barrier(stream);
  alone.Exchange({}, {}, stream);
  EXPECT_EQ(in, expected);

  Values gathered = {}, scattered = {}, exchanged = {}, uneven = {};
  alone.AllGather(Over(&in), Over(&gathered), stream);
  alone.ReduceScatter(Over(&in), Over(&scattered), stream);
  alone.AllToAll(Over(&in), Over(&exchanged), stream);
  alone.AllToAllV(Over(&in), {4}, Over(&uneven), {4}, stream);
  EXPECT_EQ(gathered, expected);
  EXPECT_EQ(scattered, expected);
  EXPECT_EQ(exchanged, expected);
  EXPECT_EQ(uneven, expected);
  EXPECT_THAT(alone.status(), absl_testing::IsOk());
}

TEST(ProcessGroupTest, PlanningGroupsDoNothingOnMetaStreams) {
  const ProcessGroup group = ProcessGroup::ForPlanning(1024, 7, "dp-0");
  EXPECT_EQ(group.size(), 1024);
  EXPECT_EQ(group.rank(), 7);
  EXPECT_EQ(group.name(), "dp-0");
  const Stream stream = Stream::Meta();
  const Tensor part(nullptr, DType::kBFloat16, {2, 3}, stream.device());
  const Tensor whole(nullptr, DType::kBFloat16, {2048, 3}, stream.device());
  group.AllReduce(part, ReduceOp::kSum, stream);
  group.AllGather(part, whole, stream);
  group.ReduceScatter(whole, part, stream);
  group.AllToAll(whole, whole, stream);
  EXPECT_THAT(group.status(), absl_testing::IsOk());
}

TEST(ProcessGroupDeathTest, ShapesThatDoNotFitAreOurBugs) {
  const ProcessGroup group = ProcessGroup::ForPlanning(4, 0, "tp-0");
  const Stream stream = Stream::Meta();
  const auto meta = [&](const Shape& shape) {
    return Tensor(nullptr, DType::kFloat32, shape, stream.device());
  };
  EXPECT_DEATH(group.AllGather(meta({2, 3}), meta({8, 4}), stream), "8, 4");
  EXPECT_DEATH(group.AllGather(meta({2, 3}), meta({6, 3}), stream), "6, 3");
  EXPECT_DEATH(group.ReduceScatter(meta({9}), meta({2}), stream), "9");
  EXPECT_DEATH(group.AllToAll(meta({6}), meta({6}), stream), "6");
  EXPECT_DEATH(group.AllToAllV(meta({4}), {1, 1, 1}, meta({4}), {1, 1, 1, 1}, stream), "3 vs. 4");
  EXPECT_DEATH(group.Broadcast(meta({4}), 4, stream), "4 of 4");
  EXPECT_DEATH(group.Exchange({{0, meta({4})}}, {}, stream), "0 of 4, from 0");
  EXPECT_DEATH(group.AllReduce(meta({4, 4}).Slice(1, 0, 2), ReduceOp::kSum, stream), "contiguous");
}

TEST(ProcessGroupDeathTest, PlanningGroupsRefuseToRun) {
  ThreadPool pool(1);
  Values values = {};
  EXPECT_DEATH(ProcessGroup::ForPlanning(2, 0, "tp-0")
                   .AllReduce(Over(&values), ReduceOp::kSum, Stream::Cpu(&pool)),
               "for planning only");
}

}  // namespace
}  // namespace megatron

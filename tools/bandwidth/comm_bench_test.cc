#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/thread/run_ranks.h"
#include "nlohmann/json.hpp"
#include "tools/bandwidth/comm_bench_measure.h"
#include "tools/bandwidth/comm_bench_report.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CommBenchTest, EveryOperationIsRightInEveryType) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32,
                      DType::kInt64, DType::kUInt8, DType::kUInt16}) {
    CommBenchOptions options;
    options.sizes = {0, 8, 1000, 100000};
    options.dtype = dtype;
    options.root = 1;
    options.iterations = 2;
    const absl::Status status = RunRanks(3, [&](int rank, const ProcessGroup& world) {
      ThreadPool pool(1);
      for (BenchOperation operation : kBenchOperations) {
        const auto result = MeasureCollective(operation, options, world, Stream::Cpu(&pool));
        if (!result.ok()) return result.status();
        EXPECT_EQ(result->rows.size(), options.sizes.size());
        EXPECT_EQ(result->wrong(), 0) << Name(operation) << " of " << Name(dtype);
        for (const CommBenchRow& row : result->rows) {
          EXPECT_TRUE(row.in_place.has_value() || row.out_of_place.has_value());
        }
      }
      return world.status();
    });
    EXPECT_THAT(status, IsOk());
  }
}

// nccl-tests' sizes: an all-gather of 4096 bytes over 4 ranks takes 256 fp32 elements from each.
TEST(CommBenchTest, SizesAndCountsAreThoseOfNcclTests) {
  CommBenchOptions options;
  options.sizes = {4096};
  options.iterations = 1;
  const absl::Status status = RunRanks(4, [&](int rank, const ProcessGroup& world) {
    ThreadPool pool(1);
    for (BenchOperation operation : kBenchOperations) {
      const auto result = MeasureCollective(operation, options, world, Stream::Cpu(&pool));
      if (!result.ok()) return result.status();
      const bool parts = operation == BenchOperation::kAllGather ||
                         operation == BenchOperation::kReduceScatter ||
                         operation == BenchOperation::kAllToAll;
      EXPECT_EQ(result->rows[0].size, 4096) << Name(operation);
      EXPECT_EQ(result->rows[0].count, parts ? 256 : 1024) << Name(operation);
      const auto& row = result->rows[0];
      const auto& timing = row.in_place.has_value() ? row.in_place : row.out_of_place;
      EXPECT_NEAR(timing->algbw, 4096 / timing->microseconds / 1e3, 1e-9);
      EXPECT_NEAR(timing->busbw, timing->algbw * BusBandwidthFactor(operation, 4), 1e-9);
    }
    return world.status();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(CommBenchTest, BusBandwidthCountsWhatALinkCarries) {
  EXPECT_DOUBLE_EQ(BusBandwidthFactor(BenchOperation::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusBandwidthFactor(BenchOperation::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusBandwidthFactor(BenchOperation::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusBandwidthFactor(BenchOperation::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusBandwidthFactor(BenchOperation::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(BusBandwidthFactor(BenchOperation::kSendRecv, 4), 1);
}

TEST(CommBenchTest, ReadsSizes) {
  EXPECT_THAT(ParseByteSize("8"), IsOkAndHolds(8));
  EXPECT_THAT(ParseByteSize("64K"), IsOkAndHolds(65536));
  EXPECT_THAT(ParseByteSize("1.5m"), IsOkAndHolds(3 << 19));
  EXPECT_THAT(ParseByteSize("2G"), IsOkAndHolds(int64_t{2} << 30));
  for (const char* wrong : {"", "K", "x", "-1", "8B", "1e30", "nan"}) {
    EXPECT_THAT(ParseByteSize(wrong).status(), StatusIs(absl::StatusCode::kInvalidArgument))
        << wrong;
  }
  EXPECT_THAT(SizesBetween(8, 64, 2), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(SizesBetween(1, 2, 1.1), ElementsAre(1, 2));
  EXPECT_THAT(SizesBetween(10, 99, 10), ElementsAre(10));
}

CommBenchResult Sample() {
  CommBenchResult result;
  result.operation = BenchOperation::kAllGather;
  result.ranks = 4;
  CommBenchRow row;
  row.size = 1 << 20;
  row.count = 1 << 16;
  row.out_of_place = {123.456, 8.4935, 6.3701, 0};
  row.in_place = {1234.56, 0.84935, 0.63701, 2};
  result.rows = {row};
  row.size = 4 << 20;
  row.count = 4 << 16;
  row.in_place.reset();
  row.out_of_place->wrong.reset();
  result.rows.push_back(row);
  return result;
}

TEST(CommBenchTest, PrintsNcclTestsTable) {
  const std::string table = CommBenchTable(Sample());
  EXPECT_THAT(table, HasSubstr("      1048576         65536      fp32    none      -1    123.46    "
                               "8.49    6.37       0    1234.6    0.85    0.64       2\n"));
  EXPECT_THAT(table, HasSubstr("6.37     N/A         -       -       -       -\n"));
  EXPECT_THAT(table, HasSubstr("# Out of bounds values : 2 FAILED\n"));
  EXPECT_THAT(table, HasSubstr("# Avg bus bandwidth    : 4.459\n"));
}

TEST(CommBenchTest, WritesJson) {
  const nlohmann::json json = nlohmann::json::parse(CommBenchJson("tcp", {Sample()}));
  EXPECT_EQ(json["backend"], "tcp");
  const nlohmann::json& result = json["results"][0];
  EXPECT_EQ(result["operation"], "all_gather");
  EXPECT_EQ(result["ranks"], 4);
  EXPECT_EQ(result["rows"][0]["in_place"]["wrong"], 2);
  EXPECT_DOUBLE_EQ(result["rows"][0]["out_of_place"]["busbw_gbps"], 6.3701);
  EXPECT_TRUE(result["rows"][1]["in_place"].is_null());
}

TEST(CommBenchTest, HierarchicalResultsAreNamedByHosts) {
  CommBenchResult levels = Sample();
  levels.ranks_per_host = 2;
  EXPECT_THAT(CommBenchTable(levels), HasSubstr("# all_gather, 2 x 2 ranks\n"));
  EXPECT_THAT(CommBenchSvg("", {levels}), HasSubstr("all_gather, 2 x 2 ranks"));
  const nlohmann::json json = nlohmann::json::parse(CommBenchJson("tcp", {Sample(), levels}));
  EXPECT_FALSE(json["results"][0].contains("ranks_per_host"));
  EXPECT_EQ(json["results"][1]["ranks_per_host"], 2);
}

TEST(CommBenchTest, AnAlgorithmIsNamedUnlessItIsTheMesh) {
  CommBenchResult ring = Sample();
  ring.algorithm = CollectiveAlgorithm::kRing;
  EXPECT_THAT(CommBenchTable(ring), HasSubstr("# all_gather, 4 ranks, ring\n"));
  EXPECT_THAT(CommBenchSvg("", {ring}), HasSubstr("all_gather, 4 ranks, ring"));
  const nlohmann::json json = nlohmann::json::parse(CommBenchJson("tcp", {Sample(), ring}));
  EXPECT_FALSE(json["results"][0].contains("algorithm"));
  EXPECT_EQ(json["results"][1]["algorithm"], "ring");
}

TEST(CommBenchTest, DrawsALineForEachOperation) {
  CommBenchResult other = Sample();
  other.operation = BenchOperation::kBroadcast;
  const std::string svg = CommBenchSvg("a < b", {Sample(), other});
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("all_gather, 4 ranks"));
  EXPECT_THAT(svg, HasSubstr("broadcast, 4 ranks"));
  EXPECT_THAT(svg, HasSubstr(">1M<"));
  EXPECT_TRUE(absl::EndsWith(svg, "</svg>\n"));
  EXPECT_THAT(CommBenchSvg("", {}), HasSubstr("no data"));
}

}  // namespace
}  // namespace megatron

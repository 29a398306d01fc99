#include "megatron/plan/measured_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

absl::StatusOr<MeasuredKernels> Parsed(const std::string& rows) {
  const auto table = ParseCsv("gpu,kernel,pass,m,n,k,share_of_peak\n" + rows);
  if (!table.ok()) return table.status();
  return MeasuredKernels::Parse(*table);
}

TEST(MeasuredKernelsTest, AMeasuredShapeHasItsShare) {
  const auto table = ParseCsv(BuiltInMeasuredKernels());
  ASSERT_TRUE(table.ok()) << table.status();
  const auto kernels = MeasuredKernels::Parse(*table);
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  const auto share = kernels->ShareOfPeak("B200", {"product", "forward", 4096, 10240, 8192});
  ASSERT_TRUE(share.has_value());
  EXPECT_NEAR(*share, 0.6452, 1e-9);
}

// docs/planning.md has these errors.
TEST(MeasuredKernelsTest, AShapeThatIsLeftOutIsFoundFromItsNeighbours) {
  const auto all = ParseCsv(BuiltInMeasuredKernels());
  ASSERT_TRUE(all.ok()) << all.status();
  std::map<std::string, std::vector<double>> errors;
  for (size_t i = 0; i < all->rows.size(); ++i) {
    CsvTable others = *all;
    others.rows.erase(others.rows.begin() + i);
    const auto kernels = MeasuredKernels::Parse(others);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    const std::vector<std::string>& row = all->rows[i];
    const auto number = [&](size_t column) {
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(row[column], &value)) << row[column];
      return value;
    };
    const auto share =
        kernels->ShareOfPeak(row[0], {row[1], row[2], number(3), number(4), number(5)});
    if (share.has_value()) errors[row[1]].push_back(std::abs(*share / number(6) - 1));
  }
  const auto median = [&](const char* kernel) {
    std::vector<double>& of_kernel = errors[kernel];
    std::sort(of_kernel.begin(), of_kernel.end());
    return of_kernel.empty() ? 1 : of_kernel[of_kernel.size() / 2];
  };
  EXPECT_EQ(errors["product"].size(), 432);
  EXPECT_LE(median("product"), 0.046);
  EXPECT_LE(median("grouped"), 0.096);
  EXPECT_LE(median("attention"), 0.119);
}

TEST(MeasuredKernelsTest, SecondsBetweenMeasuredProductsAreLinearInEachSize) {
  const auto parsed = Parsed(
      "G,grouped,forward,20,8,1,0.25\n"
      "G,grouped,forward,80,8,1,0.4\n"
      "G,grouped,forward,20,32,1,0.5\n"
      "G,grouped,forward,80,32,1,0.8\n");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto share = [&](double m, double n) {
    return *parsed->ShareOfPeak("G", {"grouped", "forward", m, n, 1});
  };
  // The four take 640, 1600, 1280 and 3200, where the peak is 1.
  EXPECT_NEAR(50 * 8 / share(50, 8), 1120, 1e-6);
  EXPECT_NEAR(20 * 14 / share(20, 14), 640 + 640 * 0.25, 1e-6);
  EXPECT_NEAR(35 * 20 / share(35, 20), (640 * 3 + 1600 + 1280 * 3 + 3200) / 8.0, 1e-6);
  EXPECT_NEAR(share(80, 32), 0.8, 1e-12);
  // Beside the measured sizes, and where a corner is missing, the nearest shapes count.
  EXPECT_GT(share(19, 8), 0.25);
  const auto open = Parsed(
      "G,grouped,forward,20,8,1,0.25\n"
      "G,grouped,forward,80,8,1,0.4\n"
      "G,grouped,forward,20,32,1,0.5\n");
  ASSERT_TRUE(open.ok()) << open.status();
  const double near = *open->ShareOfPeak("G", {"grouped", "forward", 40, 16, 1});
  EXPECT_NEAR(near, (0.25 + 0.4 + 0.5) / 3, 1e-9);
}

TEST(MeasuredKernelsTest, AttentionBetweenTwoHasTheirMean) {
  const auto kernels = Parsed(
      "G,attention,forward,100,64,64,0.4\n"
      "G,attention,forward,400,64,64,0.6\n"
      "G,attention,input_gradient,200,64,64,0.1\n");
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_NEAR(*kernels->ShareOfPeak("G", {"attention", "forward", 200, 64, 64}), 0.5, 1e-9);
  // ln 4/2 and ln 4/2 + ln 1.5 away: weights are the inverse squares.
  const double near = *kernels->ShareOfPeak("G", {"attention", "forward", 133.333333, 64, 64});
  const double a = 1 / (0.287682 * 0.287682);
  const double b = 1 / (1.098612 * 1.098612);
  EXPECT_NEAR(near, (0.4 * a + 0.6 * b) / (a + b), 1e-4);
}

TEST(MeasuredKernelsTest, WhatIsFarFromAllHasNone) {
  const auto kernels = Parsed("G,product,forward,100,64,64,0.4\n");
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_FALSE(kernels->ShareOfPeak("G", {"product", "forward", 401, 64, 64}).has_value());
  EXPECT_FALSE(kernels->ShareOfPeak("G", {"grouped", "forward", 100, 64, 64}).has_value());
  EXPECT_FALSE(kernels->ShareOfPeak("H", {"product", "forward", 100, 64, 64}).has_value());
}

TEST(MeasuredKernelsTest, ErrorsNameTheRow) {
  for (const char* row : {"G,products,forward,1,1,1,0.5", "G,product,back,1,1,1,0.5",
                          "G,product,forward,0,1,1,0.5", "G,product,forward,1,x,1,0.5",
                          "G,product,forward,1,1,1,0", "G,product,forward,1,1,1,nan"}) {
    const auto kernels = Parsed(std::string("G,product,forward,1,1,1,0.5\n") + row + "\n");
    ASSERT_FALSE(kernels.ok()) << row;
    EXPECT_EQ(kernels.status().message().substr(0, 6), "row 2:") << kernels.status();
  }
}

}  // namespace
}  // namespace megatron

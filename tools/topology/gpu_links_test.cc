#include "tools/topology/gpu_links.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kPairs[] =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV4\tPHB\tSYS\tPIX\tSYS\t0-23\t0\n"
    "GPU1\tNV4\t X \tSYS\tPHB\tPIX\tSYS\t0-23\t0\n"
    "GPU2\tPHB\tSYS\t X \tNV4\tSYS\tPIX\t0-23\t0\n"
    "GPU3\tSYS\tPHB\tNV4\t X \tSYS\tPIX\t0-23\t0\n"
    "NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS\n"
    "NIC1\tSYS\tSYS\tPIX\tPIX\tSYS\t X \n"
    "\nLegend:\n\n  X    = Self\n";

// Returns the table of `gpus` GPUs, each joined to each by `link`, with spaces for tabs.
std::string Alike(int gpus, const std::string& link) {
  std::string text = " ";
  for (int i = 0; i < gpus; ++i) absl::StrAppend(&text, "  GPU", i);
  absl::StrAppend(&text, "  CPU Affinity\r\n");
  for (int i = 0; i < gpus; ++i) {
    absl::StrAppend(&text, "GPU", i);
    for (int j = 0; j < gpus; ++j) absl::StrAppend(&text, "  ", i == j ? "X" : link);
    absl::StrAppend(&text, "  0-7\r\n");
  }
  return text;
}

TEST(GpuLinksTest, ReadsTheTable) {
  const auto links = ParseGpuLinks(kPairs);
  ASSERT_THAT(links, IsOk());
  EXPECT_EQ(links->gpus, 4);
  EXPECT_EQ(links->network_cards, 2);
  EXPECT_EQ(links->between[1][0], "NV4");
  EXPECT_EQ(links->between[1][2], "SYS");
}

TEST(GpuLinksTest, ADomainIsNeighboursThatNvlinkJoins) {
  EXPECT_EQ(ParseGpuLinks(kPairs)->Domain(), 2);
  EXPECT_EQ(ParseGpuLinks(Alike(8, "NV18"))->Domain(), 8);
  EXPECT_EQ(ParseGpuLinks(Alike(8, "PIX"))->Domain(), 1);
  EXPECT_EQ(ParseGpuLinks(Alike(1, ""))->Domain(), 1);
}

TEST(GpuLinksTest, NamesTheLineThatIsWrong) {
  const std::string good = kPairs;
  const struct {
    std::string text, error;
  } cases[] = {
      {"", "no header"},
      {"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
       "no header"},
      {good.substr(0, good.find("GPU2\tPHB")), "line 4: expects the row of 'GPU2'"},
      {good.substr(0, good.find("\tSYS\t0-23\t0\nGPU2")), "line 3: has 5 of 6 cells"},
      {"\tGPU0\tNIC0\tGPU1\nGPU0\tX\tPIX\tNV1\n", "line 1: GPUs stand before"},
      {"\tGPU0\nGPU0\tNV1\n", "line 2: 'GPU0' has no X"},
      {Alike(300, "NV1"), "more than 256 devices"},
  };
  for (const auto& each : cases) {
    EXPECT_THAT(ParseGpuLinks(each.text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(each.error)));
  }
}

}  // namespace
}  // namespace megatron

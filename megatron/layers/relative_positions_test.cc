#include "megatron/layers/relative_positions.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

// Lines of buckets, max_distance, bidirectional, and the rows of distances [-max_distance - 3,
// max_distance + 3]: models/huggingface/testdata/hf/make_goldens.py.
TEST(RelativeBucketTest, IsHuggingFaces) {
  std::ifstream file("megatron/layers/testdata/t5_buckets.txt");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int lines = 0;
  for (; std::getline(file, line); ++lines) {
    std::istringstream numbers(line);
    RelativePositionOptions options;
    int64_t bidirectional = 0, want = 0;
    numbers >> options.buckets >> options.max_distance >> bidirectional;
    const int64_t reach = options.max_distance + 3;
    for (int64_t distance = -reach; distance <= reach; ++distance) {
      ASSERT_TRUE(numbers >> want);
      EXPECT_EQ(RelativeBucket(options, /*causal=*/bidirectional == 0, distance), want)
          << options.buckets << " " << options.max_distance << ": " << distance;
    }
  }
  EXPECT_EQ(lines, 6);
}

}  // namespace
}  // namespace megatron

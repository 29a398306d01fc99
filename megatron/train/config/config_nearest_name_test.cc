#include "megatron/train/config/config_nearest_name.h"

#include <algorithm>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(EditDistanceTest, CountsSlipsOfTheFinger) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("lr", ""), 2);
  EXPECT_EQ(EditDistance("num_layer", "num_layers"), 1);   // left out
  EXPECT_EQ(EditDistance("num_layesr", "num_layers"), 1);  // swapped
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(NearestNameTest, FindsWhatWasMeant) {
  EXPECT_EQ(NearestName("num_layer", {"hidden_size", "num_layers"}), "num_layers");
  EXPECT_EQ(NearestName("Num-Layers", {"hidden_size", "num_layers"}), "num_layers");
  EXPECT_EQ(NearestName("rmsnorm", {"LayerNorm", "RMSNorm"}), "RMSNorm");
}

// What is passed over without a look at the order of letters must be too far away with it as well.
TEST(NearestNameTest, FindsAllThatAreNear) {
  std::mt19937 random(1);
  const auto name = [&](size_t letters) {
    std::string text;
    for (size_t i = 0; i < letters; ++i) text += static_cast<char>('a' + random() % 4);
    return text;
  };
  int near = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string wanted = name(1 + random() % 12), known = name(1 + random() % 12);
    const int limit = std::max<int>(1, static_cast<int>(std::max(wanted.size(), known.size())) / 3);
    const bool is_near = EditDistance(wanted, known) <= limit;
    near += static_cast<int>(is_near);
    ASSERT_EQ(NearestName(wanted, {known}), is_near ? known : "") << wanted;
  }
  EXPECT_GT(near, 100);
}

TEST(NearestNameTest, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(NearestName("dropout", {"num_layers", "hidden_size"}), "");
  EXPECT_EQ(NearestName(std::string(1000, 'a'), {"num_layers"}), "");
  EXPECT_EQ(NearestName("lr", {}), "");
}

}  // namespace
}  // namespace megatron

#include "megatron/train/config/config_nearest_name.h"

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

TEST(NearestNameTest, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(NearestName("dropout", {"num_layers", "hidden_size"}), "");
  EXPECT_EQ(NearestName(std::string(1000, 'a'), {"num_layers"}), "");
  EXPECT_EQ(NearestName("lr", {}), "");
}

}  // namespace
}  // namespace megatron

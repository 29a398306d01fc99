#include "megatron/train/metrics/run_hparams.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::VariantWith;

TEST(RunHparamsTest, AreTheValuesThatAreNotDefaults) {
  EXPECT_THAT(HparamsOf("model { num_layers: 4 add_bias_linear: true }"
                        " parallel { sequence_parallel: true }"
                        " optimizer { lr: 3e-4 optimizer: lion adam_beta1: 0.9 }"
                        " logging { metrics_file: \"x\" }"),
              ElementsAre(Pair("model.num_layers", VariantWith<double>(4)),
                          Pair("parallel.sequence_parallel", VariantWith<bool>(true)),
                          Pair("optimizer.optimizer", VariantWith<std::string>("lion")),
                          Pair("optimizer.lr", VariantWith<double>(3e-4))));
}

TEST(RunHparamsTest, ATextThatIsNoConfigurationHasNone) {
  EXPECT_THAT(HparamsOf("my diary"), IsEmpty());
  EXPECT_THAT(HparamsOf(""), IsEmpty());
}

}  // namespace
}  // namespace megatron

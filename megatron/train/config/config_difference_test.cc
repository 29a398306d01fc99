#include "megatron/train/config/config_difference.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;

constexpr char kText[] = R"(model {
  num_layers: 2
  hidden_size: 8
  model_type: gpt
}
data {
  data_path: "a"
  data_path: "b"
  stories {
    seed: 1
  }
}
data fingerprint: 1: x
)";

TEST(ConfigDifferenceTest, EqualTextsDifferInNothing) {
  EXPECT_THAT(DifferencesOf(kText, kText), IsEmpty());
}

TEST(ConfigDifferenceTest, DifferencesIgnoreOrderAndListTheModelTypeFirst) {
  constexpr char kOther[] = R"(model {
  num_layers: 2
  ffn_hidden_size: 9
  hidden_size: 4
  model_type: t5
}
data {
  data_path: "a"
  stories {
    seed: 2
  }
}
data fingerprint: 1: y
)";
  EXPECT_THAT(DifferencesOf(kText, kOther),
              ElementsAre(FieldsAre("model.model_type", "gpt", "t5"),
                          FieldsAre("model.hidden_size", "8", "4"),
                          FieldsAre("data.data_path", "\"a\", \"b\"", "\"a\""),
                          FieldsAre("data.stories.seed", "1", "2"),
                          FieldsAre("data fingerprint", "1: x", "1: y"),
                          FieldsAre("model.ffn_hidden_size", "unset", "9")));
}

TEST(ConfigDifferenceTest, TextsThatAreNoConfigurationsAreHarmless) {
  EXPECT_THAT(DifferencesOf("", "}\n}\n\n: \n"), ElementsAre(FieldsAre(":", "unset", "")));
  EXPECT_THAT(DifferencesOf("a {\n", "b"), ElementsAre(FieldsAre("b", "unset", "")));
}

}  // namespace
}  // namespace megatron

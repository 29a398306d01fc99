#include "megatron/tensorboard/summaries.h"

#include <cmath>
#include <limits>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron::tensorboard {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(SummariesTest, ATagIsTheNameIfThatIsShortText) {
  EXPECT_EQ(ToTag("lm loss vs samples"), "lm loss vs samples");
  EXPECT_EQ(ToTag("moe/z_loss_layer_3"), "moe/z_loss_layer_3");
  EXPECT_EQ(ToTag(std::string(kMaxTagBytes, 'x')), std::string(kMaxTagBytes, 'x'));
  EXPECT_EQ(ToTag("a\nb\xff\xc3\xa9"), "a_b___");
}

TEST(SummariesTest, LongNamesHaveTagsOfTheirOwn) {
  const std::string one = ToTag(std::string(5000, 'x')), two = ToTag(std::string(5001, 'x'));
  EXPECT_THAT(one, SizeIs(kMaxTagBytes));
  EXPECT_THAT(two, SizeIs(kMaxTagBytes));
  EXPECT_NE(one, two);
  EXPECT_THAT(one, StartsWith("xxx"));
}

TEST(SummariesTest, AScalarIsAFloat) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ScalarValue("a", 0.1).simple_value(), 0.1f);
  EXPECT_TRUE(std::isnan(ScalarValue("a", std::nan("")).simple_value()));
  for (const double huge : {kInf, 1e39}) {
    EXPECT_EQ(ScalarValue("a", huge).simple_value(), kInf);
    EXPECT_EQ(ScalarValue("a", -huge).simple_value(), -kInf);
  }
  EXPECT_FALSE(ScalarValue("a", 1).has_metadata());
}

// Readers refuse an event whose texts are not UTF-8.
TEST(SummariesTest, TextsAreAscii) {
  EXPECT_EQ(TextValue("a", "x\xff|").tensor().string_val(0), "x_|");
  Summary::Value scalar = ScalarValue("a", 1);
  DescribeScalar("x\xff|", &scalar);
  EXPECT_EQ(scalar.metadata().summary_description(), "x_|");
  EXPECT_EQ(scalar.metadata().plugin_data().plugin_name(), "scalars");
}

TEST(SummariesTest, HyperparametersAreInTheMetadata) {
  const Summary::Value value =
      HparamsValue({{"optimizer.lr", 3e-4}, {"precision.bf16", true}, {"optimizer", "adam"}},
                   "0123456789abcdef", absl::UnixEpoch() + absl::Seconds(7));
  HParamsPluginData data;
  ASSERT_TRUE(data.ParseFromString(value.metadata().plugin_data().content()));
  const SessionStartInfo& session = data.session_start_info();
  EXPECT_EQ(session.hparams().at("optimizer.lr").number_value(), 3e-4);
  EXPECT_TRUE(session.hparams().at("precision.bf16").bool_value());
  EXPECT_EQ(session.hparams().at("optimizer").string_value(), "adam");
  EXPECT_EQ(session.group_name(), "0123456789abcdef");
  EXPECT_EQ(session.start_time_secs(), 7);
}

TEST(SummariesTest, ALayoutNamesTagsExactly) {
  const Summary::Value value =
      LayoutValue("Training", {{"loss", {"lm loss", "lm loss validation"}}, {"x", {"a-b/(c)"}}});
  Layout layout;
  ASSERT_TRUE(layout.ParseFromString(value.tensor().string_val(0)));
  ASSERT_EQ(layout.category(0).chart_size(), 2);
  EXPECT_EQ(layout.category(0).chart(0).multiline().tag(1), "^lm loss validation$");
  EXPECT_EQ(layout.category(0).chart(1).multiline().tag(0), "^a\\-b\\/\\(c\\)$");
}

}  // namespace
}  // namespace megatron::tensorboard

#include "tools/report/run_config.h"

#include <map>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/config/config_text.h"
#include "megatron/train/configs/config_loader.h"

namespace megatron::report {
namespace {

std::map<std::string, ConfigValue> ValuesOf(const std::string& text) {
  std::map<std::string, ConfigValue> values;
  for (const ConfigValue& value : ParseRunConfig(text).values) values[value.path] = value;
  return values;
}

TEST(RunConfigTest, TellsWhatIsNotAsItWouldBeByItself) {
  const auto loaded =
      LoadConfig("gpt_demo", {"optimizer.lr=1e-3", "train.seed=1234", "optimizer.clip_grad=1.0"},
                 ConfigPurpose::kDryRun);
  ASSERT_THAT(loaded, absl_testing::IsOk());
  auto values = ValuesOf(EffectiveConfigText(loaded->config));
  EXPECT_EQ(values["optimizer.lr"].value, "0.001");
  EXPECT_TRUE(values["optimizer.lr"].differs());
  EXPECT_TRUE(values["model.num_layers"].differs());
  // Defaults, and what follows from other fields.
  EXPECT_FALSE(values["optimizer.clip_grad"].differs());
  EXPECT_EQ(values["model.ffn_hidden_size"].value, "512");
  EXPECT_FALSE(values["model.ffn_hidden_size"].differs());
}

TEST(RunConfigTest, AFieldThatIsNotWrittenIsAsItWouldBeByItself) {
  auto values = ValuesOf("model { num_layers: 7 } optimizer { clip_grad: 2 }");
  EXPECT_TRUE(values["model.num_layers"].differs());
  EXPECT_EQ(values["optimizer.clip_grad"].otherwise, "1");
  EXPECT_EQ(values["optimizer.weight_decay"].value, "0.01");
  EXPECT_FALSE(values["optimizer.weight_decay"].differs());
  // A number that follows from other fields has no line as long as nobody writes it.
  EXPECT_EQ(values.count("optimizer.start_weight_decay"), 0u);
}

TEST(RunConfigTest, ATextThatIsNoConfigurationHasWhatCanBeRead) {
  EXPECT_TRUE(ParseRunConfig("").values.empty());
  const RunConfig config = ParseRunConfig("model { num_layers: 7 nonsense: 3 } ]");
  EXPECT_EQ(config.text, "model { num_layers: 7 nonsense: 3 } ]");
  ParseRunConfig(std::string(10000, '{'));
}

}  // namespace
}  // namespace megatron::report

#include "megatron/train/config/config_parser.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::google::protobuf::TextFormat;
using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<std::string> Errors(const ParsedConfig& parsed) {
  std::vector<std::string> texts;
  for (const ConfigError& error : parsed.errors) texts.push_back(ToString(error));
  return texts;
}

TEST(ConfigParserTest, ReadsWhatTextFormatReads) {
  constexpr char kText[] = R"(
    # a comment
    model: { num_layers: 12, hidden_size: 0x300; normalization: RMSNorm }
    optimizer < lr: 1.5e-4 min_lr: .1f clip_grad: 1 >
    recompute { recompute_modules: [core_attn, mlp] recompute_modules: layernorm }
    checkpoint { save: "a" 'b\n' }
    precision { fp16: t initial_loss_scale: -inf }
    train { seed: -3 }
    data {})";
  const ParsedConfig parsed = ParseConfig(kText, "x");
  EXPECT_THAT(Errors(parsed), IsEmpty());
  config::PretrainConfig expected;
  ASSERT_TRUE(TextFormat::ParseFromString(kText, &expected));
  EXPECT_TRUE(MessageDifferencer::Equals(parsed.config, expected)) << parsed.config.DebugString();
}

TEST(ConfigParserTest, TellsEveryErrorAtItsPlace) {
  const ParsedConfig parsed = ParseConfig(
      "model {\n"
      "  num_layer: 12\n"
      "  hidden_size: big\n"
      "  seq_length 8\n"
      "  normalization: rmsnorm\n"
      "  lr: 3\n"
      "}\n"
      "optimiser { lr: 1 }\n"
      "train: 4\n"
      "data { mock_data: 7 split: [\"1\"] }\n",
      "gpt.textproto");
  EXPECT_THAT(
      Errors(parsed),
      ElementsAre(
          "gpt.textproto:4:14: expected ':' or '{' after seq_length, found '8'",
          "gpt.textproto:2:3: model.num_layer: no such field; did you mean num_layers?",
          "gpt.textproto:3:3: model.hidden_size = big: expects an integer from 1 to 1048576",
          "gpt.textproto:5:3: model.normalization = rmsnorm: expects one of LayerNorm, RMSNorm; "
          "did you mean RMSNorm?",
          "gpt.textproto:6:3: model.lr: no such field here; did you mean optimizer.lr?",
          "gpt.textproto:8:1: optimiser: no such field; did you mean optimizer?",
          "gpt.textproto:9:1: train = 4: expects fields in braces: {micro_batch_size: ... "
          "global_batch_size: ... rampup_batch_size: ... ...}",
          "gpt.textproto:10:8: data.mock_data = 7: expects true or false",
          "gpt.textproto:10:21: data.split = \"1\": expects a string in quotes"));
}

TEST(ConfigParserTest, KeepsValidFieldsBesideInvalidOnes) {
  const ParsedConfig parsed = ParseConfig("model { num_layers: x hidden_size: 8 }", "x");
  EXPECT_FALSE(parsed.config.model().has_num_layers());
  EXPECT_TRUE(parsed.locations.IsBroken("model.num_layers"));
  EXPECT_EQ(parsed.config.model().hidden_size(), 8);
}

TEST(ConfigParserTest, NamesBothPlacesOfAFieldSetTwice) {
  EXPECT_THAT(Errors(ParseConfig("model { num_layers: 1 }\nmodel { num_layers: 2 }", "x")),
              ElementsAre("x:2:1: model: is set a second time; the first is at x:1:1"));
}

TEST(ConfigParserTest, SurvivesTextThatIsNoConfig) {
  for (absl::string_view text :
       {"}", ">{", "model {", "model { { {", "a: [", "a: [1", "a: [1,,", "a: -", ": 3", "\"",
        "'x\n", "\x01", "model { seq_length: \n }", "[a.b]: 3", "a: {b: <c: {", "0x", "1e999: 1"}) {
    EXPECT_THAT(ParseConfig(text, "x").errors, Not(IsEmpty())) << text;
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "model {";
  EXPECT_THAT(ParseConfig(deep, "x").errors, Not(IsEmpty()));
  std::string many;
  for (int i = 0; i < 100000; ++i) many += "}\n";
  EXPECT_THAT(ParseConfig(many, "x").errors, SizeIs(50));
}

TEST(ConfigParserTest, AnErrorInsideAMessageDoesNotLeaveIt) {
  const ParsedConfig parsed = ParseConfig("model { num_layers 3 } optimizer { lr: 1 }", "x");
  EXPECT_THAT(Errors(parsed),
              ElementsAre("x:1:20: expected ':' or '{' after num_layers, found '3'"));
  EXPECT_EQ(parsed.config.optimizer().lr(), 1);
}

TEST(ConfigOverrideTest, WinsOverTheFileAndTheLastOneWins) {
  const ParsedConfig parsed =
      ParseConfig("model { num_layers: 1 hidden_size: 2 }", "x",
                  {"model.num_layers=3", "model.num_layers = 4", "train.seed=5"});
  EXPECT_THAT(Errors(parsed), IsEmpty());
  EXPECT_EQ(parsed.config.model().num_layers(), 4);
  EXPECT_EQ(parsed.config.model().hidden_size(), 2);
  EXPECT_EQ(parsed.config.train().seed(), 5);
  EXPECT_EQ(parsed.locations.Where("model.num_layers"), "--set model.num_layers = 4");
  EXPECT_EQ(parsed.locations.Where("model.hidden_size"), "x:1:23");
}

TEST(ConfigParserTest, TellsThatAValueIsWrittenWithoutQuotes) {
  const ParsedConfig parsed = ParseConfig(
      "model {\n"
      "  normalization: \"RMSNorm\"\n"
      "  num_layers: '12'\n"
      "  swiglu: \"true\"\n"
      "}\n"
      "optimizer { lr_decay_style: \"cosin\" }\n"
      "data { sft_tokenizer_prompt_format: \"\" }\n",
      "x", {"system.device=\"cpu\""});
  EXPECT_THAT(
      Errors(parsed),
      ElementsAre("x:2:3: model.normalization = \"RMSNorm\": is written without quotes: RMSNorm",
                  "x:3:3: model.num_layers = '12': is written without quotes: 12",
                  "x:4:3: model.swiglu = \"true\": is written without quotes: true",
                  AllOf(HasSubstr("optimizer.lr_decay_style = \"cosin\": expects one of "),
                        HasSubstr("did you mean cosine?")),
                  AllOf(HasSubstr("data.sft_tokenizer_prompt_format = \"\": expects one of "),
                        Not(HasSubstr("did you mean"))),
                  "--set system.device=\"cpu\": system.device = \"cpu\": is written without "
                  "quotes: cpu"));
}

TEST(ConfigOverrideTest, TakesEveryKindOfValue) {
  const ParsedConfig parsed = ParseConfig(
      "data { data_path: 'old' stories { seed: 4 } }", "x",
      {"optimizer.lr=-3e-4", "model.normalization=RMSNorm", "model.swiglu=true",
       "checkpoint.save=/a b/c=d", "checkpoint.load=\"quoted\"",
       "recompute.recompute_modules=core_attn, mlp", "data.data_path=[0.5,\"a,b\"]",
       "train.rampup_batch_size={start: 1 increment: 2}", "train.rampup_batch_size.samples=9"});
  EXPECT_THAT(Errors(parsed),
              ElementsAre(HasSubstr("data.data_path = 0.5: expects a string in quotes")));
  EXPECT_EQ(parsed.config.optimizer().lr(), -3e-4);
  EXPECT_EQ(parsed.config.model().normalization(), config::Normalization::RMSNorm);
  EXPECT_TRUE(parsed.config.model().swiglu());
  EXPECT_EQ(parsed.config.checkpoint().save(), "/a b/c=d");
  EXPECT_EQ(parsed.config.checkpoint().load(), "quoted");
  EXPECT_THAT(parsed.config.recompute().recompute_modules(),
              ElementsAre(config::RecomputeModule::core_attn, config::RecomputeModule::mlp));
  EXPECT_EQ(parsed.config.train().rampup_batch_size().increment(), 2);
  EXPECT_EQ(parsed.config.train().rampup_batch_size().samples(), 9);
}

TEST(ConfigOverrideTest, ReplacesARepeatedFieldAsAWhole) {
  const std::string text = "data { data_path: ['old', 'older'] }";
  EXPECT_THAT(ParseConfig(text, "x", {"data.data_path=new"}).config.data().data_path(),
              ElementsAre("new"));
  EXPECT_THAT(ParseConfig(text, "x", {"data.data_path=0.3,a,0.7,b"}).config.data().data_path(),
              ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_THAT(ParseConfig(text, "x", {"data.data_path=['a,b', \"c\"]"}).config.data().data_path(),
              ElementsAre("a,b", "c"));
}

TEST(ConfigParserTest, ShowsHowAMessageIsWritten) {
  EXPECT_THAT(Errors(ParseConfig("train { rampup_batch_size: [2, 2, 20] }", "x")),
              ElementsAre("x:1:9: train.rampup_batch_size = 2, 2, 20: expects fields in braces: "
                          "{start: 2 increment: 2 samples: 20}"));
  for (const char* value : {"[2,2,20]", "2 2 20", "2, 2, 20"}) {
    EXPECT_THAT(Errors(ParseConfig("", "x", {absl::StrCat("train.rampup_batch_size=", value)})),
                ElementsAre(HasSubstr(absl::StrCat(
                    value, ": expects fields in braces: {start: 2 increment: 2 samples: 20}"))));
  }
  EXPECT_THAT(Errors(ParseConfig("", "x", {"train.rampup_batch_size=2"})),
              ElementsAre(HasSubstr("{start: ... increment: ... samples: ...}")));
}

TEST(ConfigParserTest, TellsForeignLettersOnceALine) {
  EXPECT_THAT(
      Errors(ParseConfig("# \u00e9t\u00e9\ncheckpoint { save: \"\u00e9t\u00e9\" }\n"
                         "checkpoint { load: \u201cdir\u201d }\n",
                         "x")),
      Contains(HasSubstr("x:3:20: only text in quotes and comments may go beyond ASCII")).Times(1));
}

TEST(ConfigOverrideTest, TakesAFieldAwayByAnEmptyValue) {
  const ParsedConfig parsed = ParseConfig("data { stories { seed: 4 } }", "x", {"data.stories="});
  EXPECT_THAT(Errors(parsed), IsEmpty());
  EXPECT_FALSE(parsed.config.data().has_stories());
  EXPECT_FALSE(parsed.locations.IsSet("data.stories.seed"));
}

TEST(ConfigOverrideTest, TellsWhatIsWrongWithIt) {
  EXPECT_THAT(
      Errors(ParseConfig("", "x",
                         {"model.num_layers", "model.num_layer=3", "num_layers=3",
                          "model.num_layers.x=3", "model.num_layers=3 4", "model={num_layers: x",
                          "model=3", "recompute.recompute_modules=[mlp"})),
      ElementsAre(
          "--set model.num_layers: expected path.to.field=value",
          "--set model.num_layer=3: model.num_layer: no such field; did you mean num_layers?",
          "--set num_layers=3: num_layers: no such field here; did you mean model.num_layers?",
          "--set model.num_layers.x=3: model.num_layers.x: num_layers is a value and has no fields",
          "--set model.num_layers=3 4: model.num_layers = 3 4: expects an integer from 1 to 10000",
          HasSubstr("expected '}' for model"),
          HasSubstr("model = 3: expects fields in braces: {num_layers: ... "),
          HasSubstr("expected ']' at the end")));
}

}  // namespace
}  // namespace megatron

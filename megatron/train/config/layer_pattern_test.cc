#include "megatron/train/config/layer_pattern.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;

TEST(LayerPatternTest, ANumberIsEveryNthLayerFromTheFirstOn) {
  EXPECT_THAT(ParseLayerPattern("1", 3), IsOkAndHolds(ElementsAre(true, true, true)));
  EXPECT_THAT(ParseLayerPattern(" 2 ", 4), IsOkAndHolds(ElementsAre(true, false, true, false)));
}

TEST(LayerPatternTest, ANumberIsTheLastOfEachNLayersOrTheOthers) {
  EXPECT_THAT(ParseLayerPattern("3", 5, LayersOfEach::kLast),
              IsOkAndHolds(ElementsAre(false, false, true, false, false)));
  EXPECT_THAT(ParseLayerPattern("3", 5, LayersOfEach::kAllButLast),
              IsOkAndHolds(ElementsAre(true, true, false, true, true)));
  EXPECT_THAT(ParseLayerPattern("[0]+[1]*2", 3, LayersOfEach::kLast),
              IsOkAndHolds(ElementsAre(false, true, true)));
}

TEST(LayerPatternTest, LayersSeeWindowsAndRotateAsTheirFieldsSay) {
  config::ModelConfig model;
  model.set_num_layers(4);
  EXPECT_THAT(WindowLayers(model), IsOkAndHolds(ElementsAre(false, false, false, false)));
  EXPECT_THAT(RotaryLayers(model), IsOkAndHolds(ElementsAre(true, true, true, true)));
  model.set_window_size(8);
  EXPECT_THAT(WindowLayers(model), IsOkAndHolds(ElementsAre(true, true, true, true)));
  model.set_window_attn_skip_freq("2");
  EXPECT_THAT(WindowLayers(model), IsOkAndHolds(ElementsAre(true, false, true, false)));
  model.set_window_attn_skip_freq("[0]+[1]*3");
  EXPECT_THAT(WindowLayers(model), IsOkAndHolds(ElementsAre(false, true, true, true)));
  model.set_no_rope_freq("4");
  EXPECT_THAT(RotaryLayers(model), IsOkAndHolds(ElementsAre(true, true, true, false)));
  model.set_no_rope_freq("[1,0]*2");
  EXPECT_THAT(RotaryLayers(model), IsOkAndHolds(ElementsAre(false, true, false, true)));
}

TEST(LayerPatternTest, HybridLayersHaveALetterEach) {
  config::ModelConfig model;
  for (const std::string pattern : {"M", "M-G-*E", "****"}) {
    model.set_hybrid_layer_pattern(pattern);
    EXPECT_THAT(HybridLayers(model), IsOkAndHolds(pattern));
  }
  const std::pair<std::string, std::string> wrong[] = {
      {"", "has no layers"},
      {"M-D", "found \"D\""},
      {"m", "found \"m\""},
      {"M-|M-", "parallel.pipeline_model_parallel_layout"},
      {"M*/MM", "no multi-token prediction"},
      {std::string("M\0", 2), "\\x00"}};
  for (const auto& [pattern, message] : wrong) {
    model.set_hybrid_layer_pattern(pattern);
    EXPECT_THAT(HybridLayers(model),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(message)));
  }
}

TEST(LayerPatternTest, ListsAreRepeatedAndJoined) {
  EXPECT_THAT(ParseLayerPattern("[0]+[1]*3", 4),
              IsOkAndHolds(ElementsAre(false, true, true, true)));
  EXPECT_THAT(ParseLayerPattern("([1, 0] * 2 + [1])", 5),
              IsOkAndHolds(ElementsAre(true, false, true, false, true)));
}

TEST(LayerPatternTest, RefusesWhatIsNoPatternOfSoManyLayers) {
  for (const std::string text :
       {"", "0", "-1", "[1]*2", "[1]*4", "[1]*1000000000000", "[2]*3", "[1]*3*1", "[1*3", "1]*3",
        "[]*3", "([1]*3", "[1]**3", "[1]*-3", "[1]*3+", "a", "1.5"}) {
    EXPECT_THAT(ParseLayerPattern(text, 3), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace megatron

#include "megatron/models/offload_timeline.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/pipeline/schedule.h"

namespace megatron {
namespace {

// Layers that take a second forward and two backward.
TimedStage Stage(int64_t layers, double bytes, std::vector<Action> actions) {
  TimedStage stage;
  stage.chunks.resize(1);
  stage.chunks[0].segments.assign(layers, {{1, 2}, bytes});
  stage.actions = std::move(actions);
  return stage;
}

std::vector<Action> OneMicroBatch() {
  return {{ActionKind::kForward, 0, 0}, {ActionKind::kBackward, 0, 0}};
}

TEST(OffloadTimelineTest, WithoutOffloadTheTimeIsThatOfThePasses) {
  TimedStage stage = Stage(5, 1, OneMicroBatch());
  stage.chunks[0].head = {3, 4};
  EXPECT_DOUBLE_EQ(SecondsWithOffload(stage, 0, 1), 5 * 3 + 3 + 4);
}

// A copy takes as long as a forward pass, and backward takes twice as long.
TEST(OffloadTimelineTest, ALinkThatKeepsUpHidesAllLayers) {
  const TimedStage stage = Stage(8, 1, OneMicroBatch());
  EXPECT_DOUBLE_EQ(SecondsWithOffload(stage, 8, 1), 8 * 3);
  EXPECT_EQ(MostHiddenSegments({stage}, 1), 8);
}

// Each copy takes two seconds. The windows of layers 0, 1 and 2 are free at 3, 5 and 7: layer 3
// begins at 3, layer 4 at 5 and not at 4, and layer 5 at 7 and not at 6.
TEST(OffloadTimelineTest, AForwardPassWaitsForItsWindow) {
  TimedStage stage = Stage(6, 2, {{ActionKind::kForward, 0, 0}});
  EXPECT_DOUBLE_EQ(SecondsWithOffload(stage, 4, 1), 6);
  EXPECT_DOUBLE_EQ(SecondsWithOffload(stage, 5, 1), 7);
  EXPECT_DOUBLE_EQ(SecondsWithOffload(stage, 6, 1), 8);
  EXPECT_EQ(MostHiddenSegments({stage}, 1), 4);
  // A segment that writes the next one's input waits for its window, one layer earlier.
  stage.writes_next_input = true;
  EXPECT_DOUBLE_EQ(SecondsWithOffload(stage, 4, 1), 7);
}

// Three layers are still in their windows when backward begins. The others come while it runs.
TEST(OffloadTimelineTest, WhatIsStillInItsWindowDoesNotComeBack) {
  const TimedStage three = Stage(3, 100, OneMicroBatch());
  EXPECT_DOUBLE_EQ(SecondsWithOffload(three, 3, 1), 3 * 3);
  // Layer 3 waits until 1 + 100, when layer 0 has left. At 102 three backward passes are to do, in
  // front of which three more copies leave, until 401; layer 0 comes until 501 and takes 2.
  const TimedStage four = Stage(4, 100, OneMicroBatch());
  EXPECT_DOUBLE_EQ(SecondsWithOffload(four, 4, 1), 503);
}

// Behind another micro-batch's forward pass nothing is in its window: the last layer that was
// offloaded comes while the layers that stay are computed, and the one before it as well.
TEST(OffloadTimelineTest, AStageInTheMiddleWaitsForItsLastLayers) {
  const std::vector<Action> actions = {{ActionKind::kForward, 0, 0},
                                       {ActionKind::kForward, 1, 0},
                                       {ActionKind::kBackward, 0, 0},
                                       {ActionKind::kBackward, 1, 0}};
  const TimedStage stage = Stage(6, 1, actions);
  EXPECT_DOUBLE_EQ(SecondsWithOffload(stage, 5, 1), 2 * 6 * 3);
  EXPECT_GT(SecondsWithOffload(stage, 6, 1), 2 * 6 * 3);
  EXPECT_EQ(MostHiddenSegments({stage}, 1), 5);
  const TimedStage alone = Stage(6, 1, OneMicroBatch());
  EXPECT_EQ(MostHiddenSegments({alone}, 1), 6);
  // The stage that hides least decides for all.
  EXPECT_EQ(MostHiddenSegments({alone, stage}, 1), 5);
}

TEST(OffloadTimelineTest, ASlowLinkHidesNone) {
  const TimedStage stage =
      Stage(8, 1e9, PlanInterleaved(0, {/*stages=*/2, /*microbatches=*/4, 1, 0}));
  EXPECT_EQ(MostHiddenSegments({stage}, 1), 0);
  // The last layer's tensors come back while nothing of this micro-batch is computed.
  EXPECT_EQ(MostHiddenSegments({stage}, 1e12), 7);
}

}  // namespace
}  // namespace megatron

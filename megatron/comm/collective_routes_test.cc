#include "megatron/comm/collective_routes.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr CollectiveAlgorithm kRing = CollectiveAlgorithm::kRing;
constexpr CollectiveAlgorithm kTree = CollectiveAlgorithm::kTree;

std::vector<int> Parents(CollectiveAlgorithm algorithm, int size) {
  std::vector<int> parents;
  for (int rank = 0; rank < size; ++rank) parents.push_back(SumRoute(algorithm, size, rank).parent);
  return parents;
}

std::string Order(CollectiveAlgorithm algorithm, int size) {
  std::vector<std::string> stack;
  for (const PartialSumStep& step : SumSteps(algorithm, size)) {
    if (step.kind == PartialSumStep::kPush) {
      stack.push_back(absl::StrCat(step.rank));
      continue;
    }
    std::string right = absl::StrCat(step.rank);
    if (step.kind == PartialSumStep::kMerge) {
      right = stack.back();
      stack.pop_back();
    }
    stack.back() = absl::StrCat("(", stack.back(), "+", right, ")");
  }
  EXPECT_EQ(stack.size(), 1u);
  return stack[0];
}

TEST(CollectiveRoutesTest, TheTreeIsThatOfNccl) {
  EXPECT_EQ(Parents(kTree, 4), std::vector<int>({-1, 2, 0, 2}));
  EXPECT_EQ(Parents(kTree, 5), std::vector<int>({-1, 2, 4, 2, 0}));
  EXPECT_EQ(Parents(kTree, 8), std::vector<int>({-1, 2, 4, 2, 0, 6, 4, 6}));
  EXPECT_EQ(SumRoute(kTree, 8, 4).children, std::vector<int>({2, 6}));
}

TEST(CollectiveRoutesTest, SumsAreInTheOrderOfRanks) {
  EXPECT_EQ(Order(CollectiveAlgorithm::kMesh, 4), "(((0+1)+2)+3)");
  EXPECT_EQ(Order(kRing, 4), "(((0+1)+2)+3)");
  EXPECT_EQ(Order(kTree, 3), "(0+(1+2))");
  EXPECT_EQ(Order(kTree, 4), "(0+((1+2)+3))");
  EXPECT_EQ(Order(kTree, 5), "(0+(((1+2)+3)+4))");
  EXPECT_EQ(Order(kTree, 8), "(0+((((1+2)+3)+4)+((5+6)+7)))");
  EXPECT_EQ(SumDepth(SumSteps(kRing, 1000)), 1);
  EXPECT_LE(SumDepth(SumSteps(kTree, 1000)), 11);
}

TEST(CollectiveRoutesTest, WhatSpreadsReachesEachRankOnceFromEveryRoot) {
  for (const CollectiveAlgorithm algorithm : {kRing, kTree}) {
    for (int size = 1; size <= 17; ++size) {
      for (int root = 0; root < size; ++root) {
        std::multiset<int> reached = {root};
        for (int rank = 0; rank < size; ++rank) {
          const CollectiveRoute route = SpreadRoute(algorithm, size, root, rank);
          EXPECT_EQ(route.parent < 0, rank == root);
          EXPECT_EQ(route.depth == 0, rank == root);
          for (const int child : route.children) {
            reached.insert(child);
            const CollectiveRoute below = SpreadRoute(algorithm, size, root, child);
            EXPECT_EQ(below.parent, rank);
            EXPECT_EQ(below.depth, route.depth + 1);
          }
        }
        EXPECT_EQ(reached.size(), static_cast<size_t>(size));
        EXPECT_EQ(std::set<int>(reached.begin(), reached.end()).size(), reached.size());
      }
    }
  }
}

TEST(CollectiveRoutesTest, TheWaysOfARingAreLongAndThoseOfATreeAreShort) {
  EXPECT_EQ(LongestWay(kRing, 8), 8);
  EXPECT_EQ(LongestWay(kTree, 8), 6);
  EXPECT_EQ(LongestWay(kRing, 64), 64);
  EXPECT_EQ(LongestWay(kTree, 64), 12);
}

TEST(CollectiveRoutesTest, WhatGoesToOneRankPassesThoseAboveIt) {
  EXPECT_TRUE(IsOnWay(kRing, 4, 3, 1, 0));
  EXPECT_FALSE(IsOnWay(kRing, 4, 3, 1, 2));
  EXPECT_TRUE(IsOnWay(kTree, 8, 0, 3, 4));
  EXPECT_FALSE(IsOnWay(kTree, 8, 0, 3, 6));
}

}  // namespace
}  // namespace megatron

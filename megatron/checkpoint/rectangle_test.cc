#include "megatron/checkpoint/rectangle.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(RectangleTest, IntersectsWhereAllDimsOverlap) {
  Rectangle common;
  EXPECT_TRUE(Intersect({{0, 0}, {4, 4}}, {{2, 3}, {4, 4}}, &common));
  EXPECT_TRUE((common == Rectangle{{2, 3}, {2, 1}})) << ToString(common);
  EXPECT_FALSE(Intersect({{0, 0}, {4, 4}}, {{4, 0}, {1, 4}}, &common));
  EXPECT_TRUE(Intersect({Shape(), Shape()}, {Shape(), Shape()}, &common));
}

TEST(RectangleTest, IsInsideNeverOverflows) {
  EXPECT_TRUE(IsInside({{1, 0}, {2, 3}}, {3, 3}));
  EXPECT_FALSE(IsInside({{2, 0}, {2, 3}}, {3, 3}));
  EXPECT_FALSE(IsInside({{kMax, 0}, {kMax, 3}}, {3, 3}));
  EXPECT_FALSE(IsInside({{-1, 0}, {1, 1}}, {3, 3}));
  EXPECT_FALSE(IsInside({{0, 0}, {-1, 1}}, {3, 3}));
  EXPECT_FALSE(IsInside({{0}, {1}}, {3, 3}));
}

// The same, by counting.
bool CoversByCounting(const std::vector<Rectangle>& rectangles, const Shape& shape) {
  std::vector<int> counts(static_cast<size_t>(shape.numel()));
  Rectangle whole{shape, shape};
  for (int d = 0; d < shape.rank(); ++d) whole.start[d] = 0;
  for (const Rectangle& rectangle : rectangles) {
    (void)ForEachRun(rectangle, whole, rectangle, [&](const CommonRun& run) {
      for (int64_t i = 0; i < run.count; ++i) ++counts[static_cast<size_t>(run.target + i)];
      return absl::OkStatus();
    });
  }
  return std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; });
}

// Cuts the rectangle at random until the pieces are small.
void CutAtRandom(const Rectangle& rectangle, std::mt19937* random, std::vector<Rectangle>* pieces) {
  const int dim = static_cast<int>((*random)() % 3);
  if (rectangle.extent[dim] < 2 || (*random)() % 5 == 0) {
    pieces->push_back(rectangle);
    return;
  }
  const int64_t cut = 1 + static_cast<int64_t>((*random)() % (rectangle.extent[dim] - 1));
  Rectangle first = rectangle;
  first.extent[dim] = cut;
  Rectangle second = rectangle;
  second.start[dim] += cut;
  second.extent[dim] -= cut;
  CutAtRandom(first, random, pieces);
  CutAtRandom(second, random, pieces);
}

TEST(RectangleTest, CoverExactlyOnceAgreesWithCounting) {
  std::mt19937 random(1);
  const Shape shape = {5, 4, 6};
  int covered = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<Rectangle> pieces;
    CutAtRandom({{0, 0, 0}, shape}, &random, &pieces);
    const size_t victim = random() % pieces.size();
    const int dim = static_cast<int>(random() % 3);
    switch (random() % 5) {
      case 0:
        pieces.erase(pieces.begin() + static_cast<int64_t>(victim));
        break;
      case 1:
        pieces.push_back(pieces[victim]);
        break;
      case 2:  // Moved: a gap and, where its volume is kept, an overlap.
        if (pieces[victim].start[dim] > 0) --pieces[victim].start[dim];
        break;
      default:
        break;
    }
    const bool expected = CoversByCounting(pieces, shape);
    covered += expected;
    EXPECT_EQ(CoverExactlyOnce(pieces, shape), expected) << trial;
  }
  EXPECT_GT(covered, 500);
  EXPECT_LT(covered, 2500);
}

TEST(RectangleTest, AScalarIsCoveredByOneRectangleAndAnEmptyShapeByNone) {
  const Rectangle scalar{Shape(), Shape()};
  EXPECT_TRUE(CoverExactlyOnce({scalar}, Shape()));
  EXPECT_FALSE(CoverExactlyOnce({}, Shape()));
  EXPECT_FALSE(CoverExactlyOnce({scalar, scalar}, Shape()));
  EXPECT_TRUE(CoverExactlyOnce({}, {0, 3}));
}

TEST(RectangleTest, RunsAreAsLongAsTheBlocksAllow) {
  const auto count_runs = [](const Rectangle& source, const Rectangle& target,
                             const Rectangle& part) {
    int runs = 0;
    (void)ForEachRun(source, target, part, [&](const CommonRun&) {
      ++runs;
      return absl::OkStatus();
    });
    return runs;
  };
  const Rectangle whole{{0, 0, 0}, {4, 3, 2}};
  EXPECT_EQ(count_runs(whole, whole, whole), 1);
  const Rectangle rows{{1, 0, 0}, {2, 3, 2}};
  EXPECT_EQ(count_runs(whole, rows, rows), 1);
  const Rectangle middle{{0, 1, 0}, {4, 2, 2}};
  EXPECT_EQ(count_runs(whole, middle, middle), 4);
  const Rectangle columns{{0, 0, 1}, {4, 3, 1}};
  EXPECT_EQ(count_runs(whole, columns, columns), 12);
}

TEST(RectangleTest, AFailingCallEndsTheRuns) {
  const Rectangle whole{{0, 0}, {4, 4}};
  const Rectangle column{{0, 0}, {4, 1}};
  int calls = 0;
  const absl::Status status = ForEachRun(whole, column, column, [&](const CommonRun&) {
    return ++calls == 2 ? absl::DataLossError("") : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(calls, 2);
}

// Every interval of a few shapes: the rectangles hold its elements in order, and no fewer would do
// than two partial rows per dim and the whole rows between them.
TEST(RectangleTest, IntervalsAreCutIntoFewConsecutiveRectangles) {
  for (const Shape& shape : {Shape({7}), Shape({3, 4}), Shape({2, 3, 4}), Shape({3, 1, 2, 2})}) {
    const int64_t numel = shape.numel();
    for (int64_t begin = 0; begin < numel; ++begin) {
      for (int64_t end = begin; end <= numel; ++end) {
        const std::vector<Rectangle> rectangles = ConsecutiveRectangles(begin, end, shape);
        EXPECT_LE(rectangles.size(), static_cast<size_t>(2 * shape.rank() - 1));
        int64_t next = begin;
        Rectangle whole{shape, shape};
        for (int d = 0; d < shape.rank(); ++d) whole.start[d] = 0;
        for (const Rectangle& rectangle : rectangles) {
          ASSERT_TRUE(IsInside(rectangle, shape)) << ToString(rectangle);
          const absl::Status status =
              ForEachRun(rectangle, whole, rectangle, [&](const CommonRun& run) {
                EXPECT_EQ(run.target, next);
                next += run.count;
                return absl::OkStatus();
              });
          EXPECT_TRUE(status.ok());
        }
        EXPECT_EQ(next, end);
      }
    }
  }
}

}  // namespace
}  // namespace megatron

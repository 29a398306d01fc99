#include "megatron/checkpoint/rectangle.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

using Corner = std::array<int64_t, Shape::kMaxRank>;

// Adds to the corners of a rectangle (2 to the power of its rank) alternating signs. The indicator
// function of a rectangle is the signed sum of the orthants that begin at its corners, and no two
// such sums agree: so rectangles cover a shape exactly once if and only if their signed corners add
// up to the shape's own.
void AddCorners(const Rectangle& rectangle, int64_t sign, std::map<Corner, int64_t>* corners) {
  const int rank = rectangle.start.rank();
  for (unsigned far = 0; far < (1u << rank); ++far) {
    Corner corner{};
    int64_t value = sign;
    for (int d = 0; d < rank; ++d) {
      const bool is_far = (far >> d) & 1u;
      corner[d] = rectangle.start[d] + (is_far ? rectangle.extent[d] : 0);
      if (is_far) value = -value;
    }
    // Neighbours' corners cancel: a grid of any size leaves few behind at a time.
    const auto entry = corners->try_emplace(corner, 0).first;
    entry->second += value;
    if (entry->second == 0) corners->erase(entry);
  }
}

// The index of element `index` (of the whole tensor) within a block.
int64_t IndexWithin(const Rectangle& block, const Shape& index) {
  int64_t position = 0;
  for (int d = 0; d < index.rank(); ++d) {
    position = position * block.extent[d] + (index[d] - block.start[d]);
  }
  return position;
}

// Moves `index` to the next one of `part` in the dims before `dims`; false after the last.
bool Advance(const Rectangle& part, int dims, Shape* index) {
  for (int d = dims - 1; d >= 0; --d) {
    if (++(*index)[d] < part.start[d] + part.extent[d]) return true;
    (*index)[d] = part.start[d];
  }
  return false;
}

}  // namespace

std::string ToString(const Rectangle& rectangle) {
  std::string text = "[";
  for (int d = 0; d < rectangle.start.rank(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ", ", rectangle.start[d], ":",
                    rectangle.start[d] + rectangle.extent[d]);
  }
  return text + "]";
}

bool Intersect(const Rectangle& a, const Rectangle& b, Rectangle* common) {
  Rectangle result = a;
  for (int d = 0; d < a.start.rank(); ++d) {
    const int64_t begin = std::max(a.start[d], b.start[d]);
    const int64_t end = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]);
    if (begin >= end) return false;
    result.start[d] = begin;
    result.extent[d] = end - begin;
  }
  *common = result;
  return true;
}

bool IsInside(const Rectangle& rectangle, const Shape& shape) {
  if (rectangle.start.rank() != shape.rank() || rectangle.extent.rank() != shape.rank())
    return false;
  for (int d = 0; d < shape.rank(); ++d) {
    const int64_t start = rectangle.start[d];
    if (start < 0 || rectangle.extent[d] < 0 || start > shape[d]) return false;
    if (rectangle.extent[d] > shape[d] - start) return false;
  }
  return true;
}

bool CoverExactlyOnce(const std::vector<Rectangle>& rectangles, const Shape& shape) {
  if (shape.numel() == 0) return rectangles.empty();
  Rectangle whole{shape, shape};
  for (int d = 0; d < shape.rank(); ++d) whole.start[d] = 0;
  if (rectangles.size() == 1) return rectangles[0] == whole;
  // A scalar has no corners to tell one rectangle from several.
  if (shape.rank() == 0) return false;

  std::map<Corner, int64_t> corners;
  AddCorners(whole, -1, &corners);
  for (const Rectangle& rectangle : rectangles) AddCorners(rectangle, 1, &corners);
  return corners.empty();
}

absl::Status ForEachRun(const Rectangle& source, const Rectangle& target, const Rectangle& part,
                        absl::FunctionRef<absl::Status(const CommonRun&)> run) {
  // Trailing dims that `part` fills in both blocks make one run with the dim before them.
  int outer_dims = part.start.rank();
  int64_t count = 1;
  while (outer_dims > 0) {
    --outer_dims;
    const int64_t extent = part.extent[outer_dims];
    count *= extent;
    if (extent != source.extent[outer_dims] || extent != target.extent[outer_dims]) break;
  }
  Shape index = part.start;
  do {
    MEGATRON_RETURN_IF_ERROR(run({IndexWithin(source, index), IndexWithin(target, index), count}));
  } while (Advance(part, outer_dims, &index));
  return absl::OkStatus();
}

std::vector<Rectangle> ConsecutiveRectangles(int64_t begin, int64_t end, const Shape& shape) {
  std::vector<Rectangle> rectangles;
  while (begin < end) {
    // The outermost dim of which whole rows begin here and end before `end`: rows of the dims
    // within it.
    int dim = 0;
    int64_t row = shape.numel();
    while (dim < shape.rank()) {
      row /= shape[dim];
      if (begin % row == 0 && begin + row <= end) break;
      ++dim;
    }
    Rectangle rectangle{shape, shape};
    int64_t rest = begin, stride = shape.numel();
    for (int d = 0; d < shape.rank(); ++d) {
      stride /= shape[d];
      rectangle.start[d] = d <= dim ? rest / stride : 0;
      rest %= stride;
      if (d < dim) rectangle.extent[d] = 1;
    }
    if (dim < shape.rank()) {
      rectangle.extent[dim] = std::min((end - begin) / row, shape[dim] - rectangle.start[dim]);
    }
    begin += rectangle.extent.numel();
    rectangles.push_back(rectangle);
  }
  return rectangles;
}

}  // namespace megatron

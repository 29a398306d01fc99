// Rectangles of tensors: what resharding is made of. A rank holds rectangles of global tensors,
// files hold others, and loading copies the intersections; no layout is named anywhere.
//
// Elements are in row-major order throughout.
#ifndef MEGATRON_CHECKPOINT_RECTANGLE_H_
#define MEGATRON_CHECKPOINT_RECTANGLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// The elements whose index in each dim is in [start, start + extent). Without dims: the one element
// of a scalar.
struct Rectangle {
  Shape start;
  Shape extent;

  friend bool operator==(const Rectangle& a, const Rectangle& b) {
    return a.start == b.start && a.extent == b.extent;
  }
};

// Returns "[0:4, 8:16]".
std::string ToString(const Rectangle& rectangle);

// Returns whether two rectangles of the same rank have a common element; `common` is then set.
bool Intersect(const Rectangle& a, const Rectangle& b, Rectangle* common);

// Returns whether start and extent are nowhere negative and the rectangle ends inside the shape.
// Any integers are fine.
bool IsInside(const Rectangle& rectangle, const Shape& shape);

// Returns whether each element of the shape is in exactly one of the rectangles, which must be
// inside it and not empty. n of them take O(n log n), however they lie.
bool CoverExactlyOnce(const std::vector<Rectangle>& rectangles, const Shape& shape);

// Elements [begin, end) of a tensor of this shape, counted in row-major order, as the fewest
// rectangles whose elements are consecutive, in order. How a flat share of a tensor is saved.
std::vector<Rectangle> ConsecutiveRectangles(int64_t begin, int64_t end, const Shape& shape);

// A run of consecutive elements that lies together in two blocks: its first element's index within
// each.
struct CommonRun {
  int64_t source = 0;
  int64_t target = 0;
  int64_t count = 0;
};

// Calls `run` for the elements of `part`, a part of both blocks, in the fewest runs and with rising
// indices, until a call fails; returns that failure.
absl::Status ForEachRun(const Rectangle& source, const Rectangle& target, const Rectangle& part,
                        absl::FunctionRef<absl::Status(const CommonRun&)> run);

}  // namespace megatron

#endif  // MEGATRON_CHECKPOINT_RECTANGLE_H_

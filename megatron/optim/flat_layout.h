// Where the parameters of a stage stand in flat memory. Pure arithmetic.
//
// One layout serves weights, gradients, master weights and moments: an element has the same place
// in each. Parameters stand in reverse order of registration, which is about the order in which
// backward finishes their gradients, in three *sections*: copies of tied weights that another stage
// owns, dense parameters, expert parameters. Each parameter starts at a multiple of 64 elements.
//
// A *unit* is what is sent at once: one block (Parameter::block), or as many of them, from the last
// on, as together have `bucket_size` elements or more; a tied weight's block is one by itself, the
// same on each of its stages. A *bucket* is what a unit has in one section.
// It ends where the ranks that hold the same parameters can cut it into equal *parts*, one a rank,
// so that its size depends on its own parameters alone. A section ends at a multiple of
// lcm(data-parallel ranks, 128) elements. Elements between parameters are zero and stay so.
//
// Where ranks hold their parts only, these stand one behind the other, in the order of buckets.
#ifndef MEGATRON_OPTIM_FLAT_LAYOUT_H_
#define MEGATRON_OPTIM_FLAT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "megatron/tensor/parameter.h"

namespace megatron {

// Elements [begin, end) of a layout.
struct FlatRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
// What two ranges share; of size 0 where that is nothing.
FlatRange Common(const FlatRange& a, const FlatRange& b);

struct ParameterPlace {
  Parameter* parameter = nullptr;
  int64_t begin = 0, end = 0;
  int bucket = 0;  // by index

  FlatRange range() const { return {begin, end}; }
};

enum class Section { kCopies, kDense, kExperts };

struct Bucket {
  int unit = 0;
  Section section = Section::kDense;
  FlatRange range;
  FlatRange part;                       // this rank's
  int64_t part_begin = 0;               // where it stands among this rank's parts
  int first_place = 0, last_place = 0;  // its parameters: places [first, last)
};

// Which of the ranks that hold the same parameters this one is.
struct DataRank {
  int size = 1, rank = 0;
};

struct FlatLayout {
  std::vector<int> unit_of_block;      // ascending
  std::vector<ParameterPlace> places;  // by falling block, as registered in reverse
  std::vector<Bucket> buckets;         // by begin
  // Copies [0, optimized_begin), dense [.., experts_begin), experts [.., num_elements).
  int64_t optimized_begin = 0, experts_begin = 0, num_elements = 0;
  // Of this rank's parts: those of copies [0, optimized_part_begin), the others [.., part_elements)
  int64_t optimized_part_begin = 0, part_elements = 0;
};

// The parameters of a block are registered one after the other. bucket_size 0: each block is a
// unit.
FlatLayout PlanLayout(const std::vector<Parameter*>& parameters, const DataRank& dense,
                      const DataRank& experts, int64_t bucket_size = 0);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_FLAT_LAYOUT_H_

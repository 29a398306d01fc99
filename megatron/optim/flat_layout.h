// The layout of a stage's parameters in flat memory. Pure arithmetic.
//
// One layout serves weights, gradients, master weights and optimizer states: an element has the
// same position in each. Parameters stand in reverse order of registration, which is about the
// order in which backward finishes their gradients, in five *sections*: frozen dense parameters,
// frozen expert parameters, copies of tied weights that another stage owns, dense parameters,
// expert parameters. Each parameter starts at a multiple of 64 elements.
//
// A *block* (Parameter::block) is a run of parameters that a stage uses together. A *bucket group*
// is what is communicated at once: one block, or as many blocks, from the last one on, as have
// `bucket_size` elements or more together. The block of a tied weight is a bucket group by itself,
// so that it is the same on each of its stages. A *bucket* is the elements of a bucket group in one
// section. A bucket is padded until the ranks that hold the same parameters can cut it into equal
// *shards*, one per rank; its size depends on its own parameters alone. A section ends at a
// multiple of lcm(parts of all shards, 128) elements. The elements between parameters are zero and
// stay zero.
//
// Several ranks may have the same shard. It is cut into equal *parts*, one for each of them: what
// is to be done once for an element is done by the rank that has it in its part.
//
// A part may begin or end inside a parameter, or, if ShardUnit says so, holds whole parameters: the
// larger a parameter, the earlier it is given to the part of its bucket that has the fewest
// elements so far, and all parts are padded to the size of the largest. Such buckets should hold
// many parameters, or the padding is large. With ShardUnit::kMatrix that is so for the buckets that
// hold a matrix, and blocks without one, such as an embedding, share no bucket with the others.
//
// A rank that holds only its shards, or its parts of them, stores them one behind the other, in the
// order of buckets.
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
// Returns the elements that are in both ranges; a range of size 0 if there are none.
FlatRange Common(const FlatRange& a, const FlatRange& b);

// The unit that parts of shards are made of: elements of any parameters, whole parameters, or whole
// matrices of hidden layers (Parameter::matrix) and elements of other parameters.
enum class ShardUnit { kElement, kParameter, kMatrix };
// Returns whether no shard may cut the parameter.
bool IsWhole(ShardUnit unit, const Parameter& parameter);

// A parameter and its elements in the layout.
struct FlatParameter {
  Parameter* parameter = nullptr;
  FlatRange range;
  int bucket = 0;  // index of its bucket
};

enum class Section { kFrozen, kFrozenExperts, kCopies, kDense, kExperts };
inline bool IsFrozen(Section section) {
  return section == Section::kFrozen || section == Section::kFrozenExperts;
}
inline bool HasExperts(Section section) {
  return section == Section::kExperts || section == Section::kFrozenExperts;
}

struct Bucket {
  int bucket_group = 0;
  Section section = Section::kDense;
  FlatRange range;
  FlatRange shard, part;                        // this rank's shard, and its part of it
  int64_t shard_begin = 0;                      // position of the shard among this rank's shards
  int64_t part_begin = 0;                       // position of the part among this rank's parts
  int first_parameter = 0, last_parameter = 0;  // its parameters have indices [first, last)
};

// The number of shards of parameters, and which of them this rank has; the number of parts of a
// shard, and which of them this rank has.
struct DataRank {
  int size = 1, rank = 0;
  int parts = 1, part = 0;
};

struct FlatLayout {
  std::vector<int> bucket_group_of_block;  // ascending
  // The parameters, ascending by range.begin. That is the reverse order of registration, but within
  // a bucket whose shards hold whole parameters, the order of shards goes first.
  std::vector<FlatParameter> parameters;
  std::vector<Bucket> buckets;  // ascending by range.begin
  // The sections: frozen parameters are [0, trained_begin), copies [trained_begin,
  // optimized_begin), dense parameters [optimized_begin, experts_begin) and experts [experts_begin,
  // num_elements).
  int64_t trained_begin = 0, optimized_begin = 0, experts_begin = 0, num_elements = 0;
  // The same for this rank's shards, one behind the other: those of frozen parameters are
  // [0, trained_shard_begin), those of copies [trained_shard_begin, optimized_shard_begin), the
  // others [optimized_shard_begin, shard_elements).
  int64_t trained_shard_begin = 0, optimized_shard_begin = 0, shard_elements = 0;
  // The same for its parts.
  int64_t optimized_part_begin = 0, part_elements = 0;
};

// Lays out the parameters. Those of a block are registered one after the other. With bucket_size 0
// each block is a bucket group.
FlatLayout PlanFlatLayout(const std::vector<Parameter*>& parameters, const DataRank& dense,
                          const DataRank& experts, int64_t bucket_size = 0,
                          ShardUnit unit = ShardUnit::kElement);

}  // namespace megatron

#endif  // MEGATRON_OPTIM_FLAT_LAYOUT_H_

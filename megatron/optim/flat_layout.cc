#include "megatron/optim/flat_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"

namespace megatron {
namespace {

constexpr int64_t kParameterAlignment = 64;
constexpr int64_t kSectionAlignment = 128;

Section SectionOf(const Parameter& parameter) {
  if (parameter.frozen)
    return parameter.sharding.expert_grid ? Section::kFrozenExperts : Section::kFrozen;
  if (parameter.tied && !parameter.owner) return Section::kCopies;
  return parameter.sharding.expert_grid ? Section::kExperts : Section::kDense;
}

// Returns the bucket group of each block.
std::vector<int> GroupBlocks(const std::vector<Parameter*>& parameters, int64_t bucket_size,
                             ShardUnit unit) {
  struct Block {
    int64_t elements = 0;
    bool tied = false;
    bool has_matrix = false;
    bool is_alone(ShardUnit unit) const {
      return tied || (unit == ShardUnit::kMatrix && !has_matrix);
    }
  };
  std::vector<Block> blocks;
  for (const Parameter* parameter : parameters) {
    blocks.resize(std::max<size_t>(blocks.size(), parameter->block + 1));
    blocks[parameter->block].elements += parameter->sharding.local_shape.numel();
    blocks[parameter->block].tied |= parameter->tied;
    blocks[parameter->block].has_matrix |= parameter->matrix.has_value();
  }
  std::vector<int> bucket_groups(blocks.size());
  int bucket_group = 0;  // counted from the last block's
  int64_t elements = 0;  // number of elements in the bucket group so far
  for (size_t i = blocks.size(); i-- > 0;) {
    const bool is_alone = blocks[i].is_alone(unit);
    if (is_alone && elements > 0) ++bucket_group;
    bucket_groups[i] = bucket_group;
    elements = is_alone ? bucket_size : elements + blocks[i].elements;
    if (elements < bucket_size) continue;
    elements = 0;
    ++bucket_group;
  }
  const int first = bucket_groups.empty() ? 0 : bucket_groups.front();
  for (int& counted : bucket_groups) counted = first - counted;
  return bucket_groups;
}

int64_t AlignedSize(const FlatParameter& flat) {
  return RoundUp(flat.parameter->sharding.local_shape.numel(), kParameterAlignment);
}

// Whole parameters, sorted by the part that each of them goes to.
struct WholeParts {
  std::vector<FlatParameter> parameters;
  std::vector<int> parts;  // the part of each
  int64_t part_size = 0;
};

// Gives each parameter to one of `count` parts, which get about as many elements each.
WholeParts ShareOut(absl::Span<const FlatParameter> parameters, int count) {
  std::vector<const FlatParameter*> by_size;
  for (const FlatParameter& flat : parameters) by_size.push_back(&flat);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const FlatParameter* a, const FlatParameter* b) {
                     return AlignedSize(*a) > AlignedSize(*b);
                   });
  std::vector<int64_t> sizes(count, 0);
  std::vector<std::vector<const FlatParameter*>> members(count);
  for (const FlatParameter* flat : by_size) {
    const size_t least = std::min_element(sizes.begin(), sizes.end()) - sizes.begin();
    sizes[least] += AlignedSize(*flat);
    members[least].push_back(flat);
  }
  WholeParts whole;
  whole.part_size = *std::max_element(sizes.begin(), sizes.end());
  for (int part = 0; part < count; ++part) {
    // Within a part, the order of registration stays.
    std::sort(members[part].begin(), members[part].end());
    for (const FlatParameter* flat : members[part]) {
      whole.parameters.push_back(*flat);
      whole.parts.push_back(part);
    }
  }
  return whole;
}

int NumParts(const DataRank& data) { return data.size * data.parts; }

class Planner {
 public:
  Planner(const std::vector<Parameter*>& parameters, int64_t bucket_size, ShardUnit unit)
      : parameters_(parameters), unit_(unit) {
    layout_.bucket_group_of_block = GroupBlocks(parameters, bucket_size, unit);
  }

  void AddSection(Section section, const DataRank& data) {
    const size_t first_bucket = layout_.buckets.size();
    section_begin_ = end_;
    for (auto it = parameters_.rbegin(); it != parameters_.rend(); ++it) {
      if (SectionOf(**it) == section) Append(*it, section, first_bucket, data);
    }
    Close(first_bucket, data);
    end_ = section_begin_ +
           RoundUp(end_ - section_begin_, std::lcm<int64_t>(NumParts(data), kSectionAlignment));
    for (size_t i = first_bucket; i < layout_.buckets.size(); ++i)
      SetShard(data, &layout_.buckets[i]);
  }

  int64_t end() const { return end_; }
  int64_t shard_end() const { return shard_end_; }
  int64_t part_end() const { return part_end_; }
  FlatLayout& layout() { return layout_; }

 private:
  void Append(Parameter* parameter, Section section, size_t first_bucket, const DataRank& data) {
    std::vector<Bucket>& buckets = layout_.buckets;
    CHECK_GT(parameter->sharding.local_shape.rank(), 0) << parameter->name;
    const int bucket_group = layout_.bucket_group_of_block[parameter->block];
    if (buckets.size() == first_bucket || buckets.back().bucket_group != bucket_group) {
      CHECK(buckets.size() == first_bucket || bucket_group < buckets.back().bucket_group)
          << parameter->name << ": the parameters of a block are not next to one another";
      Close(first_bucket, data);
      Bucket bucket;
      bucket.bucket_group = bucket_group;
      bucket.section = section;
      bucket.range.begin = end_;
      bucket.first_parameter = static_cast<int>(layout_.parameters.size());
      buckets.push_back(bucket);
    }
    layout_.parameters.push_back({parameter, {}, static_cast<int>(buckets.size()) - 1});
    buckets.back().last_parameter = static_cast<int>(layout_.parameters.size());
  }

  // Gives the parameters of the section's last bucket, if it has one, their elements, and ends it.
  void Close(size_t first_bucket, const DataRank& data) {
    if (layout_.buckets.size() == first_bucket) return;
    Bucket& bucket = layout_.buckets.back();
    if (HoldsWhole(bucket)) {
      PlaceInParts(bucket, NumParts(data));
    } else {
      for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i)
        Place(&layout_.parameters[i]);
    }
    end_ = bucket.range.begin + RoundUp(end_ - bucket.range.begin,
                                        std::lcm<int64_t>(NumParts(data), kParameterAlignment));
    bucket.range.end = end_;
  }

  bool HoldsWhole(const Bucket& bucket) const {
    if (IsFrozen(bucket.section)) return false;  // no optimizer sees them
    for (int i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
      if (IsWhole(unit_, *layout_.parameters[i].parameter)) return true;
    }
    return false;
  }

  void PlaceInParts(const Bucket& bucket, int count) {
    const int num_parameters = bucket.last_parameter - bucket.first_parameter;
    const auto first = layout_.parameters.begin() + bucket.first_parameter;
    const WholeParts whole = ShareOut(absl::MakeConstSpan(&*first, num_parameters), count);
    for (int i = 0; i < num_parameters; ++i) {
      end_ = std::max(end_, bucket.range.begin + whole.parts[i] * whole.part_size);
      first[i] = whole.parameters[i];
      Place(&first[i]);
    }
    end_ = bucket.range.begin + count * whole.part_size;
  }

  void Place(FlatParameter* flat) {
    const int64_t begin = RoundUp(end_, kParameterAlignment);
    end_ = begin + flat->parameter->sharding.local_shape.numel();
    flat->range = {begin, end_};
  }

  void SetShard(const DataRank& data, Bucket* bucket) {
    const int64_t size = bucket->range.size() / data.size;
    CHECK_EQ(size * data.size, bucket->range.size());
    const int64_t begin = bucket->range.begin + data.rank * size;
    bucket->shard = {begin, begin + size};
    bucket->shard_begin = shard_end_;
    shard_end_ += size;
    const int64_t part_size = size / data.parts;
    CHECK_EQ(part_size * data.parts, size);
    bucket->part = {begin + data.part * part_size, begin + (data.part + 1) * part_size};
    bucket->part_begin = part_end_;
    part_end_ += part_size;
  }

  const std::vector<Parameter*>& parameters_;
  const ShardUnit unit_;
  FlatLayout layout_;
  int64_t section_begin_ = 0, end_ = 0, shard_end_ = 0, part_end_ = 0;
};

}  // namespace

bool IsWhole(ShardUnit unit, const Parameter& parameter) {
  return unit == ShardUnit::kParameter ||
         (unit == ShardUnit::kMatrix && parameter.matrix.has_value());
}

FlatRange Common(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

FlatLayout PlanFlatLayout(const std::vector<Parameter*>& parameters, const DataRank& dense,
                          const DataRank& experts, int64_t bucket_size, ShardUnit unit) {
  Planner planner(parameters, bucket_size, unit);
  FlatLayout& layout = planner.layout();
  planner.AddSection(Section::kFrozen, dense);
  planner.AddSection(Section::kFrozenExperts, experts);
  layout.trained_begin = planner.end();
  layout.trained_shard_begin = planner.shard_end();
  planner.AddSection(Section::kCopies, dense);
  layout.optimized_begin = planner.end();
  layout.optimized_shard_begin = planner.shard_end();
  layout.optimized_part_begin = planner.part_end();
  planner.AddSection(Section::kDense, dense);
  layout.experts_begin = planner.end();
  planner.AddSection(Section::kExperts, experts);
  layout.num_elements = planner.end();
  layout.shard_elements = planner.shard_end();
  layout.part_elements = planner.part_end();
  return std::move(layout);
}

}  // namespace megatron

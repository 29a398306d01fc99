#include "megatron/optim/flat_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "glog/logging.h"

namespace megatron {
namespace {

constexpr int64_t kParameterAlignment = 64;
constexpr int64_t kSectionAlignment = 128;

Section SectionOf(const Parameter& parameter) {
  if (parameter.tied && !parameter.owner) return Section::kCopies;
  return parameter.sharding.expert_grid ? Section::kExperts : Section::kDense;
}

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns the bucket group of each block.
std::vector<int> GroupBlocks(const std::vector<Parameter*>& parameters, int64_t bucket_size) {
  struct Block {
    int64_t elements = 0;
    bool tied = false;
  };
  std::vector<Block> blocks;
  for (const Parameter* parameter : parameters) {
    blocks.resize(std::max<size_t>(blocks.size(), parameter->block + 1));
    blocks[parameter->block].elements += parameter->sharding.local_shape.numel();
    blocks[parameter->block].tied |= parameter->tied;
  }
  std::vector<int> bucket_groups(blocks.size());
  int bucket_group = 0;  // counted from the last block's
  int64_t elements = 0;  // number of elements in the bucket group so far
  for (size_t i = blocks.size(); i-- > 0;) {
    if (blocks[i].tied && elements > 0) ++bucket_group;
    bucket_groups[i] = bucket_group;
    elements = blocks[i].tied ? bucket_size : elements + blocks[i].elements;
    if (elements < bucket_size) continue;
    elements = 0;
    ++bucket_group;
  }
  const int first = bucket_groups.empty() ? 0 : bucket_groups.front();
  for (int& counted : bucket_groups) counted = first - counted;
  return bucket_groups;
}

class Planner {
 public:
  Planner(const std::vector<Parameter*>& parameters, int64_t bucket_size)
      : parameters_(parameters) {
    layout_.bucket_group_of_block = GroupBlocks(parameters, bucket_size);
  }

  void AddSection(Section section, const DataRank& data) {
    const size_t first_bucket = layout_.buckets.size();
    section_begin_ = end_;
    for (auto it = parameters_.rbegin(); it != parameters_.rend(); ++it) {
      if (SectionOf(**it) == section) Append(*it, section, first_bucket, data);
    }
    Close(first_bucket, data);
    end_ = section_begin_ +
           RoundUp(end_ - section_begin_, std::lcm<int64_t>(data.size, kSectionAlignment));
    for (size_t i = first_bucket; i < layout_.buckets.size(); ++i)
      SetShard(data, &layout_.buckets[i]);
  }

  int64_t end() const { return end_; }
  int64_t shard_end() const { return shard_end_; }
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
    const int64_t begin = RoundUp(end_, kParameterAlignment);
    end_ = begin + parameter->sharding.local_shape.numel();
    layout_.parameters.push_back({parameter, {begin, end_}, static_cast<int>(buckets.size()) - 1});
    buckets.back().last_parameter = static_cast<int>(layout_.parameters.size());
  }

  // Ends the last bucket of the section, if it has one.
  void Close(size_t first_bucket, const DataRank& data) {
    if (layout_.buckets.size() == first_bucket) return;
    FlatRange& range = layout_.buckets.back().range;
    end_ = range.begin +
           RoundUp(end_ - range.begin, std::lcm<int64_t>(data.size, kParameterAlignment));
    range.end = end_;
  }

  void SetShard(const DataRank& data, Bucket* bucket) {
    const int64_t size = bucket->range.size() / data.size;
    CHECK_EQ(size * data.size, bucket->range.size());
    const int64_t begin = bucket->range.begin + data.rank * size;
    bucket->shard = {begin, begin + size};
    bucket->shard_begin = shard_end_;
    shard_end_ += size;
  }

  const std::vector<Parameter*>& parameters_;
  FlatLayout layout_;
  int64_t section_begin_ = 0, end_ = 0, shard_end_ = 0;
};

}  // namespace

FlatRange Common(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

FlatLayout PlanLayout(const std::vector<Parameter*>& parameters, const DataRank& dense,
                      const DataRank& experts, int64_t bucket_size) {
  Planner planner(parameters, bucket_size);
  FlatLayout& layout = planner.layout();
  planner.AddSection(Section::kCopies, dense);
  layout.optimized_begin = planner.end();
  layout.optimized_shard_begin = planner.shard_end();
  planner.AddSection(Section::kDense, dense);
  layout.experts_begin = planner.end();
  planner.AddSection(Section::kExperts, experts);
  layout.num_elements = planner.end();
  layout.shard_elements = planner.shard_end();
  return std::move(layout);
}

}  // namespace megatron

#include "megatron/ops/sequence_part.h"

#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"
#include "megatron/ops/host_tensor.h"

namespace megatron::ops {
namespace {

struct Part {
  std::vector<double> cu_seqlens, place;
};

// Sequences of 3, 0, 5 and 2 tokens.
Part PartOf(int64_t begin, int64_t end) {
  ThreadPool pool(1);
  const HostTensor whole = HostTensor::Of({5}, DType::kInt32, {0, 3, 3, 8, 10});
  const HostTensor part({5}, DType::kInt32), place({end - begin}, DType::kInt32);
  PartOfSequences(Stream::Cpu(&pool), whole, begin, end, part, place);
  return {part.Values(), place.Values()};
}

TEST(SequencePartTest, APartHasTheSequencesThatItsTokensBelongTo) {
  EXPECT_EQ(PartOf(0, 4).cu_seqlens, (std::vector<double>{0, 3, 3, 4, 4}));
  EXPECT_EQ(PartOf(0, 4).place, (std::vector<double>{0, 1, 2, 0}));
  EXPECT_EQ(PartOf(4, 7).cu_seqlens, (std::vector<double>{0, 0, 0, 3, 3}));
  EXPECT_EQ(PartOf(4, 7).place, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(PartOf(7, 10).cu_seqlens, (std::vector<double>{0, 0, 0, 1, 3}));
  EXPECT_EQ(PartOf(7, 10).place, (std::vector<double>{4, 0, 1}));
}

TEST(SequencePartTest, AllTokensHaveTheWholeSequences) {
  EXPECT_EQ(PartOf(0, 10).cu_seqlens, (std::vector<double>{0, 3, 3, 8, 10}));
  EXPECT_EQ(PartOf(0, 10).place, (std::vector<double>{0, 1, 2, 0, 1, 2, 3, 4, 0, 1}));
}

TEST(SequencePartTest, APartMayBeEmpty) {
  EXPECT_EQ(PartOf(5, 5).cu_seqlens, (std::vector<double>{0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace megatron::ops

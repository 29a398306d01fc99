#include "megatron/ops/cpu/packed_sequences.h"

#include <atomic>
#include <mutex>
#include <vector>

#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron::ops {
namespace {

// Sequences of so many tokens.
class Sequences {
 public:
  explicit Sequences(const std::vector<int32_t>& lengths) : begins_(1) {
    for (int32_t length : lengths) begins_.push_back(begins_.back() + length);
  }
  PackedSequences packed() {
    const int64_t count = static_cast<int64_t>(begins_.size());
    return PackedSequences(Tensor(begins_.data(), DType::kInt32, {count}), begins_.back());
  }

 private:
  std::vector<int32_t> begins_;
};

TEST(PackedSequencesTest, EachHeadOfEachSequenceIsInOnePart) {
  const std::vector<int32_t> lengths = {5, 0, 700, 1};
  Sequences sequences(lengths);
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int64_t groups : {1, 2, 5}) {
      for (int64_t group_heads : {1, 3, 8}) {
        const int64_t heads = groups * group_heads;
        std::vector<std::atomic<int>> seen(lengths.size() * heads);
        ForEachHeads(Stream::Cpu(&pool), sequences.packed(), groups, group_heads,
                     [&](const HeadsOfSequence& part) {
                       EXPECT_LT(part.first_head, part.end_head);
                       EXPECT_EQ(part.first_head / group_heads, (part.end_head - 1) / group_heads);
                       int64_t s = 0, begin = 0;
                       while (begin != part.begin || begin + lengths[s] != part.end)
                         begin += lengths.at(s++);
                       for (int64_t head = part.first_head; head < part.end_head; ++head)
                         ++seen[s * heads + head];
                     });
        for (const std::atomic<int>& times : seen) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(PackedSequencesTest, GroupsStayTogether) {
  Sequences sequences({5, 3});
  ThreadPool pool(3);
  std::atomic<int> parts{0};
  ForEachGroup(Stream::Cpu(&pool), sequences.packed(), /*groups=*/4, /*group_heads=*/6,
               [&](const HeadsOfSequence& part) {
                 EXPECT_EQ(part.first_head % 6, 0);
                 EXPECT_EQ(part.end_head, part.first_head + 6);
                 ++parts;
               });
  EXPECT_EQ(parts, 8);
}

// One sequence is longer than all others together, and no thread has more of it than its share.
TEST(PackedSequencesTest, ThreadsHaveAsManyHeadsOfALongSequence) {
  Sequences sequences({3, 1000, 20});
  ThreadPool pool(2);
  std::vector<int64_t> of_long;
  std::mutex mutex;
  ForEachHeads(Stream::Cpu(&pool), sequences.packed(), /*groups=*/1, /*group_heads=*/8,
               [&](const HeadsOfSequence& part) {
                 const std::lock_guard<std::mutex> lock(mutex);
                 if (part.begin == 3) of_long.push_back(part.end_head - part.first_head);
               });
  EXPECT_EQ(of_long, std::vector<int64_t>({4, 4}));
}

TEST(PackedSequencesTest, NoSequenceHasNoPart) {
  Sequences sequences({});
  ThreadPool pool(2);
  ForEachHeads(Stream::Cpu(&pool), sequences.packed(), 2, 2,
               [](const HeadsOfSequence&) { FAIL() << "there is a part"; });
}

}  // namespace
}  // namespace megatron::ops

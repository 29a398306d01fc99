// Which ranks of a group keep copies of each other's shards, so that a lost host takes no shard
// along with all of its copies.
//
// Ranks form a ring, host by host. A copy lies a number of places behind its shard, which is the
// same for all ranks: each rank keeps as many copies as any other. For each copy that number is
// chosen by which most shards come to a host that does not have them yet. On one host copies lie on
// the next ranks behind. Where no host has more than half of the ranks, the first copies are all on
// other hosts.
#ifndef MEGATRON_TRAIN_TRAINER_COPY_RING_H_
#define MEGATRON_TRAIN_TRAINER_COPY_RING_H_

#include <cstdint>
#include <vector>

namespace megatron {

class CopyRing {
 public:
  // `hosts` are numbers by rank, alike for ranks of one host. At most as many copies are made as
  // there are other ranks.
  CopyRing(const std::vector<int64_t>& hosts, int copies);

  int copies() const { return static_cast<int>(shifts_.size()); }
  // The rank that keeps copy number `copy`, from 1 on, of this rank's shard.
  int KeeperOf(int rank, int copy) const { return At(rank, shifts_[copy - 1]); }
  // The rank whose copy of that number this rank keeps.
  int KeptBy(int rank, int copy) const { return At(rank, -shifts_[copy - 1]); }

 private:
  int At(int rank, int shift) const {
    const int size = static_cast<int>(ring_.size());
    return ring_[(places_[rank] + shift + size) % size];
  }

  std::vector<int> ring_;    // ranks
  std::vector<int> places_;  // each rank's place in the ring
  std::vector<int> shifts_;  // by copy
};

}  // namespace megatron

#endif  // MEGATRON_TRAIN_TRAINER_COPY_RING_H_

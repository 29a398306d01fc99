// A sum of vectors of integers modulo 2^32, of which the server that forms it learns nothing but
// the sum (Bonawitz et al., CCS 2017, the protocol for honest but curious parties).
//
//   member                                       server
//   advertisement()                      ->      Advertise, then CloseAdvertising
//   ShareKeys(all advertisements)        ->      Share, then CloseSharing
//   Masks(the shares for it); AddMasks;
//   the masked vector                    ->      adds it; Masked, then CloseMasking
//   Reveal(members in the sum)           ->      Reveal, then CloseRevealing; AddMasks to the sum
//
// Each two members agree on a mask, which one adds and the other subtracts, and each adds one of
// its own. The keys of all masks are shared among the members, so that the server can ask for what
// is left in the sum: the own masks of members that are in it, and the pairs' masks of those that
// were lost after the sharing. No member tells both of one member. A step that is closed with fewer
// than `threshold` members fails, and with it the round: the sum cannot be unmasked.
//
// What it keeps secret, and from whom: docs/federated.md. A member or server serves one round.
#ifndef MEGATRON_FEDERATED_SECURE_SUM_H_
#define MEGATRON_FEDERATED_SECURE_SUM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "megatron/federated/round_keys.h"
#include "megatron/federated/shamir.h"

namespace megatron {

struct SecureSumOptions {
  // What makes this round another than all others: the run's name and the round's number.
  std::string round;
  // The fewest members of a sum, at least 2. ThresholdOf() says how many are needed.
  int threshold = 2;
};

// Returns the members that a sum needs of so many that begin, which is also the shares that a key
// needs: at least `least`, and more than half of the members, since a server could ask two halves
// for different keys. kInvalidArgument unless 2 <= least <= members <= kMostShares.
absl::StatusOr<int> ThresholdOf(int least, int members);

struct Advertisement {
  int member = 0;       // not negative
  Key seal_key{};       // public: shares for this member are sealed with it
  Key mask_key{};       // public: the masks of pairs come of it
  Key own_mask_hash{};  // shows that the shares of the own mask's seed were true
};

// Shares of the keys of `from`, which only `to` can read.
struct SealedShares {
  int from = 0;
  int to = 0;
  std::string sealed;
};

// The stream of `seed`, added or subtracted.
struct Mask {
  Key seed{};
  bool subtract = false;
};

// What a member tells at the end.
struct RevealedShares {
  int from = 0;
  std::map<int, KeyShare> own_masks;  // by member, of those in the sum
  std::map<int, KeyShare> mask_keys;  // by member, of those that are lost
};

// Adds all masks, of the elements [first, first + values.size()) of the whole vector.
void AddMasks(const std::vector<Mask>& masks, int64_t first, absl::Span<uint32_t> values);

// Errors are kInvalidArgument for what an honest peer never sends, and kFailedPrecondition for a
// call in the wrong order and for too few members.
class SecureSumMember {
 public:
  SecureSumMember(int member, const SecureSumOptions& options);

  const Advertisement& advertisement() const { return advertisement_; }
  // `all` has this member's own. Returns a message to each other member.
  absl::StatusOr<std::vector<SealedShares>> ShareKeys(const std::vector<Advertisement>& all);
  // `shares` are those for this member, one from each other member that takes part from now on.
  absl::StatusOr<std::vector<Mask>> Masks(const std::vector<SealedShares>& shares);
  // `summed` are the members of the sum, this one too. Answers once.
  absl::StatusOr<RevealedShares> Reveal(const std::vector<int>& summed);

 private:
  enum class Step { kAdvertised, kShared, kMasked, kRevealed };
  struct HeldShares {
    KeyShare own_mask, mask_key;
  };
  absl::Status Expect(Step step) const;

  const SecureSumOptions options_;
  int threshold_ = 0;  // known once the members are
  Step step_ = Step::kAdvertised;
  KeyPair seal_pair_, mask_pair_;
  Key own_mask_seed_{};
  Advertisement advertisement_;
  std::map<int, Advertisement> all_;
  std::map<int, HeldShares> held_;  // by the member whose keys they are
};

class SecureSumServer {
 public:
  explicit SecureSumServer(const SecureSumOptions& options)
      : options_(options), threshold_(options.threshold) {}

  absl::Status Advertise(const Advertisement& advertisement);
  absl::StatusOr<std::vector<Advertisement>> CloseAdvertising();
  // Shares of one member, a message to each other.
  absl::Status Share(int from, const std::vector<SealedShares>& shares);
  // Returns the messages by the member that they are for; members that did not share are lost.
  absl::StatusOr<std::map<int, std::vector<SealedShares>>> CloseSharing();
  // This member's masked vector has come whole, and is in the sum.
  absl::Status Masked(int from);
  absl::StatusOr<std::vector<int>> CloseMasking();
  absl::Status Reveal(const RevealedShares& shares);
  // Returns the masks that turn the sum of the masked vectors into that of the vectors.
  absl::StatusOr<std::vector<Mask>> CloseRevealing() const;

 private:
  enum class Step { kAdvertising, kSharing, kMasking, kRevealing };
  absl::Status Expect(Step step) const;
  absl::Status Enough(size_t members, const char* what) const;
  absl::StatusOr<Key> Join(int member, std::map<int, KeyShare> RevealedShares::*which) const;

  const SecureSumOptions options_;
  int threshold_;  // before CloseAdvertising the fewest of any sum
  Step step_ = Step::kAdvertising;
  std::map<int, Advertisement> all_;
  std::map<int, std::vector<SealedShares>> shared_;  // by the member that shares
  std::vector<int> summed_;                          // ascending
  std::map<int, RevealedShares> revealed_;
};

}  // namespace megatron

#endif  // MEGATRON_FEDERATED_SECURE_SUM_H_

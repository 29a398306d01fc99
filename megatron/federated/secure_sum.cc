#include "megatron/federated/secure_sum.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"

namespace megatron {
namespace {

std::string SealPurpose(const SecureSumOptions& options, int from, int to) {
  return absl::StrCat("seal ", from, " ", to, " ", options.round);
}

std::string MaskPurpose(const SecureSumOptions& options) {
  return absl::StrCat("mask ", options.round);
}

std::string HashPurpose(const SecureSumOptions& options) {
  return absl::StrCat("own mask ", options.round);
}

// Of two members the one with the smaller number adds their mask.
bool Subtracts(int member, int other) { return member > other; }

absl::string_view AsText(const Key& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

Key AsKey(absl::string_view bytes) {
  CHECK_EQ(bytes.size(), size_t{kKeyBytes});
  Key key;
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

}  // namespace

absl::StatusOr<int> ThresholdOf(int least, int members) {
  if (least < 2 || least > members || members > kMostShares) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a secure sum of ", members, " members that needs at least ", least, ": it has at most ",
        kMostShares, " members, and needs at least 2 and not more than all"));
  }
  return std::max(least, members / 2 + 1);
}

void AddMasks(const std::vector<Mask>& masks, int64_t first, absl::Span<uint32_t> values) {
  for (const Mask& mask : masks) {
    if (mask.subtract) {
      SubtractStream(mask.seed, first, values);
    } else {
      AddStream(mask.seed, first, values);
    }
  }
}

SecureSumMember::SecureSumMember(int member, const SecureSumOptions& options)
    : options_(options),
      seal_pair_(MakeKeyPair()),
      mask_pair_(MakeKeyPair()),
      own_mask_seed_(RandomKey()) {
  CHECK_GE(member, 0);
  advertisement_.member = member;
  advertisement_.seal_key = seal_pair_.public_key;
  advertisement_.mask_key = mask_pair_.public_key;
  advertisement_.own_mask_hash = DigestOf(own_mask_seed_, HashPurpose(options_));
}

absl::Status SecureSumMember::Expect(Step step) const {
  if (step_ == step) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "member ", advertisement_.member, " of a secure sum: a call in the wrong order, or again"));
}

absl::StatusOr<std::vector<SealedShares>> SecureSumMember::ShareKeys(
    const std::vector<Advertisement>& all) {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kAdvertised));
  const int count = static_cast<int>(all.size());
  MEGATRON_ASSIGN_OR_RETURN(threshold_, ThresholdOf(options_.threshold, count));
  const int me = advertisement_.member;
  std::map<int, Advertisement> by_member;
  std::set<Key> keys;
  for (const Advertisement& other : all) {
    // One party under two numbers would hold two shares of each key.
    if (other.member < 0 || !by_member.emplace(other.member, other).second ||
        !keys.insert(other.seal_key).second || !keys.insert(other.mask_key).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the list of members of a secure sum has the member ", other.member,
                       " or one of its keys twice, or a negative number"));
    }
  }
  const auto mine = by_member.find(me);
  if (mine == by_member.end() || mine->second.seal_key != advertisement_.seal_key ||
      mine->second.mask_key != advertisement_.mask_key) {
    return absl::InvalidArgumentError(
        absl::StrCat("the list of members of a secure sum lacks member ", me, " or its keys"));
  }
  const std::vector<KeyShare> own_mask = SplitKey(own_mask_seed_, count, threshold_);
  const std::vector<KeyShare> mask_key = SplitKey(mask_pair_.secret, count, threshold_);
  std::vector<SealedShares> messages;
  int place = 0;  // a member's place in the list is the number of its shares
  for (const auto& [to, other] : by_member) {
    const KeyShare &a = own_mask[place], &b = mask_key[place];
    ++place;
    if (to == me) {
      held_[me] = {a, b};
      continue;
    }
    const std::string purpose = SealPurpose(options_, me, to);
    MEGATRON_ASSIGN_OR_RETURN(const Key key, AgreeOnKey(seal_pair_, other.seal_key, purpose));
    messages.push_back({me, to, Seal(key, absl::StrCat(AsText(a.y), AsText(b.y)), purpose)});
  }
  all_ = std::move(by_member);
  step_ = Step::kShared;
  return messages;
}

absl::StatusOr<std::vector<Mask>> SecureSumMember::Masks(const std::vector<SealedShares>& shares) {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kShared));
  const int me = advertisement_.member;
  const uint8_t x = held_.at(me).own_mask.x;
  std::map<int, HeldShares> held = {{me, held_.at(me)}};
  std::vector<Mask> masks = {{own_mask_seed_, false}};
  for (const SealedShares& message : shares) {
    const auto from = all_.find(message.from);
    if (message.to != me || from == all_.end() || held.count(message.from) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shares from member ", message.from, " to member ", message.to, " came to ",
                       me, ": they are for another, from none of the members, or came twice"));
    }
    const std::string purpose = SealPurpose(options_, message.from, me);
    MEGATRON_ASSIGN_OR_RETURN(const Key key,
                              AgreeOnKey(seal_pair_, from->second.seal_key, purpose));
    MEGATRON_ASSIGN_OR_RETURN(const std::string text, Unseal(key, message.sealed, purpose));
    if (text.size() != 2 * kKeyBytes) {
      return absl::InvalidArgumentError(absl::StrCat("shares from member ", message.from, " have ",
                                                     text.size(), " bytes, not ", 2 * kKeyBytes));
    }
    const absl::string_view bytes = text;
    held[message.from] = {{x, AsKey(bytes.substr(0, kKeyBytes))},
                          {x, AsKey(bytes.substr(kKeyBytes))}};
    MEGATRON_ASSIGN_OR_RETURN(const Key seed,
                              AgreeOnKey(mask_pair_, from->second.mask_key, MaskPurpose(options_)));
    masks.push_back({seed, Subtracts(me, message.from)});
  }
  if (static_cast<int>(held.size()) < threshold_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "only ", held.size(), " members have shared their keys; a secure sum needs ", threshold_));
  }
  held_ = std::move(held);
  step_ = Step::kMasked;
  return masks;
}

absl::StatusOr<RevealedShares> SecureSumMember::Reveal(const std::vector<int>& summed) {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kMasked));
  const int me = advertisement_.member;
  const std::set<int> members(summed.begin(), summed.end());
  if (members.size() != summed.size() || members.count(me) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the members of the sum, ",
                                                   absl::StrJoin(summed, ", "), ", lack member ",
                                                   me, ", or one is there twice"));
  }
  for (const int member : members) {
    if (held_.count(member) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("member ", member, " is in the sum, but has not shared its keys"));
  }
  if (static_cast<int>(members.size()) < threshold_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a sum of ", members.size(), " members is not unmasked; it needs ", threshold_));
  }
  RevealedShares shares;
  shares.from = me;
  for (const auto& [member, held] : held_) {
    if (members.count(member) > 0) {
      shares.own_masks[member] = held.own_mask;
    } else {
      shares.mask_keys[member] = held.mask_key;
    }
  }
  step_ = Step::kRevealed;
  return shares;
}

absl::Status SecureSumServer::Expect(Step step) const {
  if (step_ == step) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the server of a secure sum: a call in the wrong order; what comes after the end of its step "
      "is not taken");
}

absl::Status SecureSumServer::Enough(size_t members, const char* what) const {
  if (static_cast<int>(members) >= threshold_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "secure sum of ", options_.round, ": ", members, " members ", what, ", and ", threshold_,
      " are needed; the round has no sum, and the weights stay as they are"));
}

absl::Status SecureSumServer::Advertise(const Advertisement& advertisement) {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kAdvertising));
  if (advertisement.member < 0 || !all_.emplace(advertisement.member, advertisement).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("member ", advertisement.member, " is there already, or no number"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Advertisement>> SecureSumServer::CloseAdvertising() {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kAdvertising));
  MEGATRON_RETURN_IF_ERROR(Enough(all_.size(), "are there"));
  MEGATRON_ASSIGN_OR_RETURN(threshold_,
                            ThresholdOf(options_.threshold, static_cast<int>(all_.size())));
  std::vector<Advertisement> list;
  for (const auto& [member, advertisement] : all_) list.push_back(advertisement);
  step_ = Step::kSharing;
  return list;
}

absl::Status SecureSumServer::Share(int from, const std::vector<SealedShares>& shares) {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kSharing));
  std::set<int> receivers;
  for (const SealedShares& message : shares) {
    if (message.from == from && message.to != from && all_.count(message.to) > 0) {
      receivers.insert(message.to);
    }
  }
  if (all_.count(from) == 0 || receivers.size() != shares.size() ||
      receivers.size() + 1 != all_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shares of member ", from, " are not one for each other member"));
  }
  if (!shared_.emplace(from, shares).second) {
    return absl::InvalidArgumentError(absl::StrCat("member ", from, " has shared its keys before"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<int, std::vector<SealedShares>>> SecureSumServer::CloseSharing() {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kSharing));
  MEGATRON_RETURN_IF_ERROR(Enough(shared_.size(), "have shared their keys"));
  std::map<int, std::vector<SealedShares>> by_receiver;
  for (const auto& [from, messages] : shared_) {
    for (const SealedShares& message : messages) {
      if (shared_.count(message.to) > 0) by_receiver[message.to].push_back(message);
    }
  }
  step_ = Step::kMasking;
  return by_receiver;
}

absl::Status SecureSumServer::Masked(int from) {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kMasking));
  const auto place = std::lower_bound(summed_.begin(), summed_.end(), from);
  if (shared_.count(from) == 0 || (place != summed_.end() && *place == from)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a masked vector of member ", from, ", which has shared no keys or is in the sum already"));
  }
  summed_.insert(place, from);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> SecureSumServer::CloseMasking() {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kMasking));
  MEGATRON_RETURN_IF_ERROR(Enough(summed_.size(), "have sent their masked vectors"));
  step_ = Step::kRevealing;
  return summed_;
}

absl::Status SecureSumServer::Reveal(const RevealedShares& shares) {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kRevealing));
  const auto is_summed = [&](int member) {
    return std::binary_search(summed_.begin(), summed_.end(), member);
  };
  bool fits = is_summed(shares.from) && shares.own_masks.size() == summed_.size() &&
              shares.mask_keys.size() == shared_.size() - summed_.size();
  // The number of a member's shares is its place in the list.
  const auto x = std::distance(all_.begin(), all_.find(shares.from)) + 1;
  for (const auto& [member, share] : shares.own_masks) {
    fits = fits && is_summed(member) && share.x == x;
  }
  for (const auto& [member, share] : shares.mask_keys) {
    fits = fits && shared_.count(member) > 0 && !is_summed(member) && share.x == x;
  }
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("member ", shares.from, " does not reveal the shares asked for"));
  }
  if (!revealed_.emplace(shares.from, shares).second) {
    return absl::InvalidArgumentError(absl::StrCat("member ", shares.from, " reveals twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Key> SecureSumServer::Join(int member,
                                          std::map<int, KeyShare> RevealedShares::*which) const {
  std::vector<KeyShare> shares;
  for (const auto& [from, revealed] : revealed_) {
    if (static_cast<int>(shares.size()) < threshold_) {
      shares.push_back((revealed.*which).at(member));
    }
  }
  return JoinShares(shares);
}

absl::StatusOr<std::vector<Mask>> SecureSumServer::CloseRevealing() const {
  MEGATRON_RETURN_IF_ERROR(Expect(Step::kRevealing));
  MEGATRON_RETURN_IF_ERROR(Enough(revealed_.size(), "have revealed shares"));
  const auto wrong = [&](int member) {
    return absl::FailedPreconditionError(absl::StrCat(
        "secure sum of ", options_.round, ": the shares of a key of member ", member,
        " do not give that key; the round has no sum, and the weights stay as they are"));
  };
  std::vector<Mask> masks;
  for (const int member : summed_) {
    MEGATRON_ASSIGN_OR_RETURN(const Key seed, Join(member, &RevealedShares::own_masks));
    if (DigestOf(seed, HashPurpose(options_)) != all_.at(member).own_mask_hash) {
      return wrong(member);
    }
    masks.push_back({seed, true});
  }
  for (const auto& [member, messages] : shared_) {
    if (std::binary_search(summed_.begin(), summed_.end(), member)) continue;
    KeyPair lost;
    MEGATRON_ASSIGN_OR_RETURN(lost.secret, Join(member, &RevealedShares::mask_keys));
    lost.public_key = PublicKeyOf(lost.secret);
    if (lost.public_key != all_.at(member).mask_key) return wrong(member);
    for (const int other : summed_) {
      MEGATRON_ASSIGN_OR_RETURN(const Key seed,
                                AgreeOnKey(lost, all_.at(other).mask_key, MaskPurpose(options_)));
      masks.push_back({seed, !Subtracts(other, member)});
    }
  }
  return masks;
}

}  // namespace megatron

#include "megatron/islands/secure_round.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/federated/shamir.h"

namespace megatron {

std::string SecureRoundName(uint64_t run, int64_t round) {
  return absl::StrCat("run ", absl::Hex(run), ", round ", round);
}

SecureRound::SecureRound(uint64_t run, int64_t round, int threshold, int64_t elements)
    : server_(SecureSumOptions{SecureRoundName(run, round), threshold}) {
  sum_.values.resize(elements);
}

absl::StatusOr<bool> SecureRound::Advertise(const Advertisement& advertisement) {
  const int island = advertisement.member;
  const bool full = !Has(island) && members() == kMostShares;
  if (step_ != SumStep::kAdvertising || full) {
    Lose(island);
    return false;
  }
  for (const auto& [other, theirs] : members_) {
    if (other == island) continue;
    // Islands refuse a list with one key twice, and would all be lost.
    for (const Key& key : {advertisement.seal_key, advertisement.mask_key}) {
      if (key == theirs.seal_key || key == theirs.mask_key) {
        return absl::InvalidArgumentError(
            absl::StrCat("it advertises a key of island ", other, "'s"));
      }
    }
  }
  if (advertisement.seal_key == advertisement.mask_key)
    return absl::InvalidArgumentError("it advertises one key twice");
  members_[island] = advertisement;
  return true;
}

absl::Status SecureRound::ComesInTime(int island, SumStep step) const {
  if (step_ == step && Has(island) && done_.count(island) == 0) return absl::OkStatus();
  return absl::OutOfRangeError("the sum has gone on without this");
}

absl::Status SecureRound::Share(int island, const std::vector<SealedShares>& shares) {
  MEGATRON_RETURN_IF_ERROR(ComesInTime(island, SumStep::kSharing));
  MEGATRON_RETURN_IF_ERROR(server_.Share(island, shares));
  done_.insert(island);
  return absl::OkStatus();
}

absl::Status SecureRound::Expects(int island) const {
  return ComesInTime(island, SumStep::kMasking);
}

absl::Status SecureRound::AddMasked(int island, const std::vector<uint32_t>& vector) {
  MEGATRON_RETURN_IF_ERROR(Expects(island));
  MEGATRON_RETURN_IF_ERROR(server_.Masked(island));
  CHECK_EQ(vector.size(), sum_.values.size());
  for (size_t i = 0; i < vector.size(); ++i) sum_.values[i] += vector[i];
  done_.insert(island);
  return absl::OkStatus();
}

absl::Status SecureRound::Reveal(int island, const RevealedShares& revealed) {
  MEGATRON_RETURN_IF_ERROR(ComesInTime(island, SumStep::kRevealing));
  if (revealed.from != island)
    return absl::InvalidArgumentError("it reveals shares in another's name");
  MEGATRON_RETURN_IF_ERROR(server_.Reveal(revealed));
  done_.insert(island);
  return absl::OkStatus();
}

void SecureRound::Lose(int island) {
  members_.erase(island);
  done_.erase(island);
}

bool SecureRound::IsComplete() const {
  if (step_ == SumStep::kAdvertising || step_ == SumStep::kUnmasking) return false;
  return done_.size() == members_.size();
}

absl::Status SecureRound::CloseStep() {
  switch (step_) {
    case SumStep::kAdvertising: {
      for (const auto& [island, advertisement] : members_) {
        MEGATRON_RETURN_IF_ERROR(server_.Advertise(advertisement));
      }
      MEGATRON_ASSIGN_OR_RETURN(advertised_, server_.CloseAdvertising());
      step_ = SumStep::kSharing;
      return absl::OkStatus();
    }
    case SumStep::kSharing: {
      MEGATRON_ASSIGN_OR_RETURN(shares_, server_.CloseSharing());
      step_ = SumStep::kMasking;
      break;
    }
    case SumStep::kMasking: {
      MEGATRON_ASSIGN_OR_RETURN(sum_.islands, server_.CloseMasking());
      step_ = SumStep::kRevealing;
      break;
    }
    case SumStep::kRevealing: {
      MEGATRON_ASSIGN_OR_RETURN(sum_.masks, server_.CloseRevealing());
      step_ = SumStep::kUnmasking;
      break;
    }
    case SumStep::kNone:
    case SumStep::kUnmasking:
      LOG(FATAL) << "the last step is not closed";
  }
  for (auto member = members_.begin(); member != members_.end();) {
    const auto current = member++;
    if (done_.count(current->first) == 0) members_.erase(current);
  }
  done_.clear();
  return absl::OkStatus();
}

void SecureRound::Tell(int island, IslandMessage* state) const {
  state->step = StepOf(island);
  if (state->step == SumStep::kSharing) state->members = advertised_;
  if (state->step == SumStep::kMasking && shares_.count(island) > 0)
    state->shares = shares_.at(island);
  if (state->step == SumStep::kRevealing)
    state->summed.assign(sum_.islands.begin(), sum_.islands.end());
}

SecureRound::Sum SecureRound::Take() {
  CHECK(step_ == SumStep::kUnmasking);
  return std::move(sum_);
}

}  // namespace megatron

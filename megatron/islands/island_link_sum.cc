// An island's part in a secure sum.

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/federated/clipped_update.h"
#include "megatron/islands/island_link.h"
#include "megatron/islands/secure_round.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

// A mask on its way to other ranks of the island.
constexpr size_t kMaskBytes = kKeyBytes + 1;

absl::Span<const float> Floats(const Tensor& values) {
  return {static_cast<const float*>(values.raw()), static_cast<size_t>(values.numel())};
}

}  // namespace

IslandMessage IslandLink::SumMessage(IslandMessageKind kind) const {
  IslandMessage message;
  message.kind = kind;
  message.round = round_;
  return message;
}

absl::Status IslandLink::ClipUpdate(const Stop& stop, const Stream& stream) {
  if (std::exchange(clipped_, true)) return absl::OkStatus();
  const double clip_norm = options_.federated.clip_norm;
  Buffer copy;
  double squared = 0;
  for (const Piece& piece : sent_)
    squared += SquaredNorm(Floats(HostValues(piece, IslandContent::kUpdate, stream, &copy)));
  // No type of tensor is a double, so ranks gather its bits, and add in their order.
  int64_t bits = 0;
  std::memcpy(&bits, &squared, sizeof(bits));
  std::vector<int64_t> of_ranks(world_.size(), bits);
  if (world_.size() > 1) {
    world_.AllGather(Tensor(&bits, DType::kInt64, {1}),
                     Tensor(of_ranks.data(), DType::kInt64, {world_.size()}), Stream::Inline());
    MEGATRON_RETURN_IF_ERROR(world_.status());
  }
  squared = 0;
  for (const int64_t other : of_ranks) {
    double of_rank;
    std::memcpy(&of_rank, &other, sizeof(of_rank));
    squared += of_rank;
  }
  const absl::StatusOr<double> scale = ClipScale(squared, clip_norm);
  if (!scale.ok()) {
    // If the server does not hear of it, it waits for the island's next update.
    if (leads()) Abstain(scale.status()).IgnoreError();
    return absl::DataLossError(scale.status().message());
  }
  absl::Status encoded;
  std::vector<uint32_t> integers;
  for (const Piece& piece : sent_) {
    const Tensor values = HostValues(piece, IslandContent::kUpdate, stream, &copy);
    integers.resize(values.numel());
    encoded.Update(EncodeUpdate(Floats(values), *scale, clip_norm, absl::MakeSpan(integers)));
    std::memcpy(values.raw(), integers.data(), values.bytes());
    const Tensor gradients = buffers_->Gradients(*piece.bucket, piece.range);
    if (gradients.raw() != values.raw()) Transport(stream, values, gradients);
  }
  return Together(encoded, stop);
}

absl::Status IslandLink::MaskValues(IslandMessage* put) const {
  std::vector<uint32_t> integers(put->values.size() / sizeof(uint32_t));
  std::memcpy(integers.data(), put->values.data(), put->values.size());
  MEGATRON_RETURN_IF_ERROR(order_.ForEachRun(put->block, [&](const ModelOrder::Run& run) {
    AddMasks(masks_, run.in_model, absl::MakeSpan(integers).subspan(run.in_block, run.count));
  }));
  std::memcpy(&put->values[0], integers.data(), put->values.size());
  return absl::OkStatus();
}

absl::Status IslandLink::Abstain(const absl::Status& why) {
  IslandMessage abstain = SumMessage(IslandMessageKind::kAbstain);
  abstain.note = std::string(why.message());
  return client_.Ask(abstain).status();
}

absl::Status IslandLink::ShareMasks() {
  int64_t count = static_cast<int64_t>(masks_.size());
  world_.Broadcast(Tensor(&count, DType::kInt64, {1}), 0, Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(world_.status());
  masks_.resize(count);
  if (count == 0 || world_.size() == 1) return absl::OkStatus();
  std::vector<uint8_t> bytes(count * kMaskBytes);
  for (size_t i = 0; i < masks_.size(); ++i) {
    std::memcpy(&bytes[i * kMaskBytes], masks_[i].seed.data(), kKeyBytes);
    bytes[i * kMaskBytes + kKeyBytes] = masks_[i].subtract ? 1 : 0;
  }
  world_.Broadcast(Tensor(bytes.data(), DType::kUInt8, {static_cast<int64_t>(bytes.size())}), 0,
                   Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(world_.status());
  for (size_t i = 0; i < masks_.size(); ++i) {
    std::memcpy(masks_[i].seed.data(), &bytes[i * kMaskBytes], kKeyBytes);
    masks_[i].subtract = bytes[i * kMaskBytes + kKeyBytes] != 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<IslandMessage> IslandLink::SumSecurely(IslandMessage state, const Stop& stop,
                                                      const Stream& stream) {
  std::unique_ptr<SecureSumMember> member;
  absl::Status mine;
  if (leads()) {
    member = std::make_unique<SecureSumMember>(
        options_.island,
        SecureSumOptions{SecureRoundName(run_, round_), options_.federated.secure_sum_threshold});
    IslandMessage advertise = SumMessage(IslandMessageKind::kAdvertise);
    advertise.members = {member->advertisement()};
    mine = client_.Ask(advertise).status();
  }
  MEGATRON_RETURN_IF_ERROR(Together(mine, stop));
  IslandMessage poll = SumMessage(IslandMessageKind::kPoll);
  poll.step = SumStep::kAdvertising;
  const absl::Time since = SteadyNow();
  while (state.round == round_ && !stopped_) {
    MEGATRON_ASSIGN_OR_RETURN(state, Await(poll, since, stop));
    if (state.round != round_ || state.step <= poll.step) continue;
    poll.step = state.step;
    MEGATRON_RETURN_IF_ERROR(TakeSumStep(state, member.get(), stop, stream));
  }
  return state;
}

absl::Status IslandLink::TakeSumStep(const IslandMessage& state, SecureSumMember* member,
                                     const Stop& stop, const Stream& stream) {
  // What the server has sent may be the fault of another island. This one leaves the sum then, and
  // goes on from the next copy.
  const auto leave = [this](const absl::Status& why) {
    LOG(WARNING) << "island " << options_.island << " takes no further part in the sum of round "
                 << round_ + 1 << ": " << why.message();
    return Abstain(why);
  };
  absl::Status mine;
  switch (state.step) {
    case SumStep::kSharing:
      if (leads()) {
        absl::StatusOr<std::vector<SealedShares>> shares = member->ShareKeys(state.members);
        IslandMessage share = SumMessage(IslandMessageKind::kShare);
        if (shares.ok()) share.shares = *std::move(shares);
        mine = shares.ok() ? client_.Ask(share).status() : leave(shares.status());
      }
      return Together(mine, stop);
    case SumStep::kMasking: {
      masks_.clear();
      if (leads()) {
        absl::StatusOr<std::vector<Mask>> masks = member->Masks(state.shares);
        if (masks.ok()) {
          masks_ = *std::move(masks);
        } else {
          mine = leave(masks.status());
        }
      }
      MEGATRON_RETURN_IF_ERROR(Together(mine, stop));
      MEGATRON_RETURN_IF_ERROR(ShareMasks());
      if (masks_.empty()) return absl::OkStatus();
      const absl::Status sent = SendAllPieces(IslandContent::kMasked, stop, stream);
      masks_.clear();
      return sent;
    }
    case SumStep::kRevealing:
      if (leads()) {
        const absl::StatusOr<RevealedShares> revealed =
            member->Reveal(std::vector<int>(state.summed.begin(), state.summed.end()));
        IslandMessage reveal = SumMessage(IslandMessageKind::kReveal);
        if (revealed.ok()) reveal.revealed = *revealed;
        mine = revealed.ok() ? client_.Ask(reveal).status() : leave(revealed.status());
      }
      return Together(mine, stop);
    default:
      return absl::OkStatus();
  }
}

}  // namespace megatron

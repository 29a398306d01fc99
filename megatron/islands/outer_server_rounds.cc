// What makes the rounds of the server of the outer optimizer: the islands' messages about updates,
// the end of a round, and its step.

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "megatron/base/quantity.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/hmac_sha256.h"
#include "megatron/federated/noisy_mean.h"
#include "megatron/islands/outer_server.h"
#include "megatron/islands/update_sum.h"

namespace megatron {
namespace {

constexpr absl::Duration kSaveAgain = absl::Seconds(2);

uint64_t RandomNumber() {
  uint64_t number = 0;
  const std::string bytes = RandomBytes(sizeof(number));
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number | 1;  // 0 is no run
}

// Returns the first line in which two texts differ, for a message.
std::string FirstDifference(const std::string& ours, const std::string& theirs) {
  const std::vector<absl::string_view> a = absl::StrSplit(ours, '\n'),
                                       b = absl::StrSplit(theirs, '\n');
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const absl::string_view mine = i < a.size() ? a[i] : "", other = i < b.size() ? b[i] : "";
    if (mine != other)
      return absl::StrCat("the copy is of ", Quoted(mine), ", and the island has ", Quoted(other));
  }
  return "";
}

void LogUnsaved(const absl::Status& saved, int64_t round, bool hidden) {
  if (saved.ok()) return;
  LOG(ERROR) << "the state of round " << round << " was not saved: " << saved.message()
             << (hidden ? "; it counts the round in the privacy budget, so islands get the round's "
                          "copy only when it is saved"
                        : "; rounds go on, and a server that is started again goes back to the "
                          "last one that was saved");
}

}  // namespace

absl::Status OuterServer::RoundIsOver(int64_t round) {
  return absl::OutOfRangeError(absl::StrCat("this is round ", round));
}

absl::Status OuterServer::CheckAgreement(const IslandMessage& message) const {
  const IslandAgreement& ours = copy_->agreement();
  const IslandAgreement& theirs = message.agreement;
  const std::string difference = FederatedDifference(options_.federated, theirs.federated);
  if (!difference.empty()) return absl::FailedPreconditionError(difference);
  if (ours.text != theirs.text)
    return absl::FailedPreconditionError(FirstDifference(ours.text, theirs.text));
  if (ours.outer.lr != theirs.outer.lr || ours.outer.momentum != theirs.outer.momentum ||
      ours.outer.nesterov != theirs.outer.nesterov) {
    return absl::FailedPreconditionError(
        absl::StrCat("the copy has an outer learning rate of ", ours.outer.lr,
                     " and a momentum of ", ours.outer.momentum,
                     ours.outer.nesterov ? " (Nesterov)" : "", ", and the island ", theirs.outer.lr,
                     " and ", theirs.outer.momentum, theirs.outer.nesterov ? " (Nesterov)" : ""));
  }
  if (!message.leads) return absl::OkStatus();
  const size_t count = std::min(ours.tensors.size(), theirs.tensors.size());
  for (size_t i = 0; i < count; ++i) {
    const NamedShape &a = ours.tensors[i], &b = theirs.tensors[i];
    if (a == b) continue;
    std::ostringstream text;
    text << "the copy has " << Quoted(a.name) << " " << a.shape << ", and the island "
         << Quoted(b.name) << " " << b.shape;
    return absl::FailedPreconditionError(text.str());
  }
  if (ours.tensors.size() == theirs.tensors.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the copy has ", ours.tensors.size(), " parameters, and the island ", theirs.tensors.size()));
}

absl::Status OuterServer::Begin(int number, Island* island, const IslandMessage& message) {
  const bool given = copy_->run != 0, masked = message.content == IslandContent::kMasked;
  if (message.content == IslandContent::kCopy) {
    if (given) return RoundIsOver(copy_->round);
  } else {
    if (masked != options_.federated.enabled()) {
      return absl::InvalidArgumentError(
          masked ? "a masked update, and the run is no federated one"
                 : "an update without masks, and the run is a federated one");
    }
    if (!given || message.run != copy_->run || message.round != copy_->round)
      return RoundIsOver(copy_->round);
  }
  island->attempt = message.attempt;
  island->content = message.content;
  island->elements = 0;
  if (masked) {
    if (!secure_.has_value()) return RoundIsOver(copy_->round);
    MEGATRON_RETURN_IF_ERROR(secure_->Expects(number));
    island->masked.assign(copy_->elements(), 0);
    return absl::OkStatus();
  }
  island->values.assign(copy_->elements(), 0.0f);
  island->sent = false;
  island->state = IslandState::kTrains;
  return absl::OkStatus();
}

bool OuterServer::IsSending(const Island& island) {
  if (island.content == IslandContent::kMasked) return !island.masked.empty();
  return !island.values.empty() && !island.sent;
}

absl::Status OuterServer::Put(Island* island, const IslandMessage& message) {
  if (message.attempt != island->attempt || message.content != island->content ||
      !IsSending(*island))
    return RoundIsOver(copy_->round);
  const int64_t count = message.block.place.extent.numel();
  if (island->elements + count > copy_->elements())
    return absl::InvalidArgumentError("more elements than the model has");
  if (message.content == IslandContent::kMasked) {
    std::vector<uint32_t> integers(count);
    std::memcpy(integers.data(), message.values.data(), message.values.size());
    MEGATRON_RETURN_IF_ERROR(copy_->Scatter(message.block, integers.data(), &island->masked));
    island->elements += count;
    return absl::OkStatus();
  }
  std::vector<float> values(count);
  if (message.type == OuterGradientType::kFloat32) {
    std::memcpy(values.data(), message.values.data(), message.values.size());
  } else {
    std::string codes = message.values;
    DecodeOuter(Stream::Inline(), message.type,
                Tensor(&codes[0], DType::kUInt8, {static_cast<int64_t>(codes.size())}),
                Tensor(values.data(), DType::kFloat32, {count}));
  }
  MEGATRON_RETURN_IF_ERROR(copy_->Scatter(message.block, values.data(), &island->values));
  island->elements += count;
  return absl::OkStatus();
}

absl::Status OuterServer::Finish(int number, Island* island, const IslandMessage& message) {
  const bool copy = message.content == IslandContent::kCopy;
  if (message.attempt != island->attempt || message.content != island->content ||
      !IsSending(*island) || (copy ? copy_->run != 0 : copy_->run == 0))
    return RoundIsOver(copy_->round);
  if (island->elements != copy_->elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has sent ", island->elements, " of ", copy_->elements(), " elements"));
  }
  if (copy) {
    if (!AllFinite(island->values))
      return absl::InvalidArgumentError("the first global copy has an infinity or a NaN");
    copy_->global() = std::exchange(island->values, {});
    std::fill(copy_->momentum().begin(), copy_->momentum().end(), 0.0f);
    copy_->run = RandomNumber();
    copy_->round = std::max<int64_t>(message.round, 0);
    present_.clear();
    note_.clear();
    LOG(INFO) << "island " << number << " has given the global copy of "
              << FormatQuantity(copy_->elements(), "parameter") << ", at round " << copy_->round;
    LogUnsaved(Save(), copy_->round, /*hidden=*/false);
    return absl::OkStatus();
  }
  if (message.content == IslandContent::kMasked) {
    const std::vector<uint32_t> masked = std::exchange(island->masked, {});
    if (!secure_.has_value()) return RoundIsOver(copy_->round);
    MEGATRON_RETURN_IF_ERROR(secure_->AddMasked(number, masked));
    EndRound();
    return absl::OkStatus();
  }
  const absl::Status fits = CheckUpdate(island->values);
  if (!fits.ok()) {
    LOG(WARNING) << "island " << number << " is left out of round " << open_round() << ": "
                 << fits.message();
    island->values = {};
    island->awaited = false;
    island->state = IslandState::kFetches;
    island->fetches_since = SteadyNow();
    return absl::DataLossError(fits.message());
  }
  island->sent = true;
  if (deadline_ == absl::InfiniteFuture()) deadline_ = SteadyNow() + options_.round_timeout;
  EndRound();
  return absl::OkStatus();
}

absl::Status OuterServer::TakePart(int number, Island* island, const IslandMessage& message) {
  if (!options_.federated.enabled())
    return absl::InvalidArgumentError("a step of a secure sum, and the run is no federated one");
  if (!island->joined || copy_->run == 0 || message.round != copy_->round ||
      island->state == IslandState::kFetches)
    return RoundIsOver(copy_->round);
  if (message.kind == IslandMessageKind::kAbstain) {
    LOG(WARNING) << "island " << number << " is left out of round " << open_round() << ": "
                 << Quoted(message.note);
    if (!island->sent) {
      island->awaited = false;
      island->state = IslandState::kFetches;
      island->fetches_since = SteadyNow();
    }
    LoseMember(number);
    EndRound();
    return absl::OkStatus();
  }
  if (message.kind == IslandMessageKind::kAdvertise) {
    if (budget_spent_) return absl::FailedPreconditionError("the privacy budget is spent");
    if (message.members[0].member != number)
      return absl::InvalidArgumentError("it advertises keys in another's name");
    if (!secure_.has_value()) {
      secure_.emplace(copy_->run, copy_->round, options_.federated.secure_sum_threshold,
                      copy_->elements());
    }
    const absl::StatusOr<bool> in = secure_->Advertise(message.members[0]);
    MEGATRON_RETURN_IF_ERROR(in.status());
    if (!*in)
      LOG(INFO) << "the sum of round " << open_round() << " has begun without island " << number;
    island->sent = true;
    if (deadline_ == absl::InfiniteFuture()) deadline_ = SteadyNow() + options_.round_timeout;
  } else {
    if (!secure_.has_value()) return RoundIsOver(copy_->round);
    MEGATRON_RETURN_IF_ERROR(message.kind == IslandMessageKind::kShare
                                 ? secure_->Share(number, message.shares)
                                 : secure_->Reveal(number, message.revealed));
  }
  EndRound();
  return absl::OkStatus();
}

void OuterServer::LoseMember(int island) {
  if (!secure_.has_value()) return;
  secure_->Lose(island);
  if (secure_->step() != SumStep::kAdvertising || secure_->members() > 0) return;
  secure_.reset();
  deadline_ = absl::InfiniteFuture();
}

void OuterServer::EndRound() {
  if (stop_ || !copy_.has_value() || copy_->run == 0) return;
  const absl::Time now = SteadyNow();
  if (hidden_) {
    if (now < save_again_) return;
    hidden_ = !Save().ok();
    save_again_ = now + kSaveAgain;
    if (hidden_) return;
    LOG(INFO) << "the state of round " << copy_->round << " is saved";
  }
  const bool late = now >= deadline_, federated = options_.federated.enabled();
  if (secure_.has_value() && secure_->step() != SumStep::kAdvertising) {
    if (secure_->IsComplete() || (late && secure_->step() != SumStep::kUnmasking))
      CloseSecureStep();
    return;
  }
  std::vector<int> sent;
  bool all = true, all_have_fetched = true;
  for (auto& [number, island] : islands_) {
    if (island.joined && island.state == IslandState::kFetches) {
      // Who still reads the copy may not find another.
      if (now < island.fetches_since + options_.round_timeout) {
        all_have_fetched = false;
      } else {
        LOG(WARNING) << "island " << number << " is out: it has not fetched the copy in "
                     << options_.round_timeout;
        island.joined = false;
      }
    }
    if (island.sent) {
      if (!federated || (secure_.has_value() && secure_->Has(number))) sent.push_back(number);
    } else if (island.joined && island.awaited) {
      all = false;
    }
  }
  if (sent.empty()) return;
  const int least = federated
                        ? std::max(options_.min_islands, options_.federated.secure_sum_threshold)
                        : options_.min_islands;
  if (static_cast<int>(sent.size()) < least) {
    if (late && !std::exchange(told_too_few_, true)) {
      LOG(WARNING) << "round " << open_round() << " waits for more islands: "
                   << FormatQuantity(static_cast<int64_t>(sent.size()), "island")
                   << " sent in time, and it takes " << least;
    }
    return;
  }
  if (!all_have_fetched || !(all || late)) return;
  if (federated) {
    CloseSecureStep();
  } else {
    TakeStep(sent);
  }
}

void OuterServer::CloseSecureStep() {
  const absl::Status closed = secure_->CloseStep();
  deadline_ = SteadyNow() + options_.round_timeout;
  if (closed.ok()) return;
  ++copy_->round;
  BeginRound({}, std::string(closed.message()));
}

// The noise of a large model takes long, and islands ask for the state of the round meanwhile.
void OuterServer::Unmask(SecureRound::Sum sum) {
  const FederatedOptions& federated = options_.federated;
  std::vector<float> mean(sum.values.size());
  UnmaskedMean(sum.masks, static_cast<int>(sum.islands.size()), federated.clip_norm,
               federated.has_noise() ? federated.noise_multiplier : 0, options_.noise_threads,
               absl::MakeSpan(sum.values), absl::MakeSpan(mean));
  absl::MutexLock lock(&mutex_);
  if (stop_) return;
  copy_->Step(mean);
  if (federated.has_noise()) ++copy_->noised_rounds;
  BeginRound(sum.islands, "");
}

void OuterServer::TakeStep(const std::vector<int>& islands) {
  std::vector<absl::Span<const float>> updates;
  for (const int number : islands) updates.push_back(islands_[number].values);
  std::vector<float> gradient(copy_->elements());
  const absl::Status summed = MeanOfUpdates(updates, absl::MakeSpan(gradient));
  if (summed.ok()) {
    copy_->Step(gradient);
    BeginRound(islands, "");
  } else {
    ++copy_->round;
    BeginRound({}, std::string(summed.message()));
  }
}

void OuterServer::BeginRound(const std::vector<int>& islands, const std::string& note) {
  present_.assign(islands.begin(), islands.end());
  note_ = note;
  std::vector<int> missed;
  for (auto& [number, island] : islands_) {
    if (island.sent) {
      island.state = IslandState::kFetches;
      island.fetches_since = SteadyNow();
    } else if (island.joined && island.awaited) {
      island.joined = false;
      missed.push_back(number);
    }
    // An island that joined late is waited for from now on.
    island.awaited = true;
    island.sent = false;
    island.values = {};
    island.masked = {};
  }
  secure_.reset();
  unmasks_ = false;
  deadline_ = absl::InfiniteFuture();
  told_too_few_ = false;
  if (note.empty()) {
    LOG(INFO) << "round " << copy_->round << ": islands " << absl::StrJoin(islands, ", ")
              << (missed.empty() ? "" : absl::StrCat("; too late: ", absl::StrJoin(missed, ", ")))
              << "; " << FormatBytes(received_) << " received, " << FormatBytes(sent_)
              << " sent since the round before";
  } else {
    LOG(ERROR) << "round " << copy_->round << " has no outer step: " << note;
  }
  received_ = sent_ = 0;
  const absl::Status saved = Save();
  hidden_ = !saved.ok() && note.empty() && options_.federated.has_noise();
  LogUnsaved(saved, copy_->round, hidden_);
  save_again_ = SteadyNow() + kSaveAgain;
  LookAtBudget();
}

void OuterServer::LookAtBudget() {
  if (!options_.federated.has_noise()) return;
  const PrivacyBudget budget = BudgetAfter(options_.federated, copy_->noised_rounds);
  const absl::Status next = budget.MayTakeRound();
  LOG(INFO) << "epsilon is " << absl::StrFormat("%.4g", budget.epsilon()) << " at delta "
            << options_.federated.delta << " after " << FormatQuantity(budget.rounds(), "round")
            << " with noise";
  if (!next.ok() && !std::exchange(budget_spent_, true))
    LOG(WARNING) << next.message() << "; there are no more rounds";
}

absl::Status OuterServer::Save() {
  if (options_.state_file.empty()) return absl::OkStatus();
  return copy_->Save(fs_, options_.state_file);
}

}  // namespace megatron

#include "megatron/islands/island_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/comm/socket/hmac_sha256.h"
#include "megatron/optim/main_replica.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

constexpr absl::Duration kConnectTime = absl::Seconds(5);
constexpr absl::Duration kPollTime = absl::Seconds(1);
constexpr absl::Duration kFirstPause = absl::Milliseconds(500), kLongestPause = absl::Seconds(30);
// A server notices within half a minute that the job before this one has gone.
constexpr absl::Duration kConflictTime = absl::Minutes(1);
constexpr size_t kGetsAhead = 8;

// Kinds of statuses, by gravity.
enum Gravity : int32_t { kFine = 0, kTryAgain = 1, kLeftOut = 2, kFails = 3 };

Gravity GravityOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kFine;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kAlreadyExists:
      return kTryAgain;
    case absl::StatusCode::kDataLoss:
      return kLeftOut;
    default:
      return kFails;
  }
}

absl::Status OfAnotherRank(int32_t gravity) {
  switch (gravity) {
    case kTryAgain:
      return absl::UnavailableError("another rank of the island has to try again");
    case kLeftOut:
      return absl::DataLossError("the island's update is left out");
    default:
      return absl::FailedPreconditionError("the outer server has refused another rank");
  }
}

std::vector<NamedShape> Sorted(std::vector<NamedShape> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedShape& a, const NamedShape& b) { return a.name < b.name; });
  return tensors;
}

bool Has(const std::vector<int32_t>& islands, int island) {
  return std::find(islands.begin(), islands.end(), island) != islands.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<IslandLink>> IslandLink::Create(
    const IslandLinkOptions& options, const std::vector<NamedShape>& tensors,
    const ProcessGroups& groups, const OuterOptimizer* outer, const ParameterBuffers* buffers) {
  MEGATRON_ASSIGN_OR_RETURN(const Endpoint server, Endpoint::Parse(options.server_address));
  MEGATRON_ASSIGN_OR_RETURN(const JobSecret secret, JobSecret::FromFile(options.secret_file));
  return std::unique_ptr<IslandLink>(
      new IslandLink(options, server, secret, tensors, groups, outer, buffers));
}

IslandLink::IslandLink(const IslandLinkOptions& options, Endpoint server, const JobSecret& secret,
                       const std::vector<NamedShape>& tensors, const ProcessGroups& groups,
                       const OuterOptimizer* outer, const ParameterBuffers* buffers)
    : options_(options),
      agreement_{options.agreement, options.outer, options.federated, Sorted(tensors)},
      order_(agreement_.tensors),
      groups_(groups),
      world_(groups.world),
      outer_(outer),
      buffers_(buffers),
      client_(std::move(server), secret) {
  CHECK_EQ(groups.data_context_replicas.size(), 1);
  if (!leads()) agreement_.tensors.clear();
  for (const FlatParameter& flat : buffers->parameters()) {
    AppendPieces(flat, MainReplicaRange(*buffers, flat, groups), &sent_);
    AppendPieces(flat, Common(flat.range, buffers->optimizer_range(buffers->bucket_of(flat))),
                 &fetched_);
  }
}

// The server notices that the connection ends; with a word it knows why.
IslandLink::~IslandLink() {
  IslandMessage leave;
  leave.kind = IslandMessageKind::kLeave;
  if (leads() && client_.connected()) client_.Send(leave).IgnoreError();
}

void IslandLink::AppendPieces(const FlatParameter& flat, const FlatRange& range,
                              std::vector<Piece>* pieces) const {
  const Sharding& sharding = flat.parameter->sharding;
  for (int64_t begin = range.begin; begin < range.end; begin += kMostBlockElements) {
    const int64_t end = std::min(begin + kMostBlockElements, range.end);
    int64_t at = begin;
    for (const Rectangle& part : ConsecutiveRectangles(
             begin - flat.range.begin, end - flat.range.begin, sharding.local_shape)) {
      Piece piece;
      piece.bucket = &buffers_->bucket_of(flat);
      piece.range = {at, at + part.extent.numel()};
      at = piece.range.end;
      piece.block = {flat.parameter->name, part};
      for (int d = 0; d < part.start.rank(); ++d) piece.block.place.start[d] += sharding.offset[d];
      pieces->push_back(std::move(piece));
    }
  }
}

absl::Status IslandLink::Together(const absl::Status& mine, const Stop& stop) {
  int32_t values[2] = {GravityOf(mine), stop() ? 1 : 0};
  if (world_.size() > 1) {
    world_.AllReduce(Tensor(values, DType::kInt32, {2}), ReduceOp::kMax, Stream::Inline());
    // A lost rank of this job is no matter of the server's.
    MEGATRON_RETURN_IF_ERROR(world_.status());
  }
  stopped_ = values[1] != 0;
  if (values[0] == kFine) return absl::OkStatus();
  return GravityOf(mine) == values[0] ? mine : OfAnotherRank(values[0]);
}

absl::StatusOr<IslandMessage> IslandLink::ShareState(const absl::StatusOr<IslandMessage>& state,
                                                     const Stop& stop) {
  MEGATRON_RETURN_IF_ERROR(Together(state.status(), stop));
  IslandMessage shared = *state;
  int64_t values[8] = {
      static_cast<int64_t>(shared.run),  shared.round,
      static_cast<int64_t>(shared.copy), static_cast<int64_t>(shared.present.size()),
      static_cast<int64_t>(shared.step), shared.noised_rounds,
      shared.budget_spent ? 1 : 0,       static_cast<int64_t>(shared.note.size())};
  world_.Broadcast(Tensor(values, DType::kInt64, {8}), 0, Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(world_.status());
  shared.present.resize(values[3]);
  if (values[3] > 0)
    world_.Broadcast(Tensor(shared.present.data(), DType::kInt32, {values[3]}), 0,
                     Stream::Inline());
  shared.note.resize(values[7]);
  if (values[7] > 0)
    world_.Broadcast(Tensor(&shared.note[0], DType::kUInt8, {values[7]}), 0, Stream::Inline());
  MEGATRON_RETURN_IF_ERROR(world_.status());
  shared.run = static_cast<uint64_t>(values[0]);
  shared.round = values[1];
  shared.copy = static_cast<CopyState>(values[2]);
  shared.step = static_cast<SumStep>(values[4]);
  noised_rounds_ = values[5];
  budget_spent_ = values[6] != 0;
  return shared;
}

IslandMessage IslandLink::JoinMessage() const {
  IslandMessage join;
  join.kind = IslandMessageKind::kJoin;
  join.island = options_.island;
  join.session = session_;
  join.leads = leads();
  join.agreement = agreement_;
  join.run = run_;
  join.round = round_;
  return join;
}

absl::StatusOr<IslandMessage> IslandLink::JoinServer() {
  if (!client_.connected()) {
    MEGATRON_RETURN_IF_ERROR(client_.Connect(kConnectTime));
  }
  absl::StatusOr<IslandMessage> state = client_.Ask(JoinMessage());
  if (!absl::IsAlreadyExists(state.status())) {
    conflict_since_ = absl::InfiniteFuture();
    return state;
  }
  conflict_since_ = std::min(conflict_since_, SteadyNow());
  if (SteadyNow() - conflict_since_ > kConflictTime)
    return absl::FailedPreconditionError(state.status().message());
  return state;
}

Tensor IslandLink::HostValues(const Piece& piece, IslandContent content, const Stream& stream,
                              Buffer* copy) const {
  const Tensor values = content == IslandContent::kCopy
                            ? outer_->Global(*piece.bucket, piece.range)
                            : buffers_->Gradients(*piece.bucket, piece.range);
  if (stream.device().type == DeviceType::kCpu) return values;
  *copy = Buffer(Device(), values.bytes(), "host/outer gradients", nullptr);
  const Tensor on_host = copy->At(0, DType::kFloat32, {values.numel()});
  Transport(stream, values, on_host);
  return on_host;
}

absl::Status IslandLink::PutPieces(IslandContent content, const Stream& stream) {
  const OuterGradientType type =
      content == IslandContent::kUpdate ? options_.gradient_type : OuterGradientType::kFloat32;
  for (const Piece& piece : sent_) {
    Buffer copy;
    const Tensor values = HostValues(piece, content, stream, &copy);
    IslandMessage put;
    put.kind = IslandMessageKind::kPut;
    put.content = content;
    put.round = round_;
    put.attempt = attempt_;
    put.type = type;
    put.block = piece.block;
    if (type == OuterGradientType::kFloat32) {
      put.values.assign(static_cast<const char*>(values.raw()), values.bytes());
    } else {
      put.values.resize(OuterCodeBytes(type, values.numel()));
      EncodeOuter(Stream::Inline(), type, values,
                  Tensor(&put.values[0], DType::kUInt8, {static_cast<int64_t>(put.values.size())}));
    }
    if (content == IslandContent::kMasked) {
      MEGATRON_RETURN_IF_ERROR(MaskValues(&put));
    }
    MEGATRON_RETURN_IF_ERROR(client_.Send(put));
  }
  IslandMessage flush;
  flush.kind = IslandMessageKind::kFlush;
  return client_.Ask(flush).status();
}

absl::Status IslandLink::SendAllPieces(IslandContent content, const Stop& stop,
                                       const Stream& stream) {
  ++attempt_;
  IslandMessage begin;
  begin.kind = IslandMessageKind::kBegin;
  begin.content = content;
  begin.run = run_;
  begin.round = round_;
  begin.attempt = attempt_;
  MEGATRON_RETURN_IF_ERROR(
      Together(leads() ? client_.Ask(begin).status() : absl::OkStatus(), stop));
  MEGATRON_RETURN_IF_ERROR(Together(PutPieces(content, stream), stop));
  IslandMessage finish = begin;
  finish.kind = IslandMessageKind::kFinish;
  return Together(leads() ? client_.Ask(finish).status() : absl::OkStatus(), stop);
}

absl::Status IslandLink::FetchPieces(int64_t round, const Stream& stream) {
  size_t asked = 0;
  for (size_t i = 0; i < fetched_.size(); ++i) {
    for (; asked < std::min(i + kGetsAhead, fetched_.size()); ++asked) {
      IslandMessage get;
      get.kind = IslandMessageKind::kGet;
      get.round = round;
      get.block = fetched_[asked].block;
      MEGATRON_RETURN_IF_ERROR(client_.Send(get));
    }
    MEGATRON_ASSIGN_OR_RETURN(const IslandMessage values, client_.Receive());
    if (!values.status.ok()) {
      // Answers to what was asked ahead are still on their way.
      client_.Close();
      return values.status;
    }
    const Piece& piece = fetched_[i];
    const Tensor to = buffers_->Gradients(*piece.bucket, piece.range);
    if (static_cast<int64_t>(values.values.size()) != to.bytes()) {
      client_.Close();
      return absl::UnavailableError("the outer server has sent another number of bytes");
    }
    Buffer host(Device(), to.bytes(), "host/outer gradients", nullptr);
    const Tensor from = host.At(0, DType::kFloat32, {to.numel()});
    std::memcpy(from.raw(), values.values.data(), values.values.size());
    Transport(stream, from, to);
  }
  return absl::OkStatus();
}

absl::StatusOr<IslandMessage> IslandLink::Await(IslandMessage poll, absl::Time since,
                                                const Stop& stop) {
  const absl::Time now = SteadyNow();
  if (leads() && now >= std::max(since, told_) + options_.tell_interval) {
    told_ = now;
    LOG(WARNING) << "island " << options_.island << " has waited "
                 << absl::Trunc(now - since, absl::Seconds(1)) << " for the end of round "
                 << round_ + 1
                 << ": the outer server waits for other islands, as --min_islands and "
                 << "--round_timeout say";
  }
  poll.wait_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(kPollTime));
  return ShareState(leads() ? client_.Ask(poll) : absl::StatusOr<IslandMessage>(IslandMessage()),
                    stop);
}

absl::StatusOr<IslandMessage> IslandLink::SendUpdate(IslandMessage state, const Stop& stop,
                                                     const Stream& stream) {
  if (options_.federated.enabled()) {
    MEGATRON_RETURN_IF_ERROR(ClipUpdate(stop, stream));
    return SumSecurely(std::move(state), stop, stream);
  }
  MEGATRON_RETURN_IF_ERROR(SendAllPieces(IslandContent::kUpdate, stop, stream));
  IslandMessage poll;
  poll.kind = IslandMessageKind::kPoll;
  poll.round = round_;
  const absl::Time since = SteadyNow();
  while (state.round == round_ && !stopped_) {
    MEGATRON_ASSIGN_OR_RETURN(state, Await(poll, since, stop));
  }
  return state;
}

absl::Status IslandLink::Attempt(bool with_update, const Stop& stop, const Stream& stream,
                                 Round* round) {
  MEGATRON_ASSIGN_OR_RETURN(
      IslandMessage state,
      ShareState(leads() ? JoinServer() : absl::StatusOr<IslandMessage>(IslandMessage()), stop));
  MEGATRON_RETURN_IF_ERROR(Together(leads() ? absl::OkStatus() : JoinServer().status(), stop));
  if (state.copy == CopyState::kWait)
    return absl::UnavailableError("another island gives the first global copy");
  if (state.copy == CopyState::kGive) {
    MEGATRON_RETURN_IF_ERROR(SendAllPieces(IslandContent::kCopy, stop, stream));
    IslandMessage ask;
    ask.kind = IslandMessageKind::kPoll;
    MEGATRON_ASSIGN_OR_RETURN(
        state,
        ShareState(leads() ? client_.Ask(ask) : absl::StatusOr<IslandMessage>(IslandMessage()),
                   stop));
    if (leads()) LOG(INFO) << "the outer server has the global copy of this island";
    run_ = state.run;
    round_ = state.round;
  }
  // The round may have ended with the update while the connection was lost.
  if (with_update && state.run == run_ && state.round == round_ + 1)
    round->took_part = Has(state.present, options_.island);
  const bool current = state.run == run_ && state.round == round_ && !must_fetch_;
  if (with_update && current && !budget_spent_) {
    const absl::StatusOr<IslandMessage> after = SendUpdate(state, stop, stream);
    if (GravityOf(after.status()) == kLeftOut) {
      round->left_out = std::string(after.status().message());
    } else {
      MEGATRON_RETURN_IF_ERROR(after.status());
      state = *after;
      if (state.round == round_) return absl::OkStatus();  // stopped
      round->took_part = !options_.federated.enabled() || state.present.empty() ||
                         Has(state.present, options_.island);
    }
  } else if (current && !with_update) {
    return absl::OkStatus();
  }
  must_fetch_ = true;  // the gradients are no update from here on
  MEGATRON_RETURN_IF_ERROR(Together(FetchPieces(state.round, stream), stop));
  IslandMessage fetched;
  fetched.kind = IslandMessageKind::kFetched;
  fetched.round = state.round;
  MEGATRON_RETURN_IF_ERROR(
      Together(leads() ? client_.Ask(fetched).status() : absl::OkStatus(), stop));
  run_ = state.run;
  round_ = state.round;
  round->has_copy = true;
  if (round->took_part) {
    round->present.assign(state.present.begin(), state.present.end());
    round->note = state.note;
  }
  return absl::OkStatus();
}

absl::StatusOr<IslandLink::Round> IslandLink::Try(bool with_update, const Stop& stop,
                                                  const Stream& stream) {
  const absl::Time begin = SteadyNow();
  const int64_t sent = client_.sent_bytes(), received = client_.received_bytes();
  absl::Duration pause = kFirstPause;
  must_fetch_ = clipped_ = false;
  Round round;
  while (true) {
    Round attempt;
    const absl::Status status = Attempt(with_update, stop, stream, &attempt);
    MEGATRON_RETURN_IF_ERROR(world_.status());
    attempt.took_part = attempt.took_part || round.took_part;
    if (attempt.left_out.empty()) attempt.left_out = round.left_out;
    round = attempt;
    if (status.ok() || stopped_) break;
    if (GravityOf(status) != kTryAgain) return status;
    if (leads() && SteadyNow() >= told_ + options_.tell_interval) {
      told_ = SteadyNow();
      LOG(WARNING) << "island " << options_.island << " waits for the outer server at "
                   << options_.server_address << ": " << status.message();
    }
    // A round that is over only has to be asked for again.
    if (absl::IsOutOfRange(status)) continue;
    const absl::Time until = SteadyNow() + pause;
    while (SteadyNow() < until && !stop()) absl::SleepFor(absl::Milliseconds(50));
    pause = std::min(2 * pause, kLongestPause);
  }
  round.stopped = stopped_ && !round.has_copy;
  round.round = round_;
  round.time = SteadyNow() - begin;
  round.budget_spent = budget_spent_;
  if (options_.federated.has_noise()) {
    round.epsilon = BudgetAfter(options_.federated, noised_rounds_).epsilon();
    round.delta = options_.federated.delta;
  }
  int64_t bytes[2] = {client_.sent_bytes() - sent, client_.received_bytes() - received};
  if (world_.size() > 1)
    world_.AllReduce(Tensor(bytes, DType::kInt64, {2}), ReduceOp::kSum, Stream::Inline());
  round.sent_bytes = bytes[0];
  round.received_bytes = bytes[1];
  MEGATRON_RETURN_IF_ERROR(world_.status());
  return round;
}

absl::StatusOr<IslandLink::Round> IslandLink::Join(uint64_t run, int64_t round, const Stop& stop,
                                                   const Stream& stream) {
  run_ = run;
  round_ = round;
  const std::string bytes = RandomBytes(sizeof(session_));
  std::memcpy(&session_, bytes.data(), sizeof(session_));
  int64_t session = static_cast<int64_t>(session_);
  world_.Broadcast(Tensor(&session, DType::kInt64, {1}), 0, Stream::Inline());
  session_ = static_cast<uint64_t>(session);
  return Try(/*with_update=*/false, stop, stream);
}

absl::StatusOr<IslandLink::Round> IslandLink::Exchange(const Stop& stop, const Stream& stream) {
  return Try(/*with_update=*/true, stop, stream);
}

}  // namespace megatron

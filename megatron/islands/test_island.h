// Islands of one rank for tests of their server: calls of the test's process.
#ifndef MEGATRON_ISLANDS_TEST_ISLAND_H_
#define MEGATRON_ISLANDS_TEST_ISLAND_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/federated/secure_sum.h"
#include "megatron/islands/island_client.h"
#include "megatron/islands/outer_server.h"
#include "megatron/islands/secure_round.h"

namespace megatron {

using ModelValues = std::vector<float>;

constexpr int kElements = 8;  // a: [2, 3], b: [2]

inline IslandAgreement TestAgreement() {
  IslandAgreement agreement;
  agreement.text = "model { layers: 2 }\ntrain { seed: 1 }\n";
  agreement.outer = {0.7, 0.9, true};
  agreement.tensors = {{"a", {2, 3}}, {"b", {2}}};
  return agreement;
}

// The blocks of one rank that has all, in the order of elements.
inline std::vector<TensorBlock> Blocks() { return {{"a", {{0, 0}, {2, 3}}}, {"b", {{0}, {2}}}}; }

inline std::string Bytes(const ModelValues& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline IslandMessage MessageOf(IslandMessageKind kind, int64_t round = 0) {
  IslandMessage message;
  message.kind = kind;
  message.round = round;
  return message;
}

// An island of one rank.
class TestIsland {
 public:
  TestIsland(const OuterServer& server, const JobSecret& secret, int number)
      : client_(server.endpoint(), secret), number_(number), session_(number * 1000 + 7) {}

  // Makes it an island of a federated run.
  void set_federated(const FederatedOptions& federated) { federated_ = federated; }
  // Whether it is the island's first rank.
  void set_leads(bool leads) { leads_ = leads; }

  absl::StatusOr<IslandMessage> Join() {
    IslandAgreement agreement = TestAgreement();
    agreement.federated = federated_;
    return Join(agreement);
  }
  absl::StatusOr<IslandMessage> Join(const IslandAgreement& agreement) {
    if (!client_.connected()) {
      const absl::Status connected = client_.Connect(absl::Seconds(5));
      if (!connected.ok()) return connected;
    }
    IslandMessage join = MessageOf(IslandMessageKind::kJoin, round);
    join.island = number_;
    join.session = session_;
    join.leads = leads_;
    join.agreement = agreement;
    join.run = run;
    return client_.Ask(join);
  }
  absl::Status SendValues(IslandContent content, const ModelValues& values,
                          OuterGradientType type = OuterGradientType::kFloat32) {
    ++attempt_;
    IslandMessage begin = MessageOf(IslandMessageKind::kBegin, round);
    begin.content = content;
    begin.run = run;
    begin.attempt = attempt_;
    absl::Status status = client_.Ask(begin).status();
    if (!status.ok()) return status;
    size_t at = 0;
    for (const TensorBlock& block : Blocks()) {
      IslandMessage put = begin;
      put.kind = IslandMessageKind::kPut;
      put.block = block;
      put.type = type;
      const int64_t count = block.place.extent.numel();
      ModelValues part(values.begin() + at, values.begin() + at + count);
      at += count;
      if (type == OuterGradientType::kFloat32) {
        put.values = Bytes(part);
      } else {
        put.values.resize(OuterCodeBytes(type, count));
        EncodeOuter(
            Stream::Inline(), type, Tensor(part.data(), DType::kFloat32, {count}),
            Tensor(&put.values[0], DType::kUInt8, {static_cast<int64_t>(put.values.size())}));
      }
      status = client_.Send(put);
      if (!status.ok()) return status;
    }
    status = client_.Ask(MessageOf(IslandMessageKind::kFlush)).status();
    if (!status.ok()) return status;
    IslandMessage finish = begin;
    finish.kind = IslandMessageKind::kFinish;
    return client_.Ask(finish).status();
  }
  // Joins, and gives the copy or fetches it.
  ModelValues Enter(const ModelValues& copy = {}) {
    absl::StatusOr<IslandMessage> state = Join();
    EXPECT_THAT(state.status(), absl_testing::IsOk());
    if (state.ok() && state->copy == CopyState::kGive) {
      EXPECT_THAT(SendValues(IslandContent::kCopy, copy), absl_testing::IsOk());
      state = Join();
      EXPECT_THAT(state.status(), absl_testing::IsOk());
      run = state->run;
      round = state->round;
    }
    return Fetch(*state);
  }
  ModelValues Fetch(const IslandMessage& state) {
    ModelValues all;
    for (const TensorBlock& block : Blocks()) {
      IslandMessage get = MessageOf(IslandMessageKind::kGet, state.round);
      get.block = block;
      const auto values = client_.Ask(get);
      EXPECT_THAT(values.status(), absl_testing::IsOk());
      if (!values.ok()) return {};
      ModelValues part(values->values.size() / sizeof(float));
      std::memcpy(part.data(), values->values.data(), values->values.size());
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_THAT(client_.Ask(MessageOf(IslandMessageKind::kFetched, state.round)).status(),
                absl_testing::IsOk());
    run = state.run;
    round = state.round;
    return all;
  }
  // Waits for the end of the round, or for a later step of its sum; the state then, or after so
  // long.
  IslandMessage Await(absl::Duration most = absl::Seconds(20),
                      SumStep known = SumStep::kUnmasking) {
    IslandMessage poll = MessageOf(IslandMessageKind::kPoll, round);
    poll.wait_ms = 200;
    poll.step = known;
    const absl::Time until = SteadyNow() + most;
    while (true) {
      const auto state = client_.Ask(poll);
      EXPECT_THAT(state.status(), absl_testing::IsOk());
      if (!state.ok() || state->round != round || state->step > known || SteadyNow() > until)
        return state.value_or(poll);
    }
  }

  // The steps of a secure sum. Each after the first waits for the server's answer to the one
  // before.
  absl::Status Advertise() {
    member_ = std::make_unique<SecureSumMember>(
        number_, SecureSumOptions{SecureRoundName(run, round), federated_.secure_sum_threshold});
    IslandMessage advertise = MessageOf(IslandMessageKind::kAdvertise, round);
    advertise.members = {member_->advertisement()};
    return client_.Ask(advertise).status();
  }
  absl::Status Share() {
    const IslandMessage state = Await(absl::Seconds(20), SumStep::kAdvertising);
    if (state.step != SumStep::kSharing) return absl::OutOfRangeError(state.note);
    IslandMessage share = MessageOf(IslandMessageKind::kShare, round);
    share.shares = member_->ShareKeys(state.members).value();
    return client_.Ask(share).status();
  }
  absl::Status SendMasked(const std::vector<uint32_t>& integers) {
    const IslandMessage state = Await(absl::Seconds(20), SumStep::kSharing);
    if (state.step != SumStep::kMasking) return absl::OutOfRangeError(state.note);
    std::vector<uint32_t> masked = integers;
    AddMasks(member_->Masks(state.shares).value(), 0, absl::MakeSpan(masked));
    ModelValues bits(masked.size());
    std::memcpy(bits.data(), masked.data(), masked.size() * sizeof(uint32_t));
    return SendValues(IslandContent::kMasked, bits);
  }
  absl::Status Reveal() {
    const IslandMessage state = Await(absl::Seconds(20), SumStep::kMasking);
    if (state.step != SumStep::kRevealing) return absl::OutOfRangeError(state.note);
    IslandMessage reveal = MessageOf(IslandMessageKind::kReveal, round);
    reveal.revealed =
        member_->Reveal(std::vector<int>(state.summed.begin(), state.summed.end())).value();
    return client_.Ask(reveal).status();
  }
  void Disconnect() { client_.Close(); }
  IslandClient& client() { return client_; }

  uint64_t run = 0;
  int64_t round = -1;

 private:
  IslandClient client_;
  const int number_;
  const uint64_t session_;
  bool leads_ = true;
  uint64_t attempt_ = 0;
  FederatedOptions federated_;
  std::unique_ptr<SecureSumMember> member_;
};

// The outer step on vectors, with updates in the order of islands.
class Plain {
 public:
  explicit Plain(const ModelValues& start) : global_(start), momentum_(start.size()) {}
  void Step(const std::vector<ModelValues>& updates) {
    for (size_t i = 0; i < global_.size(); ++i) {
      float d = updates[0][i];
      for (size_t k = 1; k < updates.size(); ++k) d += updates[k][i];
      if (updates.size() > 1) d *= static_cast<float>(1.0 / static_cast<double>(updates.size()));
      momentum_[i] = 0.9f * momentum_[i];
      momentum_[i] += d;
      float change = 0.9f * momentum_[i];
      change += d;
      change *= -0.7f;
      global_[i] += change;
    }
  }
  const ModelValues& global() const { return global_; }

 private:
  ModelValues global_, momentum_;
};

// Small numbers that depend on the seed.
inline ModelValues Some(int seed) {
  ModelValues values(kElements);
  for (int i = 0; i < kElements; ++i)
    values[i] = std::sin(static_cast<float>(seed * 31 + i * 7)) * 0.1f;
  return values;
}

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_TEST_ISLAND_H_

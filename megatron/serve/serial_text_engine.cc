#include "megatron/serve/serial_text_engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/philox.h"
#include "megatron/base/steady_now.h"
#include "megatron/models/sampling.h"

namespace megatron {

SerialTextEngine::SerialTextEngine(const EngineLimits& limits, Logits logits)
    : limits_([&] {
        EngineLimits serial = limits;
        serial.max_batch = 1;
        return serial;
      }()),
      logits_(std::move(logits)),
      thread_([this] { Work(); }) {}

SerialTextEngine::~SerialTextEngine() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

absl::Status SerialTextEngine::Check(const TextRequest& request) const {
  const int64_t count = static_cast<int64_t>(request.prompt.size());
  const int64_t most = limits_.max_context + (request.max_new_tokens == 0 ? 1 : 0);
  if (count < 1 || count > most || request.first_scored < 1 ||
      request.first_scored > std::max<int64_t>(1, count - 1)) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", count,
                                                   " tokens, scored from ", request.first_scored,
                                                   " on; it has 1 to ", most));
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= limits_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("the token ", token, " is not in 0 to ", limits_.vocab_size - 1));
    }
  }
  if (request.top_logprobs < 0 || request.top_logprobs > limits_.max_top_logprobs ||
      request.max_new_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the request asks for ", request.top_logprobs, " log-probabilities of a token (at most ",
        limits_.max_top_logprobs, ") and ", request.max_new_tokens, " tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SerialTextEngine::Submit(TextRequest request,
                                                  std::shared_ptr<TextObserver> observer) {
  const absl::Status status = Check(request);
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  const int waiting = static_cast<int>(jobs_.size()) - (running_ ? 1 : 0);
  if (waiting >= limits_.max_queue) {
    return absl::ResourceExhaustedError(absl::StrCat(waiting, " requests wait already"));
  }
  jobs_.push_back({++last_id_, std::move(request), std::move(observer)});
  return last_id_;
}

void SerialTextEngine::Cancel(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  for (Job& job : jobs_) job.cancelled |= job.id == id;
}

EngineState SerialTextEngine::state() const {
  absl::MutexLock lock(&mutex_);
  EngineState state = counts_;
  state.running = running_ ? 1 : 0;
  state.waiting = static_cast<int>(jobs_.size()) - state.running;
  return state;
}

void SerialTextEngine::Work() {
  for (;;) {
    Job* job = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this] {
        mutex_.AssertHeld();
        return stop_ || !jobs_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (jobs_.empty()) return;
      running_ = true;
      job = &jobs_.front();
    }
    absl::Status status;
    const FinishReason reason = Run(*job, &status);
    job->observer->OnEnd(reason, status);
    absl::MutexLock lock(&mutex_);
    counts_.finished_requests++;
    counts_.failed |= reason == FinishReason::kFailed && status.ok();
    running_ = false;
    jobs_.pop_front();
  }
}

bool SerialTextEngine::MustEnd(const Job& job, FinishReason* reason) const {
  absl::MutexLock lock(&mutex_);
  if (stop_) {
    *reason = FinishReason::kFailed;
  } else if (job.cancelled) {
    *reason = FinishReason::kCancelled;
  } else if (SteadyNow() > job.request.deadline) {
    *reason = FinishReason::kDeadline;
  } else {
    return false;
  }
  return true;
}

ScoredToken SerialTextEngine::Score(absl::Span<const float> logits, int32_t token, int top) const {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  const double log_sum = most + std::log(sum);
  const auto logprob = [&](int32_t id) { return static_cast<float>(logits[id] - log_sum); };
  ScoredToken scored;
  scored.token = token;
  scored.logprob = logprob(token);
  scored.is_greedy = logits[token] == most;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t count = std::min<size_t>(top, order.size());
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (size_t i = 0; i < count; ++i) scored.top.push_back({order[i], logprob(order[i])});
  return scored;
}

FinishReason SerialTextEngine::Run(const Job& job, absl::Status* status) {
  const TextRequest& request = job.request;
  std::vector<int32_t> tokens = request.prompt;
  FinishReason reason = FinishReason::kLength;
  if (request.score_prompt) {
    std::vector<ScoredToken> scores;
    for (size_t i = static_cast<size_t>(request.first_scored); i < tokens.size(); ++i) {
      if (MustEnd(job, &reason)) return reason;
      const absl::Span<const float> logits = logits_(tokens, static_cast<int64_t>(i) - 1);
      if (logits.empty()) return FinishReason::kFailed;
      *status = CheckLogits(logits.data(), limits_.vocab_size);
      if (!status->ok()) return FinishReason::kFailed;
      scores.push_back(Score(logits, tokens[i], request.top_logprobs));
    }
    job.observer->OnPrompt(scores);
  }
  {
    absl::MutexLock lock(&mutex_);
    counts_.prompt_tokens += static_cast<int64_t>(tokens.size());
  }
  const PhiloxKey key = DeriveKey(request.sampling.seed, kPhiloxSampling, 0, 0);
  for (int64_t i = 0; i < request.max_new_tokens; ++i) {
    if (MustEnd(job, &reason)) return reason;
    if (static_cast<int64_t>(tokens.size()) >= limits_.max_context) return FinishReason::kLength;
    const absl::Span<const float> logits = logits_(tokens, static_cast<int64_t>(tokens.size()) - 1);
    if (logits.empty()) return FinishReason::kFailed;
    *status = CheckLogits(logits.data(), limits_.vocab_size);
    if (!status->ok()) return FinishReason::kFailed;
    const PhiloxBlock words = Philox(key, {{static_cast<uint32_t>(i), 0, 0, 0}});
    const int32_t token = SampleToken(logits.data(), limits_.vocab_size, request.sampling,
                                      UniformOpenZero(words.word[0]));
    tokens.push_back(token);
    {
      absl::MutexLock lock(&mutex_);
      counts_.generated_tokens++;
    }
    if (!job.observer->OnToken(Score(logits, token, request.top_logprobs)))
      return FinishReason::kObserver;
    if (std::count(request.end_tokens.begin(), request.end_tokens.end(), token) > 0)
      return FinishReason::kEndToken;
  }
  return FinishReason::kLength;
}

}  // namespace megatron

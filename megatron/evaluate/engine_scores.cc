#include "megatron/evaluate/engine_scores.h"

#include <cstddef>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace megatron {
namespace {

constexpr absl::Duration kTellEvery = absl::Milliseconds(200);

// The scores on their way from the engines' threads. It lives as long as any engine needs it.
class Inbox {
 public:
  explicit Inbox(size_t requests) : scores_(requests) {}

  void Put(size_t request, const RequestScore& score) {
    absl::MutexLock lock(&mutex_);
    scores_[request] = score;
  }

  void End(size_t request, const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    ended_.push_back(request);
    if (status_.ok()) status_ = status;
  }

  // Waits for requests that end. Returns them, or none after some time.
  std::vector<size_t> TakeEnded() {
    absl::MutexLock lock(&mutex_);
    const auto has_ended = [this] {
      mutex_.AssertHeld();
      return !ended_.empty();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&has_ended), kTellEvery);
    return std::exchange(ended_, {});
  }

  // The first error.
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

  std::vector<RequestScore> TakeScores() {
    absl::MutexLock lock(&mutex_);
    return std::move(scores_);
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<RequestScore> scores_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> ended_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class Observer : public TextObserver {
 public:
  Observer(std::shared_ptr<Inbox> inbox, size_t request)
      : inbox_(std::move(inbox)), request_(request) {}

  void OnPrompt(absl::Span<const ScoredToken> tokens) override {
    RequestScore score;
    for (const ScoredToken& token : tokens) {
      score.logprob += token.logprob;
      score.is_greedy = score.is_greedy && token.is_greedy;
    }
    inbox_->Put(request_, score);
  }

  bool OnToken(const ScoredToken&) override { return false; }

  void OnEnd(FinishReason reason, const absl::Status& status) override {
    const bool is_scored = reason == FinishReason::kLength || reason == FinishReason::kCancelled;
    inbox_->End(request_, status.ok() && !is_scored
                              ? absl::InternalError("the engine has ended a request early")
                              : status);
  }

 private:
  const std::shared_ptr<Inbox> inbox_;
  const size_t request_;
};

// Gives requests to engines while they take more, and waits for those that they have.
class Dispatch {
 public:
  Dispatch(absl::Span<TextEngine* const> engines, absl::Span<const ScoreRequest> requests)
      : engines_(engines),
        requests_(requests),
        inbox_(std::make_shared<Inbox>(requests.size())),
        ids_(requests.size()) {}

  absl::Status Run(absl::FunctionRef<bool(int64_t done)> go_on) {
    absl::Status status = Submit();
    for (int64_t done = 0; status.ok() && done < static_cast<int64_t>(requests_.size());) {
      done += TakeEnded();
      status = inbox_->status();
      if (status.ok()) status = Submit();
      if (status.ok() && !go_on(done)) status = absl::CancelledError("interrupted");
    }
    if (!status.ok()) CancelAll();
    return status;
  }

  std::vector<RequestScore> TakeScores() { return inbox_->TakeScores(); }

 private:
  // Each engine in turn takes a request, until none takes one more.
  absl::Status Submit() {
    size_t refused = 0;
    while (next_ < requests_.size() && refused < engines_.size()) {
      const size_t engine = turn_++ % engines_.size();
      const absl::Status submitted = SubmitTo(engine);
      if (absl::IsResourceExhausted(submitted)) {
        ++refused;
        continue;
      }
      if (!submitted.ok()) return submitted;
      refused = 0;
    }
    return absl::OkStatus();
  }

  absl::Status SubmitTo(size_t engine) {
    const ScoreRequest& asked = requests_[next_];
    TextRequest request;
    request.prompt = asked.tokens;
    request.max_new_tokens = 0;
    request.score_prompt = true;
    request.first_scored = asked.first_scored;
    const absl::StatusOr<uint64_t> id =
        engines_[engine]->Submit(std::move(request), std::make_shared<Observer>(inbox_, next_));
    if (!id.ok()) return id.status();
    ids_[next_] = {engine, *id};
    waiting_.insert(next_++);
    return absl::OkStatus();
  }

  int64_t TakeEnded() {
    const std::vector<size_t> ended = inbox_->TakeEnded();
    for (const size_t request : ended) waiting_.erase(request);
    return static_cast<int64_t>(ended.size());
  }

  void CancelAll() {
    for (const size_t request : waiting_)
      engines_[ids_[request].first]->Cancel(ids_[request].second);
    while (!waiting_.empty()) TakeEnded();
  }

  const absl::Span<TextEngine* const> engines_;
  const absl::Span<const ScoreRequest> requests_;
  const std::shared_ptr<Inbox> inbox_;
  std::vector<std::pair<size_t, uint64_t>> ids_;  // the engine of each request, and its id there
  std::set<size_t> waiting_;                      // requests that engines have
  size_t next_ = 0, turn_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<RequestScore>> ScoreByEngines(
    absl::Span<TextEngine* const> engines, absl::Span<const ScoreRequest> requests,
    absl::FunctionRef<bool(int64_t done)> go_on) {
  Dispatch dispatch(engines, requests);
  const absl::Status status = dispatch.Run(go_on);
  if (!status.ok()) return status;
  return dispatch.TakeScores();
}

}  // namespace megatron

// BatchedTextEngine: a TextEngine over a model with a cache. Requests join and leave between steps,
// and a step computes new tokens of all of them.
//
//   // on every rank that holds the model
//   CachedModel model(setup, BatchedTextEngine::ModelLimits(options), stream, &ledger);
//   // on rank 0                                   // on the others
//   BatchedTextEngine engine(options, &model, ranks);  FollowTextEngine(&model, ranks);
//   engine.Run();                                      // ... returns when the engine stops
//
// A step takes the newest token of each request that is being continued, and as many tokens of
// prompts as it has room for; so a long prompt comes in several steps and delays the others by no
// more than a step. Rank 0 decides what a step computes and tells the others.
//
// The draw of a request's i-th token is that of TextGenerator for equal seeds.
#ifndef MEGATRON_GENERATE_BATCHED_TEXT_ENGINE_H_
#define MEGATRON_GENERATE_BATCHED_TEXT_ENGINE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/base/philox.h"
#include "megatron/comm/process_group.h"
#include "megatron/generate/text_engine.h"
#include "megatron/models/cached_model.h"

namespace megatron {

struct BatchedTextEngineOptions {
  int64_t vocab_size = 0;
  int64_t max_context = 0;
  int max_batch = 16;
  int max_queue = 256;
  int max_top_logprobs = 20;
  // The most tokens of a step, and the most of a prompt that is scored. Both are at least
  // max_batch.
  int64_t max_step_tokens = 256;
  int64_t max_step_logits = 64;
};

class BatchedTextEngine : public TextEngine {
 public:
  static CachedModelLimits ModelLimits(const BatchedTextEngineOptions& options);
  // Returns what limits() will be.
  static EngineLimits Limits(const BatchedTextEngineOptions& options);

  // `ranks` are all that hold the model, and this is its rank 0. The model has the limits above and
  // outlives this.
  BatchedTextEngine(const BatchedTextEngineOptions& options, CachedModel* model,
                    const ProcessGroup& ranks);
  ~BatchedTextEngine() override;

  // Works on requests until Stop() is called or a peer is lost, whose status it returns. Ends all
  // requests then. Must be called once.
  absl::Status Run();
  // Makes Run() return soon. Any thread may call it.
  void Stop();

  const EngineLimits& limits() const override { return limits_; }
  absl::StatusOr<uint64_t> Submit(TextRequest request,
                                  std::shared_ptr<TextObserver> observer) override;
  // Another request may be submitted in its place at once, whatever step is being computed.
  void Cancel(uint64_t id) override;
  EngineState state() const override;

 private:
  // A request, and how far it is.
  struct Work {
    uint64_t id = 0;
    TextRequest request;
    std::shared_ptr<TextObserver> observer;
    PhiloxKey key;
    int32_t slot = -1;
    std::vector<int32_t> tokens;  // the prompt and its continuation
    int64_t done = 0;             // the number of tokens that the model has seen
    std::vector<ScoredToken> prompt_scores;
    absl::Status status;  // why the model cannot go on with this text; OK while it can

    int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    int64_t generated() const { return size() - prompt_size(); }
    // Returns the number of tokens that the model sees before a token is drawn or the request ends.
    int64_t to_run() const;
    // Returns whether the logits that follow the i-th token are wanted.
    bool WantsLogits(int64_t i) const;
  };
  // Logits that a step computes.
  struct Row {
    Work* work = nullptr;
    int64_t position = 0;
    absl::Status status;  // CheckLogits' verdict; there is no token unless it is OK
    ScoredToken token;
  };

  absl::Status CheckRequest(const TextRequest& request) const;
  // Waits for work. Moves requests from the queue to free slots. Returns false when the engine is
  // to stop.
  bool Admit();
  // Ends requests that are cancelled or late.
  void EndUnwanted();
  // Decides what the next step computes: fills step_, rows_ and portions_.
  void PlanStep();
  // The same for so many tokens of each slot.
  void PlanTokens(const std::vector<int64_t>& counts);
  bool RunStep();
  void ScoreRow(Row* row, const float* logits) const;
  // Tells the observers what the step has found, and ends requests.
  void Deliver();
  // Ends requests whose logits are no numbers.
  void EndBroken();
  // Ends a request that has a slot.
  void EndRunning(Work* work, FinishReason reason, const absl::Status& status);
  // Returns why the request ends with the token; nothing if it goes on.
  std::optional<FinishReason> TakeToken(Work* work, const ScoredToken& token);
  void End(std::unique_ptr<Work> work, FinishReason reason, const absl::Status& status);
  void EndAll(const absl::Status& status);

  const BatchedTextEngineOptions options_;
  EngineLimits limits_;
  CachedModel* model_;
  ProcessGroup ranks_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool stop_ = false;
  absl::Status failure_;  // why nothing is accepted any more
  uint64_t next_id_ = 1;
  std::deque<std::unique_ptr<Work>> waiting_;
  std::vector<std::unique_ptr<Work>> dropped_;  // cancelled while they waited, and not ended yet
  // Ids of requests that have not ended, and of those of them that run and are cancelled.
  std::set<uint64_t> alive_, cancelled_;
  EngineState state_;

  // Used by Run() alone.
  std::vector<std::unique_ptr<Work>> running_;  // by slot; null: the slot is free
  std::vector<Work*> by_age_;                   // the running ones, the oldest first
  std::vector<NewToken> step_;
  std::vector<Row> rows_;
  std::vector<std::pair<Work*, int64_t>> portions_;  // the tokens of the step, by request
};

// What ranks other than 0 do while rank 0's engine runs. Returns the status of a lost peer.
absl::Status FollowTextEngine(CachedModel* model, const ProcessGroup& ranks);

}  // namespace megatron

#endif  // MEGATRON_GENERATE_BATCHED_TEXT_ENGINE_H_

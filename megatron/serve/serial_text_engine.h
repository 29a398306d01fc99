// A TextEngine for tests, which works on one request at a time with logits that a function gives.
// The other requests wait in a queue.
//
//   SerialTextEngine engine(limits, [&](absl::Span<const int32_t> tokens, int64_t at) { ... });
#ifndef MEGATRON_SERVE_SERIAL_TEXT_ENGINE_H_
#define MEGATRON_SERVE_SERIAL_TEXT_ENGINE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "megatron/generate/text_engine.h"

namespace megatron {

class SerialTextEngine : public TextEngine {
 public:
  // Returns the logits of the vocabulary at token `at` of a text, valid until the next call; none
  // where the engine fails, which it then tells. It is called on the engine's thread alone.
  using Logits =
      std::function<absl::Span<const float>(absl::Span<const int32_t> tokens, int64_t at)>;

  // limits.max_batch is taken for 1.
  SerialTextEngine(const EngineLimits& limits, Logits logits);
  ~SerialTextEngine() override;

  const EngineLimits& limits() const override { return limits_; }
  absl::StatusOr<uint64_t> Submit(TextRequest request,
                                  std::shared_ptr<TextObserver> observer) override;
  void Cancel(uint64_t id) override;
  EngineState state() const override;

 private:
  struct Job {
    uint64_t id = 0;
    TextRequest request;
    std::shared_ptr<TextObserver> observer;
    bool cancelled = false;
  };

  absl::Status Check(const TextRequest& request) const;
  void Work();
  // *status becomes CheckLogits' error where the model gives no numbers for the text.
  FinishReason Run(const Job& job, absl::Status* status);
  // Returns whether the request must end, and why.
  bool MustEnd(const Job& job, FinishReason* reason) const;
  ScoredToken Score(absl::Span<const float> logits, int32_t token, int top) const;

  const EngineLimits limits_;
  const Logits logits_;
  mutable absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Job> jobs_ ABSL_GUARDED_BY(mutex_);  // the first is worked on if running_
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  EngineState counts_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace megatron

#endif  // MEGATRON_SERVE_SERIAL_TEXT_ENGINE_H_

#include "megatron/serve/text_run.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"

namespace megatron::serve {
namespace {

// What the engine has told of a choice.
struct News {
  size_t choice = 0;
  std::vector<ScoredToken> prompt;
  std::optional<ScoredToken> token;
  std::optional<FinishReason> end;
  absl::Status error;
};

}  // namespace

// News on their way from the engine's thread. It outlives the run as long as the engine needs it.
class TextRun::Inbox {
 public:
  // Returns whether anybody reads them.
  bool Put(News news) {
    absl::MutexLock lock(&mutex_);
    if (!closed_) news_.push_back(std::move(news));
    return !closed_;
  }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    news_.clear();
  }

  std::deque<News> TakeAll(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    const auto has_news = [this] {
      mutex_.AssertHeld();
      return !news_.empty();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&has_news), time);
    return std::exchange(news_, {});
  }

 private:
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<News> news_ ABSL_GUARDED_BY(mutex_);
};

// It only passes on what it is told: text is made on the thread of the request.
class TextRun::Observer : public TextObserver {
 public:
  Observer(std::shared_ptr<Inbox> inbox, size_t choice)
      : inbox_(std::move(inbox)), choice_(choice) {}

  void OnPrompt(absl::Span<const ScoredToken> tokens) override {
    News news;
    news.choice = choice_;
    news.prompt.assign(tokens.begin(), tokens.end());
    inbox_->Put(std::move(news));
  }

  bool OnToken(const ScoredToken& token) override {
    News news;
    news.choice = choice_;
    news.token = token;
    return inbox_->Put(std::move(news));
  }

  void OnEnd(FinishReason reason, const absl::Status& status) override {
    News news;
    news.choice = choice_;
    news.end = reason;
    news.error = status;
    inbox_->Put(std::move(news));
  }

 private:
  const std::shared_ptr<Inbox> inbox_;
  const size_t choice_;
};

TextRun::TextRun(TextEngine* engine, const Tokenizer& tokenizer, const TextCall& call,
                 absl::Time start, absl::Duration time)
    : engine_(engine),
      call_(call),
      time_(time),
      deadline_(start + time),
      inbox_(std::make_shared<Inbox>()) {
  for (int64_t i = 0; i < call.choices(); ++i) {
    const CallPrompt& prompt = call.prompts[i / call.n];
    ChoiceOptions options;
    options.prompt = prompt.tokens;
    options.stops = call.stops;
    options.end_tokens = call.end_tokens;
    if (call.echo) options.echo = prompt.text;
    options.echo_tokens = call.echo && call.logprobs;
    options.keep_tokens = call.logprobs;
    choices_.emplace_back(tokenizer, std::move(options));
  }
}

TextRun::~TextRun() {
  inbox_->Close();
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (running_[i]) engine_->Cancel(ids_[i]);
  }
}

absl::Status TextRun::Late() const {
  const double seconds = absl::ToDoubleSeconds(time_);
  return absl::DeadlineExceededError(absl::StrCat("the request took longer than the ", seconds,
                                                  seconds == 1 ? " second" : " seconds",
                                                  " that this server allows"));
}

absl::Status TextRun::SubmitMore() {
  while (ids_.size() < choices_.size()) {
    const size_t choice = ids_.size();
    TextRequest request = call_.Request(static_cast<int64_t>(choice));
    request.deadline = deadline_;
    MEGATRON_ASSIGN_OR_RETURN(
        const uint64_t id,
        engine_->Submit(std::move(request), std::make_shared<Observer>(inbox_, choice)));
    ids_.push_back(id);
    running_.push_back(true);
  }
  return absl::OkStatus();
}

absl::Status TextRun::Start() {
  const absl::Status status = SubmitMore();
  return absl::IsResourceExhausted(status) && !ids_.empty() ? absl::OkStatus() : status;
}

absl::Status TextRun::Take(absl::Duration time) {
  for (const News& news : inbox_->TakeAll(time)) {
    ChoiceText& choice = choices_[news.choice];
    // Tokens that came after a stop change nothing.
    if (news.token) {
      const bool had_ended = choice.ended();
      choice.AddToken(*news.token);
      if (!had_ended && choice.ended()) engine_->Cancel(ids_[news.choice]);
    } else if (news.end) {
      running_[news.choice] = false;
      if (choice.ended()) continue;
      MEGATRON_RETURN_IF_ERROR(news.error);
      switch (*news.end) {
        case FinishReason::kLength:
        case FinishReason::kEndToken:
          choice.End(*news.end);
          break;
        case FinishReason::kDeadline:
          return Late();
        case FinishReason::kObserver:
        case FinishReason::kCancelled:
        case FinishReason::kFailed:
          return absl::UnavailableError("the model has stopped; the server ends or has failed");
      }
    } else {
      choice.AddPrompt(news.prompt);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TextRun::Wait(absl::Duration time) {
  MEGATRON_RETURN_IF_ERROR(Take(time));
  const absl::Status status = SubmitMore();
  if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
  const bool ended = ids_.size() == choices_.size() &&
                     std::all_of(choices_.begin(), choices_.end(),
                                 [](const ChoiceText& choice) { return choice.ended(); });
  // An engine ends late requests between two of its steps, and one of these may take long.
  if (!ended && SteadyNow() > deadline_) return Late();
  return ended;
}

int64_t TextRun::completion_tokens() const {
  int64_t count = 0;
  for (const ChoiceText& choice : choices_) count += choice.completion_tokens();
  return count;
}

}  // namespace megatron::serve

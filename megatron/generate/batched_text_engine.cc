#include "megatron/generate/batched_text_engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/generate/token_scores.h"
#include "megatron/models/sampling.h"

namespace megatron {
namespace {

// Other ranks wait for rank 0 no longer than their communicator's deadline, so it tells them of
// steps without tokens while it has nothing to do.
constexpr absl::Duration kHeartbeat = absl::Seconds(10);

// The tokens of a step, as rank 0 tells them the others.
class StepMessage {
 public:
  explicit StepMessage(int64_t max_tokens) : words_(1 + 4 * max_tokens) {}

  void Write(const std::vector<NewToken>& tokens) {
    words_[0] = static_cast<int32_t>(tokens.size());
    int32_t* word = words_.data() + 1;
    for (const NewToken& token : tokens) {
      for (const int32_t value :
           {token.slot, token.position, token.token, int32_t{token.wants_logits}})
        *word++ = value;
    }
  }
  void WriteEnd() { words_[0] = -1; }
  // Collective over `ranks`, with what rank 0 has written.
  absl::Status Share(const ProcessGroup& ranks) {
    ranks.Broadcast(Tensor(words_.data(), DType::kInt32, {static_cast<int64_t>(words_.size())}), 0,
                    Stream::Inline());
    return ranks.status();
  }
  bool is_end() const { return words_[0] < 0; }
  std::vector<NewToken> Read() const {
    std::vector<NewToken> tokens(words_[0]);
    const int32_t* word = words_.data() + 1;
    for (NewToken& token : tokens) {
      token = {word[0], word[1], word[2], word[3] != 0};
      word += 4;
    }
    return tokens;
  }

 private:
  std::vector<int32_t> words_;
};

absl::Status LostPeer(const ProcessGroup& ranks) {
  const absl::Status status = ranks.status();
  return status.ok() ? absl::UnavailableError("a rank that holds the model was lost") : status;
}

}  // namespace

CachedModelLimits BatchedTextEngine::ModelLimits(const BatchedTextEngineOptions& options) {
  return {options.max_batch, options.max_context, options.max_step_tokens, options.max_step_logits};
}

EngineLimits BatchedTextEngine::Limits(const BatchedTextEngineOptions& options) {
  return {options.vocab_size, options.max_context, options.max_batch, options.max_queue,
          options.max_top_logprobs};
}

BatchedTextEngine::BatchedTextEngine(const BatchedTextEngineOptions& options, CachedModel* model,
                                     const ProcessGroup& ranks)
    : options_(options),
      limits_(Limits(options)),
      model_(model),
      ranks_(ranks),
      running_(options.max_batch) {
  CHECK_GE(options.max_step_tokens, options.max_batch);
  CHECK_GE(options.max_step_logits, options.max_batch);
  CHECK_EQ(ranks.rank(), 0);
}

BatchedTextEngine::~BatchedTextEngine() { EndAll(absl::UnavailableError("the engine has ended")); }

int64_t BatchedTextEngine::Work::to_run() const {
  if (request.max_new_tokens > 0) return size();
  return request.score_prompt ? prompt_size() - 1 : 0;
}

bool BatchedTextEngine::Work::WantsLogits(int64_t i) const {
  return i + 1 >= prompt_size() || (request.score_prompt && i + 1 >= request.first_scored);
}

absl::Status BatchedTextEngine::CheckRequest(const TextRequest& request) const {
  const auto refuse = [](const auto&... words) {
    return absl::InvalidArgumentError(absl::StrCat(words...));
  };
  const int64_t tokens = static_cast<int64_t>(request.prompt.size());
  if (tokens == 0) return refuse("the prompt has no tokens");
  // The model does not see the last token of a prompt that is only scored.
  const int64_t seen = request.max_new_tokens == 0 ? tokens - 1 : tokens;
  if (seen > limits_.max_context)
    return refuse("the prompt has ", tokens, " tokens, and the context is ", limits_.max_context);
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= limits_.vocab_size)
      return refuse("token ", token, " of the prompt is not in the vocabulary of ",
                    limits_.vocab_size);
  }
  if (request.max_new_tokens < 0)
    return refuse("max_new_tokens is ", request.max_new_tokens, ", which must not be negative");
  const int64_t last_scored = std::max<int64_t>(1, tokens - 1);
  if (request.first_scored < 1 || request.first_scored > last_scored)
    return refuse("first_scored is ", request.first_scored, ", which must be 1 to ", last_scored);
  if (request.top_logprobs < 0 || request.top_logprobs > limits_.max_top_logprobs)
    return refuse("top_logprobs is ", request.top_logprobs, ", which must be 0 to ",
                  limits_.max_top_logprobs);
  const SamplingOptions& sampling = request.sampling;
  if (!(sampling.temperature >= 0 && sampling.temperature <= 1e6))
    return refuse("the temperature is ", sampling.temperature, ", which must be 0 to 1e6");
  if (sampling.top_k < 0)
    return refuse("top_k is ", sampling.top_k, ", which must not be negative");
  if (!(sampling.top_p >= 0 && sampling.top_p <= 1))
    return refuse("top_p is ", sampling.top_p, ", which must be 0 to 1");
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> BatchedTextEngine::Submit(TextRequest request,
                                                   std::shared_ptr<TextObserver> observer) {
  CHECK(observer != nullptr);
  const absl::Status checked = CheckRequest(request);
  if (!checked.ok()) return checked;
  auto work = std::make_unique<Work>();
  const int64_t room = limits_.max_context - static_cast<int64_t>(request.prompt.size());
  request.max_new_tokens = std::clamp<int64_t>(room, 0, request.max_new_tokens);
  work->tokens = request.prompt;
  work->key = DeriveKey(request.sampling.seed, kPhiloxSampling, 0, 0);
  work->request = std::move(request);
  work->observer = std::move(observer);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  // Those that free slots will take at once do not wait. A cancelled one's slot is as good as free.
  const int running = state_.running - static_cast<int>(cancelled_.size());
  const int waiting = static_cast<int>(waiting_.size()) - (limits_.max_batch - running);
  if (waiting >= limits_.max_queue) {
    return absl::ResourceExhaustedError(absl::StrCat(
        limits_.max_batch, " requests are being worked on, and ", limits_.max_queue, " wait"));
  }
  const uint64_t id = work->id = next_id_++;
  alive_.insert(id);
  waiting_.push_back(std::move(work));
  wake_.notify_one();
  return id;
}

void BatchedTextEngine::Cancel(uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (alive_.count(id) == 0) return;
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [id](const auto& work) { return work->id == id; });
  if (found == waiting_.end()) {
    const auto is_it = [id](const auto& work) { return work->id == id; };
    // The second call for one that waited changes nothing.
    if (std::none_of(dropped_.begin(), dropped_.end(), is_it)) cancelled_.insert(id);
  } else {
    // Its place is free at once, however long the step takes that is being computed.
    dropped_.push_back(std::move(*found));
    waiting_.erase(found);
  }
  wake_.notify_one();
}

void BatchedTextEngine::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stop_ = true;
  wake_.notify_one();
}

EngineState BatchedTextEngine::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  EngineState state = state_;
  state.waiting = static_cast<int>(waiting_.size());
  state.failed = !failure_.ok();
  return state;
}

void BatchedTextEngine::End(std::unique_ptr<Work> work, FinishReason reason,
                            const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    alive_.erase(work->id);
    cancelled_.erase(work->id);
    ++state_.finished_requests;
    if (work->slot >= 0) --state_.running;
  }
  work->observer->OnEnd(reason, status);
}

void BatchedTextEngine::EndAll(const absl::Status& status) {
  std::deque<std::unique_ptr<Work>> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) failure_ = status;
    ended.swap(waiting_);
    for (std::unique_ptr<Work>& work : dropped_) ended.push_back(std::move(work));
    dropped_.clear();
  }
  for (std::unique_ptr<Work>& work : running_) {
    if (work != nullptr) ended.push_back(std::move(work));
  }
  by_age_.clear();
  for (std::unique_ptr<Work>& work : ended) End(std::move(work), FinishReason::kFailed, status);
}

void BatchedTextEngine::EndUnwanted() {
  std::vector<std::pair<std::unique_ptr<Work>, FinishReason>> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const absl::Time now = SteadyNow();
    for (std::unique_ptr<Work>& work : dropped_)
      ended.emplace_back(std::move(work), FinishReason::kCancelled);
    dropped_.clear();
    // Returns whether the request is not wanted any more, which is then taken.
    const auto take = [&](std::unique_ptr<Work>& work) {
      if (work == nullptr) return false;
      const bool is_cancelled = cancelled_.count(work->id) > 0;
      if (!is_cancelled && work->request.deadline > now) return false;
      ended.emplace_back(std::move(work),
                         is_cancelled ? FinishReason::kCancelled : FinishReason::kDeadline);
      return true;
    };
    std::deque<std::unique_ptr<Work>> wanted;
    for (std::unique_ptr<Work>& work : waiting_) {
      if (!take(work)) wanted.push_back(std::move(work));
    }
    waiting_.swap(wanted);
    for (std::unique_ptr<Work>& work : running_) take(work);
  }
  for (auto& [work, reason] : ended) {
    by_age_.erase(std::remove(by_age_.begin(), by_age_.end(), work.get()), by_age_.end());
    End(std::move(work), reason, absl::OkStatus());
  }
}

bool BatchedTextEngine::Admit() {
  for (;;) {
    EndUnwanted();
    std::vector<std::unique_ptr<Work>> nothing_to_do;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (stop_) return false;
      for (size_t slot = 0; slot < running_.size() && !waiting_.empty();) {
        if (running_[slot] != nullptr) {
          ++slot;
          continue;
        }
        std::unique_ptr<Work> work = std::move(waiting_.front());
        waiting_.pop_front();
        if (work->to_run() == 0) {
          nothing_to_do.push_back(std::move(work));
          continue;
        }
        work->slot = static_cast<int32_t>(slot);
        by_age_.push_back(work.get());
        running_[slot] = std::move(work);
        ++state_.running;
      }
      if (nothing_to_do.empty()) {
        if (!by_age_.empty()) return true;
        const auto has_work = [this] { return stop_ || !waiting_.empty() || !dropped_.empty(); };
        if (ranks_.size() == 1) {
          wake_.wait(lock, has_work);
        } else if (!wake_.wait_for(lock, absl::ToChronoNanoseconds(kHeartbeat), has_work)) {
          return true;
        }
        continue;
      }
    }
    for (std::unique_ptr<Work>& work : nothing_to_do) {
      if (work->request.score_prompt) work->observer->OnPrompt({});
      End(std::move(work), FinishReason::kLength, absl::OkStatus());
    }
    if (!by_age_.empty()) return true;
  }
}

void BatchedTextEngine::PlanStep() {
  step_.clear();
  rows_.clear();
  portions_.clear();
  int64_t tokens = options_.max_step_tokens, logits = options_.max_step_logits;
  std::vector<int64_t> counts(running_.size());
  for (const Work* work : by_age_) {
    if (work->generated() == 0) continue;
    counts[work->slot] = 1;
    --tokens;
    --logits;
  }
  for (const Work* work : by_age_) {
    if (work->generated() > 0) continue;
    int64_t& count = counts[work->slot];
    for (int64_t i = work->done; i < work->to_run() && tokens > 0; ++i) {
      if (work->WantsLogits(i) && logits-- == 0) return PlanTokens(counts);
      --tokens;
      ++count;
    }
  }
  PlanTokens(counts);
}

void BatchedTextEngine::PlanTokens(const std::vector<int64_t>& counts) {
  for (const std::unique_ptr<Work>& work : running_) {
    if (work == nullptr || counts[work->slot] == 0) continue;
    const int64_t end = work->done + counts[work->slot];
    for (int64_t i = work->done; i < end; ++i) {
      const bool wants_logits = work->WantsLogits(i);
      step_.push_back({work->slot, static_cast<int32_t>(i), work->tokens[i], wants_logits});
      if (wants_logits) rows_.push_back({work.get(), i, {}, {}});
    }
    portions_.emplace_back(work.get(), end - work->done);
  }
}

bool BatchedTextEngine::RunStep() {
  if (ranks_.size() > 1) {
    StepMessage message(options_.max_step_tokens);
    message.Write(step_);
    if (!message.Share(ranks_).ok()) return false;
  }
  if (step_.empty()) return true;
  if (!model_->Run(step_)) return false;
  const auto score = [this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ScoreRow(&rows_[i], model_->logits(i));
  };
  const int64_t count = static_cast<int64_t>(rows_.size());
  if (ThreadPool* const pool = model_->stream().pool()) {
    pool->ParallelFor(count, score);
  } else {
    score(0, count);
  }
  return true;
}

void BatchedTextEngine::ScoreRow(Row* row, const float* logits) const {
  const Work& work = *row->work;
  const int64_t next = row->position + 1;
  row->status = CheckLogits(logits, limits_.vocab_size);
  if (!row->status.ok()) return;
  const TokenScores scores(logits, limits_.vocab_size);
  int32_t token;
  if (next < work.prompt_size()) {
    token = work.tokens[next];
  } else {
    const PhiloxBlock words =
        Philox(work.key, {{static_cast<uint32_t>(work.generated()), 0, 0, 0}});
    token = SampleToken(logits, limits_.vocab_size, work.request.sampling,
                        UniformOpenZero(words.word[0]));
  }
  row->token = scores.Score(token, work.request.top_logprobs);
}

void BatchedTextEngine::Deliver() {
  int64_t prompt_tokens = 0, generated_tokens = 0;
  for (const auto& [work, count] : portions_) {
    if (work->generated() == 0) prompt_tokens += count;
    work->done += count;
  }
  for (const Row& row : rows_) {
    row.work->status.Update(row.status);
    generated_tokens += row.status.ok() && row.position + 1 >= row.work->prompt_size();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_.prompt_tokens += prompt_tokens;
    state_.generated_tokens += generated_tokens;
  }
  for (Row& row : rows_) {
    Work* const work = row.work;
    if (!work->status.ok()) continue;
    const bool is_of_prompt = row.position + 1 < work->prompt_size();
    if (is_of_prompt) work->prompt_scores.push_back(std::move(row.token));
    std::optional<FinishReason> reason;
    if (row.position + 2 == work->prompt_size() ||
        (row.position == 0 && work->prompt_size() == 1 && work->generated() == 0)) {
      if (work->request.score_prompt) work->observer->OnPrompt(work->prompt_scores);
      if (work->request.max_new_tokens == 0) reason = FinishReason::kLength;
    }
    if (!is_of_prompt) reason = TakeToken(work, row.token);
    if (reason.has_value()) EndRunning(work, *reason, absl::OkStatus());
  }
  EndBroken();
}

void BatchedTextEngine::EndBroken() {
  for (const std::unique_ptr<Work>& work : running_) {
    if (work == nullptr || work->status.ok()) continue;
    const absl::Status status = work->status;  // ends with the work
    EndRunning(work.get(), FinishReason::kFailed, status);
  }
}

void BatchedTextEngine::EndRunning(Work* work, FinishReason reason, const absl::Status& status) {
  by_age_.erase(std::remove(by_age_.begin(), by_age_.end(), work), by_age_.end());
  End(std::move(running_[work->slot]), reason, status);
}

std::optional<FinishReason> BatchedTextEngine::TakeToken(Work* work, const ScoredToken& token) {
  work->tokens.push_back(token.token);
  if (!work->observer->OnToken(token)) return FinishReason::kObserver;
  const std::vector<int32_t>& ends = work->request.end_tokens;
  if (std::find(ends.begin(), ends.end(), token.token) != ends.end())
    return FinishReason::kEndToken;
  if (work->generated() == work->request.max_new_tokens) return FinishReason::kLength;
  return std::nullopt;
}

absl::Status BatchedTextEngine::Run() {
  absl::Status status;
  while (status.ok() && Admit()) {
    PlanStep();
    if (RunStep()) {
      Deliver();
    } else {
      status = LostPeer(ranks_);
    }
  }
  if (status.ok() && ranks_.size() > 1) {
    StepMessage end(options_.max_step_tokens);
    end.WriteEnd();
    status = end.Share(ranks_);
  }
  EndAll(status.ok() ? absl::UnavailableError("the engine has been stopped") : status);
  return status;
}

absl::Status FollowTextEngine(CachedModel* model, const ProcessGroup& ranks) {
  StepMessage message(model->limits().max_tokens);
  for (;;) {
    const absl::Status status = message.Share(ranks);
    if (!status.ok()) return status;
    if (message.is_end()) return absl::OkStatus();
    const std::vector<NewToken> step = message.Read();
    if (!step.empty() && !model->Run(step)) return LostPeer(ranks);
  }
}

}  // namespace megatron

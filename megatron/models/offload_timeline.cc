#include "megatron/models/offload_timeline.h"

#include <algorithm>
#include <cstddef>

#include "glog/logging.h"
#include "megatron/models/activation_store.h"

namespace megatron {
namespace {

// Sums of seconds in another order differ by rounding.
constexpr double kSameTime = 1 + 1e-9;

int64_t MostSegments(const TimedStage& stage) {
  size_t most = 0;
  for (const TimedChunk& chunk : stage.chunks) most = std::max(most, chunk.segments.size());
  return static_cast<int64_t>(most);
}

// Plays one step of a stage. The stage's work and its copies are two lines of time; a copy begins
// behind the stage's work so far.
class OffloadPlayer {
 public:
  OffloadPlayer(const TimedStage& stage, int64_t count, double bytes_per_second)
      : stage_(stage), count_(count), rate_(bytes_per_second) {
    const int64_t most = std::min(count, MostSegments(stage));
    windows_.resize(std::min<int64_t>(most, OffloadSizes::kMostWindows));
  }

  double Play() {
    for (const Action& action : stage_.actions) {
      CHECK(action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward);
      if (action.kind == ActionKind::kForward) {
        Forward(action);
      } else {
        Backward(action);
      }
    }
    return now_;
  }

 private:
  struct Window {
    double copied = 0;  // the end of its last copy
    // The segment whose tensors have not left it since its forward pass.
    int chunk = -1, microbatch = -1;
    int64_t segment = -1;

    bool Keeps(const Action& action, int64_t i) const {
      return chunk == action.chunk && microbatch == action.microbatch && segment == i;
    }
  };

  Window& WindowOf(int64_t segment) {
    return windows_[static_cast<size_t>(segment) % windows_.size()];
  }
  int64_t Offloaded(const TimedChunk& chunk) const {
    return std::min(count_, static_cast<int64_t>(chunk.segments.size()));
  }
  void Await(const Window& window) { now_ = std::max(now_, window.copied); }

  void Copy(double bytes, Window* window) {
    if (bytes == 0) return;
    link_ = std::max(link_, now_) + bytes / rate_;
    window->copied = link_;
  }

  void Fetch(const Action& action, int64_t i) {
    Window& window = WindowOf(i);
    if (window.Keeps(action, i)) return;
    window.segment = -1;
    Copy(stage_.chunks[action.chunk].segments[i].bytes, &window);
  }

  void Forward(const Action& action) {
    const TimedChunk& chunk = stage_.chunks[action.chunk];
    const int64_t offloaded = Offloaded(chunk);
    for (int64_t i = 0; i < static_cast<int64_t>(chunk.segments.size()); ++i) {
      if (i < offloaded) Await(WindowOf(i));
      if (stage_.writes_next_input && i + 1 < offloaded) Await(WindowOf(i + 1));
      now_ += chunk.segments[i].seconds.forward;
      if (i >= offloaded) continue;
      Window& window = WindowOf(i);
      Copy(chunk.segments[i].bytes, &window);
      window.chunk = action.chunk;
      window.microbatch = action.microbatch;
      window.segment = i;
    }
    now_ += chunk.head.forward;
  }

  void Backward(const Action& action) {
    const TimedChunk& chunk = stage_.chunks[action.chunk];
    const int64_t offloaded = Offloaded(chunk), windows = static_cast<int64_t>(windows_.size());
    now_ += chunk.head.backward;
    for (int64_t i = offloaded - 1; i >= std::max<int64_t>(0, offloaded - windows); --i)
      Fetch(action, i);
    for (int64_t i = static_cast<int64_t>(chunk.segments.size()) - 1; i >= 0; --i) {
      if (i < offloaded && !WindowOf(i).Keeps(action, i)) Await(WindowOf(i));
      now_ += chunk.segments[i].seconds.backward;
      if (i < offloaded && i >= windows) Fetch(action, i - windows);
    }
  }

  const TimedStage& stage_;
  const int64_t count_;
  const double rate_;
  std::vector<Window> windows_;
  double now_ = 0;   // the end of the stage's work so far
  double link_ = 0;  // the end of the last copy
};

}  // namespace

double SecondsWithOffload(const TimedStage& stage, int64_t count, double bytes_per_second) {
  return OffloadPlayer(stage, count, bytes_per_second).Play();
}

int64_t MostHiddenSegments(absl::Span<const TimedStage> stages, double bytes_per_second) {
  int64_t most = 0;
  for (const TimedStage& stage : stages) most = std::max(most, MostSegments(stage));
  const auto hides = [&](int64_t count) {
    return std::all_of(stages.begin(), stages.end(), [&](const TimedStage& stage) {
      return SecondsWithOffload(stage, count, bytes_per_second) <=
             SecondsWithOffload(stage, 0, bytes_per_second) * kSameTime;
    });
  };
  while (most > 0 && !hides(most)) --most;
  return most;
}

}  // namespace megatron

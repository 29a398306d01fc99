// What a server of texts tells Prometheus (text format 0.0.4).
#ifndef MEGATRON_SERVE_SERVE_METRICS_H_
#define MEGATRON_SERVE_SERVE_METRICS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/generate/text_engine.h"

namespace megatron::serve {

// Thread safe.
class ServeMetrics {
 public:
  // Counts an answer. The paths must be few.
  void CountAnswer(const std::string& path, int status);
  // Counts a request for texts: the time to its first token, and to its end.
  void CountFirstToken(absl::Duration time);
  void CountText(absl::Duration time);

  std::string Page(const EngineState& engine, const EngineLimits& limits) const;

 private:
  static constexpr std::array<double, 15> kSeconds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,  2.5,
                                                      5,    10,    30,   60,  120,  300, 600};
  struct Histogram {
    std::array<int64_t, kSeconds.size()> counts =
        {};  // the counts of values up to each of kSeconds
    int64_t count = 0;
    double sum = 0;
  };
  static void Add(absl::Duration time, Histogram* histogram);
  static void Append(absl::string_view name, absl::string_view help, const Histogram& histogram,
                     std::string* page);

  mutable absl::Mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> answers_ ABSL_GUARDED_BY(mutex_);
  Histogram first_token_ ABSL_GUARDED_BY(mutex_), text_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_SERVE_METRICS_H_

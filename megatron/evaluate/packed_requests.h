// Requests for scores as samples of a run's length, so that the model's forward pass over a batch
// scores many of them at once.
//
// A sample holds as many requests as fit, one behind the other as documents of their own: attention
// does not reach from one to the next, and positions begin again. So a request's scores are those
// that it has alone.
#ifndef MEGATRON_EVALUATE_PACKED_REQUESTS_H_
#define MEGATRON_EVALUATE_PACKED_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/data/sample.h"
#include "megatron/evaluate/score_request.h"

namespace megatron {

class PackedRequests : public SampleSource {
 public:
  // Each request has at most `seq_length` tokens and one. The last of the batches is filled up with
  // samples that do not count. The requests must outlive this.
  PackedRequests(const std::vector<ScoreRequest>& requests, int64_t seq_length, int64_t batch);

  int64_t size() const override { return size_; }
  absl::Status Get(int64_t index, Sample* sample) const override;

  // Adds to the requests' scores what the positions of samples [first, first + losses.size() /
  // seq_length) have found: the cross-entropy of their labels, and 1 where the label is the
  // likeliest token.
  void AddScores(int64_t first, absl::Span<const float> losses, absl::Span<const float> hits,
                 std::vector<RequestScore>* scores) const;

 private:
  // Calls `visit(request, position)` for the requests of a sample, in order.
  template <typename Visitor>
  void ForEachIn(int64_t sample, const Visitor& visit) const;

  const std::vector<ScoreRequest>& requests_;
  const int64_t seq_length_;
  std::vector<size_t> ends_;  // the number of requests up to the end of each sample
  int64_t size_ = 0;
};

}  // namespace megatron

#endif  // MEGATRON_EVALUATE_PACKED_REQUESTS_H_

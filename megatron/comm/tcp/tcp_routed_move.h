// The data of one call of one rank of a TcpWorld that goes by ring or tree (collective_routes.h).
//
// Tensors are cut into segments, which follow each other along the way. A reduction's segment goes
// up to the root as partial sums, in fp32 if the tensors are bf16 or fp16, and comes down as the
// result: to all ranks, or in a reduce-scatter to its owner alone. The result of one segment tells
// a rank that a later one may go up: a *window* of segments is under way, as many as there are
// steps up and down. What is gathered or broadcast goes down from the rank that has it, straight
// into its place, without a window.
#ifndef MEGATRON_COMM_TCP_TCP_ROUTED_MOVE_H_
#define MEGATRON_COMM_TCP_TCP_ROUTED_MOVE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/collective_routes.h"
#include "megatron/comm/tcp/tcp_group.h"

namespace megatron {

class Stream;

class TcpRoutedMove {
 public:
  // Waits for an operation, and returns the error of the world if that fails.
  using Await = std::function<absl::Status(TcpOperation*)>;

  // The call has number group->calls of the group, and is one of those that have algorithms.
  TcpRoutedMove(TcpGroup* group, const CollectiveCall& call, const Stream& stream);

  // Expects what may arrive as soon as others know that this rank has come.
  void Expect();
  // Moves all data, after all ranks have come.
  absl::Status Run(const Await& await);

 private:
  // Elements of the whole tensor: of what is reduced, broadcast, or gathered.
  struct Segment {
    int64_t begin = 0, count = 0;
    // The rank that has it, or that is to get it; -1: all get it.
    int owner = -1;
  };
  struct Piece {
    char* data = nullptr;
    int64_t bytes = 0;
  };

  bool reduces() const;
  void CutIntoSegments();
  void PlanReduction();
  void PlanSpread();

  // One place of the window: what came from each child, this rank's own values, the sum, and a
  // result on its way to another rank.
  char* Slot(int segment, int part) const;
  Piece Whole(const Segment& segment) const;  // the segment in this rank's whole tensor
  Piece Result(int segment) const;
  void ExpectPartials(int segment);
  void ExpectResult(int segment);
  absl::Status SumUp(int segment, const Await& await);
  absl::Status PassResult(int segment, const Await& await);
  void Sum(int segment, void* output) const;
  absl::Status RunReduction(const Await& await);
  absl::Status RunSpread(const Await& await);

  void ExpectFrom(int peer, uint32_t tag, const Piece& piece, TcpOperation* operation);
  void SendTo(int peer, uint32_t tag, const Piece& piece, TcpOperation* operation);

  TcpGroup& group_;
  const CollectiveCall& call_;
  const Stream& stream_;
  const int rank_, size_;
  const uint64_t number_;
  const Tensor whole_;
  const DType dtype_, partial_dtype_;
  const int64_t element_, partial_element_;  // bytes

  std::vector<Segment> segments_;
  int64_t segment_elements_ = 1;
  // A reduction's.
  CollectiveRoute up_, down_;
  int window_ = 0;
  int lag_ = 0;  // how many segments later this rank passes a result on
  int parts_ = 0;
  std::vector<bool> passes_;                             // whether this rank sees an owner's result
  std::vector<std::vector<bool>> child_passes_;          // the same of each child below
  std::vector<TcpOperation> partials_, results_, sent_;  // one for each place of the window
  // What spreads from several ranks.
  std::vector<CollectiveRoute> spread_;  // one for each owner
  std::vector<int> order_;               // the segments in the order in which they pass this rank
  std::vector<TcpOperation> received_;   // one for each segment
  TcpOperation moving_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_ROUTED_MOVE_H_

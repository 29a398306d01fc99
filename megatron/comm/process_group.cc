#include "megatron/comm/process_group.h"

#include <numeric>
#include <utility>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/host_staging.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

// A group whose other ranks do not exist.
class PlanningCommunicator : public Communicator {
 public:
  PlanningCommunicator(int size, int rank, std::string name)
      : size_(size), rank_(rank), name_(std::move(name)) {}

  int size() const override { return size_; }
  int rank() const override { return rank_; }
  const std::string& name() const override { return name_; }
  void Run(const CollectiveCall& call, const Stream& stream) override {
    LOG(FATAL) << call.Describe() << " in group " << name_ << ", which is for planning only";
  }
  absl::StatusOr<std::shared_ptr<Communicator>> Split(const std::vector<std::vector<int>>&,
                                                      const std::string& name) override {
    return absl::UnimplementedError("group " + name_ + " is for planning and is not split");
  }
  absl::Status status() const override { return absl::OkStatus(); }
  void Abort(const absl::Status& reason) override {}

 private:
  const int size_, rank_;
  const std::string name_;
};

void CheckTensor(const Tensor& tensor, const Stream& stream) {
  CHECK(!tensor.empty());
  CHECK(tensor.is_contiguous()) << tensor;
  CHECK(tensor.device() == stream.device()) << tensor << " on a stream of " << stream.device();
}

// Checks that `whole` holds `parts` times `part` along dim 0.
void CheckParts(const Tensor& whole, const Tensor& part, int parts) {
  CHECK_EQ(whole.dtype(), part.dtype());
  CHECK_GE(part.rank(), 1) << part;
  CHECK_EQ(whole.rank(), part.rank()) << whole << " and " << part;
  CHECK_EQ(whole.dim(0), part.dim(0) * parts) << whole << " and " << part;
  for (int d = 1; d < part.rank(); ++d) {
    CHECK_EQ(whole.dim(d), part.dim(d)) << whole << " and " << part;
  }
}

void CheckCounts(const Tensor& tensor, absl::Span<const int64_t> counts, int size) {
  CHECK_GE(tensor.rank(), 1) << tensor;
  CHECK_EQ(counts.size(), static_cast<size_t>(size));
  for (int64_t count : counts) CHECK_GE(count, 0);
  CHECK_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), tensor.dim(0)) << tensor;
}

bool Overlaps(const Tensor& a, const Tensor& b) {
  const char* const a_begin = static_cast<const char*>(a.raw());
  const char* const b_begin = static_cast<const char*>(b.raw());
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

// Returns the axis of a group with this name (process_groups.cc).
TimeCategory CategoryOf(absl::string_view name) {
  const absl::string_view axis = name.substr(0, name.find('-'));
  if (axis == "tp") return TimeCategory::kTensorParallel;
  if (axis == "cp") return TimeCategory::kContextParallel;
  if (axis == "dp" || axis == "edp") return TimeCategory::kDataParallel;
  if (axis == "pp" || axis == "embedding") return TimeCategory::kPipelineParallel;
  if (axis == "ep" || axis == "etp") return TimeCategory::kExpertParallel;
  return TimeCategory::kWorld;
}

int64_t BytesGiven(const CollectiveCall& call) {
  int64_t bytes = call.in.bytes();
  for (const Transfer& transfer : call.sends) bytes += transfer.tensor.bytes();
  return bytes;
}

void CopyAlone(const Tensor& in, const Tensor& out, const Stream& stream) {
  if (in.raw() == out.raw() || in.bytes() == 0) return;
  Transport(stream, in.Flatten(), out.Flatten());
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)) {
  if (communicator_ != nullptr) category_ = CategoryOf(communicator_->name());
}

ProcessGroup ProcessGroup::ForPlanning(int size, int rank, const std::string& name) {
  CHECK(rank >= 0 && rank < size) << rank << " of " << size;
  if (size == 1) return ProcessGroup();
  return ProcessGroup(std::make_shared<PlanningCommunicator>(size, rank, name));
}

int ProcessGroup::size() const { return communicator_ ? communicator_->size() : 1; }
int ProcessGroup::rank() const { return communicator_ ? communicator_->rank() : 0; }
std::string ProcessGroup::name() const { return communicator_ ? communicator_->name() : "self"; }
absl::Status ProcessGroup::status() const {
  return communicator_ ? communicator_->status() : absl::OkStatus();
}

void ProcessGroup::Run(const CollectiveCall& call, const Stream& stream) const {
  if (stream.is_meta()) return;
  if (size() == 1) {
    if (!call.out.empty()) CopyAlone(call.in, call.out, stream);
    return;
  }
  const TraceSpan span(stream, category_, Name(call.collective),
                       TraceCall{communicator_->name(), size(), BytesGiven(call)});
  if (communicator_->TakesTensorsOf(stream.device().type)) {
    communicator_->Run(call, stream);
  } else {
    RunOnHost(*communicator_, call, stream);
  }
}

void ProcessGroup::AllReduce(const Tensor& inout, ReduceOp op, const Stream& stream) const {
  CheckTensor(inout, stream);
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.in = inout;
  call.reduce = op;
  Run(call, stream);
}

void ProcessGroup::AllGather(const Tensor& in, const Tensor& out, const Stream& stream) const {
  CheckTensor(in, stream);
  CheckTensor(out, stream);
  CheckParts(out, in, size());
  CollectiveCall call;
  call.collective = Collective::kAllGather;
  call.in = in;
  call.out = out;
  Run(call, stream);
}

void ProcessGroup::ReduceScatter(const Tensor& in, const Tensor& out, const Stream& stream,
                                 ReduceOp op) const {
  CheckTensor(in, stream);
  CheckTensor(out, stream);
  CheckParts(in, out, size());
  CollectiveCall call;
  call.collective = Collective::kReduceScatter;
  call.in = in;
  call.out = out;
  call.reduce = op;
  Run(call, stream);
}

void ProcessGroup::AllToAll(const Tensor& in, const Tensor& out, const Stream& stream) const {
  CheckTensor(in, stream);
  CheckTensor(out, stream);
  CheckParts(in, out, 1);
  CHECK_EQ(in.dim(0) % size(), 0) << in << " to " << size() << " ranks";
  CHECK(size() == 1 || stream.is_meta() || !Overlaps(in, out));
  CollectiveCall call;
  call.collective = Collective::kAllToAll;
  call.in = in;
  call.out = out;
  Run(call, stream);
}

void ProcessGroup::AllToAllV(const Tensor& in, absl::Span<const int64_t> send_counts,
                             const Tensor& out, absl::Span<const int64_t> receive_counts,
                             const Stream& stream) const {
  CheckTensor(in, stream);
  CheckTensor(out, stream);
  CheckCounts(in, send_counts, size());
  CheckCounts(out, receive_counts, size());
  CHECK_EQ(in.dtype(), out.dtype());
  CHECK_EQ(in.rank(), out.rank()) << in << " and " << out;
  for (int d = 1; d < in.rank(); ++d) CHECK_EQ(in.dim(d), out.dim(d)) << in << " and " << out;
  CHECK(size() == 1 || stream.is_meta() || !Overlaps(in, out));
  if (size() == 1) CHECK_EQ(in.dim(0), out.dim(0));
  CollectiveCall call;
  call.collective = Collective::kAllToAllV;
  call.in = in;
  call.out = out;
  call.send_counts = send_counts;
  call.receive_counts = receive_counts;
  Run(call, stream);
}

void ProcessGroup::Broadcast(const Tensor& inout, int root, const Stream& stream) const {
  CheckTensor(inout, stream);
  CHECK(root >= 0 && root < size()) << root << " of " << size();
  CollectiveCall call;
  call.collective = Collective::kBroadcast;
  call.in = inout;
  call.root = root;
  Run(call, stream);
}

void ProcessGroup::Exchange(absl::Span<const Transfer> sends, absl::Span<const Transfer> receives,
                            const Stream& stream) const {
  for (absl::Span<const Transfer> transfers : {sends, receives}) {
    for (const Transfer& transfer : transfers) {
      CheckTensor(transfer.tensor, stream);
      CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank())
          << transfer.peer << " of " << size() << ", from " << rank();
    }
  }
  if (sends.empty() && receives.empty()) return;
  CollectiveCall call;
  call.collective = Collective::kExchange;
  call.sends = sends;
  call.receives = receives;
  Run(call, stream);
}

void ProcessGroup::Barrier(const Stream& stream) const { Run(CollectiveCall(), stream); }

}  // namespace megatron

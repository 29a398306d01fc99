#include "megatron/comm/nccl/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/host_reduce.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/emulated_cuda.h"
#include "megatron/tensor/emulated_graph.h"
#include "megatron/tensor/emulated_order.h"

// One rank's communicator.
struct ncclComm {
  std::shared_ptr<void> clique;
  std::string name;
  int rank = 0, world_rank = 0;
  int unfinished = 0;  // its operations that are not finished
  int meetings = 0;    // so far
  megatron::NcclResult error = megatron::kNcclSuccess;
  bool finalized = false, ended = false;
  // Calls that are captured have copies.
  std::shared_ptr<const int> in_graphs = std::make_shared<int>();
};

namespace megatron {
namespace {

// The number of groups that the thread is in, and the captured calls of the outermost one.
thread_local int group_depth = 0;
struct CapturedCall {
  const CudaStream* stream;
  ncclComm* comm;
};
thread_local std::vector<CapturedCall> captured_in_group;

constexpr absl::Duration kPatience = absl::Microseconds(20);
constexpr absl::Duration kAbortPatience = absl::Minutes(2);

// Places on the emulated device as memory of the host.
Tensor OnHost(const Tensor& tensor) { return EmulatedView(tensor.Flatten()); }

void CopyTo(const Tensor& in, const Tensor& out) {
  if (in.bytes() > 0) std::memmove(out.raw(), in.raw(), static_cast<size_t>(in.bytes()));
}

std::string TextOf(const std::string& name, const std::vector<Tensor>& tensors) {
  std::ostringstream text;
  text << name;
  for (const Tensor& tensor : tensors) text << " " << tensor << " at " << tensor.raw();
  return text.str();
}

// sum = x + sum, rounded.
void Accumulate(ReduceOp op, const Tensor& x, const Tensor& sum) {
  const void* const inputs[] = {sum.raw(), x.raw()};
  void* const outputs[] = {sum.raw()};
  ReduceOnHost(sum.dtype(), op, inputs, 0, sum.numel(), outputs);
}

}  // namespace

// The arguments of one rank in a call of all.
struct FakeNccl::Meeting {
  enum Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSplit, kFinalize } kind;
  Tensor in, out;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;                // color, of a split
  int key = 0;                 // key of a split
  std::string name;            // likewise
  ncclComm** child = nullptr;  // likewise

  bool Matches(const Meeting& other) const {
    if (kind != other.kind) return false;
    if (kind == kSplit || kind == kFinalize) return true;
    return in.bytes() == other.in.bytes() && op == other.op && root == other.root &&
           (kind != kAllReduce || in.dtype() == other.in.dtype());
  }
};

// The ranks of one communicator.
struct FakeNccl::Clique {
  struct Message {
    Tensor tensor;
    ncclComm* owner;
  };
  // Those that wait for the other side, of one rank to one other.
  struct Mail {
    std::deque<Message> sent, awaited;
  };

  std::vector<ncclComm*> members;
  std::map<int, std::map<int, Meeting>> meetings;  // indexed by number and rank
  std::map<std::pair<int, int>, Mail> mail;

  bool complete() const { return std::count(members.begin(), members.end(), nullptr) == 0; }
};

namespace {

template <typename CliqueType>
CliqueType& CliqueOf(ncclComm* comm) {
  CHECK(!comm->ended) << "rank " << comm->rank << " uses a communicator that has ended";
  return *static_cast<CliqueType*>(comm->clique.get());
}

template <typename Calls>
void Reduce(const Calls& calls, bool scatter) {
  const int size = static_cast<int>(calls.size());
  const auto& first = calls.at(0);
  const int64_t count = OnHost(first.in).numel();
  std::vector<char> memory(static_cast<size_t>(first.in.bytes()));
  const Tensor sum(memory.data(), first.in.dtype(), Shape({count}));
  CopyTo(OnHost(calls.at(size - 1).in), sum);
  for (int rank = size - 2; rank >= 0; --rank) Accumulate(first.op, OnHost(calls.at(rank).in), sum);
  const int64_t part = count / size;
  for (int rank = 0; rank < size; ++rank) {
    const Tensor out = OnHost(calls.at(rank).out);
    CopyTo(scatter ? sum.Slice(0, part * rank, part * (rank + 1)) : sum, out);
  }
}

template <typename Calls>
void Gather(const Calls& calls) {
  std::vector<char> memory;
  for (const auto& [rank, call] : calls) {
    const Tensor in = OnHost(call.in);
    const char* const bytes = static_cast<const char*>(in.raw());
    memory.insert(memory.end(), bytes, bytes + in.bytes());
  }
  for (const auto& [rank, call] : calls) {
    const Tensor out = OnHost(call.out);
    CHECK_EQ(out.bytes(), static_cast<int64_t>(memory.size()));
    std::memcpy(out.raw(), memory.data(), memory.size());
  }
}

}  // namespace

FakeNccl::FakeNccl() = default;
FakeNccl::~FakeNccl() = default;

void FakeNccl::Break(int world_rank, NcclResult error) {
  const absl::MutexLock lock(&mutex_);
  for (const std::unique_ptr<ncclComm>& comm : comms_) {
    if (comm->world_rank == world_rank) comm->error = error;
  }
}

FakeNccl::Counts FakeNccl::counts() const {
  const absl::MutexLock lock(&mutex_);
  Counts counts;
  counts.made = static_cast<int>(comms_.size());
  for (const std::unique_ptr<ncclComm>& comm : comms_) {
    if (comm->ended) ++(comm->finalized ? counts.destroyed : counts.aborted);
  }
  return counts;
}

std::vector<std::string> FakeNccl::Names(int world_rank) const {
  const absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const std::unique_ptr<ncclComm>& comm : comms_) {
    if (comm->world_rank == world_rank) names.push_back(comm->name);
  }
  return names;
}

std::string FakeNccl::Describe(NcclResult error, ncclComm*) const {
  return absl::StrCat("fake error ", error);
}

NcclResult FakeNccl::GetUniqueId(NcclUniqueId* id) {
  const absl::MutexLock lock(&mutex_);
  id->fill(0);
  const int number = ++ids_;
  std::memcpy(id->data(), &number, sizeof(number));
  return kNcclSuccess;
}

ncclComm* FakeNccl::Join(const std::shared_ptr<Clique>& clique, int rank, int world_rank,
                         const std::string& name) {
  CHECK(clique->members[rank] == nullptr) << "two ranks " << rank;
  comms_.push_back(std::make_unique<ncclComm>());
  ncclComm* const comm = comms_.back().get();
  comm->clique = clique;
  comm->rank = rank;
  comm->world_rank = world_rank;
  comm->name = name;
  clique->members[rank] = comm;
  return comm;
}

NcclResult FakeNccl::CommInitRank(ncclComm** comm, int size, const NcclUniqueId& id, int rank,
                                  const std::string& name) {
  const absl::MutexLock lock(&mutex_);
  auto found = std::find_if(cliques_.begin(), cliques_.end(),
                            [&](const auto& known) { return known.first == id; });
  if (found == cliques_.end()) {
    auto clique = std::make_shared<Clique>();
    clique->members.resize(size);
    found = cliques_.insert(cliques_.end(), {id, clique});
  }
  CHECK_EQ(found->second->members.size(), static_cast<size_t>(size));
  *comm = Join(found->second, rank, rank, name);
  return kNcclInProgress;
}

NcclResult FakeNccl::AsyncError(ncclComm* comm) {
  const absl::MutexLock lock(&mutex_);
  const Clique& clique = CliqueOf<Clique>(comm);
  if (comm->error != kNcclSuccess) return comm->error;
  return clique.complete() && comm->unfinished == 0 ? kNcclSuccess : kNcclInProgress;
}

NcclResult FakeNccl::Meet(ncclComm* comm, const Meeting& mine) {
  const absl::MutexLock lock(&mutex_);
  Clique& clique = CliqueOf<Clique>(comm);
  if (comm->error != kNcclSuccess) return comm->error;
  CHECK(clique.complete() && comm->unfinished == 0) << "a call while one is in progress";
  CHECK(!comm->finalized);
  ++comm->unfinished;
  const int number = comm->meetings++;
  std::map<int, Meeting>& calls = clique.meetings[number];
  calls.emplace(comm->rank, mine);
  if (calls.size() < clique.members.size()) return kNcclInProgress;
  for (const auto& [rank, call] : calls) {
    if (!call.Matches(calls.at(0))) return kNcclInProgress;  // never ends
  }
  switch (mine.kind) {
    case Meeting::kAllReduce:
    case Meeting::kReduceScatter:
      Reduce(calls, mine.kind == Meeting::kReduceScatter);
      break;
    case Meeting::kAllGather:
      Gather(calls);
      break;
    case Meeting::kBroadcast:
      for (const auto& [rank, call] : calls)
        CopyTo(OnHost(calls.at(call.root).in), OnHost(call.in));
      break;
    case Meeting::kSplit: {
      std::map<int, std::vector<std::pair<int, int>>> by_color;  // keys and ranks
      for (const auto& [rank, call] : calls) {
        if (call.root >= 0) by_color[call.root].emplace_back(call.key, rank);
      }
      for (auto& [color, ranks] : by_color) {
        std::sort(ranks.begin(), ranks.end());
        auto child = std::make_shared<Clique>();
        child->members.resize(ranks.size());
        for (size_t i = 0; i < ranks.size(); ++i) {
          const int rank = ranks[i].second;
          *calls.at(rank).child = Join(child, static_cast<int>(i), clique.members[rank]->world_rank,
                                       calls.at(rank).name);
        }
      }
      break;
    }
    case Meeting::kFinalize:
      break;
  }
  for (ncclComm* member : clique.members) --member->unfinished;
  clique.meetings.erase(number);
  return kNcclInProgress;
}

NcclResult FakeNccl::CommSplit(ncclComm* parent, int color, int key, const std::string& name,
                               ncclComm** child) {
  Meeting mine = {Meeting::kSplit};
  mine.root = color;
  mine.key = key;
  mine.name = name;
  mine.child = child;
  return Meet(parent, mine);
}

NcclResult FakeNccl::CommFinalize(ncclComm* comm) {
  const NcclResult result = Meet(comm, {Meeting::kFinalize});
  const absl::MutexLock lock(&mutex_);
  comm->finalized = true;
  return result;
}

NcclResult FakeNccl::CommDestroy(ncclComm* comm) {
  const absl::MutexLock lock(&mutex_);
  CliqueOf<Clique>(comm);
  CHECK(comm->finalized && comm->unfinished == 0);
  comm->ended = true;
  return kNcclSuccess;
}

bool FakeNccl::IsHeld(const ncclComm& comm) const {
  if (comm.in_graphs.use_count() > 1) return true;
  return std::any_of(comms_.begin(), comms_.end(), [&](const std::unique_ptr<ncclComm>& other) {
    return other->world_rank == comm.world_rank && !other->ended && !other->finalized &&
           other->error == kNcclSuccess && other->unfinished > 0;
  });
}

NcclResult FakeNccl::CommAbort(ncclComm* comm) {
  LeaveCalls(comm);
  const absl::Time end = SteadyNow() + kAbortPatience;
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      if (!IsHeld(*comm)) return kNcclSuccess;
    }
    CHECK(SteadyNow() < end) << "the abort of " << comm->name << " on rank " << comm->world_rank
                             << " waits for a graph, or for a communicator that nobody aborts";
    absl::SleepFor(kPatience);
  }
}

// The message that others await from it never comes.
void FakeNccl::LeaveCalls(ncclComm* comm) {
  const absl::MutexLock lock(&mutex_);
  Clique& clique = CliqueOf<Clique>(comm);
  comm->ended = true;
  comm->finalized = false;
  for (auto& [number, calls] : clique.meetings) calls.erase(comm->rank);
  for (auto& [ranks, mail] : clique.mail) {
    for (std::deque<Clique::Message>* messages : {&mail.sent, &mail.awaited}) {
      messages->erase(std::remove_if(messages->begin(), messages->end(),
                                     [&](const auto& message) { return message.owner == comm; }),
                      messages->end());
    }
  }
}

NcclResult FakeNccl::GroupStart() {
  ++group_depth;
  return kNcclSuccess;
}

NcclResult FakeNccl::GroupEnd() {
  CHECK_GT(group_depth, 0);
  if (--group_depth > 0 || captured_in_group.empty()) return kNcclInProgress;
  for (const CapturedCall& call : captured_in_group)
    WriteDown(*call.stream, {"group end", [this, call] { Finish(call.comm); }});
  captured_in_group.clear();
  return kNcclSuccess;
}

// A real device waits for the other ranks in the place where the call is in the stream.
void FakeNccl::Finish(ncclComm* comm) const {
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      if (comm->ended || comm->error != kNcclSuccess || comm->unfinished == 0) return;
    }
    absl::SleepFor(kPatience);
  }
}

NcclResult FakeNccl::MakeOrCapture(ncclComm* comm, const Stream& stream, const std::string& text,
                                   const std::function<NcclResult()>& call) {
  const CudaStream& cuda = *stream.cuda();
  if (!IsBeingCaptured(cuda)) return call();
  const bool grouped = group_depth > 0;
  if (grouped) captured_in_group.push_back({&cuda, comm});
  WriteDown(cuda, {absl::StrCat(text, " of ", comm->name),
                   [this, comm, call, grouped, in_graph = comm->in_graphs] {
                     {
                       const absl::MutexLock lock(&mutex_);
                       if (comm->ended) return;
                     }
                     group_depth += grouped ? 1 : 0;
                     call();
                     group_depth -= grouped ? 1 : 0;
                     if (!grouped) Finish(comm);
                   }});
  return kNcclSuccess;
}

NcclResult FakeNccl::AllReduce(const Tensor& inout, ReduceOp op, ncclComm* comm,
                               const Stream& stream) {
  CHECK(NcclReduces(inout.dtype())) << inout;
  return MakeOrCapture(comm, stream, TextOf("all-reduce", {inout}), [=] {
    OrderOperation(*stream.cuda(), "all-reduce", {WriteOf(inout)});
    return Meet(comm, {Meeting::kAllReduce, inout, inout, op});
  });
}

NcclResult FakeNccl::ReduceScatter(const Tensor& in, const Tensor& out, ReduceOp op, ncclComm* comm,
                                   const Stream& stream) {
  CHECK(NcclReduces(in.dtype())) << in;
  return MakeOrCapture(comm, stream, TextOf("reduce-scatter", {in, out}), [=] {
    OrderOperation(*stream.cuda(), "reduce-scatter", {ReadOf(in), WriteOf(out)});
    return Meet(comm, {Meeting::kReduceScatter, in, out, op});
  });
}

NcclResult FakeNccl::AllGather(const Tensor& in, const Tensor& out, ncclComm* comm,
                               const Stream& stream) {
  return MakeOrCapture(comm, stream, TextOf("all-gather", {in, out}), [=] {
    OrderOperation(*stream.cuda(), "all-gather", {ReadOf(in), WriteOf(out)});
    return Meet(comm, {Meeting::kAllGather, in, out});
  });
}

NcclResult FakeNccl::Broadcast(const Tensor& inout, int root, ncclComm* comm,
                               const Stream& stream) {
  return MakeOrCapture(comm, stream, TextOf("broadcast", {inout}), [=] {
    OrderOperation(*stream.cuda(), "broadcast", {WriteOf(inout)});
    return Meet(comm, {Meeting::kBroadcast, inout, inout, ReduceOp::kSum, root});
  });
}

NcclResult FakeNccl::Post(ncclComm* comm, int from, int to, const Tensor& tensor, bool sends) {
  CHECK_GT(tensor.bytes(), 0);
  const absl::MutexLock lock(&mutex_);
  Clique& clique = CliqueOf<Clique>(comm);
  if (comm->error != kNcclSuccess) return comm->error;
  CHECK(clique.complete() && (group_depth > 0 || comm->unfinished == 0)) << "still in progress";
  ++comm->unfinished;
  Clique::Mail& mail = clique.mail[{from, to}];
  (sends ? mail.sent : mail.awaited).push_back({tensor, comm});
  while (!mail.sent.empty() && !mail.awaited.empty()) {
    const Clique::Message sent = mail.sent.front(), awaited = mail.awaited.front();
    if (sent.tensor.bytes() != awaited.tensor.bytes()) break;  // never ends
    CopyTo(OnHost(sent.tensor), OnHost(awaited.tensor));
    mail.sent.pop_front();
    mail.awaited.pop_front();
    --sent.owner->unfinished;
    --awaited.owner->unfinished;
  }
  return group_depth > 0 ? kNcclSuccess : kNcclInProgress;
}

NcclResult FakeNccl::Send(const Tensor& tensor, int peer, ncclComm* comm, const Stream& stream) {
  return MakeOrCapture(comm, stream, TextOf("send", {tensor}), [=] {
    OrderOperation(*stream.cuda(), "send", {ReadOf(tensor)});
    return Post(comm, comm->rank, peer, tensor, /*sends=*/true);
  });
}

NcclResult FakeNccl::Receive(const Tensor& tensor, int peer, ncclComm* comm, const Stream& stream) {
  return MakeOrCapture(comm, stream, TextOf("receive", {tensor}), [=] {
    OrderOperation(*stream.cuda(), "receive", {WriteOf(tensor)});
    return Post(comm, peer, comm->rank, tensor, /*sends=*/false);
  });
}

}  // namespace megatron

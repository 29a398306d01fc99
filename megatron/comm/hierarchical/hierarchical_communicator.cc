#include "megatron/comm/hierarchical/hierarchical_communicator.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/hierarchical/host_ranks.h"
#include "megatron/comm/overlap/async_group.h"
#include "megatron/comm/process_group.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

constexpr int64_t kChunks = 4;

// A range of elements or rows.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

Tensor SliceOf(const Tensor& tensor, const Range& range) {
  return tensor.Slice(0, range.begin, range.end);
}

// Chunk `index` of `chunks` of [0, count).
Range ChunkOf(int64_t count, int64_t chunks, int64_t index) {
  return {count * index / chunks, count * (index + 1) / chunks};
}

void Copy(const Stream& stream, const Tensor& in, const Tensor& out) {
  if (in.raw() != out.raw() && in.numel() > 0) ops::Copy(stream, in, out);
}

// The rows of an all-to-all that go to each rank, or come from each.
class Parts {
 public:
  explicit Parts(absl::Span<const int64_t> counts) : counts_(counts), begins_(counts.size()) {
    std::partial_sum(counts.begin(), counts.end() - 1, begins_.begin() + 1);
  }
  // Chunk `chunk` of `chunks` of the part of ranks [rank, rank + ranks), which are one chunk if
  // they are several.
  Range Of(int rank, int ranks, int64_t chunks, int64_t chunk) const {
    int64_t rows = 0;
    for (int i = 0; i < ranks; ++i) rows += counts_[rank + i];
    const Range range = ChunkOf(rows, chunks, chunk);
    return {begins_[rank] + range.begin, begins_[rank] + range.end};
  }

 private:
  const absl::Span<const int64_t> counts_;
  std::vector<int64_t> begins_;
};

class HierarchicalCommunicator : public Communicator {
 public:
  HierarchicalCommunicator(std::shared_ptr<Communicator> flat, std::vector<int> hosts,
                           HostRanks ranks, std::shared_ptr<Communicator> in_host,
                           std::shared_ptr<Communicator> between_hosts,
                           const HierarchicalOptions& options)
      : flat_(std::move(flat)),
        hosts_(std::move(hosts)),
        ranks_(std::move(ranks)),
        in_host_(std::move(in_host)),
        between_hosts_(std::move(between_hosts)),
        options_(options),
        host_(between_hosts_.rank()),
        local_(in_host_.rank()) {}

  int size() const override { return flat_->size(); }
  int rank() const override { return flat_->rank(); }
  const std::string& name() const override { return flat_->name(); }
  bool TakesTensorsOf(DeviceType type) const override { return flat_->TakesTensorsOf(type); }
  absl::Status status() const override { return flat_->status(); }
  void Abort(const absl::Status& reason) override { flat_->Abort(reason); }

  absl::StatusOr<std::shared_ptr<Communicator>> Split(
      const std::vector<std::vector<int>>& partition, const std::string& name) override {
    MEGATRON_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> part, flat_->Split(partition, name));
    for (const std::vector<int>& members : partition) {
      if (std::count(members.begin(), members.end(), rank()) == 0) continue;
      std::vector<int> hosts;
      for (int member : members) hosts.push_back(hosts_[member]);
      return Hierarchical(std::move(part), hosts, options_);
    }
    return absl::InternalError("unreachable: Split has checked the partition");
  }

  void Run(const CollectiveCall& call, const Stream& traced) override {
    if (call.collective == Collective::kBroadcast || call.collective == Collective::kBarrier ||
        call.collective == Collective::kExchange)
      return flat_->Run(call, traced);
    CollectiveCall compared = call;
    compared.compares_only = true;
    flat_->Run(compared, traced);
    if (call.compares_only || !status().ok()) return;
    // The caller's span covers the calls in the host.
    const Stream stream = traced.TracedBy(nullptr);
    CommLane* const lane = LaneBeside(traced);
    switch (call.collective) {
      case Collective::kAllReduce:
        return AllReduce(call.in.Flatten(), call.reduce, stream, lane);
      case Collective::kReduceScatter:
        return ReduceScatter(call.in.Flatten(), call.out.Flatten(), call.reduce, stream, lane);
      case Collective::kAllGather:
        return AllGather(call.in.Flatten(), call.out.Flatten(), stream, lane);
      case Collective::kAllToAll:
        return AllToAll(call.in, call.out, stream, lane);
      case Collective::kAllToAllV:
        return AllToAllV(call, stream, lane);
      default:
        LOG(FATAL) << call.Describe();
    }
  }

 private:
  struct Beside {
    Stream stream;
    std::unique_ptr<CommLane> lane;
  };

  int num_hosts() const { return static_cast<int>(ranks_.size()); }
  int local_size() const { return in_host_.size(); }

  // Returns the lane of the calls between hosts beside this stream.
  CommLane* LaneBeside(const Stream& stream) {
    for (const Beside& beside : lanes_) {
      if (beside.stream.cuda() == stream.cuda()) return beside.lane.get();
    }
    lanes_.push_back({stream, MakeCommLane(stream, absl::StrCat(name(), " between hosts"))});
    return lanes_.back().lane.get();
  }

  // Returns how many chunks make a call whose whole tensor has these bytes. No chunk is empty.
  int64_t Chunks(int64_t bytes, int64_t most_chunks) const {
    const int64_t chunk =
        std::clamp(bytes / kChunks, options_.least_chunk_bytes,
                   std::max(options_.least_chunk_bytes, options_.most_chunk_bytes));
    return std::clamp<int64_t>((bytes + chunk - 1) / chunk, 1, std::max<int64_t>(most_chunks, 1));
  }

  void Reserve(int64_t bytes, const Stream& stream) {
    if (bytes <= scratch_.bytes() && scratch_.device() == stream.device()) return;
    if (stream.cuda() != nullptr) stream.cuda()->Synchronize();
    scratch_ = Buffer();  // first: both together may be too much
    scratch_ = Buffer(stream.device(), bytes, "hierarchical collectives", nullptr);
  }

  void AllReduce(const Tensor& inout, ReduceOp op, const Stream& stream, CommLane* lane) {
    const int64_t count = inout.numel(), locals = local_size();
    if (count == 0) return;
    // Chunks of whole multiples of the ranks of a host, but for the last one.
    const int64_t units = (count + locals - 1) / locals;
    const int64_t chunks = Chunks(inout.bytes(), units);
    std::vector<Tensor> in(chunks), mine(chunks);
    std::vector<int64_t> between(chunks);
    Tensor last;  // the elements of the last chunk, if they are moved to scratch memory
    for (int64_t i = 0; i < chunks; ++i) {
      const Range range = ChunkOf(units, chunks, i);
      const int64_t end = std::min(range.end * locals, count);
      in[i] = inout.Slice(0, range.begin * locals, end);
      if (in[i].numel() < range.count() * locals) {
        last = in[i];
        Reserve(range.count() * locals * SizeOf(inout.dtype()), stream);
        in[i] = scratch_.At(0, inout.dtype(), {range.count() * locals});
        Copy(stream, last, in[i].Slice(0, 0, last.numel()));
      }
      mine[i] = in[i].Slice(0, range.count() * local_, range.count() * (local_ + 1));
    }
    const auto gather = [&](int64_t i) {
      lane->Wait(between[i]);
      in_host_.AllGather(mine[i], in[i], stream);
    };
    for (int64_t i = 0; i < chunks; ++i) {
      in_host_.ReduceScatter(in[i], mine[i], stream, op);
      between[i] = lane->Add([this, op, part = mine[i]](const Stream& beside) {
        between_hosts_.AllReduce(part, op, beside);
      });
      if (i > 0) gather(i - 1);
    }
    gather(chunks - 1);
    if (!last.empty()) Copy(stream, in.back().Slice(0, 0, last.numel()), last);
  }

  void ReduceScatter(const Tensor& in, const Tensor& out, ReduceOp op, const Stream& stream,
                     CommLane* lane) {
    const int64_t count = out.numel(), locals = local_size(), hosts = num_hosts();
    if (count == 0) return;
    const int64_t chunks = Chunks(in.bytes(), count);
    const int64_t longest = (count + chunks - 1) / chunks;
    const int64_t packed_bytes = RoundUp(longest * size() * SizeOf(in.dtype()), Buffer::kAlignment);
    const int64_t sums_bytes = RoundUp(longest * hosts * SizeOf(in.dtype()), Buffer::kAlignment);
    Reserve(packed_bytes + 2 * sums_bytes, stream);
    std::vector<int64_t> between(chunks);
    for (int64_t i = 0; i < chunks; ++i) {
      const Range range = ChunkOf(count, chunks, i);
      const int64_t length = range.count();
      const Tensor packed = scratch_.At(0, in.dtype(), {length * size()});
      const Tensor sums =
          scratch_.At(packed_bytes + i % 2 * sums_bytes, in.dtype(), {length * hosts});
      for (int64_t local = 0; local < locals; ++local) {
        for (int64_t host = 0; host < hosts; ++host) {
          const int64_t from = ranks_[host][local] * count, to = (local * hosts + host) * length;
          Copy(stream, in.Slice(0, from + range.begin, from + range.end),
               packed.Slice(0, to, to + length));
        }
      }
      if (i >= 2) lane->Wait(between[i - 2]);  // until the sums' memory is free
      in_host_.ReduceScatter(packed, sums, stream, op);
      between[i] = lane->Add([this, op, sums, part = SliceOf(out, range)](const Stream& beside) {
        between_hosts_.ReduceScatter(sums, part, beside, op);
      });
    }
    lane->Wait(between[chunks - 1]);
  }

  void AllGather(const Tensor& in, const Tensor& out, const Stream& stream, CommLane* lane) {
    const int64_t count = in.numel();
    if (count == 0) return;
    const auto part = [&](int host, int local, const Range& range) {
      const int64_t begin = ranks_[host][local] * count;
      return out.Slice(0, begin + range.begin, begin + range.end);
    };
    Copy(stream, in, part(host_, local_, {0, count}));
    const int64_t chunks = Chunks(out.bytes(), count);
    std::vector<int64_t> between(chunks);
    for (int64_t i = 0; i < chunks; ++i) {
      const Range range = ChunkOf(count, chunks, i);
      std::vector<Transfer> sends, receives;
      for (int host = 0; host < num_hosts(); ++host) {
        if (host == host_) continue;
        sends.push_back({host, part(host_, local_, range)});
        receives.push_back({host, part(host, local_, range)});
      }
      between[i] = lane->Add([this, sends, receives](const Stream& beside) {
        between_hosts_.Exchange(sends, receives, beside);
      });
    }
    for (int64_t i = 0; i < chunks; ++i) {
      const Range range = ChunkOf(count, chunks, i);
      std::vector<Transfer> sends, receives;
      for (int local = 0; local < local_size(); ++local) {
        if (local == local_) continue;
        for (int host = 0; host < num_hosts(); ++host) {
          sends.push_back({local, part(host, local_, range)});
          receives.push_back({local, part(host, local, range)});
        }
      }
      lane->Wait(between[i]);
      in_host_.Exchange(sends, receives, stream);
    }
  }

  void AllToAll(const Tensor& in, const Tensor& out, const Stream& stream, CommLane* lane) {
    if (in.bytes() == 0) return;
    const std::vector<int64_t> counts(size(), in.dim(0) / size());
    const std::vector<int64_t> from_locals(size(), counts[0]);
    MoveRows({in, out, counts, counts, from_locals, Chunks(in.bytes(), counts[0])}, stream, lane);
  }

  // The ranks of a host tell each other what each has for the others of a destination.
  void AllToAllV(const CollectiveCall& call, const Stream& stream, CommLane* lane) {
    const int hosts = num_hosts();
    std::vector<int64_t> to_locals(size()), from_locals(size());
    for (int local = 0; local < local_size(); ++local) {
      for (int host = 0; host < hosts; ++host)
        to_locals[local * hosts + host] = call.send_counts[ranks_[host][local]];
    }
    in_host_.AllToAll(Tensor(to_locals.data(), DType::kInt64, {size()}),
                      Tensor(from_locals.data(), DType::kInt64, {size()}), Stream::Inline());
    if (!status().ok()) return;
    MoveRows({call.in, call.out, call.send_counts, call.receive_counts, from_locals, 1}, stream,
             lane);
  }

  struct Rows {
    Tensor in, out;
    absl::Span<const int64_t> send_counts, receive_counts;
    // The rows that local rank l of this host has for this rank's peer on host q, at l K + q.
    absl::Span<const int64_t> from_locals;
    int64_t chunks = 1;
  };

  // One stage for each chunk and destination host, this one last: its rows need not be passed on.
  void MoveRows(const Rows& rows, const Stream& stream, CommLane* lane) {
    const Parts to(rows.send_counts), from(rows.receive_counts);
    const int hosts = num_hosts();
    Shape shape = rows.in.shape();
    shape[0] = 1;
    const int64_t row_bytes = shape.numel() * SizeOf(rows.in.dtype());
    int64_t passed_on = 0;
    for (int local = 0; local < local_size(); ++local) {
      for (int host = 0; host < hosts; ++host)
        passed_on += host == host_ ? 0 : rows.from_locals[local * hosts + host];
    }
    Reserve(passed_on * row_bytes, stream);
    shape[0] = passed_on;
    const Tensor scratch = scratch_.At(0, rows.in.dtype(), shape);
    int64_t top = 0, last = 0;
    for (int step = 1; step <= hosts; ++step) {
      const int to_host = (host_ + step) % hosts, from_host = (host_ - step + hosts) % hosts;
      for (int64_t chunk = 0; chunk < rows.chunks; ++chunk) {
        // What comes from the ranks of this host for the destination, in their order.
        const int64_t begin = top;
        std::vector<Transfer> sends, receives;
        std::vector<Tensor> gathered;
        for (int local = 0; local < local_size(); ++local) {
          Tensor into;
          if (to_host == host_) {
            into = SliceOf(rows.out, from.Of(ranks_[host_][local], 1, rows.chunks, chunk));
          } else {
            const Range range =
                ChunkOf(rows.from_locals[local * hosts + to_host], rows.chunks, chunk);
            into = scratch.Slice(0, top, top + range.count());
            top += range.count();
          }
          gathered.push_back(into);
          const Tensor mine =
              SliceOf(rows.in, to.Of(ranks_[to_host][local], 1, rows.chunks, chunk));
          if (local == local_) {
            Copy(stream, mine, into);
          } else {
            AddTransfer(local, mine, &sends);
            AddTransfer(local, into, &receives);
          }
        }
        in_host_.Exchange(sends, receives, stream);
        if (to_host == host_) continue;
        std::vector<Transfer> out, in;
        int64_t at = begin;
        for (const Neighbours& neighbours : NeighboursOf(host_, rows.chunks)) {
          int64_t count = 0;
          for (int i = 0; i < neighbours.ranks; ++i) count += gathered[neighbours.local + i].dim(0);
          AddTransfer(to_host, scratch.Slice(0, at, at + count), &out);
          at += count;
        }
        for (const Neighbours& neighbours : NeighboursOf(from_host, rows.chunks)) {
          const int rank = ranks_[from_host][neighbours.local];
          AddTransfer(from_host,
                      SliceOf(rows.out, from.Of(rank, neighbours.ranks, rows.chunks, chunk)), &in);
        }
        last = lane->Add(
            [this, out, in](const Stream& beside) { between_hosts_.Exchange(out, in, beside); });
      }
    }
    lane->Wait(last);
  }

  static void AddTransfer(int peer, const Tensor& rows, std::vector<Transfer>* transfers) {
    if (rows.numel() > 0) transfers->push_back({peer, rows});
  }

  // Ranks of a host, from a local rank on, whose rows are one message to another host: neighbours
  // in the group, whose whole parts lie next to each other at the receiver.
  struct Neighbours {
    int local = 0, ranks = 1;
  };
  std::vector<Neighbours> NeighboursOf(int host, int64_t chunks) const {
    std::vector<Neighbours> all;
    for (int local = 0; local < local_size(); ++local) {
      const std::vector<int>& ranks = ranks_[host];
      if (chunks == 1 && local > 0 && ranks[local] == ranks[local - 1] + 1) {
        ++all.back().ranks;
      } else {
        all.push_back({local, 1});
      }
    }
    return all;
  }

  const std::shared_ptr<Communicator> flat_;
  const std::vector<int> hosts_;  // the host of each rank
  const HostRanks ranks_;
  const ProcessGroup in_host_, between_hosts_;
  const HierarchicalOptions options_;
  const int host_, local_;  // the indices of this rank in ranks_
  Buffer scratch_;
  std::vector<Beside> lanes_;  // last, since their jobs use the others until they have ended
};

}  // namespace

// A reduce-scatter packs a chunk, and has two chunks' sums of this host.
int64_t HierarchicalScratchBytes(int ranks_per_host, const HierarchicalOptions& options) {
  return options.most_chunk_bytes + 2 * (options.most_chunk_bytes / ranks_per_host);
}

absl::StatusOr<std::shared_ptr<Communicator>> Hierarchical(
    std::shared_ptr<Communicator> communicator, const std::vector<int>& hosts,
    const HierarchicalOptions& options) {
  CHECK_EQ(static_cast<int>(hosts.size()), communicator->size());
  MEGATRON_ASSIGN_OR_RETURN(HostRanks ranks, RanksByHost(hosts, communicator->name()));
  if (!HasTwoLevels(ranks)) return communicator;
  HostRanks equal_locals(ranks[0].size());
  for (const std::vector<int>& of_host : ranks) {
    for (size_t local = 0; local < of_host.size(); ++local)
      equal_locals[local].push_back(of_host[local]);
  }
  MEGATRON_ASSIGN_OR_RETURN(
      std::shared_ptr<Communicator> in_host,
      communicator->Split(ranks, absl::StrCat(communicator->name(), "-in-host")));
  MEGATRON_ASSIGN_OR_RETURN(
      std::shared_ptr<Communicator> between_hosts,
      communicator->Split(equal_locals, absl::StrCat(communicator->name(), "-between-hosts")));
  return std::make_shared<HierarchicalCommunicator>(std::move(communicator), hosts,
                                                    std::move(ranks), std::move(in_host),
                                                    std::move(between_hosts), options);
}

}  // namespace megatron

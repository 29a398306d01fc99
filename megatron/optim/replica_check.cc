#include "megatron/optim/replica_check.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "megatron/base/crc32c.h"
#include "megatron/base/status_macros.h"
#include "megatron/tensor/trace/trace.h"

namespace megatron {
namespace {

constexpr char kName[] = "replica check";
// The elements that come to the host's memory at once, from a device.
constexpr int64_t kPieceElements = int64_t{1} << 21;

bool IsCutOverTensor(const Parameter& parameter) {
  return parameter.sharding.sharded.contains(Axis::kTensor);
}

}  // namespace

ReplicaCheck::ReplicaCheck(const ParameterBuffers& buffers, const ProcessGroups& groups,
                           MemoryLedger* ledger)
    : buffers_(buffers), world_rank_(groups.world.rank()) {
  const bool shards = buffers.shards(DataSharding::kWeights);
  Add(shards ? groups.data_context_replicas : groups.data_context, ledger,
      [](const Parameter& p) { return !p.sharding.expert_grid; });
  Add(shards ? groups.expert_data_replicas : groups.expert_data, ledger,
      [](const Parameter& p) { return p.sharding.expert_grid; });
  Add(groups.tensor, ledger,
      [](const Parameter& p) { return !p.sharding.expert_grid && !IsCutOverTensor(p); });
  const auto add_replicas = [&](const ProcessGroup& group) {
    Add(group, ledger, [&](const Parameter& p) {
      return IsCutOverTensor(p) && p.sharding.tensor_replicas > 1 &&
             &groups.TensorReplicas(p.sharding.tensor_replicas) == &group;
    });
  };
  add_replicas(groups.tensor_replicas);
  add_replicas(groups.tensor_depth);
  Add(groups.expert_tensor, ledger,
      [](const Parameter& p) { return p.sharding.expert_grid && !IsCutOverTensor(p); });
  // Shards of the same weight need not be the same elements on two stages.
  if (!shards) Add(groups.tied_embedding, ledger, [](const Parameter& p) { return p.tied; });
}

template <typename Wanted>
void ReplicaCheck::Add(const ProcessGroup& group, MemoryLedger* ledger, Wanted wanted) {
  if (group.size() == 1) return;
  Comparison comparison;
  comparison.group = group;
  for (size_t i = 0; i < buffers_.parameters().size(); ++i) {
    if (wanted(*buffers_.parameters()[i].parameter)) comparison.parameters.push_back(i);
  }
  if (comparison.parameters.empty()) return;
  const int64_t row = 1 + static_cast<int64_t>(comparison.parameters.size());
  const int64_t row_bytes = row * SizeOf(DType::kInt32);
  comparison.memory =
      Buffer(buffers_.options().device, (1 + group.size()) * row_bytes, kName, ledger);
  comparison.mine_P = comparison.memory.At(0, DType::kInt32, {row});
  comparison.all_RP = comparison.memory.At(row_bytes, DType::kInt32, {group.size() * row});
  comparison.host_mine = HostMirror(comparison.mine_P, kName);
  comparison.host_all = HostMirror(comparison.all_RP, kName);
  comparisons_.push_back(std::move(comparison));
}

uint32_t ReplicaCheck::ChecksumOf(const FlatParameter& flat, const Stream& stream) const {
  const Bucket& bucket = buffers_.bucket_of(flat);
  const FlatRange stored = Common(flat.range, buffers_.weight_range(bucket));
  const bool on_host = buffers_.options().device.type == DeviceType::kCpu;
  uint32_t crc = 0;
  for (FlatRange piece = {stored.begin, 0}; piece.begin < stored.end; piece.begin = piece.end) {
    piece.end = std::min(stored.end, piece.begin + kPieceElements);
    const DType dtype = buffers_.options().model_dtype;
    const int64_t bytes = piece.size() * SizeOf(dtype);
    const Buffer copy({}, on_host ? 0 : bytes, kName, nullptr);
    const Tensor weights =
        on_host ? buffers_.Weights(bucket, piece) : copy.At(0, dtype, {piece.size()});
    if (!on_host) buffers_.CopyWeights(bucket, piece, weights, stream);
    crc = ExtendCrc32c(crc, absl::string_view(static_cast<const char*>(weights.raw()),
                                              static_cast<size_t>(bytes)));
  }
  return crc;
}

absl::Status ReplicaCheck::Check(const Stream& stream) {
  const TraceSpan span(stream, TimeCategory::kOther, "replica check");
  if (stream.is_meta()) return absl::OkStatus();
  std::map<size_t, uint32_t> crcs;  // by parameter: several comparisons take it
  for (const Comparison& comparison : comparisons_) {
    int32_t* const mine = comparison.host_mine.host().data<int32_t>();
    mine[0] = world_rank_;
    for (size_t i = 0; i < comparison.parameters.size(); ++i) {
      const size_t parameter = comparison.parameters[i];
      auto found = crcs.find(parameter);
      if (found == crcs.end()) {
        const uint32_t crc = ChecksumOf(buffers_.parameters()[parameter], stream);
        found = crcs.emplace(parameter, crc).first;
      }
      mine[1 + i] = static_cast<int32_t>(found->second);
    }
    comparison.host_mine.Send(stream);
    comparison.group.AllGather(comparison.mine_P, comparison.all_RP, stream);
    comparison.host_all.Fetch(stream);
    MEGATRON_RETURN_IF_ERROR(comparison.group.status());
  }
  // The ranks of a group find the same. Comparing only now, no rank leaves another one waiting.
  for (const Comparison& comparison : comparisons_) MEGATRON_RETURN_IF_ERROR(Compare(comparison));
  return absl::OkStatus();
}

absl::Status ReplicaCheck::Compare(const Comparison& comparison) const {
  const int ranks = comparison.group.size();
  const size_t row = 1 + comparison.parameters.size();
  const int32_t* const all = comparison.host_all.host().data<int32_t>();
  int different = 0;
  std::string first;
  for (size_t i = 1; i < row; ++i) {
    std::map<int32_t, std::vector<int>> ranks_of;  // by checksum: the ranks in the world
    for (int r = 0; r < ranks; ++r) ranks_of[all[r * row + i]].push_back(all[r * row]);
    if (ranks_of.size() == 1) continue;
    if (++different > 1) continue;
    const auto most = std::max_element(
        ranks_of.begin(), ranks_of.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    std::vector<int> odd;
    for (const auto& [crc, holders] : ranks_of) {
      // Two checksums that are as frequent say no more than that they differ.
      if (crc != most->first || 2 * holders.size() <= static_cast<size_t>(ranks))
        odd.insert(odd.end(), holders.begin(), holders.end());
    }
    std::sort(odd.begin(), odd.end());
    first = absl::StrCat("weights that ", ranks, " ranks of ", comparison.group.name(),
                         " should have alike differ: ",
                         buffers_.parameters()[comparison.parameters[i - 1]].parameter->name,
                         " on ", odd.size() == 1 ? "rank " : "ranks ", absl::StrJoin(odd, ", "),
                         " of the world");
  }
  if (different == 0) return absl::OkStatus();
  if (different > 1) {
    absl::StrAppend(&first, ", and ", different - 1, " more ",
                    different == 2 ? "parameter" : "parameters");
  }
  return absl::DataLossError(first);
}

}  // namespace megatron

#include "megatron/optim/packed_states.h"

#include <cstring>

#include "glog/logging.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

// The elements of a bucket whose states a rank has.
FlatRange StatesOf(const Bucket& bucket, bool sharded, bool by_parts) {
  if (IsFrozen(bucket.section) || bucket.section == Section::kCopies)
    return {bucket.range.begin, bucket.range.begin};
  if (!sharded) return bucket.range;
  return by_parts ? bucket.part : bucket.shard;
}

// The bytes of an element in all tensors of a parameter.
int64_t ElementBytes(const Parameter& parameter, const ParameterBuffers& buffers) {
  const ParameterBuffersOptions& options = buffers.options();
  int64_t bytes = SizeOf(buffers.has_masters() ? DType::kFloat32 : options.model_dtype);
  for (const OptimizerState& state : options.states) {
    if (state.Has(parameter)) bytes += SizeOf(state.dtype);
  }
  return bytes;
}

// Calls body(tensor) for the master and the states of a parameter.
template <typename Body>
void ForEachTensor(const ParameterState& state, Body body) {
  body(state.master);
  for (const Tensor& tensor : state.states) {
    if (!tensor.empty()) body(tensor);
  }
}

}  // namespace

PackedStates::PackedStates(const std::vector<Parameter*>& parameters,
                           const ParameterBuffers& buffers, const DataRank& data, bool by_parts) {
  const ParameterBuffersOptions& options = buffers.options();
  const FlatLayout layout =
      PlanFlatLayout(parameters, data, DataRank(), options.bucket_size, options.unit);
  CHECK_EQ(layout.experts_begin, layout.num_elements) << "experts are shared out otherwise";
  for (const FlatParameter& flat : layout.parameters) {
    const FlatRange range = Common(
        flat.range, StatesOf(layout.buckets[flat.bucket], data.size * data.parts > 1, by_parts));
    if (range.size() == 0) continue;
    pieces_[flat.parameter] = {{range.begin - flat.range.begin, range.end - flat.range.begin},
                               bytes_};
    bytes_ += range.size() * ElementBytes(*flat.parameter, buffers);
  }
}

void PackedStates::Pack(const ParameterBuffers& buffers, char* bytes) const {
  if (buffers.options().device.type == DeviceType::kMeta) return;
  const std::vector<ParameterState> states = buffers.States();
  CHECK_EQ(states.size(), pieces_.size());
  for (const ParameterState& state : states) {
    const Piece& piece = pieces_.at(state.parameter);
    CHECK_EQ(state.range.begin, piece.range.begin) << state.parameter->name;
    CHECK_EQ(state.range.end, piece.range.end) << state.parameter->name;
    char* to = bytes + piece.at;
    ForEachTensor(state, [&](const Tensor& tensor) {
      CHECK(tensor.is_contiguous());
      std::memcpy(to, tensor.raw(), static_cast<size_t>(tensor.bytes()));
      to += tensor.bytes();
    });
  }
}

void PackedStates::Unpack(const char* bytes, const ParameterBuffers& buffers) const {
  if (buffers.options().device.type == DeviceType::kMeta) return;
  for (const ParameterState& state : buffers.States()) {
    const auto found = pieces_.find(state.parameter);
    if (found == pieces_.end()) continue;
    const Piece& piece = found->second;
    const FlatRange common = Common(piece.range, state.range);
    if (common.size() == 0) continue;
    const char* from = bytes + piece.at;
    ForEachTensor(state, [&](const Tensor& tensor) {
      const int64_t size = SizeOf(tensor.dtype());
      std::memcpy(static_cast<char*>(tensor.raw()) + (common.begin - state.range.begin) * size,
                  from + (common.begin - piece.range.begin) * size,
                  static_cast<size_t>(common.size() * size));
      from += piece.range.size() * size;
    });
  }
}

}  // namespace megatron

#include "megatron/optim/parameter_buffers.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/round_up.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/optimizer.h"
#include "megatron/optim/initial_pieces.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"

namespace megatron {
namespace {

Tensor All(const Buffer& buffer, DType dtype) {
  if (buffer.bytes() == 0) return Tensor();
  return buffer.At(0, dtype, {buffer.bytes() / SizeOf(dtype)});
}

// A parameter's elements of a state begin at a multiple of this, as those of a layout do.
constexpr int64_t kStateAlignment = 64;
// The elements of masters in host memory that are rounded, or made of remainders, at once.
constexpr int64_t kRoundedElements = 1 << 16;
// The elements of rounded gradients in host memory that come to the device at once.
constexpr int64_t kArrivingElements = 1 << 20;

std::optional<size_t> FindRemainder(const std::vector<OptimizerState>& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].is_remainder) return i;
  }
  return std::nullopt;
}

bool KeepsMasters(const ParameterBuffersOptions& options) {
  if (FindRemainder(options.states).has_value()) return false;
  return options.model_dtype != DType::kFloat32 ||
         std::any_of(options.states.begin(), options.states.end(),
                     [](const OptimizerState& state) { return state.differs; });
}

}  // namespace

ParameterBuffers::ParameterBuffers(const std::vector<Parameter*>& parameters,
                                   const ParameterBuffersOptions& options, MemoryLedger* ledger)
    : options_(options),
      remainder_(FindRemainder(options.states)),
      has_masters_(KeepsMasters(options)),
      layout_(PlanFlatLayout(parameters, options.data, options.expert_data, options.bucket_size,
                             options.unit)) {
  CHECK(options.bucket_size == 0 || !shards(DataSharding::kGradients)) << options.bucket_size;
  CHECK(!options.shards_states_by_parts || shards(DataSharding::kStates));
  CHECK(!remainder_.has_value() || options.model_dtype == DType::kBFloat16);
  const Device device = options.device;
  const auto elements = [&](DataSharding what) {
    return shards(what) ? layout_.shard_elements : layout_.num_elements;
  };
  const int64_t optimized =
      !shards(DataSharding::kStates)   ? layout_.num_elements - layout_.optimized_begin
      : options.shards_states_by_parts ? layout_.part_elements - layout_.optimized_part_begin
                                       : layout_.shard_elements - layout_.optimized_shard_begin;
  const Device host = device.type == DeviceType::kMeta ? device : Device();
  std::vector<DType> in_file;
  if (has_masters()) in_file.push_back(DType::kFloat32);
  for (const OptimizerState& state : options.states) in_file.push_back(state.dtype);
  // A file of nothing is none.
  const bool has_file = options.host_part_in_file && !in_file.empty();
  CHECK(!options.weights_in_file || options.weights_on_host);
  if (has_file || !options.host_part_in_file || gradients_on_host())
    host_elements_ = PlanHostElements(optimized);
  if (has_file && host_elements_ > 0) {
    CHECK(options.unit == ShardUnit::kElement) << "extents would cut parameters";
    for (const OptimizerState& state : options.states) CHECK(state.owners == StateOwners::kAll);
    state_file_ =
        std::make_unique<StateFile>(in_file, host_elements_, options.extent_elements, host, ledger);
  }
  const int64_t weight_bytes = elements(DataSharding::kWeights) * SizeOf(options.model_dtype);
  const int64_t frozen =
      shards(DataSharding::kGradients) ? layout_.trained_shard_begin : layout_.trained_begin;
  const int64_t gradient_bytes =
      (elements(DataSharding::kGradients) - frozen) * SizeOf(options.main_grads_dtype);
  CHECK(!copies_gradients() || options.bucket_size == 0) << options.bucket_size;
  CHECK(!rounds_gradients() || options.unit == ShardUnit::kElement);
  if (gradients_on_host()) {
    CHECK(device.type != DeviceType::kCpu) << "the CPU's memory is the host's";
    CHECK_EQ(host_elements_, optimized) << "masters and states stay on the device";
    CHECK(shards(DataSharding::kGradients) || !shards(DataSharding::kStates));
    CHECK(!options.shards_states_by_parts);
  }
  if (options.weights_on_host) {
    CHECK(shards(DataSharding::kWeights) || !shards(DataSharding::kStates));
    if (options.weights_in_file && weight_bytes > 0) {
      weight_file_ = std::make_unique<StateFile>(
          std::vector<DType>{options.model_dtype}, elements(DataSharding::kWeights),
          options.extent_elements, host, ledger, "host/weight extents");
    } else {
      host_weights_ = Lock(weight_bytes, "host/weights", ledger);
    }
  }
  if (gradients_on_host()) host_gradients_ = Lock(gradient_bytes, "host/gradients", ledger);
  if (gradients_on_host() && rounds_gradients()) {
    const int64_t most = std::min(kArrivingElements, layout_.num_elements);
    arriving_gradients_ =
        Buffer(device, most * SizeOf(options.main_grads_dtype), "gradients/arriving", ledger);
  }
  weights_ = Buffer(device, options.weights_on_host ? 0 : weight_bytes, "weights", ledger);
  gradients_ = Buffer(device, gradients_on_host() ? 0 : gradient_bytes, "gradients", ledger);
  const int64_t on_device = optimized - host_elements_;
  const auto take_on_host = [&](DType dtype, const std::string& name) {
    if (host_elements_ == 0 || state_file_ != nullptr) return Buffer();
    return Buffer(host, host_elements_ * SizeOf(dtype), absl::StrCat("host/", name), ledger);
  };
  if (has_masters()) {
    masters_ = Buffer(device, on_device * SizeOf(DType::kFloat32), "master weights", ledger);
    host_masters_ = take_on_host(DType::kFloat32, "master weights");
  }
  for (const OptimizerState& state : options.states) {
    CHECK(state.owners == StateOwners::kAll || host_elements_ == 0) << state.name;
    const int64_t elements = state.owners == StateOwners::kAll ? on_device : MostElements(state);
    state_positions_.push_back(state.owners == StateOwners::kAll ? std::vector<int64_t>()
                                                                 : PlaceState(state));
    states_.emplace_back(state.device.value_or(device), elements * SizeOf(state.dtype), state.name,
                         ledger);
    const bool locks = state.is_delayed_gradient && host_elements_ > 0;
    CHECK(!state.is_delayed_gradient || (state_file_ == nullptr && !gradients_on_host()))
        << "gradients of the last step are copied from the device to host memory";
    host_states_.push_back(locks ? Buffer() : take_on_host(state.dtype, state.name));
    locked_states_.push_back(locks ? Lock(host_elements_ * SizeOf(state.dtype),
                                          absl::StrCat("host/", state.name), ledger)
                                   : PinnedBuffer());
  }
  for (const FlatParameter& flat : layout_.parameters) {
    const Bucket& bucket = bucket_of(flat);
    const Shape& shape = flat.parameter->sharding.local_shape;
    if (!shards(DataSharding::kWeights) && !options.weights_on_host)
      flat.parameter->data = Weights(bucket, flat.range).View(shape);
    if (!shards(DataSharding::kGradients) && !copies_gradients() && !IsFrozen(bucket.section))
      flat.parameter->grad = Gradients(bucket, flat.range).View(shape);
  }
}

PinnedBuffer ParameterBuffers::Lock(int64_t bytes, const std::string& name, MemoryLedger* ledger) {
  absl::StatusOr<PinnedBuffer> locked = PinnedBuffer::Create(options_.device, bytes, name, ledger);
  locked_.Update(locked.status());
  // Tensors of nothing then.
  if (!locked.ok()) locked = PinnedBuffer::Create({DeviceType::kMeta}, bytes, name, nullptr);
  return *std::move(locked);
}

int64_t ParameterBuffers::PlanHostElements(int64_t optimized) const {
  if (options_.host_fraction == 0) return 0;
  CHECK(options_.device.type != DeviceType::kCpu || options_.host_part_in_file)
      << "the CPU's memory is the host's";
  CHECK(0 < options_.host_fraction && options_.host_fraction <= 1) << options_.host_fraction;
  const double wanted = options_.host_fraction * static_cast<double>(optimized);
  for (const FlatParameter& flat : layout_.parameters) {
    const Bucket& bucket = bucket_of(flat);
    const FlatRange here = Common(flat.range, optimizer_range(bucket));
    if (here.size() == 0) continue;
    const int64_t position = OptimizerPosition(bucket, here.begin);
    if (static_cast<double>(position) >= wanted) return position;
  }
  return optimized;
}

FlatRange ParameterBuffers::reduced_range(const Bucket& bucket) const {
  if (IsFrozen(bucket.section)) return {bucket.range.begin, bucket.range.begin};
  if (!shards(DataSharding::kStates)) return bucket.range;
  return options_.shards_states_by_parts ? bucket.part : bucket.shard;
}

FlatRange ParameterBuffers::optimizer_range(const Bucket& bucket) const {
  if (bucket.section == Section::kCopies) return {bucket.range.begin, bucket.range.begin};
  return reduced_range(bucket);
}

FlatRange ParameterBuffers::weight_range(const Bucket& bucket) const {
  return shards(DataSharding::kWeights) ? bucket.shard : bucket.range;
}

int64_t ParameterBuffers::Position(const Bucket& bucket, int64_t begin, bool sharded) const {
  return sharded ? bucket.shard_begin + begin - bucket.shard.begin : begin;
}

int64_t ParameterBuffers::GradientPosition(const Bucket& bucket, int64_t begin) const {
  const bool sharded = shards(DataSharding::kGradients);
  return Position(bucket, begin, sharded) -
         (sharded ? layout_.trained_shard_begin : layout_.trained_begin);
}

int64_t ParameterBuffers::OptimizerPosition(const Bucket& bucket, int64_t begin) const {
  if (options_.shards_states_by_parts)
    return bucket.part_begin + begin - bucket.part.begin - layout_.optimized_part_begin;
  const bool sharded = shards(DataSharding::kStates);
  return Position(bucket, begin, sharded) -
         (sharded ? layout_.optimized_shard_begin : layout_.optimized_begin);
}

Tensor ParameterBuffers::Weights(const Bucket& bucket, const FlatRange& range) const {
  const int64_t at = WeightPosition(bucket, range.begin);
  if (weight_file_ != nullptr) return weight_file_->Elements(0, at, at + range.size());
  const int64_t offset = at * SizeOf(options_.model_dtype);
  return options_.weights_on_host ? host_weights_.At(offset, options_.model_dtype, {range.size()})
                                  : weights_.At(offset, options_.model_dtype, {range.size()});
}

Tensor ParameterBuffers::Gradients(const Bucket& bucket, const FlatRange& range) const {
  const DType dtype = options_.main_grads_dtype;
  const int64_t offset = GradientPosition(bucket, range.begin) * SizeOf(dtype);
  return gradients_on_host() ? host_gradients_.At(offset, dtype, {range.size()})
                             : gradients_.At(offset, dtype, {range.size()});
}

Tensor ParameterBuffers::GradientsOnDevice(const Bucket& bucket, const FlatRange& range,
                                           const Tensor& scratch, const Stream& stream) const {
  const Tensor gradients = Gradients(bucket, range);
  if (!copies_gradients()) return gradients;
  const Tensor copy = scratch.Slice(0, 0, range.size());
  if (!gradients_on_host()) {
    ops::Copy(stream, gradients, copy);
    return copy;
  }
  const auto arrive = [&](const Tensor& from, const Tensor& to) {
    if (!stream.is_meta()) EnqueueCopyOnCuda(stream.cuda(), from, to);
  };
  if (!rounds_gradients()) {
    arrive(gradients, copy);
    return copy;
  }
  const Tensor arriving = All(arriving_gradients_, options_.main_grads_dtype);
  for (int64_t begin = 0, end = 0; begin < range.size(); begin = end) {
    end = std::min(range.size(), begin + arriving.numel());
    const Tensor piece = arriving.Slice(0, 0, end - begin);
    arrive(gradients.Slice(0, begin, end), piece);
    ops::Copy(stream, piece, copy.Slice(0, begin, end));
  }
  return copy;
}

Tensor ParameterBuffers::Split(const Buffer& host, size_t in_file, const Buffer& device,
                               DType dtype, const Bucket& bucket, const FlatRange& range) const {
  const int64_t at = OptimizerPosition(bucket, range.begin);
  if (at >= host_elements_)
    return device.At((at - host_elements_) * SizeOf(dtype), dtype, {range.size()});
  if (state_file_ != nullptr) return state_file_->Elements(in_file, at, at + range.size());
  return host.At(at * SizeOf(dtype), dtype, {range.size()});
}

Tensor ParameterBuffers::Masters(const Bucket& bucket, const FlatRange& range) const {
  if (!has_masters()) return Weights(bucket, range);
  return Split(host_masters_, /*in_file=*/0, masters_, DType::kFloat32, bucket, range);
}

int64_t ParameterBuffers::MostElements(const OptimizerState& state) const {
  int64_t most = 0;
  for (const Section section : {Section::kDense, Section::kExperts}) {
    const DataRank& data = section == Section::kDense ? options_.data : options_.expert_data;
    const int count = !shards(DataSharding::kStates)    ? 1
                      : options_.shards_states_by_parts ? data.size * data.parts
                                                        : data.size;
    std::vector<int64_t> elements(count, 0);
    for (const FlatParameter& flat : layout_.parameters) {
      const Bucket& bucket = bucket_of(flat);
      if (bucket.section != section || !state.Has(*flat.parameter)) continue;
      const int64_t size = bucket.range.size() / count;
      for (int i = 0; i < count; ++i) {
        const int64_t begin = bucket.range.begin + i * size;
        elements[i] += RoundUp(Common(flat.range, {begin, begin + size}).size(), kStateAlignment);
      }
    }
    most += *std::max_element(elements.begin(), elements.end());
  }
  return most;
}

std::vector<int64_t> ParameterBuffers::PlaceState(const OptimizerState& state) const {
  std::vector<int64_t> positions;
  int64_t end = 0;
  for (const FlatParameter& flat : layout_.parameters) {
    positions.push_back(end);
    const FlatRange here = Common(flat.range, optimizer_range(bucket_of(flat)));
    if (state.Has(*flat.parameter)) end += RoundUp(here.size(), kStateAlignment);
  }
  return positions;
}

Tensor ParameterBuffers::State(size_t index, const Bucket& bucket, const FlatRange& range) const {
  const OptimizerState& state = options_.states[index];
  if (state.owners != StateOwners::kAll) {
    const auto first = layout_.parameters.begin();
    const auto owner = std::find_if(first + bucket.first_parameter, first + bucket.last_parameter,
                                    [&](const FlatParameter& flat) {
                                      return Common(flat.range, range).size() == range.size();
                                    });
    CHECK(owner != first + bucket.last_parameter) << state.name << ": several parameters";
    if (!state.Has(*owner->parameter)) return Tensor();
    const FlatRange here = Common(owner->range, optimizer_range(bucket));
    const int64_t at = state_positions_[index][owner - first] + range.begin - here.begin;
    return states_[index].At(at * SizeOf(state.dtype), state.dtype, {range.size()});
  }
  const int64_t at = OptimizerPosition(bucket, range.begin);
  if (locked_states_[index].bytes() > 0 && at < host_elements_)
    return locked_states_[index].At(at * SizeOf(state.dtype), state.dtype, {range.size()});
  return Split(host_states_[index], FileTensorOf(index), states_[index], state.dtype, bucket,
               range);
}

FlatRange ParameterBuffers::HostRange(const Bucket& bucket, const FlatRange& range) const {
  const int64_t before_end = host_elements_ - OptimizerPosition(bucket, range.begin);
  return {range.begin, range.begin + std::clamp<int64_t>(before_end, 0, range.size())};
}

Tensor ParameterBuffers::MastersOnDevice(const Bucket& bucket, const FlatRange& range,
                                         const Tensor& scratch, const Stream& stream) const {
  if (remainder_.has_value()) {
    const Tensor joined = scratch.Slice(0, 0, range.size());
    const FlatRange host = HostRange(bucket, range), device = {host.end, range.end};
    if (host.size() > 0) JoinOnHost(bucket, host, joined.Slice(0, 0, host.size()), stream);
    if (device.size() > 0) {
      ops::JoinMasters(stream, Weights(bucket, device), State(*remainder_, bucket, device),
                       joined.Slice(0, host.size(), range.size()));
    }
    return joined;
  }
  const FlatRange host = has_masters_on_host() ? HostRange(bucket, range) : FlatRange();
  if (host.size() == 0) return Masters(bucket, range);
  const Tensor copy = scratch.Slice(0, 0, range.size());
  StateFile* const file = MastersFile();
  if (file != nullptr && !file->in_pass()) {
    Fetch(file, MasterPosition(bucket, host.begin), copy.Slice(0, 0, host.size()), stream);
  } else {
    Transport(stream, Masters(bucket, host), copy.Slice(0, 0, host.size()));
  }
  if (host.end < range.end) {
    ops::Copy(stream, Masters(bucket, {host.end, range.end}),
              copy.Slice(0, host.size(), range.size()));
  }
  return copy;
}

void ParameterBuffers::JoinOnHost(const Bucket& bucket, const FlatRange& range, const Tensor& out,
                                  const Stream& stream) const {
  if (stream.is_meta()) return;
  std::vector<BFloat16> weights(kRoundedElements);
  std::vector<uint16_t> remainders(kRoundedElements);
  std::vector<float> masters(kRoundedElements);
  for (FlatRange piece = {range.begin, 0}; piece.begin < range.end; piece.begin = piece.end) {
    piece.end = std::min(range.end, piece.begin + kRoundedElements);
    const Shape shape = {piece.size()};
    const Tensor weight(weights.data(), DType::kBFloat16, shape);
    const Tensor remainder(remainders.data(), DType::kUInt16, shape);
    const Tensor master(masters.data(), DType::kFloat32, shape);
    CopyWeights(bucket, piece, weight, stream);
    if (state_file_ != nullptr && !state_file_->in_pass()) {
      if (!ReadState(*remainder_, bucket, piece.begin, remainder).ok())
        return;  // status() tells it
    } else {
      Transport(stream, State(*remainder_, bucket, piece), remainder);
    }
    ops::JoinMasters(Stream::Inline(), weight, remainder, master);
    Transport(stream, master, out.Slice(0, piece.begin - range.begin, piece.end - range.begin));
  }
}

Tensor ParameterBuffers::weights() const {
  if (weight_file_ != nullptr) return Tensor();
  const int64_t bytes = host_weights_.bytes();
  if (bytes == 0) return All(weights_, options_.model_dtype);
  return host_weights_.At(0, options_.model_dtype, {bytes / SizeOf(options_.model_dtype)});
}

Tensor ParameterBuffers::gradients() const { return All(gradients_, options_.main_grads_dtype); }

Tensor ParameterBuffers::masters() const { return All(masters_, DType::kFloat32); }

Tensor ParameterBuffers::state(size_t index) const {
  return All(states_[index], options_.states[index].dtype);
}

Tensor ParameterBuffers::host_masters() const { return All(host_masters_, DType::kFloat32); }

Tensor ParameterBuffers::host_state(size_t index) const {
  const DType dtype = options_.states[index].dtype;
  const int64_t locked = locked_states_[index].bytes();
  if (locked > 0) return locked_states_[index].At(0, dtype, {locked / SizeOf(dtype)});
  return All(host_states_[index], dtype);
}

void ParameterBuffers::InitializeWeights(uint64_t seed, const Stream& stream) {
  if (options_.device.type == DeviceType::kMeta || layout_.num_elements == 0) return;
  std::vector<InitialPiece> pieces;
  for (const FlatParameter& flat : layout_.parameters)  // the optimizer range lies within these
    AppendInitialPieces(flat, Common(flat.range, weight_range(bucket_of(flat))), &pieces);
  const HostMirror weights =
      weight_file_ == nullptr ? HostMirror(this->weights(), "initial weights") : HostMirror();
  const bool device_masters = masters_.bytes() > 0;
  const HostMirror masters =
      device_masters ? HostMirror(this->masters(), "initial weights") : HostMirror();
  std::optional<ThreadPool> own_pool;
  ThreadPool* const pool =
      stream.pool() != nullptr ? stream.pool() : &own_pool.emplace(AvailableCores());
  const Stream host = Stream::Cpu(pool);
  pool->ParallelFor(pieces.size(), [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    for (int64_t i = begin; i < end; ++i) {
      const InitialPiece& piece = pieces[i];
      const Bucket& bucket = bucket_of(*piece.flat);
      values.resize(piece.range.size());
      const Tensor filled(values.data(), DType::kFloat32, {piece.range.size()});
      FillInitialPiece(piece, seed, filled);
      const auto copy = [&](const FlatRange& range, const HostMirror& mirror, const Tensor& to) {
        ops::Copy(host,
                  filled.Slice(0, range.begin - piece.range.begin, range.end - piece.range.begin),
                  to.device() == Device() ? to : mirror.Of(to));
      };
      const FlatRange stored = Common(piece.range, weight_range(bucket));
      if (stored.size() > 0 && weight_file_ == nullptr)
        copy(stored, weights, Weights(bucket, stored));
      const FlatRange optimized = Common(piece.range, optimizer_range(bucket));
      const bool in_file = state_file_ != nullptr && HostRange(bucket, optimized).size() > 0;
      if (has_masters() && optimized.size() > 0 && !in_file)
        copy(optimized, masters, Masters(bucket, optimized));
    }
  });
  InitializeFiles(seed, pool);
  if (weight_file_ == nullptr) weights.Send(stream);
  if (device_masters) masters.Send(stream);
}

void ParameterBuffers::CopyMastersToWeights(const Stream& stream) {
  if (!has_masters()) return;
  const auto round_on_host = [&](const Bucket& bucket, const FlatRange& range) {
    for (int64_t begin = range.begin; begin < range.end; begin += kRoundedElements) {
      const FlatRange piece = {begin, std::min(range.end, begin + kRoundedElements)};
      const Buffer rounded(stream.is_meta() ? stream.device() : Device(),
                           piece.size() * SizeOf(options_.model_dtype), "rounded weights", nullptr);
      const Tensor to = rounded.At(0, options_.model_dtype, {piece.size()});
      ops::Copy(stream.is_meta() ? stream : Stream::Inline(), Masters(bucket, piece), to);
      Transport(stream, to, Weights(bucket, piece));
    }
  };
  for (const Bucket& bucket : layout_.buckets) {
    const FlatRange range = optimizer_range(bucket);
    const FlatRange host = HostRange(bucket, range);
    if (!has_files()) round_on_host(bucket, host);
    const FlatRange device = {host.end, range.end};
    if (device.size() > 0) ops::Copy(stream, Masters(bucket, device), Weights(bucket, device));
  }
  if (!has_files()) return;
  FilePass pass;
  if (state_file_ != nullptr) pass.states = StateFile::Access::kRead;
  if (weight_file_ != nullptr) pass.weights = WeightUpdate();
  PassOverFiles(pass, /*copies=*/false, [&](const Bucket& bucket, const FlatRange& range) {
    round_on_host(bucket, range);
    return absl::OkStatus();
  }).IgnoreError();  // status() tells it
}

void ParameterBuffers::ZeroGradients(const Stream& stream) {
  if (gradients_.bytes() > 0) ops::Zero(stream, gradients());
}

std::vector<ParameterState> ParameterBuffers::States() const {
  std::vector<ParameterState> states;
  for (auto it = layout_.parameters.rbegin(); it != layout_.parameters.rend(); ++it) {
    const Bucket& bucket = bucket_of(*it);
    const FlatRange range = Common(it->range, optimizer_range(bucket));
    if (range.size() == 0) continue;
    const bool in_file = state_file_ != nullptr && HostRange(bucket, range).size() > 0;
    ParameterState state = WithoutTensors(*it, range);
    const bool master_in_file = has_masters() ? in_file : weight_file_ != nullptr;
    if (!master_in_file) state.master = Masters(bucket, range);
    for (size_t i = 0; i < num_states() && !in_file; ++i)
      state.states.push_back(State(i, bucket, range));
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace megatron

// The memory of a stage's parameters: weights, gradients, master weights and optimizer states, each
// flat and laid out alike (flat_layout.h).
//
// Master weights and optimizer states cover this rank's *optimizer range*: all parameters but the
// copies of tied weights, or where states are sharded this rank's shards of them. Master weights
// are fp32; where the model's dtype is fp32 the weights are their own masters, unless a state says
// that ranks differ (OptimizerState::differs). Where a state is a remainder, weights in bf16 and it
// are the masters. A state that only some parameters
// have takes memory for these alone, on each rank as much as on the one that has most.
//
// On a GPU, some or all of the masters and states may lie in host memory: those of the first
// elements of the optimizer range, up to the beginning of a parameter. fp32 weights, which are
// their own masters, stay on the device. On any device, these elements may be in a file instead
// (state_file.h). An error of the file stays, and status() tells it: what a method reads after it
// is undefined. So does the error of host memory that could not be locked for weights, after which
// status() is all that may be called.
//
// Weights cover all parameters, or where they are sharded this rank's shards, and gradients cover
// the same of those that are not frozen. A frozen parameter has neither masters nor states. While
// the buffers live, the `data` and `grad` of the parameters are views of weights, and of gradients
// in fp32, that are stored whole on the device; DataParallel binds the others while they are there.
//
// All weights and gradients of this rank may lie in page-locked host memory, along with all masters
// and states, or with these in a file. Weights may be in a file of their own instead, or stay on
// the device.
//
// Gradients that are kept in bf16 are those of all micro-batches so far, rounded; those of one are
// fp32, and DataParallel has them while a block's backward runs.
//
// On the meta device everything works and no memory is taken.
#ifndef MEGATRON_OPTIM_PARAMETER_BUFFERS_H_
#define MEGATRON_OPTIM_PARAMETER_BUFFERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "megatron/base/thread_pool.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/optim/optimizer_state.h"
#include "megatron/optim/state_file.h"
#include "megatron/tensor/memory.h"
#include "megatron/tensor/parameter.h"
#include "megatron/tensor/pinned_buffer.h"
#include "megatron/tensor/stream.h"

namespace megatron {

// The tensors of which each rank with the same parameters stores only its shard; each value
// includes the ones before it. kStates, kGradients and kWeights are ZeRO-1, 2 and 3 (S. Rajbhandari
// et al., arXiv 1910.02054).
enum class DataSharding { kNone, kStates, kGradients, kWeights };

struct ParameterBuffersOptions {
  DType model_dtype = DType::kFloat32;
  Device device;
  std::vector<OptimizerState> states;  // UpdateRule::states()
  DataRank data, expert_data;          // the shards of dense parameters, and of experts
  DataSharding sharding = DataSharding::kNone;
  bool shards_states_by_parts = false;  // states that are sharded are those of this rank's part
  int64_t bucket_size = 0;  // the same as in PlanFlatLayout; 0 where gradients are sharded
  ShardUnit unit = ShardUnit::kElement;  // UpdateRule::unit()
  // Part of the optimizer range whose masters and states lie in host memory, rounded up to whole
  // parameters; 0 on the CPU, unless it is in a file. The ledger names these "host/...".
  double host_fraction = 0;
  // Whether that part is in a file, which OpenStateFile makes; with ShardUnit::kElement alone.
  bool host_part_in_file = false;
  int64_t extent_elements = StateFile::kExtentElements;  // those of the file
  DType main_grads_dtype = DType::kFloat32;              // that of gradients; or kBFloat16
  // Whether gradients lie in host memory; not on the CPU. They are sharded then, or nothing is, and
  // host_fraction is 1. The ledger names them "host/gradients".
  bool gradients_on_host = false;
  // Whether weights and gradients lie in host memory. Weights are sharded then, or nothing is. The
  // ledger names them "host/weights" and "host/gradients".
  bool weights_on_host = false;
  // Whether these weights are in a file instead, which OpenWeightFile makes, with extents as the
  // other file has. The ledger has "host/weight extents" then, and no weights.
  bool weights_in_file = false;
};

// The master weights and optimizer states that this rank has of one parameter, or a part of them.
struct ParameterState {
  Parameter* parameter = nullptr;
  FlatRange range;  // place within the parameter's block of the global tensor, row-major
  Tensor master;
  // Sorted as ParameterBuffersOptions::states; empty where the parameter has no such state.
  absl::InlinedVector<Tensor, 2> states;
};

class ParameterBuffers {
 public:
  // The parameters, in order of registration, must outlive the buffers. The ledger may be null.
  ParameterBuffers(const std::vector<Parameter*>& parameters,
                   const ParameterBuffersOptions& options, MemoryLedger* ledger);

  // Makes the file, where a part is in one. Called before anything else that concerns its elements.
  absl::Status OpenStateFile(const std::string& path);
  // The same with the file of weights, where they are in one.
  absl::Status OpenWeightFile(const std::string& path);
  // The files; null: nothing is in one.
  StateFile* state_file() const { return state_file_.get(); }
  StateFile* weight_file() const { return weight_file_.get(); }
  bool has_files() const { return state_file_ != nullptr || weight_file_ != nullptr; }
  // The first error of a file or, right after the constructor, that of locking memory.
  absl::Status status() const;

  // Fills masters and weights by each parameter's Initializer; the same bits on any layout.
  void InitializeWeights(uint64_t seed, const Stream& stream);
  // Rounds the masters to the weights of the optimizer range, after the masters were loaded.
  void CopyMastersToWeights(const Stream& stream);
  // Not those in host memory.
  void ZeroGradients(const Stream& stream);

  absl::Span<const FlatParameter> parameters() const { return layout_.parameters; }
  absl::Span<const Bucket> buckets() const { return layout_.buckets; }
  const Bucket& bucket_of(const FlatParameter& flat) const { return layout_.buckets[flat.bucket]; }
  const FlatLayout& layout() const { return layout_; }
  int bucket_group_of(int block) const { return layout_.bucket_group_of_block[block]; }
  // The states of the optimizer range, from the last element of the layout to the first: those of
  // dense parameters in order of registration where shards may cut parameters. They have no tensors
  // of what is in the file.
  std::vector<ParameterState> States() const;
  // Calls change(state) for parts of the states, each of one parameter and one extent, with the
  // tensors that are in a file and no others, and writes what it has changed. Weights that have
  // masters are not among them. Ends with the first error of `change` or of a file.
  absl::Status ChangeStatesInFile(
      absl::FunctionRef<absl::Status(const ParameterState&)> change) const;
  // Fills `out` with the elements from `begin` on, which are in the file.
  absl::Status ReadMasters(const Bucket& bucket, int64_t begin, const Tensor& out) const;
  absl::Status ReadState(size_t index, const Bucket& bucket, int64_t begin,
                         const Tensor& out) const;
  absl::Status ReadWeights(const Bucket& bucket, int64_t begin, const Tensor& out) const;

  // The elements of the bucket whose gradients come to this rank in the end: those of its optimizer
  // range, and as many of copies; none of frozen parameters.
  FlatRange reduced_range(const Bucket& bucket) const;
  // The elements of the bucket whose masters and states are on this rank; none of copies and of
  // frozen parameters.
  FlatRange optimizer_range(const Bucket& bucket) const;
  // The elements of the bucket whose weights are stored on this rank.
  FlatRange weight_range(const Bucket& bucket) const;
  // Elements `range` of a bucket, flat. They must be stored on this rank. What lies in host memory
  // is tensors of the CPU. A frozen parameter has weights alone. Masters are the weights where
  // there are none.
  Tensor Weights(const Bucket& bucket, const FlatRange& range) const;
  Tensor Gradients(const Bucket& bucket, const FlatRange& range) const;
  Tensor Masters(const Bucket& bucket, const FlatRange& range) const;
  // Empty where the parameter that has the elements has no such state. A range of several
  // parameters is there for states that all parameters have.
  Tensor State(size_t index, const Bucket& bucket, const FlatRange& range) const;
  // Returns the elements of `range`, its first ones, whose masters and states lie in host memory or
  // in the file. Masters and State take ranges that are there whole or not at all. They return
  // elements in the file during a pass of the file that has entered their extent.
  FlatRange HostRange(const Bucket& bucket, const FlatRange& range) const;
  // Returns the end of the elements from `begin` on, which are in files, that have one extent in
  // each; with `in_pass`, of the files in a pass.
  int64_t ExtentEnd(const Bucket& bucket, int64_t begin, bool in_pass = false) const;
  // Returns whether an element in files is the first one of an extent, but not of a file.
  bool BeginsExtent(const Bucket& bucket, int64_t begin) const;
  // Begin and end a pass over the files, where there are any, that changes all states, masters and
  // weights of the optimizer range.
  void StartUpdate() const;
  absl::Status EndUpdate() const;
  // Brings the extents of the elements, which have one in each file that is in a pass, into memory.
  absl::Status EnterExtent(const Bucket& bucket, const FlatRange& range) const;
  // Copy weights to `out`, and from `in`, on the device or in memory of the host. They wait. Within
  // a pass of the file they are of the extent that was entered. An error of the file is status().
  void CopyWeights(const Bucket& bucket, const FlatRange& range, const Tensor& out,
                   const Stream& stream) const;
  void SetWeights(const Bucket& bucket, const FlatRange& range, const Tensor& in,
                  const Stream& stream) const;
  // The position of an element, whose weight is stored on this rank, in the file of weights.
  int64_t WeightPosition(const Bucket& bucket, int64_t begin) const {
    return Position(bucket, begin, shards(DataSharding::kWeights));
  }
  // Returns masters of any elements on the device of the buffers: they themselves, or a copy in
  // `scratch`, which is fp32, flat and on the device, where has_masters_elsewhere(). Where it
  // copies from the host it waits for the stream.
  Tensor MastersOnDevice(const Bucket& bucket, const FlatRange& range, const Tensor& scratch,
                         const Stream& stream) const;

  // Returns gradients on the device in fp32: they themselves or, where copies_gradients(), a copy
  // in `scratch`, which is fp32, flat and on the device. The copy is enqueued.
  Tensor GradientsOnDevice(const Bucket& bucket, const FlatRange& range, const Tensor& scratch,
                           const Stream& stream) const;

  // Everything that is in memory on this rank; empty if there is nothing. Masters and states are
  // those on the device of the buffers.
  Tensor weights() const;
  Tensor gradients() const;
  Tensor masters() const;  // empty where the weights are their own masters
  Tensor state(size_t index) const;
  Tensor host_masters() const;
  Tensor host_state(size_t index) const;
  size_t num_states() const { return states_.size(); }
  bool has_host_part() const { return host_elements_ > 0; }
  // Whether some masters lie elsewhere than on the device; a file counts as elsewhere.
  bool has_masters_on_host() const {
    return has_host_part() && (has_masters() || options_.weights_on_host);
  }
  // Whether some masters are not on the device as fp32.
  bool has_masters_elsewhere() const { return has_masters_on_host() || remainder_.has_value(); }

  bool gradients_on_host() const { return options_.gradients_on_host || options_.weights_on_host; }
  // Whether gradients are kept in fewer bits than they are computed in.
  bool rounds_gradients() const { return options_.main_grads_dtype != DType::kFloat32; }
  // Whether gradients are not on the device as fp32.
  bool copies_gradients() const { return gradients_on_host() || rounds_gradients(); }
  bool shards(DataSharding what) const { return options_.sharding >= what; }
  bool has_masters() const { return has_masters_; }
  const ParameterBuffersOptions& options() const { return options_; }

 private:
  // Position of element `begin` in memory for all elements or, if `sharded`, for shards.
  int64_t Position(const Bucket& bucket, int64_t begin, bool sharded) const;
  // Position of element `begin` in memory for gradients.
  int64_t GradientPosition(const Bucket& bucket, int64_t begin) const;
  // Position of element `begin` in memory for the optimizer range.
  int64_t OptimizerPosition(const Bucket& bucket, int64_t begin) const;
  // The number of elements of a state that only some parameters have, where they are the most.
  int64_t MostElements(const OptimizerState& state) const;
  // Takes page-locked memory; where it can't, locked_ tells it.
  PinnedBuffer Lock(int64_t bytes, const std::string& name, MemoryLedger* ledger);
  // The positions in such a state's memory where the parameters begin, in the order of the layout.
  std::vector<int64_t> PlaceState(const OptimizerState& state) const;
  // The first position of a parameter that is at least the fraction of all `optimized` ones.
  int64_t PlanHostElements(int64_t optimized) const;
  // Elements `range` of what lies in `host`, or as tensor `in_file` of the file, up to
  // host_elements_ and in `device` from there on.
  Tensor Split(const Buffer& host, size_t in_file, const Buffer& device, DType dtype,
               const Bucket& bucket, const FlatRange& range) const;
  // The number of a state among the tensors of the file, of which masters are the first.
  size_t FileTensorOf(size_t state) const { return state + (has_masters() ? 1 : 0); }
  // The file that has the masters, as its first tensor; null: they are in memory.
  StateFile* MastersFile() const { return has_masters() ? state_file_.get() : weight_file_.get(); }
  int64_t MasterPosition(const Bucket& bucket, int64_t begin) const {
    return has_masters() ? OptimizerPosition(bucket, begin) : WeightPosition(bucket, begin);
  }
  // What a pass does with each file; nothing: it leaves it out.
  struct FilePass {
    std::optional<StateFile::Access> states, weights;
  };
  void StartPass(const FilePass& pass) const;
  // What an update does with the file of weights.
  StateFile::Access WeightUpdate() const;
  // Calls body(bucket, range) on elements in files, extent by extent and bucket by bucket, within a
  // pass: on those of the optimizer range or, with `copies`, on all whose weights are stored.
  absl::Status PassOverFiles(
      const FilePass& pass, bool copies,
      absl::FunctionRef<absl::Status(const Bucket&, const FlatRange&)> body) const;
  template <typename Body>
  void ForEachFile(const Bucket& bucket, int64_t begin, Body body) const;
  // Writes masters of which these elements' weights and remainders are the parts, on the host.
  void JoinOnHost(const Bucket& bucket, const FlatRange& range, const Tensor& out,
                  const Stream& stream) const;
  // Copies elements from position `at` on of the file's first tensor to `out`.
  static void Fetch(StateFile* file, int64_t at, const Tensor& out, const Stream& stream);
  static ParameterState WithoutTensors(const FlatParameter& flat, const FlatRange& range);
  void InitializeFiles(uint64_t seed, ThreadPool* pool);

  ParameterBuffersOptions options_;
  const std::optional<size_t> remainder_;  // the state that is one
  const bool has_masters_;
  FlatLayout layout_;
  int64_t host_elements_ = 0;  // positions of the optimizer range in host memory: the first ones
  Buffer weights_, gradients_, masters_, host_masters_;
  PinnedBuffer host_weights_, host_gradients_;
  Buffer arriving_gradients_;  // pieces of rounded gradients that come from host memory
  absl::Status locked_;        // that of both
  std::vector<Buffer> states_, host_states_;
  std::vector<PinnedBuffer> locked_states_;  // in place of host_states_, where these are empty
  std::vector<std::vector<int64_t>> state_positions_;  // PlaceState's; empty for StateOwners::kAll
  std::unique_ptr<StateFile> state_file_, weight_file_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PARAMETER_BUFFERS_H_

#ifdef MEGATRON_CUDNN
#include "megatron/ops/cuda/cudnn/graph_plan.h"

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <array>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "glog/logging.h"

namespace megatron::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr const char* kNames[kCudnnRoles] = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"};

// Numbers of the tensors of the graph: those of the roles, then those of lengths and offsets.
int64_t Id(int role) { return 1 + role; }
int64_t OffsetsId(int role) { return 1 + kCudnnRoles + role; }
constexpr int64_t kQueryLengthsId = 1 + 2 * kCudnnRoles;
constexpr int64_t kKeyLengthsId = kQueryLengthsId + 1;

template <typename Values>
std::vector<int64_t> List(const Values& values) {
  return {values.begin(), values.end()};
}

// A handle of a device. One thread uses it at a time, since it holds the stream of its calls.
struct DeviceHandle {
  std::mutex turn;
  cudnnHandle_t handle = nullptr;
};

// Returns the handle of the device, which lives as long as the program.
DeviceHandle* HandleOf(int device) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const handles = new std::map<int, DeviceHandle*>;
  std::lock_guard<std::mutex> lock(*mutex);
  DeviceHandle*& found = (*handles)[device];
  if (found == nullptr) {
    found = new DeviceHandle;
    CHECK_EQ(cudnnCreate(&found->handle), CUDNN_STATUS_SUCCESS) << "cudnnCreate";
  }
  return found;
}

void UseStream(const DeviceHandle& device, const CudaStream& stream) {
  CHECK_EQ(cudnnSetStream(device.handle, static_cast<cudaStream_t>(stream.handle())),
           CUDNN_STATUS_SUCCESS);
}

// The graph of a description.
class AttentionGraph {
 public:
  explicit AttentionGraph(const CudnnAttention& attention)
      : attention_(attention), graph_(std::make_unique<fe::graph::Graph>()) {
    graph_->set_io_data_type(attention.dtype == DType::kFloat16 ? fe::DataType_t::HALF
                                                                : fe::DataType_t::BFLOAT16);
    graph_->set_intermediate_data_type(fe::DataType_t::FLOAT);
    graph_->set_compute_data_type(fe::DataType_t::FLOAT);
    if (attention.packed) {
      for (int role = 0; role < attention.end_role(); ++role) {
        offsets_[role] =
            Index("offsets", OffsetsId(role), attention.sequences + 1, fe::DataType_t::INT64);
      }
      query_lengths_ =
          Index("query lengths", kQueryLengthsId, attention.sequences, fe::DataType_t::INT32);
      key_lengths_ =
          Index("key lengths", kKeyLengthsId, attention.sequences, fe::DataType_t::INT32);
    }
    attention.backward ? AddBackward() : AddForward();
  }

  std::unique_ptr<fe::graph::Graph> Take() { return std::move(graph_); }

 private:
  GraphTensor Index(const char* name, int64_t id, int64_t count, fe::DataType_t type) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(id)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(type));
  }

  void Describe(CudnnRole role, fe::graph::Tensor_attributes* tensor) const {
    tensor->set_name(kNames[role])
        .set_uid(Id(role))
        .set_dim(List(attention_.Dims(role)))
        .set_stride(List(attention_.StridesOf(role)));
    if (role == kLse) tensor->set_data_type(fe::DataType_t::FLOAT);
    if (attention_.packed) tensor->set_ragged_offset(offsets_[role]);
  }
  GraphTensor Input(CudnnRole role) {
    fe::graph::Tensor_attributes tensor;
    Describe(role, &tensor);
    return graph_->tensor(tensor);
  }
  void SetOutput(CudnnRole role, const GraphTensor& tensor) {
    Describe(role, tensor.get());
    tensor->set_output(true);
  }

  template <typename Options>
  void SetOptions(Options* options) const {
    options->set_name("attention").set_attn_scale(attention_.scale);
    // If a causal call has as many queries as keys, the diagonal of the first query is that of the
    // last one.
    options->set_causal_mask(attention_.causal);
    if (!attention_.packed) return;
    options->set_padding_mask(true).set_seq_len_q(query_lengths_).set_seq_len_kv(key_lengths_);
  }

  void AddForward() {
    fe::graph::SDPA_attributes options;
    options.set_generate_stats(true);
    SetOptions(&options);
    const auto [out, lse] = graph_->sdpa(Input(kQ), Input(kK), Input(kV), options);
    SetOutput(kOut, out);
    SetOutput(kLse, lse);
  }

  void AddBackward() {
    fe::graph::SDPA_backward_attributes options;
    options.set_deterministic_algorithm(attention_.deterministic);
    SetOptions(&options);
    if (attention_.packed) {
      options.set_max_total_seq_len_q(attention_.tokens)
          .set_max_total_seq_len_kv(attention_.tokens);
    }
    const auto [dq, dk, dv] = graph_->sdpa_backward(Input(kQ), Input(kK), Input(kV), Input(kOut),
                                                    Input(kDout), Input(kLse), options);
    SetOutput(kDq, dq);
    SetOutput(kDk, dk);
    SetOutput(kDv, dv);
  }

  const CudnnAttention& attention_;
  std::unique_ptr<fe::graph::Graph> graph_;
  std::array<GraphTensor, kCudnnRoles> offsets_;
  GraphTensor query_lengths_, key_lengths_;
};

class GraphPlan : public CudnnPlan {
 public:
  GraphPlan(DeviceHandle* device, const CudnnAttention& attention,
            std::unique_ptr<fe::graph::Graph> graph, int64_t workspace_bytes)
      : device_(device),
        end_role_(attention.end_role()),
        packed_(attention.packed),
        graph_(std::move(graph)),
        workspace_bytes_(workspace_bytes) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void Run(const CudaStream& stream, const CudnnPointers& at) const override {
    std::unordered_map<int64_t, void*> pointers;
    for (int role = 0; role < end_role_; ++role) {
      pointers[Id(role)] = at.tensors[role];
      if (packed_) pointers[OffsetsId(role)] = at.offsets[role];
    }
    if (packed_) {
      pointers[kQueryLengthsId] = at.query_lengths;
      pointers[kKeyLengthsId] = at.key_lengths;
    }
    std::lock_guard<std::mutex> lock(device_->turn);
    UseStream(*device_, stream);
    fe::error_t error = graph_->execute(device_->handle, pointers, at.workspace);
    CHECK(error.is_good()) << "cuDNN's attention: " << error.get_message();
  }

 private:
  DeviceHandle* const device_;
  const int end_role_;
  const bool packed_;
  const std::unique_ptr<fe::graph::Graph> graph_;
  const int64_t workspace_bytes_;
};

bool IsRecorded(const CudaStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK_EQ(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle()), &status), cudaSuccess);
  return status != cudaStreamCaptureStatusNone;
}

class GraphPlans : public CudnnPlanMaker {
 public:
  std::unique_ptr<CudnnPlan> Make(const CudaStream& stream,
                                  const CudnnAttention& attention) override {
    CHECK(!IsRecorded(stream)) << "a shape of attention by cuDNN must have run once before its "
                                  "launches are recorded into a graph";
    DeviceHandle* const device = HandleOf(stream.device());
    std::lock_guard<std::mutex> lock(device->turn);
    UseStream(*device, stream);
    std::unique_ptr<fe::graph::Graph> graph = AttentionGraph(attention).Take();
    fe::error_t built = graph->build(device->handle, {fe::HeurMode_t::A});
    if (built.is_bad()) {
      LOG(WARNING) << "cuDNN: " << built.get_message();
      return nullptr;
    }
    int64_t bytes = 0;
    fe::error_t asked = graph->get_workspace_size(bytes);
    CHECK(asked.is_good()) << asked.get_message();
    return std::make_unique<GraphPlan>(device, attention, std::move(graph), bytes);
  }
};

}  // namespace

CudnnPlanMaker* CudnnGraphPlans() {
  static GraphPlans* const plans = new GraphPlans;
  return plans;
}

}  // namespace megatron::ops::cuda
#endif  // MEGATRON_CUDNN

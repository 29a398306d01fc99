#include "megatron/ops/cuda/cudnn/attention_runner.h"

#include <cstdint>
#include <set>
#include <string>

#include "glog/logging.h"
#include "megatron/ops/cuda/cudnn/packed_places.h"
#include "megatron/ops/cuda/cudnn/transpose.h"
#include "megatron/ops/cuda/kernel_table.h"
#include "megatron/ops/elementwise.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {
namespace {

// The pieces that a call takes from the stream's workspace.
class Pieces {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t begin = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 256;
  int64_t bytes_ = 0;
};

// Copies of queries whose heads lie in groups, and the gradients of these copies, which are copied
// back.
class CopiedQueries {
 public:
  CopiedQueries(const AttentionCall& call, Pieces* pieces) : call_(call) {
    if (!HasOneHeadStride(call.in.q_TGRD)) q_at_ = pieces->Take(call.in.q_TGRD.bytes());
    if (call.backward() && !HasOneHeadStride(call.gradients.q_TGRD))
      dq_at_ = pieces->Take(call.in.q_TGRD.bytes());
  }

  void Before(const Stream& stream, char* memory, CudnnPointers* at) {
    const Tensor& q = call_.in.q_TGRD;
    if (q_at_ >= 0) {
      const Tensor copy(memory + q_at_, q.dtype(), q.shape(), q.device());
      OnCuda<ops::Copy>(stream, q, copy);
      at->tensors[kQ] = copy.raw();
    }
    if (dq_at_ < 0) return;
    dq_TGRD_ = Tensor(memory + dq_at_, q.dtype(), q.shape(), q.device());
    at->tensors[kDq] = dq_TGRD_.raw();
  }
  void After(const Stream& stream) const {
    if (dq_TGRD_) OnCuda<ops::Copy>(stream, dq_TGRD_, call_.gradients.q_TGRD);
  }

 private:
  const AttentionCall& call_;
  int64_t q_at_ = -1, dq_at_ = -1;
  Tensor dq_TGRD_;
};

// The transposed log-sum-exp of sequences of one length: forward writes it, backward reads it.
class TransposedLse {
 public:
  TransposedLse(const AttentionCall& call, const CudnnAttention& description, Pieces* pieces)
      : call_(call), description_(description) {
    if (!description.packed) at_ = pieces->Take(call.lse_TGR.bytes());
  }

  void Before(const Stream& stream, char* memory, CudnnPointers* at) {
    if (at_ < 0) return;
    transposed_ = reinterpret_cast<float*>(memory + at_);
    at->tensors[kLse] = transposed_;
    if (!call_.backward()) return;
    Transpose(stream, call_.lse_TGR.data<float>(), description_.sequences, description_.queries,
              description_.query_heads, transposed_);
  }
  void After(const Stream& stream) const {
    if (at_ < 0 || call_.backward()) return;
    Transpose(stream, transposed_, description_.sequences, description_.query_heads,
              description_.queries, call_.lse_TGR.data<float>());
  }

 private:
  const AttentionCall& call_;
  const CudnnAttention& description_;
  int64_t at_ = -1;
  float* transposed_ = nullptr;
};

CudnnPointers PointersOf(const AttentionCall& call) {
  CudnnPointers at;
  at.tensors = {
      call.in.q_TGRD.raw(),        call.in.k_UGD.raw(),        call.in.v_UGE.raw(),
      call.out_TGRE.raw(),         call.lse_TGR.raw(),         call.dout_TGRE.raw(),
      call.gradients.q_TGRD.raw(), call.gradients.k_UGD.raw(), call.gradients.v_UGE.raw()};
  return at;
}

// Writes the lengths, and the offsets of each tensor.
int64_t PackedPlacesBytes(const CudnnAttention& description) {
  const int64_t offsets = description.end_role() * (description.sequences + 1);
  return offsets * static_cast<int64_t>(sizeof(int64_t)) +
         description.sequences * static_cast<int64_t>(sizeof(int32_t));
}

void FillPackedPlaces(const Stream& stream, const AttentionCall& call,
                      const CudnnAttention& description, char* memory, CudnnPointers* at) {
  PackedPlaces places;
  places.cu_seqlens = call.attention.cu_seqlens_q.data<int32_t>();
  places.given = call.attention.cu_seqlens_q.dim(0) - 1;
  places.sequences = description.sequences;
  places.tensors = description.end_role();
  int64_t* const offsets = reinterpret_cast<int64_t*>(memory);
  for (int role = 0; role < places.tensors; ++role) {
    places.token_strides[role] = description.strides[role].token;
    at->offsets[role] = offsets + role * (description.sequences + 1);
  }
  places.offsets = offsets;
  places.lengths =
      reinterpret_cast<int32_t*>(offsets + places.tensors * (description.sequences + 1));
  at->query_lengths = at->key_lengths = places.lengths;
  WritePackedPlaces(stream, places);
}

void SayOnce(const std::string& why) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const said = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  LOG_IF(WARNING, said->insert(why).second)
      << "attention of some calls is not cuDNN's but the own kernel's: " << why;
}

}  // namespace

const CudnnPlan* CudnnAttentionRunner::PlanFor(const CudaStream& stream,
                                               const CudnnAttention& description) {
  // The lock is held while a plan is made, so that only one of several threads makes it.
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [found, is_new] = plans_.try_emplace({stream.device(), description});
  std::unique_ptr<CudnnPlan>& plan = found->second;
  if (!is_new) return plan.get();
  plan = maker_->Make(stream, description);
  if (plan == nullptr) {
    SayOnce("cuDNN has no kernel for them on this device");
  } else if (plan->workspace_bytes() > kMostWorkspaceBytes) {
    plan = nullptr;
    SayOnce("cuDNN wants more than 4 GiB of workspace");
  }
  return plan.get();
}

bool CudnnAttentionRunner::Run(const Stream& stream, const AttentionCall& call) {
  const std::string why = WhyNotCudnn(call);
  if (!why.empty()) {
    SayOnce(why);
    return false;
  }
  const CudnnAttention description = Describe(call);
  const CudnnPlan* const plan = PlanFor(*stream.cuda(), description);
  if (plan == nullptr) return false;
  Pieces pieces;
  const int64_t workspace = pieces.Take(plan->workspace_bytes());
  const int64_t places = pieces.Take(description.packed ? PackedPlacesBytes(description) : 0);
  CopiedQueries copied_queries(call, &pieces);
  TransposedLse lse(call, description, &pieces);
  char* const memory = static_cast<char*>(stream.cuda()->Workspace(pieces.bytes()));
  CudnnPointers at = PointersOf(call);
  at.workspace = memory + workspace;
  if (description.packed) FillPackedPlaces(stream, call, description, memory + places, &at);
  copied_queries.Before(stream, memory, &at);
  lse.Before(stream, memory, &at);
  plan->Run(*stream.cuda(), at);
  copied_queries.After(stream);
  lse.After(stream);
  return true;
}

}  // namespace megatron::ops::cuda

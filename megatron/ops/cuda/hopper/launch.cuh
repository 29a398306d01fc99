// Parts that the attention kernels for Hopper share, beside tiles: warpgroups, the visible keys of
// a query, and launches.
#ifndef MEGATRON_OPS_CUDA_HOPPER_LAUNCH_CUH_
#define MEGATRON_OPS_CUDA_HOPPER_LAUNCH_CUH_

#include <atomic>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "megatron/ops/cuda/attention.cuh"
#include "megatron/ops/cuda/dynamic_shared.cuh"
#include "megatron/ops/cuda/hopper/tensor_map.cuh"
#include "megatron/ops/cuda/hopper/tiles.cuh"

namespace megatron::ops::cuda::hopper {

// One warpgroup copies; the others have 64 rows each. Registers move from the copying warpgroup to
// the others.
template <int kConsumers>
struct WarpgroupShape {
  static_assert(kConsumers == 2 || kConsumers == 3);
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kRows = kConsumers * kGroupRows;
  static constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;
};

// Bytes of shared memory that a block can have, and those of its barriers.
constexpr int kMostShared = 227 << 10;
constexpr int kStaticShared = 256;

// A query head: its group and its index in the group.
struct Head {
  int64_t group, head;
};
__device__ inline Head HeadOfBlock(const AttentionArgs& args) {
  return {blockIdx.y / args.group_heads, blockIdx.y % args.group_heads};
}

// The lse of a query in the scale of Exp2; zero if the query sees no key, so that no infinity is
// subtracted from another (its scores are all hidden).
__device__ inline float FiniteLse(const AttentionArgs& args, int64_t query, const Head& head) {
  const float lse = args.Lse(query, head.group, head.head);
  return lse == -INFINITY ? 0 : lse * kLog2E;
}

// The keys of one sequence, and the range of them that a query sees.
struct KeysOfSequence {
  int64_t first, end;
  int64_t shift;  // distance from the last query to the last key
  int window;
  bool causal;

  __device__ KeysOfSequence(const AttentionArgs& args, int64_t sequence)
      : first(args.cu_seqlens_k[sequence]),
        end(args.cu_seqlens_k[sequence + 1]),
        shift(end - args.cu_seqlens_q[sequence + 1]),
        window(static_cast<int>(min(args.window_size, int64_t{1} << 30))),
        causal(args.causal) {}
  __device__ int64_t FirstSeenBy(int64_t query) const {
    return window > 0 ? max(first, query + shift - window) : first;
  }
  __device__ int64_t EndSeenBy(int64_t query) const {
    return causal ? max(first, min(end, query + shift + 1)) : end;
  }
};

// The queries of one sequence, and the range of them that sees a key.
struct QueriesOfSequence {
  int64_t begin, end;
  int64_t shift;  // distance from the last query to the last key
  int window;
  bool causal;

  __device__ QueriesOfSequence(const AttentionArgs& args, int64_t sequence)
      : begin(args.cu_seqlens_q[sequence]),
        end(args.cu_seqlens_q[sequence + 1]),
        shift(args.cu_seqlens_k[sequence + 1] - end),
        window(static_cast<int>(min(args.window_size, int64_t{1} << 30))),
        causal(args.causal) {}
  __device__ int64_t EndThatSees(int64_t key) const {
    return window > 0 ? max(begin, min(end, key - shift + window + 1)) : end;
  }
  __device__ int64_t FirstThatSees(int64_t key) const {
    return causal ? max(begin, key - shift) : begin;
  }
};

inline TensorMap MapOfQueries(DType dtype, const AttentionArgs& args, const Operand& x, int rows) {
  return MakeTensorMap(
      {dtype, &x, args.head_dim, args.group_heads, args.groups, args.queries, rows});
}
inline TensorMap MapOfKeys(DType dtype, const AttentionArgs& args, const Operand& x, int rows) {
  return MakeTensorMap({dtype, &x, args.head_dim, 1, args.groups, args.keys, rows});
}

#ifdef MEGATRON_EMULATED_CUDA
inline bool DeviceIsHopper() { return true; }
inline int Multiprocessors() { return 3; }
template <typename Kernel>
bool HasCode(Kernel) {
  return true;
}
#else
inline bool DeviceIsHopper() {
  int major;
  CHECK_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, CurrentDevice()),
           cudaSuccess);
  return major == 9;
}
// Asks the driver once for each device.
inline int Multiprocessors() {
  constexpr int kDevices = 64;
  static std::atomic<int> counts[kDevices] = {};
  const int device = CurrentDevice();
  CHECK_LT(device, kDevices);
  if (counts[device] == 0) {
    int count;
    CHECK_EQ(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), cudaSuccess);
    counts[device] = count;
  }
  return counts[device];
}
// Code for other architectures than sm_90a has no body, and so no barriers.
template <typename Kernel>
bool HasCode(Kernel kernel) {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
    cudaGetLastError();  // clears the error
    return false;
  }
  return attributes.sharedSizeBytes > 0;
}
#endif

// Returns the current device as one bit of a set of devices.
inline uint64_t DeviceBit() {
  const int device = CurrentDevice();
  CHECK_LT(device, 64);
  return uint64_t{1} << device;
}

// Returns whether tensor maps and the stores of the kernels can address the operands, all of the
// 16-bit dtype.
inline bool TakesOperands(const AttentionArgs& args) {
  for (const Operand* x :
       {&args.q, &args.k, &args.v, &args.out, &args.dout, &args.dq, &args.dk, &args.dv}) {
    if (x->data == nullptr) continue;
    if (x->is_fp32 || !IsAligned({x->data})) return false;
    for (int64_t stride : {x->token_stride, x->group_stride, x->head_stride}) {
      if (stride < 0 || stride % 8 != 0) return false;
    }
  }
  return !args.add_to_queries && !args.add_to_keys;
}

// Lets the kernel have kBytes of dynamic shared memory, and kSlack, on the current device.
template <auto kKernel, int kBytes>
void AllowShared() {
  static_assert(kBytes + kSlack + kStaticShared <= kMostShared, "more than a block can have");
  CHECK_EQ(AllowDynamicShared(kKernel, kBytes + kSlack), cudaSuccess);
}

// Calls body with the dtype and the head dim as types.
template <typename Body>
void WithTypeAndHead(DType dtype, int head_dim, Body body) {
  const auto with_head = [&](auto* type) {
    if (head_dim == 64) return body(type, std::integral_constant<int, 64>());
    return body(type, std::integral_constant<int, 128>());
  };
  if (dtype == DType::kBFloat16) return with_head(static_cast<__nv_bfloat16*>(nullptr));
  with_head(static_cast<__half*>(nullptr));
}

// Calls body with the dtype, the head dim, and whether there is dropout, as types.
template <typename Body>
void WithVariant(DType dtype, const AttentionArgs& args, Body body) {
  WithTypeAndHead(dtype, args.head_dim, [&](auto* type, auto head) {
    if (args.dropout_threshold == 0) return body(type, head, std::false_type());
    body(type, head, std::true_type());
  });
}

}  // namespace megatron::ops::cuda::hopper

#endif  // MEGATRON_OPS_CUDA_HOPPER_LAUNCH_CUH_

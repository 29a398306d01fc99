// The functions of NCCL that its communicator calls, so that tests can play them without a GPU
// (fake_nccl.h).
//
// They are nccl.h's, whose documentation holds, with our types. Communicators are non-blocking:
// what makes, uses or ends one may answer kNcclInProgress, and then nothing else may be asked of it
// before AsyncError answers otherwise.
//
// Threads: one at a time for each communicator. A group of calls belongs to its thread.
#ifndef MEGATRON_COMM_NCCL_NCCL_API_H_
#define MEGATRON_COMM_NCCL_NCCL_API_H_

#include <array>
#include <string>

#include "megatron/comm/collective.h"
#include "megatron/tensor/stream.h"
#include "megatron/tensor/tensor.h"

struct ncclComm;  // NCCL's own, ncclComm_t points to it

namespace megatron {

// An ncclResult_t. All but these two are errors.
using NcclResult = int;
constexpr NcclResult kNcclSuccess = 0;
constexpr NcclResult kNcclInProgress = 7;

using NcclUniqueId = std::array<char, 128>;

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual std::string Version() const = 0;  // "2.28.9"
  // Returns the name of an error and what NCCL adds. `comm` may be null.
  virtual std::string Describe(NcclResult error, ncclComm* comm) const = 0;

  virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;
  // Uses the thread's current device. `*comm` is set when this returns. NCCL gives `name` to
  // profilers and to its log; NCCL before 2.27 does not take it.
  virtual NcclResult CommInitRank(ncclComm** comm, int size, const NcclUniqueId& id, int rank,
                                  const std::string& name) = 0;
  // Collective over the parent. `*child` is there when the parent is no longer in progress, or
  // never with a negative color. `name` is the child's.
  virtual NcclResult CommSplit(ncclComm* parent, int color, int key, const std::string& name,
                               ncclComm** child) = 0;
  virtual NcclResult AsyncError(ncclComm* comm) = 0;
  // All ranks finalize, and when that is done destroy; or each aborts, at any time. An abort makes
  // the device leave the communicator's calls, and then waits: until the device is in no call of
  // any other communicator, and until graphs that hold calls of this one are gone. So whoever
  // aborts several does so at once, in a thread for each.
  virtual NcclResult CommFinalize(ncclComm* comm) = 0;
  virtual NcclResult CommDestroy(ncclComm* comm) = 0;
  virtual NcclResult CommAbort(ncclComm* comm) = 0;

  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;

  // Enqueued on CUDA streams. Sums are NCCL's: see docs/communication.md. Tensors of a reduction
  // have a dtype that NcclReduces; what is only moved has any.
  virtual NcclResult AllReduce(const Tensor& inout, ReduceOp op, ncclComm* comm,
                               const Stream& stream) = 0;
  virtual NcclResult ReduceScatter(const Tensor& in, const Tensor& out, ReduceOp op, ncclComm* comm,
                                   const Stream& stream) = 0;
  virtual NcclResult AllGather(const Tensor& in, const Tensor& out, ncclComm* comm,
                               const Stream& stream) = 0;
  virtual NcclResult Broadcast(const Tensor& inout, int root, ncclComm* comm,
                               const Stream& stream) = 0;
  virtual NcclResult Send(const Tensor& tensor, int peer, ncclComm* comm, const Stream& stream) = 0;
  virtual NcclResult Receive(const Tensor& tensor, int peer, ncclComm* comm,
                             const Stream& stream) = 0;
};

// NCCL has no 16-bit integers.
inline bool NcclReduces(DType dtype) { return dtype != DType::kUInt16; }

// The real one; null in a build without --config=cuda. The first call sets
// NCCL_LAUNCH_ORDER_IMPLICIT=1 in the environment, unless it is set there.
NcclApi* NcclLibrary();

}  // namespace megatron

#endif  // MEGATRON_COMM_NCCL_NCCL_API_H_

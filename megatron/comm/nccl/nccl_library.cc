#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron {
namespace {

static_assert(ncclSuccess == kNcclSuccess && ncclInProgress == kNcclInProgress);
static_assert(sizeof(ncclUniqueId) == sizeof(NcclUniqueId));

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
      return ncclUint8;
    case DType::kUInt16:
      break;
  }
  LOG(FATAL) << "NCCL reduces no " << Name(dtype);
  return ncclNumTypes;
}

ncclRedOp_t Reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMin:
      return ncclMin;
  }
  LOG(FATAL) << "no reduction " << static_cast<int>(op);
  return ncclNumOps;
}

const char* ErrorName(NcclResult error) {
  switch (static_cast<ncclResult_t>(error)) {
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    default:
      return "an unknown error";
  }
}

cudaStream_t Handle(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.cuda()->handle());
}

size_t Count(const Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }
size_t Bytes(const Tensor& tensor) { return static_cast<size_t>(tensor.bytes()); }

class Library : public NcclApi {
 public:
  std::string Version() const override {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "?";
    return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
  }

  std::string Describe(NcclResult error, ncclComm* comm) const override {
    return absl::StrCat(ErrorName(error), ", ",
                        ncclGetErrorString(static_cast<ncclResult_t>(error)), ": ",
                        ncclGetLastError(comm));
  }

  NcclResult GetUniqueId(NcclUniqueId* id) override {
    ncclUniqueId made;
    const ncclResult_t result = ncclGetUniqueId(&made);
    std::memcpy(id->data(), made.internal, id->size());
    return result;
  }

  NcclResult CommInitRank(ncclComm** comm, int size, const NcclUniqueId& id, int rank,
                          const std::string& name) override {
    ncclUniqueId given;
    std::memcpy(given.internal, id.data(), id.size());
    ncclConfig_t config = NonBlocking(name);
    return ncclCommInitRankConfig(comm, size, given, rank, &config);
  }

  NcclResult CommSplit(ncclComm* parent, int color, int key, const std::string& name,
                       ncclComm** child) override {
    ncclConfig_t config = NonBlocking(name);
    return ncclCommSplit(parent, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, child, &config);
  }

  NcclResult AsyncError(ncclComm* comm) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
    return result == ncclSuccess ? state : result;
  }

  NcclResult CommFinalize(ncclComm* comm) override { return ncclCommFinalize(comm); }
  NcclResult CommDestroy(ncclComm* comm) override { return ncclCommDestroy(comm); }
  NcclResult CommAbort(ncclComm* comm) override { return ncclCommAbort(comm); }
  NcclResult GroupStart() override { return ncclGroupStart(); }
  NcclResult GroupEnd() override { return ncclGroupEnd(); }

  NcclResult AllReduce(const Tensor& inout, ReduceOp op, ncclComm* comm,
                       const Stream& stream) override {
    return ncclAllReduce(inout.raw(), inout.raw(), Count(inout), TypeOf(inout.dtype()),
                         Reduction(op), comm, Handle(stream));
  }

  NcclResult ReduceScatter(const Tensor& in, const Tensor& out, ReduceOp op, ncclComm* comm,
                           const Stream& stream) override {
    return ncclReduceScatter(in.raw(), out.raw(), Count(out), TypeOf(out.dtype()), Reduction(op),
                             comm, Handle(stream));
  }

  NcclResult AllGather(const Tensor& in, const Tensor& out, ncclComm* comm,
                       const Stream& stream) override {
    return ncclAllGather(in.raw(), out.raw(), Bytes(in), ncclUint8, comm, Handle(stream));
  }

  NcclResult Broadcast(const Tensor& inout, int root, ncclComm* comm,
                       const Stream& stream) override {
    return ncclBroadcast(inout.raw(), inout.raw(), Bytes(inout), ncclUint8, root, comm,
                         Handle(stream));
  }

  NcclResult Send(const Tensor& tensor, int peer, ncclComm* comm, const Stream& stream) override {
    return ncclSend(tensor.raw(), Bytes(tensor), ncclUint8, peer, comm, Handle(stream));
  }

  NcclResult Receive(const Tensor& tensor, int peer, ncclComm* comm,
                     const Stream& stream) override {
    return ncclRecv(tensor.raw(), Bytes(tensor), ncclUint8, peer, comm, Handle(stream));
  }

 private:
  // Groups are used side by side, and each is aborted for itself: they share nothing. A library that
  // is older than the header reads as much of the configuration as it knows.
  ncclConfig_t NonBlocking(const std::string& name) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    config.commName = Kept(name);
#else
    (void)name;
#endif
    return config;
  }

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  // NCCL keeps the pointer. Its own threads may still use it when a communicator is destroyed.
  const char* Kept(const std::string& name) {
    const absl::MutexLock lock(&mutex_);
    return names_.insert(name).first->c_str();
  }

  absl::Mutex mutex_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
#endif
};

}  // namespace

// A rank's groups enqueue on several streams. In the order of the host their kernels cannot wait
// for each other in a circle over the ranks. NCCL reads the variable when it makes its first
// communicator.
NcclApi* NcclLibrary() {
  static Library& library = *[] {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
    return new Library;
  }();
  return &library;
}

}  // namespace megatron

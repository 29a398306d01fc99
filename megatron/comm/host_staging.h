// Collectives of CUDA tensors by a communicator that knows host memory only: ranks that are threads
// and share one GPU, or processes that talk over TCP. Everything is copied to the host and back,
// and the stream is waited for.
#ifndef MEGATRON_COMM_HOST_STAGING_H_
#define MEGATRON_COMM_HOST_STAGING_H_

#include "megatron/comm/communicator.h"
#include "megatron/tensor/stream.h"

namespace megatron {

void RunOnHost(Communicator& communicator, const CollectiveCall& call, const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_COMM_HOST_STAGING_H_

// Collectives of CUDA tensors by a communicator that knows host memory only: ranks that are threads
// and share one GPU, or processes that communicate over TCP.
#ifndef MEGATRON_COMM_HOST_STAGING_H_
#define MEGATRON_COMM_HOST_STAGING_H_

namespace megatron {

class Communicator;
class Stream;
struct CollectiveCall;

// Copies the call's tensors to the host, runs the call there and copies the results back. It waits
// for the stream.
void RunOnHost(Communicator& communicator, const CollectiveCall& call, const Stream& stream);

}  // namespace megatron

#endif  // MEGATRON_COMM_HOST_STAGING_H_

// Stream: where and in what order operations run.
//
// Operations given to one stream happen in the order given. On the CPU they have happened when the
// call returns, on the pool's threads; on the meta device they do nothing; on CUDA they are
// enqueued. An Event marks a point of a stream that another may wait for; on CPU and meta it is
// always reached.
//
// A stream may have a tracer, which writes down when its operations ran (trace/trace.h).
#ifndef MEGATRON_TENSOR_STREAM_H_
#define MEGATRON_TENSOR_STREAM_H_

#include "megatron/base/thread_pool.h"
#include "megatron/tensor/device.h"

namespace megatron {

class CudaStream;
class Tracer;

class Stream {
 public:
  // The pool must outlive the stream.
  static Stream Cpu(ThreadPool* pool) { return Stream({DeviceType::kCpu, 0}, pool, nullptr); }
  static Stream Meta() { return Stream({DeviceType::kMeta, 0}, nullptr, nullptr); }
  // The CUDA stream (cuda_device.h) must outlive this one.
  static Stream Cuda(int device, CudaStream* stream) {
    return Stream({DeviceType::kCuda, device}, nullptr, stream);
  }

  Device device() const { return device_; }
  bool is_meta() const { return device_.type == DeviceType::kMeta; }
  ThreadPool* pool() const { return pool_; }
  CudaStream* cuda() const { return cuda_; }

  // The same stream, followed by a tracer, which must outlive it.
  Stream TracedBy(Tracer* tracer) const {
    Stream traced = *this;
    traced.tracer_ = tracer;
    return traced;
  }
  Tracer* tracer() const { return tracer_; }  // or null

 private:
  Stream(Device device, ThreadPool* pool, CudaStream* cuda)
      : device_(device), pool_(pool), cuda_(cuda) {}

  Device device_;
  ThreadPool* pool_;
  CudaStream* cuda_;
  Tracer* tracer_ = nullptr;
};

class Event {
 public:
  Event() = default;
  explicit Event(void* cuda_event) : handle_(cuda_event) {}
  void* cuda_handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_STREAM_H_

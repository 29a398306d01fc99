// Stream: the device on which operations run, and their order.
//
//   ThreadPool pool(8);
//   ops::Add(Stream::Cpu(&pool), x, sum);
//
// Operations given to one stream happen in the order given. On the CPU they have happened when the
// call returns, on the pool's threads; on the meta device they do nothing; on CUDA they are
// enqueued.
//
// A stream may have a tracer, which records when its operations ran (trace/trace.h).
#ifndef MEGATRON_TENSOR_STREAM_H_
#define MEGATRON_TENSOR_STREAM_H_

#include "megatron/tensor/device.h"

namespace megatron {

class CudaStream;
class ThreadPool;
class Tracer;

class Stream {
 public:
  // The pool must outlive the stream.
  static Stream Cpu(ThreadPool* pool) { return Stream({DeviceType::kCpu, 0}, pool, nullptr); }
  // A CPU stream whose operations run on the calling thread alone. Any number of threads may use it
  // at once.
  static Stream Inline();
  static Stream Meta() { return Stream({DeviceType::kMeta, 0}, nullptr, nullptr); }
  // The CUDA stream (cuda_device.h) must outlive this one.
  static Stream Cuda(int device, CudaStream* stream) {
    return Stream({DeviceType::kCuda, device}, nullptr, stream);
  }

  Device device() const { return device_; }
  bool is_meta() const { return device_.type == DeviceType::kMeta; }
  ThreadPool* pool() const { return pool_; }
  CudaStream* cuda() const { return cuda_; }

  // Returns this stream with a tracer, which must outlive the result.
  Stream TracedBy(Tracer* tracer) const {
    Stream traced = *this;
    traced.tracer_ = tracer;
    return traced;
  }
  // Returns null if the stream has no tracer.
  Tracer* tracer() const { return tracer_; }

 private:
  Stream(Device device, ThreadPool* pool, CudaStream* cuda)
      : device_(device), pool_(pool), cuda_(cuda) {}

  Device device_;
  ThreadPool* pool_;
  CudaStream* cuda_;
  Tracer* tracer_ = nullptr;
};

}  // namespace megatron

#endif  // MEGATRON_TENSOR_STREAM_H_

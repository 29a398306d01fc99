// ParameterMirror: what the host reads and writes of the memory of a ParameterBuffers: for
// checkpoints. On the CPU it is that memory.
#ifndef MEGATRON_OPTIM_PARAMETER_MIRROR_H_
#define MEGATRON_OPTIM_PARAMETER_MIRROR_H_

#include <vector>

#include "megatron/optim/parameter_buffers.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/stream.h"

namespace megatron {

class ParameterMirror {
 public:
  // Of weights, masters and moments. The buffers must outlive this.
  explicit ParameterMirror(const ParameterBuffers& buffers);

  // What the host has of a part of one of them.
  Tensor Of(const Tensor& part) const;
  void Fetch(const Stream& stream) const;
  void Send(const Stream& stream) const;

 private:
  std::vector<Tensor> mirrored_;
  std::vector<HostMirror> mirrors_;
};

}  // namespace megatron

#endif  // MEGATRON_OPTIM_PARAMETER_MIRROR_H_

#include "megatron/pipeline/span_names.h"

namespace megatron {

const char* SpanName(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kBackwardInput:
      return "backward input";
    case ActionKind::kBackwardWeight:
      return "backward weight";
  }
  return "";
}

const char* ExchangeName(const Step& step) {
  bool forward_send = false, backward_send = false, forward_recv = false, backward_recv = false;
  for (const Message& message : step.sends)
    (message.gradient ? backward_send : forward_send) = true;
  for (const Message& message : step.receives)
    (message.gradient ? backward_recv : forward_recv) = true;
  const bool sends = forward_send || backward_send, receives = forward_recv || backward_recv;
  if ((forward_send && backward_send) || (forward_recv && backward_recv))
    return "forward-backward-send-forward-backward-recv";
  if (!receives) return forward_send ? "forward-send" : "backward-send";
  if (!sends) return forward_recv ? "forward-recv" : "backward-recv";
  if (forward_send)
    return forward_recv ? "forward-send-forward-recv" : "forward-send-backward-recv";
  return forward_recv ? "backward-send-forward-recv" : "backward-send-backward-recv";
}

}  // namespace megatron

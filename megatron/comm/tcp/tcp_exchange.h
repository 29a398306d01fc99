// One exchange of one rank of a TcpWorld.
#ifndef MEGATRON_COMM_TCP_TCP_EXCHANGE_H_
#define MEGATRON_COMM_TCP_TCP_EXCHANGE_H_

#include "absl/status/status.h"
#include "megatron/comm/collective.h"
#include "megatron/comm/tcp/tcp_group.h"

namespace megatron {

// Returns when every message is received. An error is the world's failure, or becomes it.
absl::Status RunTcpExchange(TcpGroup* group, const CollectiveCall& call);

}  // namespace megatron

#endif  // MEGATRON_COMM_TCP_TCP_EXCHANGE_H_

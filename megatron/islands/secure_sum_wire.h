// The parts of a secure sum's messages (federated/secure_sum.h) as bytes, for the islands'
// protocol. What a reader takes, the writer writes as the same bytes. Readers return
// kInvalidArgument for what no writer writes; bytes that are missing are told by the WireReader.
#ifndef MEGATRON_ISLANDS_SECURE_SUM_WIRE_H_
#define MEGATRON_ISLANDS_SECURE_SUM_WIRE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "megatron/comm/socket/wire.h"
#include "megatron/federated/secure_sum.h"

namespace megatron {

void PutMembers(const std::vector<Advertisement>& members, WireWriter* writer);
absl::Status GetMembers(WireReader* reader, std::vector<Advertisement>* members);

void PutSealed(const std::vector<SealedShares>& shares, WireWriter* writer);
absl::Status GetSealed(WireReader* reader, std::vector<SealedShares>* shares);

void PutIslands(const std::vector<int32_t>& islands, WireWriter* writer);
absl::Status GetIslands(WireReader* reader, std::vector<int32_t>* islands);

void PutKeyShares(const std::map<int, KeyShare>& shares, WireWriter* writer);
absl::Status GetKeyShares(WireReader* reader, std::map<int, KeyShare>* shares);

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_SECURE_SUM_WIRE_H_

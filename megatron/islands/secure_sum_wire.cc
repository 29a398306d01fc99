#include "megatron/islands/secure_sum_wire.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "megatron/federated/shamir.h"

namespace megatron {
namespace {

// The most bytes of sealed shares, which are two keys and what sealing adds.
constexpr size_t kMaxSealed = 256;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a message with ", what));
}

void PutKey(const Key& key, WireWriter* writer) {
  writer->PutBytes({reinterpret_cast<const char*>(key.data()), key.size()});
}

Key GetKey(WireReader* reader) {
  Key key{};
  const absl::string_view bytes = reader->GetBytes(key.size());
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

template <typename T, typename PutOne>
void PutList(const std::vector<T>& list, WireWriter* writer, const PutOne& put) {
  writer->Put(static_cast<uint32_t>(list.size()));
  for (const T& one : list) put(one);
}

// `least` is the least number of bytes of an element. get(element) returns a status.
template <typename T, typename GetOne>
absl::Status GetList(WireReader* reader, size_t least, std::vector<T>* list, const GetOne& get) {
  const uint32_t count = reader->Get<uint32_t>();
  if (count > kMostShares || count > reader->rest().size() / least)
    return Malformed("too many members of a sum");
  for (uint32_t i = 0; i < count; ++i) {
    list->emplace_back();
    const absl::Status status = get(&list->back());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

void PutMembers(const std::vector<Advertisement>& members, WireWriter* writer) {
  PutList(members, writer, [&](const Advertisement& member) {
    writer->Put(static_cast<int32_t>(member.member));
    PutKey(member.seal_key, writer);
    PutKey(member.mask_key, writer);
    PutKey(member.own_mask_hash, writer);
  });
}

absl::Status GetMembers(WireReader* reader, std::vector<Advertisement>* members) {
  return GetList(reader, sizeof(int32_t) + 3 * kKeyBytes, members, [&](Advertisement* member) {
    member->member = reader->Get<int32_t>();
    member->seal_key = GetKey(reader);
    member->mask_key = GetKey(reader);
    member->own_mask_hash = GetKey(reader);
    return absl::OkStatus();
  });
}

void PutSealed(const std::vector<SealedShares>& shares, WireWriter* writer) {
  PutList(shares, writer, [&](const SealedShares& share) {
    writer->Put(static_cast<int32_t>(share.from));
    writer->Put(static_cast<int32_t>(share.to));
    writer->PutString(share.sealed);
  });
}

absl::Status GetSealed(WireReader* reader, std::vector<SealedShares>* shares) {
  return GetList(reader, 3 * sizeof(int32_t), shares, [&](SealedShares* share) -> absl::Status {
    share->from = reader->Get<int32_t>();
    share->to = reader->Get<int32_t>();
    const absl::string_view sealed = reader->GetString();
    if (sealed.size() > kMaxSealed) return Malformed("shares that are too long");
    share->sealed = std::string(sealed);
    return absl::OkStatus();
  });
}

void PutIslands(const std::vector<int32_t>& islands, WireWriter* writer) {
  PutList(islands, writer, [&](int32_t island) { writer->Put(island); });
}

absl::Status GetIslands(WireReader* reader, std::vector<int32_t>* islands) {
  return GetList(reader, sizeof(int32_t), islands, [&](int32_t* island) {
    *island = reader->Get<int32_t>();
    return absl::OkStatus();
  });
}

void PutKeyShares(const std::map<int, KeyShare>& shares, WireWriter* writer) {
  writer->Put(static_cast<uint32_t>(shares.size()));
  for (const auto& [member, share] : shares) {
    writer->Put(static_cast<int32_t>(member));
    writer->Put(share.x);
    PutKey(share.y, writer);
  }
}

absl::Status GetKeyShares(WireReader* reader, std::map<int, KeyShare>* shares) {
  std::vector<std::pair<int32_t, KeyShare>> list;
  const absl::Status status = GetList(reader, sizeof(int32_t) + 1 + kKeyBytes, &list,
                                      [&](std::pair<int32_t, KeyShare>* one) {
                                        one->first = reader->Get<int32_t>();
                                        one->second.x = reader->Get<uint8_t>();
                                        one->second.y = GetKey(reader);
                                        return absl::OkStatus();
                                      });
  if (!status.ok()) return status;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0 && list[i].first <= list[i - 1].first) return Malformed("shares that are not sorted");
    shares->emplace(list[i].first, list[i].second);
  }
  return absl::OkStatus();
}

}  // namespace megatron

// Checked reading of JSON from files that may hold anything.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_JSON_READER_H_
#define MEGATRON_DATA_TOKENIZER_JSON_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace megatron {

// Parses JSON. kInvalidArgument, with the position, for invalid JSON; also for an object with a
// duplicate key, and for more than 32 levels. kResourceExhausted where the values, without the
// bytes of their texts, would take more than `max_bytes` of memory, before they do: at least
// kJsonValueBytes for each value, and more for texts, lists, objects and members.
inline constexpr size_t kJsonValueBytes = 80;
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         size_t max_bytes = std::numeric_limits<size_t>::max());

// These functions read a member of an object and check its type. `object` may be any value. An
// absent or null member gives the default; a value of another type is kInvalidArgument, which names
// the key.
absl::StatusOr<std::string> JsonString(const nlohmann::json& object, const std::string& key,
                                       absl::string_view default_value = "");
absl::StatusOr<bool> JsonBool(const nlohmann::json& object, const std::string& key,
                              bool default_value);
absl::StatusOr<int64_t> JsonInt(const nlohmann::json& object, const std::string& key,
                                int64_t default_value);
// Returns the member, or a null value if it is absent.
const nlohmann::json& JsonMember(const nlohmann::json& object, const char* key);

// Converts a vocabulary, an object of ids by token, to a list of tokens by id. An id without a
// token becomes an empty token. Refuses negative ids, ids that two tokens share, and ids of
// `max_size` and more.
absl::StatusOr<std::vector<std::string>> JsonVocabulary(const nlohmann::json& vocabulary,
                                                        size_t max_size);

// Returns `max_size` for a vocabulary with this many tokens. Ids may have gaps, but not so large
// that a few bytes of file could ask for all memory.
size_t MaxVocabularySize(size_t num_tokens);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_JSON_READER_H_

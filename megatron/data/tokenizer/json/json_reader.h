// JSON from files that may hold anything.
#ifndef MEGATRON_DATA_TOKENIZER_JSON_JSON_READER_H_
#define MEGATRON_DATA_TOKENIZER_JSON_JSON_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace megatron {

// kInvalidArgument for what isn't JSON, with the place; for an object that names a key twice; and
// for more than 32 levels.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text);

// Members of an object, checked. `object` may be any value. An absent or null member gives the
// default; kInvalidArgument, naming the key, for a value of another type.
absl::StatusOr<std::string> JsonString(const nlohmann::json& object, const std::string& key,
                                       absl::string_view default_value = "");
absl::StatusOr<bool> JsonBool(const nlohmann::json& object, const std::string& key,
                              bool default_value);
absl::StatusOr<int64_t> JsonInt(const nlohmann::json& object, const std::string& key,
                                int64_t default_value);
// The member itself; a null value where it is absent.
const nlohmann::json& JsonMember(const nlohmann::json& object, const char* key);

// A vocabulary: an object of ids, by token, as tokens by id. An id that no token has is an empty
// token. Refuses negative ids, ids that two tokens share, and ids of `max_size` and more.
absl::StatusOr<std::vector<std::string>> JsonVocabulary(const nlohmann::json& vocabulary,
                                                        size_t max_size);

// `max_size` for a vocabulary that has so many tokens: ids may leave holes, but not so large that a
// few bytes of file could ask for all memory.
size_t MaxVocabularySize(size_t num_tokens);

}  // namespace megatron

#endif  // MEGATRON_DATA_TOKENIZER_JSON_JSON_READER_H_

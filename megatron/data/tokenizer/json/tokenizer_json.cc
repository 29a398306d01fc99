#include "megatron/data/tokenizer/json/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/json/json_reader.h"
#include "megatron/data/tokenizer/json/post_processor_json.h"
#include "megatron/data/tokenizer/json/tokenizer_model_json.h"
#include "megatron/data/tokenizer/json/tokenizer_steps_json.h"
#include "megatron/data/tokenizer/pipeline/pipeline_tokenizer.h"
#include "megatron/data/tokenizer/unicode.h"

namespace megatron {
namespace {

using nlohmann::json;

constexpr absl::string_view kName = "HuggingFaceTokenizer";

absl::StatusOr<std::string> NameOf(const json& config, const char* key) {
  const json& member = JsonMember(config, key);
  return member.is_object() ? JsonString(member, "content") : JsonString(config, key);
}

absl::StatusOr<AddedToken> AddedTokenFromJson(const json& description) {
  AddedToken token;
  MEGATRON_ASSIGN_OR_RETURN(const int64_t id, JsonInt(description, "id", -1));
  MEGATRON_ASSIGN_OR_RETURN(token.content, JsonString(description, "content"));
  MEGATRON_ASSIGN_OR_RETURN(token.special, JsonBool(description, "special", false));
  MEGATRON_ASSIGN_OR_RETURN(token.single_word, JsonBool(description, "single_word", false));
  MEGATRON_ASSIGN_OR_RETURN(token.lstrip, JsonBool(description, "lstrip", false));
  MEGATRON_ASSIGN_OR_RETURN(token.rstrip, JsonBool(description, "rstrip", false));
  MEGATRON_ASSIGN_OR_RETURN(token.normalized, JsonBool(description, "normalized", !token.special));
  if (token.content.empty()) return absl::InvalidArgumentError("an added token has no content");
  if (id < 0 || id > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("the added token '", token.content.substr(0, 64), "' has no id below 2^31"));
  }
  token.id = static_cast<int32_t>(id);
  return token;
}

// Adds the tokens that the model's vocabulary lacks, and checks that ids agree.
absl::Status MergePieces(const std::vector<AddedToken>& added, std::vector<std::string>* pieces) {
  const size_t max_size = MaxVocabularySize(pieces->size() + added.size());
  for (const AddedToken& token : added) {
    const size_t id = static_cast<size_t>(token.id);
    if (id >= max_size) {
      return absl::InvalidArgumentError(absl::StrCat("the id ", id, " of the added token '",
                                                     token.content.substr(0, 64), "' is beyond ",
                                                     max_size));
    }
    if (id >= pieces->size()) pieces->resize(id + 1);
    std::string& piece = (*pieces)[id];
    if (!piece.empty() && piece != token.content) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", piece.substr(0, 64), "' and the added token '",
                       token.content.substr(0, 64), "' have the same id ", id));
    }
    piece = token.content;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AddedToken>> AddedTokensFromJson(const json& list) {
  std::vector<AddedToken> added;
  if (!list.is_null() && !list.is_array()) {
    return absl::InvalidArgumentError("'added_tokens' is no list");
  }
  for (const json& description : list) {
    MEGATRON_ASSIGN_OR_RETURN(AddedToken token, AddedTokenFromJson(description));
    added.push_back(std::move(token));
  }
  return added;
}

// Returns the id of `name`; if `name` is empty, the id of the first of `usual` that exists.
int32_t FindId(const TokenIds& ids, const std::string& name,
               std::initializer_list<absl::string_view> usual) {
  if (!name.empty()) {
    const auto found = ids.find(name);
    return found == ids.end() ? -1 : found->second;
  }
  for (const absl::string_view candidate : usual) {
    const auto found = ids.find(candidate);
    if (found != ids.end()) return found->second;
  }
  return -1;
}

SpecialTokens FindSpecial(const SpecialTokenNames& names, const std::vector<std::string>& pieces) {
  const TokenIds ids = MakeTokenIds(pieces);
  SpecialTokens special;
  special.bos = FindId(ids, names.bos, {"<s>", "<|begin_of_text|>", "<|endoftext|>", "<bos>"});
  special.eos =
      FindId(ids, names.eos, {"</s>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "<eos>"});
  special.eod = special.eos;
  special.pad = FindId(ids, names.pad, {"<pad>", "[PAD]"});
  special.unk = FindId(ids, names.unk, {"<unk>", "[UNK]"});
  special.cls = FindId(ids, names.cls, {"[CLS]"});
  special.sep = FindId(ids, names.sep, {"[SEP]"});
  special.mask = FindId(ids, names.mask, {"[MASK]", "<mask>"});
  while (true) {
    const auto sentinel = ids.find(absl::StrCat("<extra_id_", special.sentinels.size(), ">"));
    if (sentinel == ids.end()) return special;
    special.sentinels.push_back(sentinel->second);
  }
}

void AddSpecial(const SpecialTokens& special, const std::vector<std::string>& pieces,
                std::vector<AddedToken>* added) {
  std::vector<int32_t> ids = {special.bos, special.eos, special.pad, special.unk,
                              special.cls, special.sep, special.mask};
  ids.insert(ids.end(), special.sentinels.begin(), special.sentinels.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const AddedToken& token : *added) {
    const auto found = std::lower_bound(ids.begin(), ids.end(), token.id);
    if (found != ids.end() && *found == token.id) ids.erase(found);
  }
  for (const int32_t id : ids) {
    if (id < 0) continue;
    AddedToken token;
    token.id = id;
    token.content = pieces[static_cast<size_t>(id)];
    token.special = true;
    added->push_back(std::move(token));
  }
}

// Replaces invalid UTF-8 for models that spell characters: they see U+FFFD. Byte-level models see
// the bytes.
std::string MendUtf8(absl::string_view text, std::vector<size_t>* origins) {
  if (origins != nullptr) origins->clear();
  for (size_t at = 0; origins != nullptr && at < text.size();) {
    const Utf8Char c = DecodeUtf8(text, at);
    origins->insert(origins->end(), IsInvalidByte(c) ? 3 : c.length, at);
    at += c.length;
  }
  if (origins != nullptr) origins->push_back(text.size());
  return ReplaceInvalidUtf8(text);
}

Normalizer MendFirst(Normalizer normalizer) {
  return normalizer == nullptr ? Normalizer(MendUtf8)
                               : ChainNormalizers({MendUtf8, std::move(normalizer)});
}

}  // namespace

absl::StatusOr<SpecialTokenNames> ParseSpecialTokenNames(absl::string_view text) {
  MEGATRON_ASSIGN_OR_RETURN(const json config, ParseJson(text));
  SpecialTokenNames names;
  MEGATRON_ASSIGN_OR_RETURN(names.bos, NameOf(config, "bos_token"));
  MEGATRON_ASSIGN_OR_RETURN(names.eos, NameOf(config, "eos_token"));
  MEGATRON_ASSIGN_OR_RETURN(names.pad, NameOf(config, "pad_token"));
  MEGATRON_ASSIGN_OR_RETURN(names.unk, NameOf(config, "unk_token"));
  MEGATRON_ASSIGN_OR_RETURN(names.cls, NameOf(config, "cls_token"));
  MEGATRON_ASSIGN_OR_RETURN(names.sep, NameOf(config, "sep_token"));
  MEGATRON_ASSIGN_OR_RETURN(names.mask, NameOf(config, "mask_token"));
  return names;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizerFromJson(absl::string_view tokenizer_json,
                                                                   const SpecialTokenNames& names) {
  MEGATRON_ASSIGN_OR_RETURN(const json root, ParseJson(tokenizer_json));
  if (!JsonMember(root, "model").is_object()) {
    return absl::InvalidArgumentError("no tokenizer.json: there is no 'model'");
  }
  PipelineParts parts;
  parts.name = std::string(kName);
  MEGATRON_ASSIGN_OR_RETURN(parts.added, AddedTokensFromJson(JsonMember(root, "added_tokens")));
  MEGATRON_ASSIGN_OR_RETURN(parts.normalizer, NormalizerFromJson(JsonMember(root, "normalizer")));
  MEGATRON_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                            PreTokenizerFromJson(JsonMember(root, "pre_tokenizer")));
  MEGATRON_ASSIGN_OR_RETURN(parts.decoder, DecoderFromJson(JsonMember(root, "decoder")));
  if (!pre_tokenizer.byte_level) parts.normalizer = MendFirst(std::move(parts.normalizer));
  const json& model = JsonMember(root, "model");
  MEGATRON_ASSIGN_OR_RETURN(std::vector<std::string> pieces, VocabularyFromJson(model));
  parts.pieces = pieces;
  MEGATRON_RETURN_IF_ERROR(MergePieces(parts.added, &parts.pieces));
  parts.special = FindSpecial(names, parts.pieces);
  AddSpecial(parts.special, parts.pieces, &parts.added);
  MEGATRON_ASSIGN_OR_RETURN(
      parts.model, ModelFromJson(model, std::move(pieces), std::move(pre_tokenizer), parts.added));
  MEGATRON_ASSIGN_OR_RETURN(TokensAround around,
                            PostProcessorFromJson(JsonMember(root, "post_processor"),
                                                  static_cast<int64_t>(parts.pieces.size())));
  parts.special.before = std::move(around.before);
  parts.special.after = std::move(around.after);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace megatron

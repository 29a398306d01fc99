#include "megatron/serve/api_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/json/json_reader.h"
#include "megatron/data/tokenizer/unicode.h"
#include "megatron/serve/api_error.h"
#include "megatron/serve/api_fields.h"

namespace megatron::serve {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
constexpr size_t kMostStops = 16, kMostStopBytes = 256;
constexpr double kMostTemperature = 100;
constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's, for completions
constexpr char kTooLong[] = "context_length_exceeded";

// What a byte of a text takes while it is made tokens: the links and the queue of byte-pair
// encoding where all of it is one word.
constexpr size_t kEncodingBytes = 80;
// What a byte of a body takes as a text of JSON, which grows while it is parsed, and as tokens of 4
// bytes in a list that grows.
constexpr size_t kBodyByteBytes = 16;
// What a text takes beside its tokens, and a token in the request, in the engine and in the answer.
constexpr size_t kChoiceBytes = 1024, kHeldTokenBytes = 32;
constexpr size_t kLeastValueBytes = 1 << 20, kLeastTextBytes = 256 << 10, kTextBytesOfToken = 32;

absl::Status CheckTextBytes(size_t bytes, absl::string_view field, const ApiContext& context) {
  if (bytes <= context.max_text_bytes) return absl::OkStatus();
  return RequestError(field,
                      absl::StrCat("a text of ", field, " has ", bytes, " bytes, and at most ",
                                   context.max_text_bytes, " are taken"));
}

absl::Status CheckModel(ApiFields* fields, const ApiContext& context) {
  MEGATRON_ASSIGN_OR_RETURN(const auto model, fields->String("model"));
  if (!model || *model == context.model) return absl::OkStatus();
  return NoModelError(
      absl::StrCat("there is no model ", Quoted(*model), "; there is ", Quoted(context.model)));
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const Json& array, absl::string_view field,
                                             const ApiContext& context) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& id : array) {
    if (!id.is_number_unsigned() ||
        id.get<uint64_t>() >= static_cast<uint64_t>(context.limits.vocab_size)) {
      return RequestError(field, absl::StrCat("a token of ", field, " is no number of 0 to ",
                                              context.limits.vocab_size - 1));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

struct TextForm {
  bool parse_special = true;
  bool add_special_tokens = false;
};

absl::StatusOr<std::vector<int32_t>> EncodeText(const std::string& text, const TextForm& form,
                                                absl::string_view field,
                                                const ApiContext& context) {
  MEGATRON_RETURN_IF_ERROR(CheckTextBytes(text.size(), field, context));
  const SpecialTokens& special = context.tokenizer->special();
  std::vector<int32_t> ids;
  if (form.add_special_tokens) ids = special.before;
  EncodeOptions options;
  options.parse_special = form.parse_special;
  const absl::Status status = context.tokenizer->Encode(text, &ids, options);
  if (!status.ok()) return RequestError(field, absl::StrCat("in ", field, ": ", status.message()));
  if (form.add_special_tokens) ids.insert(ids.end(), special.after.begin(), special.after.end());
  return ids;
}

absl::StatusOr<TextForm> ReadTextForm(ApiFields* fields) {
  TextForm form;
  MEGATRON_ASSIGN_OR_RETURN(form.parse_special, fields->Bool("parse_special", true));
  MEGATRON_ASSIGN_OR_RETURN(form.add_special_tokens, fields->Bool("add_special_tokens", false));
  return form;
}

absl::Status AddPrompt(const Json& prompt, const TextForm& form, const ApiContext& context,
                       TextCall* call) {
  CallPrompt read;
  if (prompt.is_string()) {
    read.text = prompt.get<std::string>();
    MEGATRON_ASSIGN_OR_RETURN(read.tokens, EncodeText(read.text, form, "prompt", context));
  } else {
    MEGATRON_ASSIGN_OR_RETURN(read.tokens, ReadIds(prompt, "prompt", context));
    read.from_tokens = !read.tokens.empty();
  }
  if (read.tokens.empty()) {
    // A text that begins follows the end of another one.
    if (context.tokenizer->eod() < 0) return RequestError("prompt", "the prompt is empty");
    read.tokens.push_back(context.tokenizer->eod());
  }
  call->prompts.push_back(std::move(read));
  return absl::OkStatus();
}

absl::Status ReadPrompts(ApiFields* fields, const ApiContext& context, TextCall* call) {
  MEGATRON_ASSIGN_OR_RETURN(const TextForm form, ReadTextForm(fields));
  const Json* const prompt = fields->Find("prompt");
  constexpr char kForms[] =
      "prompt is a text, a list of texts, a list of tokens or a list of those";
  if (prompt == nullptr) return RequestError("prompt", kForms);
  if (prompt->is_string()) return AddPrompt(*prompt, form, context, call);
  if (!prompt->is_array()) return RequestError("prompt", kForms);
  if (prompt->empty()) {
    return RequestError("prompt",
                        "prompt is an empty list, and there is nothing to continue; a text that "
                        "begins a document is asked for with \"\" or [[]]");
  }
  if (prompt->front().is_number()) return AddPrompt(*prompt, form, context, call);
  if (static_cast<int64_t>(prompt->size()) > context.max_choices) {
    return RequestError("prompt", absl::StrCat("there are ", prompt->size(), " prompts; at most ",
                                               context.max_choices, " may be in one request"));
  }
  for (const Json& one : *prompt) {
    if (one.type() != prompt->front().type() || !(one.is_string() || one.is_array()))
      return RequestError("prompt", kForms);
    MEGATRON_RETURN_IF_ERROR(AddPrompt(one, form, context, call));
  }
  return absl::OkStatus();
}

// Compares the prompts with the context of the model, and cuts them where the request says so.
// `tokens_field` is the one that has max_tokens.
absl::Status FitPrompts(ApiFields* fields, absl::string_view tokens_field,
                        std::optional<int64_t> max_tokens, const ApiContext& context,
                        TextCall* call) {
  const int64_t most = context.limits.max_context;
  MEGATRON_ASSIGN_OR_RETURN(const auto cut_to,
                            fields->Int("truncate_prompt_tokens", -1, kMostTokens));
  const int64_t asked = max_tokens.value_or(0);
  // What a cut leaves room for. Without a number a conversation goes on as long as there is room.
  const int64_t room = max_tokens.value_or(call->is_chat ? 1 : kDefaultMaxTokens);
  if (cut_to == 0)
    return RequestError("truncate_prompt_tokens", "a prompt cannot be cut to nothing");
  if (cut_to && *cut_to > most) {
    return RequestError(
        "truncate_prompt_tokens",
        absl::StrCat("truncate_prompt_tokens is ", *cut_to, ", and the context of this model is ",
                     most, " tokens; -1 keeps as many as fit beside max_tokens"));
  }
  for (size_t i = 0; i < call->prompts.size(); ++i) {
    CallPrompt& prompt = call->prompts[i];
    if (cut_to) {
      const int64_t kept =
          *cut_to < 0 ? std::max<int64_t>(most - std::max<int64_t>(room, 1), 1) : *cut_to;
      prompt.cut = std::max<int64_t>(static_cast<int64_t>(prompt.tokens.size()) - kept, 0);
      prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.begin() + prompt.cut);
      prompt.tokens.shrink_to_fit();
    }
    const int64_t size = static_cast<int64_t>(prompt.tokens.size());
    if (size + asked <= most) {
      if (prompt.cut > 0 || prompt.from_tokens)
        prompt.text = ReplaceInvalidUtf8(context.tokenizer->Decode(prompt.tokens));
      continue;
    }
    const std::string field = call->is_chat ? "messages" : "prompt";
    std::string advice = "Ask for fewer";
    if (asked < most) {
      absl::StrAppend(&advice,
                      cut_to ? ", or let truncate_prompt_tokens keep at most "
                             : ", or let truncate_prompt_tokens cut the front of the prompt to ",
                      most - asked, " tokens");
    }
    // Where no prompt fits beside them, it is not the prompt that is wrong.
    return RequestError(
        asked < most ? field : tokens_field,
        absl::StrCat("the context of this model is ", most, " tokens; ", size, " in ", field,
                     call->prompts.size() > 1 ? absl::StrCat(" ", i) : "",
                     prompt.cut > 0 ? " after truncate_prompt_tokens" : "", " and ", asked,
                     " to be written are more. ", advice),
        kTooLong);
  }
  return absl::OkStatus();
}

absl::Status ReadStops(ApiFields* fields, std::vector<std::string>* stops) {
  const Json* const stop = fields->Find("stop");
  if (stop == nullptr) return absl::OkStatus();
  const auto add = [&](const Json& text) -> absl::Status {
    if (!text.is_string()) return RequestError("stop", "stop is a text or a list of texts");
    const std::string& value = text.get_ref<const std::string&>();
    if (value.empty() || value.size() > kMostStopBytes) {
      return RequestError("stop",
                          absl::StrCat("a text of stop has 1 to ", kMostStopBytes, " bytes"));
    }
    stops->push_back(value);
    return absl::OkStatus();
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > kMostStops)
    return RequestError("stop", absl::StrCat("stop has at most ", kMostStops, " texts"));
  for (const Json& text : *stop) {
    MEGATRON_RETURN_IF_ERROR(add(text));
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(ApiFields* fields, uint64_t seed, SamplingOptions* sampling) {
  MEGATRON_ASSIGN_OR_RETURN(const auto temperature,
                            fields->Number("temperature", 0, kMostTemperature));
  MEGATRON_ASSIGN_OR_RETURN(const auto top_p, fields->Number("top_p", 0, 1));
  MEGATRON_ASSIGN_OR_RETURN(const auto top_k, fields->Int("top_k", -1, kMostTokens));
  MEGATRON_ASSIGN_OR_RETURN(const auto given,
                            fields->Int("seed", std::numeric_limits<int64_t>::min(),
                                        std::numeric_limits<int64_t>::max()));
  sampling->temperature = temperature.value_or(1);
  // SamplingOptions take 0 for no limit. Here it leaves the likeliest token alone.
  constexpr double kLikeliestAlone = 1e-300;
  sampling->top_p = std::max(top_p.value_or(1), kLikeliestAlone);
  sampling->top_k = std::max<int64_t>(top_k.value_or(0), 0);
  sampling->seed = given ? static_cast<uint64_t>(*given) : seed;
  return absl::OkStatus();
}

absl::Status ReadStreaming(ApiFields* fields, TextCall* call) {
  MEGATRON_ASSIGN_OR_RETURN(call->stream, fields->Bool("stream", false));
  const Json* const options = fields->Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object() || !call->stream)
    return RequestError("stream_options", "stream_options is an object beside \"stream\": true");
  ApiFields inner(*options);
  MEGATRON_ASSIGN_OR_RETURN(call->include_usage, inner.Bool("include_usage", false));
  inner.Ignore("include_obfuscation");
  return inner.RefuseOthers();
}

// Reads what both kinds of requests have, but for the prompts.
absl::Status ReadCommon(ApiFields* fields, const ApiContext& context, uint64_t seed,
                        TextCall* call) {
  MEGATRON_ASSIGN_OR_RETURN(const auto n, fields->Int("n", 1, context.max_choices));
  call->n = n.value_or(1);
  MEGATRON_RETURN_IF_ERROR(ReadSampling(fields, seed, &call->sampling));
  MEGATRON_RETURN_IF_ERROR(ReadStops(fields, &call->stops));
  MEGATRON_RETURN_IF_ERROR(ReadStreaming(fields, call));
  MEGATRON_ASSIGN_OR_RETURN(const bool ignore_eos, fields->Bool("ignore_eos", false));
  if (ignore_eos) {
    call->end_tokens.clear();
  }
  // These are for OpenAI's own bookkeeping.
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier",
                           "prompt_cache_key", "prompt_cache_retention"}) {
    fields->Ignore(name);
  }
  MEGATRON_RETURN_IF_ERROR(fields->Refuse("logit_bias", {Json::object()}));
  for (const char* name : {"presence_penalty", "frequency_penalty", "min_p", "min_tokens"}) {
    MEGATRON_RETURN_IF_ERROR(fields->Refuse(name, {0}));
  }
  MEGATRON_RETURN_IF_ERROR(fields->Refuse("repetition_penalty", {1}));
  return fields->Refuse("use_beam_search", {false});
}

absl::Status Finish(ApiFields* fields, absl::string_view tokens_field,
                    std::optional<int64_t> max_tokens, int64_t absent, const ApiContext& context,
                    TextCall* call) {
  MEGATRON_RETURN_IF_ERROR(FitPrompts(fields, tokens_field, max_tokens, context, call));
  call->max_tokens = max_tokens.value_or(absent);
  if (call->choices() > context.max_choices) {
    return RequestError("n", absl::StrCat(call->prompts.size(), " prompts times ", call->n,
                                          " texts are more than ", context.max_choices));
  }
  return fields->RefuseOthers();
}

absl::StatusOr<std::string> ReadContent(const Json& content) {
  constexpr char kForms[] = "the content of a message is a text, or a list of parts of type text";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return RequestError("messages", kForms);
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || part.size() != 2 ||
        !part.contains("text") || !part["text"].is_string()) {
      return RequestError("messages", kForms);
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

absl::StatusOr<std::vector<ChatMessage>> ReadMessages(const Json* messages) {
  if (messages == nullptr || !messages->is_array() || messages->empty())
    return RequestError("messages", "messages is a list of at least one message");
  std::vector<ChatMessage> read;
  for (const Json& message : *messages) {
    if (!message.is_object())
      return RequestError("messages", "a message is an object with role and content");
    ApiFields fields(message);
    MEGATRON_ASSIGN_OR_RETURN(const auto role, fields.String("role"));
    ChatMessage one;
    one.role = role == "developer" ? "system" : role.value_or("");
    if (one.role != "system" && one.role != "user" && one.role != "assistant") {
      return RequestError("messages", absl::StrCat("the role of a message is system, user or "
                                                   "assistant, and not ",
                                                   Quoted(one.role)));
    }
    const Json* const content = fields.Find("content");
    MEGATRON_ASSIGN_OR_RETURN(one.content, ReadContent(content == nullptr ? Json() : *content));
    for (const char* name : {"name", "refusal"}) fields.Ignore(name);
    MEGATRON_RETURN_IF_ERROR(fields.RefuseOthers(), _.SetPrepend() << "in a message: ");
    read.push_back(std::move(one));
  }
  return read;
}

absl::StatusOr<std::vector<int32_t>> ConversationTokens(ApiFields* fields,
                                                        const ApiContext& context) {
  if (context.chat == nullptr) {
    return RequestError(
        "messages", "this server knows no form of conversations; start it with --chat_template");
  }
  MEGATRON_ASSIGN_OR_RETURN(const auto messages, ReadMessages(fields->Find("messages")));
  size_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += message.content.size();
  MEGATRON_RETURN_IF_ERROR(CheckTextBytes(bytes, "messages", context));
  absl::StatusOr<std::vector<int32_t>> tokens = context.chat->Prompt(messages);
  if (!tokens.ok()) return RequestError("messages", tokens.status().message());
  return tokens;
}

}  // namespace

int64_t TextCall::prompt_tokens() const {
  int64_t count = 0;
  for (const CallPrompt& prompt : prompts) count += static_cast<int64_t>(prompt.tokens.size());
  return count;
}

size_t TextCall::HeldBytes(const EngineLimits& limits) const {
  size_t bytes = 0;
  for (const CallPrompt& prompt : prompts) {
    const int64_t size = static_cast<int64_t>(prompt.tokens.size());
    const int64_t written = std::min(max_tokens, std::max<int64_t>(limits.max_context - size, 0));
    bytes += static_cast<size_t>(n) * (kChoiceBytes + kHeldTokenBytes * (size + written)) +
             prompt.text.size();
  }
  return bytes;
}

size_t ReadingLimits::MostValueBytes() const {
  // A value takes two bytes of a body, with its comma.
  const size_t places = static_cast<size_t>(max_choices) * (engine.max_context + 1);
  return kLeastValueBytes + kJsonValueBytes * std::min(places, body_bytes / 2);
}

size_t ReadingLimits::MostTextBytes() const {
  return std::max<size_t>(kLeastTextBytes, kTextBytesOfToken * engine.max_context);
}

size_t ReadingLimits::MostReadingBytes() const {
  return MostValueBytes() + kBodyByteBytes * body_bytes +
         kEncodingBytes * std::min(MostTextBytes(), body_bytes);
}

size_t ReadingLimits::AllHeldBytes() const {
  const size_t texts = std::max(max_choices, engine.max_batch + engine.max_queue);
  return texts * (kChoiceBytes + kHeldTokenBytes * engine.max_context);
}

TextRequest TextCall::Request(int64_t choice) const {
  TextRequest request;
  request.prompt = prompts[choice / n].tokens;
  request.max_new_tokens = max_tokens;
  request.sampling = sampling;
  request.sampling.seed = sampling.seed + static_cast<uint64_t>(choice % n);
  request.top_logprobs = top_logprobs;
  request.score_prompt = echo && logprobs;
  request.end_tokens = end_tokens;
  return request;
}

std::vector<std::string> TextCall::Warnings() const {
  std::vector<std::string> warnings;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].cut == 0) continue;
    warnings.push_back(absl::StrCat("prompt ", i, ": its first ", prompts[i].cut,
                                    " tokens were cut, and ", prompts[i].tokens.size(),
                                    " are left"));
  }
  return warnings;
}

absl::StatusOr<TextCall> ReadCompletion(const Json& body, const ApiContext& context,
                                        uint64_t seed) {
  ApiFields fields(body);
  MEGATRON_RETURN_IF_ERROR(CheckModel(&fields, context));
  TextCall call;
  if (context.tokenizer->eod() >= 0) call.end_tokens = {context.tokenizer->eod()};
  MEGATRON_RETURN_IF_ERROR(ReadCommon(&fields, context, seed, &call));
  MEGATRON_RETURN_IF_ERROR(ReadPrompts(&fields, context, &call));
  MEGATRON_ASSIGN_OR_RETURN(call.echo, fields.Bool("echo", false));
  // JSON's true would be taken for a number by other servers.
  MEGATRON_ASSIGN_OR_RETURN(const auto logprobs,
                            fields.Int("logprobs", 0, context.limits.max_top_logprobs));
  call.logprobs = logprobs.has_value();
  call.top_logprobs = static_cast<int>(logprobs.value_or(0));
  MEGATRON_ASSIGN_OR_RETURN(const auto max_tokens, fields.Int("max_tokens", 0, kMostTokens));
  MEGATRON_RETURN_IF_ERROR(fields.Refuse("suffix", {""}));
  MEGATRON_RETURN_IF_ERROR(fields.Refuse("best_of", {call.n}));
  MEGATRON_RETURN_IF_ERROR(
      Finish(&fields, "max_tokens", max_tokens, kDefaultMaxTokens, context, &call));
  return call;
}

absl::StatusOr<TextCall> ReadChat(const Json& body, const ApiContext& context, uint64_t seed) {
  ApiFields fields(body);
  MEGATRON_RETURN_IF_ERROR(CheckModel(&fields, context));
  TextCall call;
  call.is_chat = true;
  CallPrompt prompt;
  MEGATRON_ASSIGN_OR_RETURN(prompt.tokens, ConversationTokens(&fields, context));
  call.prompts.push_back(std::move(prompt));
  call.end_tokens = context.chat->end_tokens();
  MEGATRON_RETURN_IF_ERROR(ReadCommon(&fields, context, seed, &call));
  call.stops.insert(call.stops.end(), context.chat->stops().begin(), context.chat->stops().end());
  MEGATRON_ASSIGN_OR_RETURN(call.logprobs, fields.Bool("logprobs", false));
  MEGATRON_ASSIGN_OR_RETURN(const auto top,
                            fields.Int("top_logprobs", 0, context.limits.max_top_logprobs));
  if (top && !call.logprobs)
    return RequestError("top_logprobs", "top_logprobs needs \"logprobs\": true");
  call.top_logprobs = static_cast<int>(top.value_or(0));
  MEGATRON_ASSIGN_OR_RETURN(const auto old_name, fields.Int("max_tokens", 0, kMostTokens));
  MEGATRON_ASSIGN_OR_RETURN(const auto new_name,
                            fields.Int("max_completion_tokens", 0, kMostTokens));
  if (old_name && new_name)
    return RequestError("max_tokens",
                        "max_tokens and max_completion_tokens are the same; give one");
  MEGATRON_RETURN_IF_ERROR(fields.Refuse("tools", {Json::array()}));
  MEGATRON_RETURN_IF_ERROR(fields.Refuse("functions", {Json::array()}));
  MEGATRON_RETURN_IF_ERROR(fields.Refuse("tool_choice", {"none"}));
  MEGATRON_RETURN_IF_ERROR(fields.Refuse("response_format", {Json{{"type", "text"}}}));
  MEGATRON_RETURN_IF_ERROR(fields.Refuse("modalities", {Json::array({"text"})}));
  MEGATRON_RETURN_IF_ERROR(Finish(&fields, new_name ? "max_completion_tokens" : "max_tokens",
                                  new_name ? new_name : old_name, kMostTokens, context, &call));
  return call;
}

absl::StatusOr<std::vector<int32_t>> ReadTokenize(const Json& body, const ApiContext& context) {
  ApiFields fields(body);
  MEGATRON_RETURN_IF_ERROR(CheckModel(&fields, context));
  if (fields.Find("messages") != nullptr) {
    MEGATRON_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, ConversationTokens(&fields, context));
    MEGATRON_RETURN_IF_ERROR(fields.RefuseOthers());
    return tokens;
  }
  MEGATRON_ASSIGN_OR_RETURN(const TextForm form, ReadTextForm(&fields));
  MEGATRON_ASSIGN_OR_RETURN(const auto text, fields.String("prompt"));
  if (!text) return RequestError("prompt", "prompt is the text, or messages a conversation");
  MEGATRON_RETURN_IF_ERROR(fields.RefuseOthers());
  return EncodeText(*text, form, "prompt", context);
}

absl::StatusOr<std::vector<int32_t>> ReadDetokenize(const Json& body, const ApiContext& context) {
  ApiFields fields(body);
  MEGATRON_RETURN_IF_ERROR(CheckModel(&fields, context));
  const Json* const tokens = fields.Find("tokens");
  if (tokens == nullptr || !tokens->is_array())
    return RequestError("tokens", "tokens is a list of tokens");
  MEGATRON_RETURN_IF_ERROR(fields.RefuseOthers());
  return ReadIds(*tokens, "tokens", context);
}

}  // namespace megatron::serve

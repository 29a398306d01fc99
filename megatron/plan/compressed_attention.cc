#include "megatron/plan/compressed_attention.h"

namespace megatron {

MatrixProducts CompressedAttentionProducts(const PlanModel& model, double tokens, double tp,
                                           double sp) {
  const double width = model.heads() * model.head_dim() / tp;
  const double query = model.heads() * (model.head_dim() + model.rope_dim()) / tp;
  const auto product = [](const char* name, double m, double n, double k) {
    MatrixProduct result;
    result.name = name;
    result.m = m;
    result.n = n;
    result.k = k;
    return result;
  };
  const double h = model.hidden();
  return {product("query down", tokens / sp, model.query_rank(), h),
          product("query up", tokens, query, model.query_rank()),
          product("key and value down", tokens / sp, model.key_value_rank() + model.rope_dim(), h),
          product("key and value up", tokens, 2 * width, model.key_value_rank()),
          product("projection", tokens, h, width)};
}

}  // namespace megatron

// Linear layers by cuBLASLt, which thinks in columns: a row-major [T, O] matrix is its column-major
// [O, T].
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "glog/logging.h"
#include "megatron/ops/cuda/column_sums.h"
#include "megatron/ops/cuda/kernels.h"
#include "megatron/tensor/cuda_device.h"

namespace megatron::ops::cuda {
namespace {

// Hopper's kernels want this much to choose freely.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

void Check(cublasStatus_t status, const char* call) {
  CHECK(status == CUBLAS_STATUS_SUCCESS) << call << ": " << cublasGetStatusString(status);
}
#define MEGATRON_CHECK_BLAS(call) Check(call, #call)

cudaDataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      LOG(FATAL) << "no matrix product in " << Name(dtype);
  }
  return CUDA_R_32F;
}

// c [m, n] = op(a) op(b) (+ c) (+ bias over rows), all column-major, products in fp32.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::kFloat32, out = DType::kFloat32;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool accumulate = false;
  bool bias = false;
  // The alignment that a kernel may count on: addresses differ from call to call, kernels do not.
  int64_t alignment = 16;

  friend bool operator<(const Product& x, const Product& y) { return x.Key() < y.Key(); }

 private:
  using KeyTuple = std::tuple<int64_t, int64_t, int64_t, DType, DType, bool, bool, int64_t, int64_t,
                              int64_t, bool, bool, int64_t>;
  KeyTuple Key() const {
    return {m, n, k, in, out, transpose_a, transpose_b, lda, ldb, ldc, accumulate, bias, alignment};
  }
};

// A product with the kernel chosen for it. Kept for the life of the program.
struct Plan {
  explicit Plan(const Product& product);
  Plan(const Plan&) = delete;

  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

template <typename T>
void Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  MEGATRON_CHECK_BLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

Plan::Plan(const Product& product) {
  MEGATRON_CHECK_BLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (product.bias) {
    Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    Set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(product.out));
  }
  const int64_t a_rows = product.transpose_a ? product.k : product.m;
  const int64_t a_columns = product.transpose_a ? product.m : product.k;
  const int64_t b_rows = product.transpose_b ? product.n : product.k;
  const int64_t b_columns = product.transpose_b ? product.k : product.n;
  MEGATRON_CHECK_BLAS(
      cublasLtMatrixLayoutCreate(&a, TypeOf(product.in), a_rows, a_columns, product.lda));
  MEGATRON_CHECK_BLAS(
      cublasLtMatrixLayoutCreate(&b, TypeOf(product.in), b_rows, b_columns, product.ldb));
  MEGATRON_CHECK_BLAS(
      cublasLtMatrixLayoutCreate(&c, TypeOf(product.out), product.m, product.n, product.ldc));
}

// cuBLASLt's own first choice for the shape.
void ChooseAlgorithm(cublasLtHandle_t handle, const Product& product, Plan* plan) {
  cublasLtMatmulPreference_t preference;
  MEGATRON_CHECK_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    MEGATRON_CHECK_BLAS(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kWorkspaceBytes));
  for (auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, static_cast<uint32_t>(product.alignment));
  }
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  MEGATRON_CHECK_BLAS(cublasLtMatmulAlgoGetHeuristic(
      handle, plan->operation, plan->a, plan->b, plan->c, plan->c, preference, 1, &result, &found));
  CHECK_GT(found, 0) << "cuBLASLt has no kernel for a product of " << product.m << " x "
                     << product.n << " x " << product.k << " in " << Name(product.in);
  plan->algorithm = result.algo;
  MEGATRON_CHECK_BLAS(cublasLtMatmulPreferenceDestroy(preference));
}

// Plans by device and product. Streams of several threads may ask at once.
const Plan& PlanFor(const CudaStream& stream, const Product& product) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const plans = new std::map<std::pair<int, Product>, std::unique_ptr<Plan>>;
  std::lock_guard<std::mutex> lock(*mutex);
  std::unique_ptr<Plan>& plan = (*plans)[{stream.device(), product}];
  if (plan == nullptr) {
    plan = std::make_unique<Plan>(product);
    ChooseAlgorithm(static_cast<cublasLtHandle_t>(stream.blas()), product, plan.get());
  }
  return *plan;
}

int64_t AlignmentOf(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 16;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return static_cast<int64_t>(bits & -bits);
}

void Run(const Stream& stream, Product product, const void* a, const void* b, const void* bias,
         void* c) {
  if (product.m == 0 || product.n == 0) return;
  CudaStream* const cuda = stream.cuda();
  product.bias = bias != nullptr;
  product.alignment = AlignmentOf({a, b, c});
  const Plan& plan = PlanFor(*cuda, product);
  // Each call points the shared description at its own bias: calls of one process take turns.
  static std::mutex* const turn = new std::mutex;
  std::lock_guard<std::mutex> lock(*turn);
  if (bias != nullptr) Set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float alpha = 1, beta = product.accumulate ? 1 : 0;
  MEGATRON_CHECK_BLAS(cublasLtMatmul(
      static_cast<cublasLtHandle_t>(cuda->blas()), plan.operation, &alpha, a, plan.a, b, plan.b,
      &beta, c, plan.c, c, plan.c, &plan.algorithm, cuda->Workspace(kWorkspaceBytes),
      static_cast<size_t>(kWorkspaceBytes), static_cast<cudaStream_t>(cuda->handle())));
}

}  // namespace

void LinearForward(const Stream& stream, const Tensor& x_TI, const Tensor& w_OI,
                   const Tensor& bias_O, const Tensor& y_TO) {
  Product product;
  product.m = w_OI.dim(0);
  product.n = x_TI.dim(0);
  product.k = w_OI.dim(1);
  product.in = product.out = x_TI.dtype();
  product.transpose_a = true;
  product.lda = w_OI.dim(1);
  product.ldb = x_TI.stride(0);
  product.ldc = y_TO.stride(0);
  Run(stream, product, w_OI.raw(), x_TI.raw(), bias_O.raw(), y_TO.raw());
}

void LinearActivationForward(const Stream& stream, Activation activation, const Tensor& x_TI,
                             const Tensor& w_OI, const Tensor& bias_O, const Tensor& pre_TO,
                             const Tensor& y_TO) {
  CHECK(pre_TO.is_contiguous() && y_TO.is_contiguous()) << pre_TO << " " << y_TO;
  cuda::LinearForward(stream, x_TI, w_OI, bias_O, pre_TO);
  cuda::ActivationForward(stream, activation, pre_TO, y_TO);
}

void LinearBackwardInput(const Stream& stream, const Tensor& dy_TO, const Tensor& w_OI,
                         const Tensor& dx_TI) {
  Product product;
  product.m = w_OI.dim(1);
  product.n = dy_TO.dim(0);
  product.k = w_OI.dim(0);
  product.in = product.out = dy_TO.dtype();
  product.lda = w_OI.dim(1);
  product.ldb = dy_TO.stride(0);
  product.ldc = dx_TI.stride(0);
  Run(stream, product, w_OI.raw(), dy_TO.raw(), nullptr, dx_TI.raw());
}

void LinearActivationBackwardInput(const Stream& stream, Activation activation, const Tensor& dy_TO,
                                   const Tensor& w_OI, const Tensor& pre_TI, const Tensor& dx_TI) {
  CHECK(pre_TI.is_contiguous() && dx_TI.is_contiguous()) << pre_TI << " " << dx_TI;
  cuda::LinearBackwardInput(stream, dy_TO, w_OI, dx_TI);
  cuda::ActivationBackward(stream, activation, dx_TI, pre_TI, dx_TI);
}

void LinearBackwardWeight(const Stream& stream, const Tensor& dy_TO, const Tensor& x_TI,
                          const Tensor& dw_OI, const Tensor& dbias_O) {
  if (dy_TO.dim(0) == 0) return;
  Product product;
  product.m = x_TI.dim(1);
  product.n = dy_TO.dim(1);
  product.k = dy_TO.dim(0);
  product.in = dy_TO.dtype();
  product.out = DType::kFloat32;
  product.transpose_b = true;
  product.lda = x_TI.stride(0);
  product.ldb = dy_TO.stride(0);
  product.ldc = x_TI.dim(1);
  product.accumulate = true;
  Run(stream, product, x_TI.raw(), dy_TO.raw(), nullptr, dw_OI.raw());
  if (!dbias_O.empty()) AddColumnSums(stream, dy_TO, dbias_O);
}

}  // namespace megatron::ops::cuda

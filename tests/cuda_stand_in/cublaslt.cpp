// Products as cuBLASLt would compute them, plainly: in double, rounded once, as work of the stream. An algorithm is
// bound to its shape, to the workspace and to the alignments that the heuristic was told: a call that breaks what was
// promised is refused, and the workspace is scribbled on.
#include "cublasLt.h"

#include <bit>
#include <cstring>
#include <initializer_list>

#include "runtime.h"

struct StandInOperation {
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
};
struct StandInLayout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t ld;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};
struct StandInPreference {
  std::uint64_t workspace = 0;
  std::uint32_t a = 256, b = 256, c = 256, d = 256;
};
struct cublasLtContext {};

namespace {

float get(const void* array, cudaDataType type, std::int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(array)[i];
  return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(array)[i]) << 16);
}
void put(void* array, cudaDataType type, std::int64_t i, float v) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(array)[i] = v;
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(v);
  static_cast<std::uint16_t*>(array)[i] =
      v != v ? 0x7FC0 : static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// One product of a batch: D [m, n] column-major.
struct Product {
  StandInOperation operation;
  StandInLayout a, b, d;
  float alpha, beta;
  const void *a_at, *b_at;
  void* d_at;

  std::int64_t inner() const { return static_cast<std::int64_t>(operation.a == CUBLAS_OP_N ? a.columns : a.rows); }
  void run(std::int64_t batch) const {
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(d.columns); ++j) {
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(d.rows); ++i) element(batch, i, j);
    }
  }
  void element(std::int64_t batch, std::int64_t i, std::int64_t j) const {
    const bool a_plain = operation.a == CUBLAS_OP_N, b_plain = operation.b == CUBLAS_OP_N;
    const std::int64_t a_first = batch * a.stride + (a_plain ? i : i * a.ld), a_step = a_plain ? a.ld : 1;
    const std::int64_t b_first = batch * b.stride + (b_plain ? j * b.ld : j), b_step = b_plain ? 1 : b.ld;
    double sum = 0;
    for (std::int64_t k = 0; k < inner(); ++k) {
      const double u = get(a_at, a.type, a_first + k * a_step), v = get(b_at, b.type, b_first + k * b_step);
      sum += u * v;
    }
    const std::int64_t at = batch * d.stride + j * d.ld + i;
    const double before = beta == 0 ? 0 : static_cast<double>(beta) * get(d_at, d.type, at);
    put(d_at, d.type, at, static_cast<float>(alpha * sum + before));
  }
};

std::uint64_t mixed(std::uint64_t h, std::uint64_t v) { return (h ^ v) * 0x9E3779B97F4A7C15u; }
std::uint64_t shape_hash(const StandInOperation& o, std::initializer_list<const StandInLayout*> layouts) {
  std::uint64_t h = mixed(mixed(1, o.a), o.b);
  for (const StandInLayout* l : layouts) {
    h = mixed(mixed(mixed(h, l->type), l->rows), l->columns);
    h = mixed(mixed(mixed(h, static_cast<std::uint64_t>(l->ld)), static_cast<std::uint64_t>(l->batch)),
              static_cast<std::uint64_t>(l->stride));
  }
  return h;
}

bool sizes_agree(const StandInOperation& o, const StandInLayout& a, const StandInLayout& b, const StandInLayout& d) {
  const std::uint64_t m = o.a == CUBLAS_OP_N ? a.rows : a.columns, k = o.a == CUBLAS_OP_N ? a.columns : a.rows;
  const std::uint64_t n = o.b == CUBLAS_OP_N ? b.columns : b.rows, other = o.b == CUBLAS_OP_N ? b.rows : b.columns;
  return k == other && d.rows == m && d.columns == n && a.type == b.type && a.batch == b.batch && a.batch == d.batch;
}
bool ld_is_enough(const StandInLayout& l) { return l.ld >= static_cast<std::int64_t>(l.rows) && l.rows > 0; }

bool on_boundary(const void* at, std::uint64_t align) { return reinterpret_cast<std::uintptr_t>(at) % align == 0; }

cublasStatus_t status_of(cudaError_t error) {
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return status_of(stand_in::count_call("cublasLtCreate"));
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : "another status";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType) {
  *desc = new StandInOperation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  if (bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &desc->a : &desc->b, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
  *layout = new StandInLayout{type, rows, columns, ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  const bool count = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (bytes != (count ? sizeof layout->batch : sizeof layout->stride)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(count ? static_cast<void*>(&layout->batch) : &layout->stride, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new StandInPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  const auto set = [&](auto& field) {
    if (bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  std::uint32_t scheme = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(scheme);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference->a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference->b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference->c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference->d);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  if (const cudaError_t error = stand_in::count_call("cublasLtMatmulAlgoGetHeuristic"); error != cudaSuccess)
    return status_of(error);
  if (wanted < 1 || !sizes_agree(*operation, *a, *b, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  for (const StandInLayout* l : {a, b, c, d}) {
    if (!ld_is_enough(*l)) return CUBLAS_STATUS_INVALID_VALUE;
  }
  *results = {};
  results->algo = {
      {shape_hash(*operation, {a, b, d}), preference->workspace, preference->a, preference->b, preference->d, 0, 0, 0}};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const std::uint64_t(&promised)[8] = algorithm->data;
  if (promised[0] != shape_hash(*operation, {a_layout, b_layout, d_layout})) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (c != d || workspace_bytes < promised[1] || !on_boundary(workspace, 64)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!on_boundary(a, promised[2]) || !on_boundary(b, promised[3]) || !on_boundary(d, promised[4]))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Product product{
      *operation, *a_layout, *b_layout, *d_layout, *static_cast<const float*>(alpha), *static_cast<const float*>(beta),
      a,          b,         d};
  return status_of(stand_in::enqueue(stream, "cublasLtMatmul", [product, workspace] {
    std::memset(workspace, 0xCB, 4096);
    for (std::int64_t i = 0; i < product.d.batch; ++i) product.run(i);
  }));
}

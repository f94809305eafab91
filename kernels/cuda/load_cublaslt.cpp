#include "base/library.h"
#include "kernels/cuda/cublaslt.h"

namespace transload::kernels::cuda {
namespace {

#define TRANSLOAD_TEXT_OF(x) #x
#define TRANSLOAD_TEXT(x) TRANSLOAD_TEXT_OF(x)
constexpr const char* kLibrary = "libcublasLt.so." TRANSLOAD_TEXT(CUBLAS_VER_MAJOR);
#undef TRANSLOAD_TEXT
#undef TRANSLOAD_TEXT_OF

CublasLt load() {
  const Library library(kLibrary, "--device cuda needs cuBLASLt for its matrix products");
  CublasLt t;
  library.take("cublasLtCreate", t.create);
  library.take("cublasLtDestroy", t.destroy);
  library.take("cublasLtGetVersion", t.version);
  library.take("cublasLtGetStatusName", t.status_name);
  library.take("cublasLtMatmulDescCreate", t.desc_create);
  library.take("cublasLtMatmulDescDestroy", t.desc_destroy);
  library.take("cublasLtMatmulDescSetAttribute", t.desc_set);
  library.take("cublasLtMatrixLayoutCreate", t.layout_create);
  library.take("cublasLtMatrixLayoutDestroy", t.layout_destroy);
  library.take("cublasLtMatrixLayoutSetAttribute", t.layout_set);
  library.take("cublasLtMatmulPreferenceCreate", t.preference_create);
  library.take("cublasLtMatmulPreferenceDestroy", t.preference_destroy);
  library.take("cublasLtMatmulPreferenceSetAttribute", t.preference_set);
  library.take("cublasLtMatmulAlgoGetHeuristic", t.heuristic);
  library.take("cublasLtMatmul", t.matmul);
  return t;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt table = load();  // stays loaded
  return table;
}

}  // namespace transload::kernels::cuda

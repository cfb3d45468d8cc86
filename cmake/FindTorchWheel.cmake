# Imported target neap_libtorch from a torch wheel unpacked by pip --target (NEAP_TORCH_ROOT).
# Only torch_cpu and c10 are linked; libtorch_cuda is loaded at run time when a GPU is there.
include_guard(GLOBAL)
if(NOT EXISTS "${NEAP_TORCH_ROOT}/torch/include/ATen/ATen.h")
  message(FATAL_ERROR "NEAP_TORCH_ROOT is \"${NEAP_TORCH_ROOT}\", which holds no torch/include/ATen/ATen.h. "
                      "Run scripts/setup (it prints the folder), or: "
                      "pip install --no-deps --target DIR torch==2.11.0 nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88")
endif()
if(NOT EXISTS "${NEAP_TORCH_ROOT}/nvidia/cu13/include/crt/host_config.h")
  message(FATAL_ERROR "NEAP_TORCH_ROOT, ${NEAP_TORCH_ROOT}, holds no nvidia/cu13/include/crt. Run scripts/setup.")
endif()
add_library(neap_libtorch INTERFACE)
target_include_directories(neap_libtorch SYSTEM INTERFACE ${NEAP_TORCH_ROOT}/torch/include
                                                          ${NEAP_TORCH_ROOT}/torch/include/torch/csrc/api/include)
target_link_directories(neap_libtorch INTERFACE ${NEAP_TORCH_ROOT}/torch/lib)
target_link_libraries(neap_libtorch INTERFACE torch_cpu c10)
target_compile_options(neap_libtorch INTERFACE -Wno-shadow -Wno-conversion -Wno-sign-conversion)
# RPATH, not RUNPATH: libtorch_cpu.so finds cupti and cudart through the executable's.
target_link_options(neap_libtorch INTERFACE -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags
  -Wl,-rpath,${NEAP_TORCH_ROOT}/torch/lib -Wl,-rpath,${NEAP_TORCH_ROOT}/nvidia/cu13/lib)

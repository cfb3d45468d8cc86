# Imported target neap_libtorch from a torch wheel unpacked by pip --target (NEAP_TORCH_ROOT).
# Only torch_cpu and c10 are linked; libtorch_cuda is loaded at run time when a GPU is there.
include_guard(GLOBAL)
if(NOT EXISTS "${NEAP_TORCH_ROOT}/torch/include/ATen/ATen.h")
  message(FATAL_ERROR "NEAP_TORCH_ROOT is \"${NEAP_TORCH_ROOT}\", which holds no torch/include/ATen/ATen.h. "
                      "Run scripts/setup (it prints the folder), or: pip install --no-deps --target DIR -r scripts/torch-requirements.txt")
endif()
if(NOT EXISTS "${NEAP_TORCH_ROOT}/nvidia/cu13/include/crt/host_config.h")
  message(FATAL_ERROR "NEAP_TORCH_ROOT, ${NEAP_TORCH_ROOT}, holds no nvidia/cu13/include/crt. Run scripts/setup.")
endif()
add_library(neap_libtorch INTERFACE)
target_include_directories(neap_libtorch SYSTEM INTERFACE ${NEAP_TORCH_ROOT}/torch/include
                                                          ${NEAP_TORCH_ROOT}/torch/include/torch/csrc/api/include)
# By path: CMake then puts the folder into the build folder's run paths, and leaves it out of what is installed.
target_link_libraries(neap_libtorch INTERFACE ${NEAP_TORCH_ROOT}/torch/lib/libtorch_cpu.so ${NEAP_TORCH_ROOT}/torch/lib/libc10.so)
target_compile_options(neap_libtorch INTERFACE -Wno-shadow -Wno-conversion -Wno-sign-conversion)
# RPATH, not RUNPATH: it also serves the libraries that libtorch loads by name at run time.
target_link_options(neap_libtorch INTERFACE -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags)

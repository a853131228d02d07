# A room is a folder of wick/ and one static library; it links only the rooms that it may know.
#   wick_room(NAME LINK public... [PRIVATE private...])
function(wick_room name)
  cmake_parse_arguments(ARG "" "" "LINK;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/wick/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/backend/cuda/")  # a module of its own (WickCuda.cmake)
  add_library(wick_${name} STATIC ${sources})
  target_include_directories(wick_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_features(wick_${name} PUBLIC cxx_std_20)
  target_link_libraries(wick_${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE} wick_flags wick_sanitizers)
  add_library(wick::${name} ALIAS wick_${name})
  if(WICK_SANITIZE)
    wick_precompile(wick_${name})
  endif()
endfunction()

# Most of the time of a small file goes into the standard library's headers, and some others. Rooms have them precompiled in
# sanitized builds alone: else ccache shares their objects with builds elsewhere.
#   wick_precompile(TARGET [HEADER...])
function(wick_precompile target)
  target_precompile_headers(${target} PRIVATE ${ARGN} <algorithm> <filesystem> <functional> <map> <memory> <optional>
                            <string> <vector> <fmt/format.h>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # ccache asks for the first. With precompiled headers GCC 12 takes copies within std::string for overruns.
    target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow
                                             -Wno-stringop-overread -Wno-restrict)
  else()  # clang would keep times of files, which ccache does not restore
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
endfunction()

# Leaves out optimisation in the presets for development, for programs that take longer to compile than to run.
function(wick_compile_fast target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:None>:-O0>)
endfunction()

# One test program per folder of tests/, with CTest labels `fast` (the default) or `cpu` (longer than a few seconds).
#   wick_test(FOLDER LINK rooms... [LABEL label] [CUDA dtypes...])
# With CUDA the rows also stand under the label `cuda`, once for each dtype of activations.
function(wick_test folder)
  cmake_parse_arguments(ARG "" "LABEL" "LINK;CUDA" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.cpp)
  add_executable(test_${folder} ${sources})
  target_link_libraries(test_${folder} PRIVATE ${ARG_LINK} GTest::gtest_main wick_flags)
  target_include_directories(test_${folder} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  wick_precompile(test_${folder} <gtest/gtest.h>)
  wick_compile_fast(test_${folder})
  target_compile_definitions(test_${folder} PRIVATE WICK_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                    WICK_BINARY="$<TARGET_FILE:wick>")
  # Several tests run at once, and their models are too small for a second thread; kernels have several.
  set(properties LABELS ${ARG_LABEL} TIMEOUT 600)
  if(NOT folder MATCHES "^(backend|autograd|ops)$")
    list(APPEND properties ENVIRONMENT WICK_THREADS=1)
  endif()
  gtest_discover_tests(test_${folder} TEST_PREFIX ${folder}. DISCOVERY_TIMEOUT 60
                       PROPERTIES ${properties})
  if(WICK_CUDA STREQUAL OFF)
    return()
  endif()
  foreach(dtype IN LISTS ARG_CUDA)
    gtest_discover_tests(test_${folder} TEST_PREFIX cuda.${dtype}.${folder}. TEST_LIST test_${folder}_${dtype}
                         PROPERTIES LABELS cuda ENVIRONMENT "WICK_TEST_DEVICE=cuda;WICK_TEST_DTYPE=${dtype}")
  endforeach()
endfunction()

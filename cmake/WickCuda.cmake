# The CUDA backend, a module that the program opens at run time: libwick-cuda.so. WICK_CUDA chooses the build:
#   AUTO     as a module where a CUDA toolkit (12 or newer) and a GPU are found, else not at all
#   TOOLKIT  as a module where a toolkit is found, else not at all
#   MODULE   as a module; STATIC: into the programs; OFF: not at all
# WICK_CUDA_ARCHITECTURES is CMake's CMAKE_CUDA_ARCHITECTURES, or `native`: this machine's GPUs, 9.0a where there is none.
set(WICK_CUDA AUTO CACHE STRING "AUTO, TOOLKIT, MODULE, STATIC or OFF")
set(WICK_CUDA_ARCHITECTURES "75-real;80-real;86-real;89-real;90a-real;100-real;120-real;90-virtual;120-virtual"
    CACHE STRING "Architectures of the kernels")

# A module works with a program only if both were built against the same contract.
file(GLOB contract CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/wick/core/*.h ${PROJECT_SOURCE_DIR}/wick/backend/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${contract})
set(digests ${PROJECT_VERSION} ${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION})
foreach(header IN LISTS contract)
  file(SHA256 ${header} digest)
  list(APPEND digests ${digest})
endforeach()
string(SHA256 WICK_BUILD_ID "${digests}")
string(SUBSTRING ${WICK_BUILD_ID} 0 16 WICK_BUILD_ID)

# The compute capabilities of this machine's GPUs: "9.0", "12.0".
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE capabilities ERROR_QUIET)
string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${capabilities}")
list(REMOVE_DUPLICATES capabilities)
if(WICK_CUDA STREQUAL AUTO AND NOT capabilities)
  set(WICK_CUDA OFF)
endif()
if(WICK_CUDA STREQUAL OFF)
  return()
endif()
include(CheckLanguage)
set(wheels ${PROJECT_SOURCE_DIR}/build/wheels)  # filled by scripts/setup-cuda
if(NOT CMAKE_CUDA_COMPILER AND EXISTS ${wheels}/nvidia/cu13/bin/nvcc)
  set(CMAKE_CUDA_COMPILER ${wheels}/nvidia/cu13/bin/nvcc)
endif()
check_language(CUDA)
find_path(WICK_CUDNN_FRONTEND cudnn_frontend.h HINTS ${wheels}/include)
find_path(WICK_CUDNN cudnn.h HINTS ${wheels}/nvidia/cudnn/include /usr/local/cuda/include)
if(WICK_CUDA MATCHES "AUTO|TOOLKIT" AND NOT (CMAKE_CUDA_COMPILER AND WICK_CUDNN_FRONTEND AND WICK_CUDNN))
  message(STATUS "No CUDA toolkit with cuDNN and cudnn-frontend: for the CPU alone (scripts/setup cuda gets them)")
  set(WICK_CUDA OFF)
  return()
endif()
if(NOT (WICK_CUDNN_FRONTEND AND WICK_CUDNN))
  message(FATAL_ERROR "WICK_CUDA=${WICK_CUDA} needs the headers of cuDNN 9 and of cudnn-frontend: scripts/setup cuda gets them")
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT WICK_CUDA_ARCHITECTURES STREQUAL native)
  set(CMAKE_CUDA_ARCHITECTURES ${WICK_CUDA_ARCHITECTURES})
elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  list(TRANSFORM capabilities REPLACE "\\." "")
  list(TRANSFORM capabilities REPLACE "^90$" "90a")  # wgmma and TMA
  list(TRANSFORM capabilities APPEND -real)
  set(CMAKE_CUDA_ARCHITECTURES ${capabilities})
  if(NOT capabilities)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)  # without Blackwell
  list(FILTER CMAKE_CUDA_ARCHITECTURES EXCLUDE REGEX "^1[0-9][0-9]")
endif()
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc's flag
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit 12 REQUIRED)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
# The folders of cuBLASLt and cuDNN, searched before the system's: beside the toolkit and the headers in use.
cmake_path(GET WICK_CUDNN PARENT_PATH cudnn)
list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR} ${cudnn}/lib)

file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/wick/backend/cuda/*.cpp ${PROJECT_SOURCE_DIR}/wick/backend/cuda/*.cu)
set_property(SOURCE ${PROJECT_SOURCE_DIR}/wick/backend/cuda/linear/k_blocks.cu APPEND PROPERTY COMPILE_OPTIONS -fmad=false)
# It takes a minute with -O1; the presets for development do without.
set_property(SOURCE ${PROJECT_SOURCE_DIR}/wick/backend/cuda/runtime/cudnn.cpp APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:None>:-O0>)
# Compiled once, for the module (or the programs) and for test_cuda, which plans without a device.
add_library(wick_cuda_objects OBJECT ${sources})
set_target_properties(wick_cuda_objects PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)  # see CMakeLists.txt
if(WICK_CUDA STREQUAL STATIC)
  add_library(wick_cuda STATIC)
  target_compile_definitions(wick_backend PRIVATE WICK_CUDA_STATIC)
  target_link_libraries(wick_backend PUBLIC wick_cuda)
else()
  add_library(wick_cuda MODULE wick/backend/composed.cpp wick/backend/decoded_weights.cpp)  # programs have them in wick_backend
  target_include_directories(wick_cuda PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(wick_cuda PROPERTIES OUTPUT_NAME wick-cuda LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_link_options(wick_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
endif()
set_target_properties(wick_cuda PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(wick_cuda PRIVATE wick_cuda_objects)
target_include_directories(wick_cuda_objects PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(wick_cuda_objects SYSTEM PRIVATE ${WICK_CUDNN_FRONTEND} ${WICK_CUDNN})
# cuBLASLt and cuDNN are opened on first use, so only their headers are needed here.
# Of one file, so that the others are compiled again only where a header of theirs has changed.
set_property(SOURCE wick/backend/cuda/module.cpp APPEND PROPERTY COMPILE_DEFINITIONS WICK_BUILD_ID="${WICK_BUILD_ID}")
target_compile_definitions(wick_cuda_objects PRIVATE NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
  $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)  # fmt 9 would not use it under nvcc
target_link_libraries(wick_cuda_objects PUBLIC wick::core CUDA::cudart_static ${CMAKE_DL_LIBS})
target_compile_options(wick_cuda_objects PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-missing-field-initializers $<$<BOOL:${WICK_WERROR}>:-Werror>>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)

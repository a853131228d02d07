# Everything Wick stands on, all from Debian's packages (scripts/setup installs them; docs/dependencies.md has licences).
# Global, since every user of Wick links them, even from another folder.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(fmt 9 REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED)
find_package(dnnl REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET GLOBAL libhwy)
pkg_check_modules(codecs REQUIRED IMPORTED_TARGET GLOBAL libjpeg libpng libwebp libwebpdemux libtiff-4 zlib)
pkg_check_modules(unicode REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8 libutf8proc)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET GLOBAL yaml-0.1)
find_path(STB_INCLUDE_DIR stb/stb_image_resize.h REQUIRED)
find_file(WICK_FONT DejaVuSans.ttf PATHS /usr/share/fonts PATH_SUFFIXES truetype/dejavu dejavu dejavu-sans-fonts TTF REQUIRED)
find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_writer.hpp REQUIRED)

add_library(wick_image_codecs INTERFACE)
target_link_libraries(wick_image_codecs INTERFACE PkgConfig::codecs)
target_include_directories(wick_image_codecs SYSTEM INTERFACE ${STB_INCLUDE_DIR})

add_library(protozero::protozero INTERFACE IMPORTED GLOBAL)
target_include_directories(protozero::protozero SYSTEM INTERFACE ${PROTOZERO_INCLUDE_DIR})

if(WICK_PROGRAM)
  pkg_check_modules(editline REQUIRED IMPORTED_TARGET libedit)
endif()
if(WICK_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
if(WICK_BENCH)
  find_package(benchmark REQUIRED)
endif()

# Warnings, for our own sources. Sanitizers, for the library: what tests do with it is checked there.
add_library(wick_flags INTERFACE)
target_compile_options(wick_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers
                                            $<$<BOOL:${WICK_WERROR}>:-Werror>)
add_library(wick_sanitizers INTERFACE)
if(WICK_SANITIZE)
  target_compile_options(wick_sanitizers INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined
                                                   -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

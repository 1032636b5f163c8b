# Cross-compiles the op library for arm64 Linux with zig, whose PyPI package `ziglang` holds the
# compiler, the C++ library and the headers and stubs of every glibc: no sysroot, no root rights.
# ORTLOOM_ZIG names the binary; ORTLOOM_GLIBC the oldest glibc that the library shall run on.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
if(NOT DEFINED ORTLOOM_ZIG)
  set(ORTLOOM_ZIG "$ENV{ORTLOOM_ZIG}")
endif()
if(NOT EXISTS "${ORTLOOM_ZIG}")
  message(FATAL_ERROR "ORTLOOM_ZIG must be the path of zig, but is \"${ORTLOOM_ZIG}\"")
endif()
if(NOT DEFINED ORTLOOM_GLIBC)
  set(ORTLOOM_GLIBC 2.28)
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ORTLOOM_ZIG ORTLOOM_GLIBC)
set(CMAKE_CXX_COMPILER "${ORTLOOM_ZIG}" c++ -target aarch64-linux-gnu.${ORTLOOM_GLIBC})
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)

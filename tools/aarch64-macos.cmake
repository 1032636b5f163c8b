# Cross-compiles the op library for arm64 macOS with zig, whose PyPI package `ziglang` holds the
# compiler, the C++ library and Darwin's headers and stubs: no SDK. ORTLOOM_ZIG names the binary.
# For checking that everything compiles and links; what it makes has not run on a Mac.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
if(NOT DEFINED ORTLOOM_ZIG)
  set(ORTLOOM_ZIG "$ENV{ORTLOOM_ZIG}")
endif()
if(NOT EXISTS "${ORTLOOM_ZIG}")
  message(FATAL_ERROR "ORTLOOM_ZIG must be the path of zig, but is \"${ORTLOOM_ZIG}\"")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ORTLOOM_ZIG)
set(CMAKE_CXX_COMPILER "${ORTLOOM_ZIG}" c++ -target aarch64-macos)

// Faults that a sanitised build has to stop; called through ctypes by test_sanitizers.py.
#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" __attribute__((visibility("default"))) int ReadPastTheEnd(int count) {
  std::vector<int32_t> values(static_cast<std::size_t>(count), 1);
  volatile int32_t* data = values.data();
  return data[count];
}

extern "C" __attribute__((visibility("default"))) int OverflowInt(int value) {
  volatile int32_t largest = INT32_MAX;
  return largest + value;
}

// Reads the file of calls and writes that of results, which are what tests/kernels/op_host.py writes
// and reads: numbers are little-endian, a text is a u32 length and its bytes.
#ifndef ORTLOOM_HOST_FILES_H_
#define ORTLOOM_HOST_FILES_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "host_ort.h"

namespace {

class Reader {
 public:
  explicit Reader(const char* path) : in_(path, std::ios::binary) {
    if (!in_) die(std::string("cannot read ") + path);
  }
  bool more() { return in_.peek() != std::ifstream::traits_type::eof(); }
  void bytes(void* to, size_t size) {
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(size));
    if (static_cast<size_t>(in_.gcount()) != size) die("the file of calls ends too early");
  }
  template <class T>
  T number() {
    T value;
    bytes(&value, sizeof(value));
    return value;
  }
  std::string text() {
    std::string out(number<uint32_t>(), '\0');
    bytes(&out[0], out.size());
    return out;
  }
  // Null for an input that is left out.
  std::unique_ptr<OrtValue> tensor() {
    const int32_t type = number<int32_t>();
    if (type == 0) return nullptr;
    auto value = std::make_unique<OrtValue>();
    std::vector<int64_t> shape(number<uint32_t>());
    for (int64_t& size : shape) size = number<int64_t>();
    allocate(value.get(), type, shape.data(), shape.size());
    bytes(value->data, value->bytes);
    return value;
  }

 private:
  std::ifstream in_;
};

class Writer {
 public:
  explicit Writer(const char* path) : out_(path, std::ios::binary) {}
  void bytes(const void* from, size_t size) {
    out_.write(static_cast<const char*>(from), static_cast<std::streamsize>(size));
  }
  template <class T>
  void number(T value) {
    bytes(&value, sizeof(value));
  }
  void text(const std::string& value) {
    number(static_cast<uint32_t>(value.size()));
    bytes(value.data(), value.size());
  }
  void tensor(const OrtValue& value) {
    number(value.type);
    number(static_cast<uint32_t>(value.shape.size()));
    for (const int64_t size : value.shape) number(size);
    bytes(value.data, value.bytes);
  }
  void close() {
    out_.close();
    if (!out_) die("the results cannot be written");
  }

 private:
  std::ofstream out_;
};

}  // namespace

#endif  // ORTLOOM_HOST_FILES_H_

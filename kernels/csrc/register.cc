extern "C" __attribute__((visibility("default"))) int OrtloomPlaceholder() { return 0; }

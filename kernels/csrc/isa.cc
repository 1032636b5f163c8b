#include "isa.h"

namespace ortloom {
namespace {

struct Table {
  Tier list[kMaxTiers];
  int count = 0;

  Table() {
#if defined(ORTLOOM_X86_TIERS) || defined(ORTLOOM_ARM64_TIERS)
    count = list_processor_tiers(list);
#endif
    list[count++] = {"portable", &kPortableKernels, &kPortableLinear, ""};
  }
};

}  // namespace

const Tier* tiers(int* count) {
  static const Table table;
  *count = table.count;
  return table.list;
}

}  // namespace ortloom

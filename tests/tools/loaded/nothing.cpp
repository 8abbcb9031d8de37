#include <tilewright/kernel.h>

int no_kernel_at_all() { return 0; }

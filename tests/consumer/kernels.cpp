// Kernels of a user's own for the command line: tw --load libmine.so run scale_1000.
#include <tilewright/kernel.h>

using namespace tw;

TW_KERNEL("scale_1000",
          [](const Target& target) -> Schedule {
              Tensor x = input("x", f32, {1000});
              Tensor y = compute("y", {1000}, [&](Expr i) { return x(i) * 2.0f; });
              Schedule s({y}, target);
              auto [block, inside] = s.split(s.loops<1>(y)[0], 128, Tail::Mask);
              s.bind(block, grid.x);
              s.bind(inside, thread);
              return s;
          },
          {.description = "y = 2 x", .flops = 1000, .bytes = 8000});

// Kernels of one's own, by name, beside those of the catalog:
//
//   TW_KERNEL("scale_1000", [](const Target& target) -> Schedule {
//       Tensor x = input("x", f32, {1000});
//       Tensor y = compute("y", {1000}, [&](Expr i) { return x(i) * 2.0f; });
//       Schedule s({y}, target);
//       ...
//       return s;
//   });
//
// at namespace scope. find_kernel("scale_1000") of catalog.h finds it in the program that it is compiled into, and
// `tw --load libmine.so` in a shared object.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "schedules/catalog.h"
#include "support/version.h"

namespace tw::schedules {

struct KernelFacts {
    std::string description = {};
    double flops = 0;  ///< in one run
    double bytes = 0;  ///< to be moved in one run, if it is known
};

/// What both sides of a shared object must agree on. Only plain members: it is read before they are known to agree.
struct KernelInterface {
    const char* version;    ///< the library's, as its headers say
    int compiler;           ///< its binary interface
    int strings;            ///< the C++ library's
    size_t schedule_bytes;  ///< of the types that pass
    size_t target_bytes;
    size_t facts_bytes;
};
inline constexpr KernelInterface kernel_interface = {TILEWRIGHT_VERSION, __GXX_ABI_VERSION, _GLIBCXX_USE_CXX11_ABI,
                                                     sizeof(Schedule),   sizeof(Target),    sizeof(KernelFacts)};

using MakeSchedule = std::function<Schedule(const Target&)>;

/// What TW_KERNEL stands for. What is wrong with it, registered_kernels() says.
class RegisteredKernel {
public:
    RegisteredKernel(const KernelInterface& interface, const char* file, int line, const char* name,
                     const MakeSchedule& make, const KernelFacts& facts = {});
    ~RegisteredKernel();
    RegisteredKernel(const RegisteredKernel&) = delete;
    RegisteredKernel& operator=(const RegisteredKernel&) = delete;
};

struct UserKernel {
    CatalogEntry entry;
    std::string place;  ///< "mine.cpp:31"
};

/// In the order in which they were registered. Throws Error for two of one name, a name of the library's kernels or
/// none that a kernel can have, and what was compiled against another version.
std::vector<const UserKernel*> registered_kernels();

}  // namespace tw::schedules

#define TW_KERNEL_JOINED(a, b) a##b
#define TW_KERNEL_NUMBERED(number) TW_KERNEL_JOINED(tw_registered_kernel_, number)
/// TW_KERNEL("name", make) or TW_KERNEL("name", make, {.description = "y = 2 x", .flops = 1000, .bytes = 8000}).
#define TW_KERNEL(...)                                                                                                \
    static const ::tw::schedules::RegisteredKernel TW_KERNEL_NUMBERED(__COUNTER__)(::tw::schedules::kernel_interface, \
                                                                                   __FILE__, __LINE__, __VA_ARGS__)

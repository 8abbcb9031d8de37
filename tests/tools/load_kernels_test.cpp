#include "schedules/load_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/check.h"
#include "ops/executable.h"
#include "schedules/register_kernel.h"
#include "tests/support/expect_error.h"

TW_KERNEL("of_this_program", [](const tw::Target& target) -> tw::Schedule {
    tw::Tensor x = tw::input("x", tw::f32, {8});
    tw::Tensor y = tw::compute("y", {8}, [&](tw::Expr i) { return x(i) * 3.0f; });
    return tw::Schedule({y}, target);
});

namespace tw {
namespace {

using schedules::find_kernel;
using schedules::registered_kernels;
using schedules::RegisteredKernel;

Schedule any_schedule(const Target& target) { return find_kernel("of_this_program")->make(target); }

TEST(RegisteredKernels, OfAProgramAreFoundByName) {
    ASSERT_NE(find_kernel("of_this_program"), nullptr);
    EXPECT_EQ(find_kernel("of_this_program")->make(target("sm_90a")).outputs()[0].name(), "y");
    EXPECT_EQ(schedules::find_library_kernel("of_this_program"), nullptr);
    const auto kernels = registered_kernels();
    auto ours = std::find_if(kernels.begin(), kernels.end(),
                             [](const auto* kernel) { return kernel->entry.name == "of_this_program"; });
    ASSERT_NE(ours, kernels.end());
    EXPECT_EQ((*ours)->place, "load_kernels_test.cpp:11");
}

TEST(RegisteredKernels, LastAsLongAsTheirRegistration) {
    {
        RegisteredKernel one(schedules::kernel_interface, "a/b.cpp", 7, "for_a_while", any_schedule,
                             {.description = "three times", .flops = 8, .bytes = 64});
        const auto* entry = find_kernel("for_a_while");
        ASSERT_NE(entry, nullptr);
        EXPECT_EQ(entry->description, "three times");
        EXPECT_EQ(entry->flops, 8);
        EXPECT_EQ(entry->bytes, 64);
        EXPECT_EQ(entry->make(target("sm_80")).outputs()[0].name(), "y");
    }
    EXPECT_EQ(find_kernel("for_a_while"), nullptr);
}

/// Registered only here, as what is wrong is told as long as it is registered.
void expect_refused(const char* name, const schedules::MakeSchedule& make, const std::string& message) {
    RegisteredKernel one(schedules::kernel_interface, "a/b.cpp", 7, name, make);
    EXPECT_ERROR(registered_kernels(), message);
    EXPECT_ERROR(find_kernel("of_this_program"), message);
}

TEST(RegisteredKernels, RefuseNames) {
    expect_refused("two words", any_schedule,
                   "b.cpp:7: TW_KERNEL(\"two words\"): a name has letters, digits and _, and no others");
    expect_refused("", any_schedule, "b.cpp:7: TW_KERNEL(\"\"): a name has letters");
    expect_refused("of_this_program", any_schedule,
                   "b.cpp:7: TW_KERNEL(\"of_this_program\"): load_kernels_test.cpp:11 has a kernel of this name");
    expect_refused("softmax_131x37", any_schedule, "the library has a kernel of this name; choose another");
    expect_refused("product_3x4x5", any_schedule, "the library has a kernel of this name; choose another");
    expect_refused("no_function", nullptr, "TW_KERNEL(\"no_function\"): there is no function that makes the schedule");
    EXPECT_NE(find_kernel("of_this_program"), nullptr);
}

TEST(RegisteredKernels, RefuseOtherVersions) {
    schedules::KernelInterface other = schedules::kernel_interface;
    other.schedule_bytes += 8;
    RegisteredKernel one(other, "a/b.cpp", 7, "other", any_schedule);
    EXPECT_ERROR(registered_kernels(), "b.cpp:7: this kernel was built against Tilewright " TILEWRIGHT_VERSION " (");
}

TEST(LoadKernels, RunsWhatAUserWrote) {
    load_kernels(LOADED_KERNELS);
    load_kernels(LOADED_KERNELS);  // again: nothing
    for (const char* name : {"loaded_scale_1000", "loaded_sums"}) {
        ASSERT_NE(find_kernel(name), nullptr) << name;
        Schedule s = find_kernel(name)->make(target("sm_90a"));
        Bindings bindings = random_bindings(s.outputs(), 3);
        Executable executable(build(s), open_device("emulated"));
        CheckResult check = check_output(s.outputs()[0], bindings, run_on(executable, bindings)[0]);
        EXPECT_TRUE(check.ok) << name << ": " << check.text;
    }
    EXPECT_EQ(find_kernel("loaded_sums")->description, "y = sums of columns");
    EXPECT_ERROR(load_kernels(LOADED_OF_ONE_NAME),
                 "of_one_name.cpp:3: TW_KERNEL(\"loaded_scale_1000\"): kernels.cpp:8 has a kernel of this name");
    EXPECT_NO_THROW(registered_kernels());  // what was refused is gone
}

TEST(LoadKernels, RefusesWhatIsNone) {
    EXPECT_ERROR(load_kernels("/nowhere/libmine.so"), "--load: there is no file '/nowhere/libmine.so'");
    EXPECT_ERROR(load_kernels("/tmp"), "--load: there is no file '/tmp'");
    EXPECT_ERROR(load_kernels("tests/tools/CMakeLists.txt"), "--load: cannot load 'tests/tools/CMakeLists.txt': ");
    EXPECT_ERROR(load_kernels("/proc/self/exe"), "link it with -shared");
    EXPECT_ERROR(load_kernels(LOADED_MISSING_SYMBOL),
                 "it may have been built against another version than " TILEWRIGHT_VERSION ": build it anew");
    EXPECT_ERROR(load_kernels(LOADED_NOTHING), "has no kernels; name some with TW_KERNEL of <tilewright/kernel.h>");
    EXPECT_ERROR(load_kernels(LOADED_OF_ANOTHER_VERSION),
                 "of_another_version.cpp:3: this kernel was built against Tilewright 0.0.7 (");
    EXPECT_ERROR(load_kernels(LOADED_OF_THE_LIBRARY),
                 "of_the_library.cpp:3: TW_KERNEL(\"softmax_131x37\"): the library has a kernel of this name");
}

}  // namespace
}  // namespace tw

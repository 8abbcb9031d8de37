// Memory, streams and events of others: what is checked, and that nothing of theirs is freed.
#include "runtime/driver/cuda_device.h"
#include "runtime/driver/emulated_device.h"
#include "tests/runtime/support.h"

namespace tw {
namespace {

struct WrappedOnCuda : testing::Test {
    Driver driver = fake_driver();
    std::shared_ptr<Device> device = make_cuda_device(driver, 0);
    Buffer x = device->allocate(4000, "x");

    void TearDown() override {
        x = {};
        device = nullptr;
        EXPECT_EQ(fake().num_alive, 0);
        EXPECT_EQ(fake().num_misuses, 0);
    }
};

TEST_F(WrappedOnCuda, MemoryIsWhatTheDriverKnows) {
    EXPECT_EQ(device->wrap(x.pointer() + 400, 3600, "rest").bytes(), 3600);
    EXPECT_EQ(device->wrap(x.pointer() + 8, 0, "nothing").bytes(), 0);
    float on_the_host = 0;
    EXPECT_ERROR(device->wrap(&on_the_host, 4, "x of PyTorch"), "wrap 'x of PyTorch': 4 bytes at 0x");
    EXPECT_ERROR(device->wrap(&on_the_host, 4, "x"), "the driver of Fake H200 knows no memory there; is it a host");
    EXPECT_ERROR(device->wrap(x.pointer() + 400, 3697, "x of PyTorch"), "leave their allocation of 4096 bytes from 0x");
    EXPECT_ERROR(device->wrap(x.pointer() + 400, 3697, "x of PyTorch"), "on: 3696 are left there");
    fake().memory_device = 1;
    EXPECT_ERROR(device->wrap(x.pointer(), 16, "x of PyTorch"), "belong to device 1; this is Fake H200, device 0");
    EXPECT_THROW(device->wrap(x.pointer(), 16), LaunchError);
}

TEST_F(WrappedOnCuda, PointersThatCannotBeAreRefusedOnAllDevices) {
    for (const std::shared_ptr<Device>& any : {device, open_device("emulated"), open_device("null")}) {
        EXPECT_ERROR(any->wrap(uint64_t{0}, 16, "y of cuBLAS"), "wrap 'y of cuBLAS': 16 bytes at a null pointer");
        EXPECT_ERROR(any->wrap(x.pointer(), -1, "y"), "wrap 'y': -1 bytes");
        EXPECT_ERROR(any->wrap(UINT64_MAX - 7, 16, "y"), "wrap 'y': 16 bytes from 0xfffffffffffffff8 on leave the");
    }
}

TEST_F(WrappedOnCuda, StreamsAreUsedAndNotDestroyed) {
    Stream own = device->create_stream();
    EXPECT_TRUE(own.owning());
    long alive = fake().num_alive;
    {
        Stream theirs = device->wrap_stream(own.handle(), "PyTorch's");
        EXPECT_EQ(theirs.handle(), own.handle());
        EXPECT_FALSE(theirs.owning());
        Buffer y = device->allocate(4000, "y");
        device->copy(y, x, theirs);
        theirs.synchronize();
        alive += 1;  // y, whose memory stays in the pool
    }
    EXPECT_EQ(fake().num_alive, alive);
    EXPECT_EQ(device->wrap_stream(nullptr).handle(), nullptr) << "the driver's default stream";
    fake().streams_are_foreign = true;
    EXPECT_ERROR(device->wrap_stream(own.handle(), "PyTorch's"),
                 "wrap_stream 'PyTorch's': it belongs to another context than the primary one of Fake H200");
    EXPECT_THROW(device->wrap_stream(own.handle()), LaunchError);
}

// The NULL stream, on which host copies and fills run, does not wait for streams that were made non-blocking.
TEST_F(WrappedOnCuda, CopiesWaitForStreamsThatDoNotWait) {
    Stream own = device->create_stream();
    std::vector<float> values(1000);
    auto synchronizations_of = [&](const auto& action) {
        long before = fake().num_synchronizations;
        action();
        return fake().num_synchronizations - before;
    };
    Stream blocking = device->wrap_stream(own.handle());
    EXPECT_EQ(synchronizations_of([&] { x.write(values); }), 0);
    fake().stream_flags = 1;
    Stream theirs;
    EXPECT_EQ(synchronizations_of([&] { theirs = device->wrap_stream(own.handle()); }), 1) << "for what ran before";
    EXPECT_EQ(synchronizations_of([&] { x.write(values); }), 2) << "before, and behind it: what comes may be theirs";
    EXPECT_EQ(synchronizations_of([&] { x.read<float>(); }), 1);
    EXPECT_EQ(synchronizations_of([&] { x.fill(0); }), 2);
}

TEST_F(WrappedOnCuda, EventsAreUsedAndNotDestroyed) {
    Event own = device->create_event();
    long alive = fake().num_alive;
    {
        Event theirs = device->wrap_event(own.handle(), "PyTorch's");
        EXPECT_EQ(theirs.handle(), own.handle());
        theirs.record(device->default_stream());
        theirs.synchronize();
    }
    EXPECT_EQ(fake().num_alive, alive);
    EXPECT_ERROR(device->wrap_event(nullptr, "PyTorch's"), "wrap_event 'PyTorch's': a null event");
}

TEST(WrappedOnTheEmulator, StreamsAndEventsDoWhatTheyCan) {
    auto device = open_device("emulated");
    int anything = 0;
    Stream theirs = device->wrap_stream(&anything, "theirs");
    EXPECT_EQ(theirs.handle(), &anything);
    Event begin = device->create_event(), end = device->wrap_event(begin.handle());
    end.record(theirs);
    EXPECT_EQ(end.seconds_since(begin), 0);
    EXPECT_ERROR(device->wrap_event(&anything, "PyTorch's"),
                 "wrap_event 'PyTorch's': emulated sm_90a has made no such event");
}

TEST(WrappedOnTheEmulator, PartsOfBuffersAreKnownAsTheirs) {
    auto device = open_device("emulated");
    Buffer x = device->allocate(400, "x");
    {
        Buffer part = device->wrap(x.pointer() + 40, 80, "part"), same = device->wrap(x.pointer() + 40, 80, "same");
        part.fill(0);
        part = {};
        same.fill(1);
    }
    EXPECT_EQ(x.view(40, 80).read<uint8_t>(), std::vector<uint8_t>(80, 1));
    EXPECT_ERROR(device->wrap(x.pointer() + 40, 400, "y of others"), "wrap 'y of others': its 400 bytes at 0x");
    EXPECT_ERROR(device->wrap(x.pointer() + 40, 400, "y"), "lie partly in the 400 bytes of 'x' at 0x");
    EXPECT_ERROR(device->wrap(x.pointer() - 8, 16, "y"), "lie partly in the 400 bytes of 'x' at 0x");
    std::vector<float> theirs(100);
    Buffer whole = device->wrap(theirs.data(), 400, "whole");
    { Buffer inside = device->wrap(theirs.data(), 80, "inside"); }
    EXPECT_ERROR(device->wrap(theirs.data() + 50, 400, "y"), "lie partly in the 400 bytes of 'whole' at 0x");
    whole = {};
    EXPECT_EQ(device->wrap(theirs.data() + 50, 200, "y").bytes(), 200) << "nobody has the rest any more";
}

}  // namespace
}  // namespace tw

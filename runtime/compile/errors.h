// What can go wrong below a launch, as types: a caller may wish to catch one kind and not another.
#pragma once
#include "support/error.h"

namespace tw {

/// The base of them all.
class RuntimeError : public Error {
public:
    using Error::Error;
};

/// No driver library, or one that does not start; says where we looked.
class NoDriver : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// The driver is there, the device that was asked for is not.
class NoDevice : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// NVRTC was not found; says where we looked.
class NvrtcMissing : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// The source was refused, or would run badly without saying so (warnings C75xx); shows the generated lines.
class CompileError : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// Device memory is exhausted, also after the pool of freed buffers was given back. Not sticky: the device works on.
class OutOfMemory : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// A driver call failed without harm to the context; names the call, the code and what it was for.
class DriverError : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// A launch that cannot be: shape, shared memory, arguments.
class LaunchError : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// A kernel crashed. The context is lost: every later call on this device throws this, with the first cause. Only a new
/// process helps.
class StickyError : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

/// The emulator has found a fault in a kernel; the message is its report.
class EmulatorReport : public RuntimeError {
public:
    using RuntimeError::RuntimeError;
};

}  // namespace tw

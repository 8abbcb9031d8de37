"""Products by cuBLASLt itself, one for each algorithm that its heuristics propose: PyTorch takes the first and asks no
further. By ctypes, from the library that PyTorch has loaded; constants as in cublasLt.h of CUDA 12 and 13."""
import ctypes
import functools

import torch

WORKSPACE_BYTES = 32 << 20
MOST_ALGORITHMS = 8  # asked for

TYPES = {torch.float32: 0, torch.float16: 2, torch.int8: 3, torch.int32: 10, torch.bfloat16: 14,
         torch.float8_e4m3fn: 28}
COMPUTE_F32, COMPUTE_I32, COMPUTE_TF32 = 68, 72, 77
TRANSPOSE_LEFT, TRANSPOSE_RIGHT, EPILOGUE, BIAS, FAST_ACCUMULATION = 3, 4, 7, 8, 25  # attributes of a product
BATCHES, BATCH_STRIDE = 5, 6  # attributes of a layout
MOST_WORKSPACE = 1  # attribute of a preference
ADD_BIAS, GELU = 4, 32  # epilogues, and their sum; 1: none


class Proposal(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace_bytes", ctypes.c_size_t), ("status", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


def check(status, what):
    if status != 0:
        raise RuntimeError(f"{what} returned {status}")


@functools.cache
def library():
    major = torch.version.cuda.split(".")[0]
    lt = ctypes.CDLL(f"libcublasLt.so.{major}")
    handle = ctypes.c_void_p()
    check(lt.cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
    return lt, handle


@functools.cache
def workspace():
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def created(kind, *arguments):
    """A descriptor, and a function that sets one of its attributes."""
    lt, _ = library()
    result = ctypes.c_void_p()
    check(getattr(lt, f"cublasLt{kind}Create")(ctypes.byref(result), *arguments), f"cublasLt{kind}Create")

    def put(attribute, value):
        set_attribute = getattr(lt, f"cublasLt{kind}SetAttribute")
        check(set_attribute(result, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))),
              f"cublasLt{kind}SetAttribute({attribute})")
    return result, put


def layout(dtype, rows, columns, pitch, batches, stride):
    result, put = created("MatrixLayout", ctypes.c_int(TYPES[dtype]), ctypes.c_uint64(rows), ctypes.c_uint64(columns),
                          ctypes.c_int64(pitch))
    if batches:
        put(BATCHES, ctypes.c_int32(batches))
        put(BATCH_STRIDE, ctypes.c_int64(stride))
    return result


def transposed_operand(x):
    """x^T, x [.., rows, columns], to a library that stores columns: its layout, and whether it is to be transposed."""
    rows, columns = x.shape[-2:]
    batches, stride = (x.shape[0], x.stride(0)) if x.dim() == 3 else (0, 0)
    if x.stride(-1) == 1:
        return layout(x.dtype, columns, rows, max(x.stride(-2), columns), batches, stride), False
    return layout(x.dtype, rows, columns, max(x.stride(-1), rows), batches, stride), True


class Product:
    """c[.., m, n] = epilogue(a[.., m, k] b[.., k, n]) on tensors like these. Computes c^T = b^T a^T, as columns."""

    def __init__(self, a, b, bias, gelu, result_type, fast):
        self.shape, self.result_type = (*a.shape[:-1], b.shape[-1]), result_type
        m, n = self.shape[-2:]
        integers = a.dtype == torch.int8
        compute = COMPUTE_I32 if integers else COMPUTE_TF32 if a.dtype == torch.float32 else COMPUTE_F32
        number = ctypes.c_int32 if integers else ctypes.c_float
        self.one, self.zero = number(1), number(0)
        self.product, self.put = created("MatmulDesc", ctypes.c_int(compute),
                                         ctypes.c_int(TYPES[torch.int32 if integers else torch.float32]))
        self.left, transpose_left = transposed_operand(b)
        self.right, transpose_right = transposed_operand(a)
        batches = a.shape[0] if a.dim() == 3 else 0
        self.result = layout(result_type, n, m, n, batches, m * n)
        self.put(TRANSPOSE_LEFT, ctypes.c_int32(transpose_left))
        self.put(TRANSPOSE_RIGHT, ctypes.c_int32(transpose_right))
        epilogue = (ADD_BIAS if bias is not None else 0) + (GELU if gelu else 0)
        if epilogue:
            self.put(EPILOGUE, ctypes.c_uint32(epilogue))
        if bias is not None:
            self.put(BIAS, ctypes.c_void_p(bias.data_ptr()))
        if fast:
            self.put(FAST_ACCUMULATION, ctypes.c_int8(1))

    def proposals(self):
        lt, handle = library()
        preference, put = created("MatmulPreference")
        put(MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
        found, count = (Proposal * MOST_ALGORITHMS)(), ctypes.c_int()
        check(lt.cublasLtMatmulAlgoGetHeuristic(handle, self.product, self.left, self.right, self.result, self.result,
                                                preference, ctypes.c_int(MOST_ALGORITHMS), found, ctypes.byref(count)),
              "cublasLtMatmulAlgoGetHeuristic")
        return [proposal for proposal in found[:count.value] if proposal.status == 0]

    def run(self, a, b, bias, proposal):
        lt, handle = library()
        c = torch.empty(self.shape, dtype=self.result_type, device=a.device)
        if bias is not None:
            self.put(BIAS, ctypes.c_void_p(bias.data_ptr()))
        pointer = lambda x: ctypes.c_void_p(x.data_ptr())  # noqa: E731
        check(lt.cublasLtMatmul(handle, self.product, ctypes.byref(self.one), pointer(b), self.left, pointer(a),
                                self.right, ctypes.byref(self.zero), pointer(c), self.result, pointer(c), self.result,
                                ctypes.byref(proposal), pointer(workspace()), ctypes.c_size_t(WORKSPACE_BYTES),
                                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)), "cublasLtMatmul")
        return c


def ways(operands, tensors, gelu, result_type):
    """By name, functions of tensors: one for each proposal. `operands` gives a and b of the tensors as views."""
    bias = tensors.get("bias")
    found = {}
    for fast in (False, True) if operands(tensors)[0].dtype == torch.float8_e4m3fn else (False,):
        product = Product(*operands(tensors), bias, gelu, result_type, fast)
        for number, proposal in enumerate(product.proposals()):
            def call(t, product=product, proposal=proposal):
                return product.run(*operands(t), t.get("bias"), proposal)
            found[f"cublaslt {'fast ' if fast else ''}{number}"] = call
    return found

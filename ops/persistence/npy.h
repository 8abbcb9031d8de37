// Files of one array, as NumPy has them (.npy; NumPy Enhancement Proposal 1, and the text of numpy/lib/format.py):
//
//   6 bytes   '\x93NUMPY'
//   2 bytes   the version: 1.0, 2.0 or 3.0
//   2 bytes   the length of the header, little-endian; 4 bytes from 2.0 on
//   header    {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, spaces, and '\n'
//   the rest  the array's bytes
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "dsl/host_array.h"

namespace tw {

/// The array, bit for bit: dense rows of bool, i8, u8, i32, u32, i64, f16, f32 or f64. Throws Error, which names the
/// file, the byte or the key, and the limit, for all else: big-endian or column-major arrays (fortran_order), other
/// types, headers over 10,000 bytes (NumPy's limit, too) or not as above, whatever the order of their keys; shapes that
/// exceed 2^63 - 1 bytes, data of other bytes than the shape has, bools that are neither 0 nor 1. It allocates no more
/// than the file is large.
HostArray read_npy(const std::filesystem::path& path);
/// The same of bytes in memory; `where` stands for the file's name in messages.
HostArray parse_npy(std::span<const std::byte> bytes, const std::string& where);

/// Replaces the file, as write_aside() does (write_aside.h): version 1.0, rows in order, whatever the array's strides.
/// Throws Error for bf16, tf32, e4m3 and e5m2, which NumPy has no names for, if the header exceeds its 10,000 bytes,
/// and what write_aside() throws.
void write_npy(const std::filesystem::path& path, const HostArray& array);

}  // namespace tw

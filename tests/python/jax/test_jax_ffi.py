"""The handler's declarations of XLA's interface, against the header of the installed JAX."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from commands import needs

needs("jax")

API = Path(__file__).parents[3] / "src" / "pyx" / "cpp" / "xla" / "ffi_api.h"

ABI = """
#include "xla/ffi/api/c_api.h"
#include "{api}"
using namespace a2a_py::xla;
#define SAME(a, b) static_assert(static_cast<long>(a) == static_cast<long>(b))
#define FIELD(ours, mine, theirs, its) SAME(offsetof(ours, mine), offsetof(theirs, its))
SAME(sizeof(Extension), sizeof(XLA_FFI_Extension_Base)); FIELD(Extension, type, XLA_FFI_Extension_Base, type);
SAME(Extension::kMetadata, XLA_FFI_Extension_Metadata);
SAME(sizeof(ApiVersion), sizeof(XLA_FFI_Api_Version)); FIELD(ApiVersion, minor, XLA_FFI_Api_Version, minor_version);
FIELD(ApiVersion, major, XLA_FFI_Api_Version, major_version);
SAME(sizeof(ErrorArguments), sizeof(XLA_FFI_Error_Create_Args));
FIELD(ErrorArguments, message, XLA_FFI_Error_Create_Args, message);
FIELD(ErrorArguments, code, XLA_FFI_Error_Create_Args, errc);
FIELD(Api, version, XLA_FFI_Api, api_version); FIELD(Api, create_error, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(sizeof(Buffer), sizeof(XLA_FFI_Buffer)); FIELD(Buffer, dtype, XLA_FFI_Buffer, dtype);
FIELD(Buffer, data, XLA_FFI_Buffer, data); FIELD(Buffer, rank, XLA_FFI_Buffer, rank);
FIELD(Buffer, dims, XLA_FFI_Buffer, dims);
SAME(sizeof(Buffers), sizeof(XLA_FFI_Args)); SAME(sizeof(Buffers), sizeof(XLA_FFI_Rets));
FIELD(Buffers, size, XLA_FFI_Args, size); FIELD(Buffers, all, XLA_FFI_Args, args);
FIELD(Buffers, size, XLA_FFI_Rets, size); FIELD(Buffers, all, XLA_FFI_Rets, rets);
SAME(sizeof(Name), sizeof(XLA_FFI_ByteSpan)); FIELD(Name, size, XLA_FFI_ByteSpan, len);
SAME(sizeof(Scalar), sizeof(XLA_FFI_Scalar)); FIELD(Scalar, value, XLA_FFI_Scalar, value);
SAME(sizeof(Attributes), sizeof(XLA_FFI_Attrs)); FIELD(Attributes, types, XLA_FFI_Attrs, types);
FIELD(Attributes, names, XLA_FFI_Attrs, names); FIELD(Attributes, values, XLA_FFI_Attrs, attrs);
SAME(Attributes::kScalar, XLA_FFI_AttrType_SCALAR);
FIELD(CallFrame, api, XLA_FFI_CallFrame, api); FIELD(CallFrame, stage, XLA_FFI_CallFrame, stage);
FIELD(CallFrame, arguments, XLA_FFI_CallFrame, args); FIELD(CallFrame, results, XLA_FFI_CallFrame, rets);
FIELD(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
SAME(CallFrame::kExecute, XLA_FFI_ExecutionStage_EXECUTE);
FIELD(Metadata, version, XLA_FFI_Metadata, api_version); FIELD(Metadata, traits, XLA_FFI_Metadata, traits);
FIELD(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME(DataType::s32, XLA_FFI_DataType_S32); SAME(DataType::s64, XLA_FFI_DataType_S64);
SAME(DataType::token, XLA_FFI_DataType_TOKEN);
SAME(ErrorCode::invalid_argument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME(ErrorCode::deadline_exceeded, XLA_FFI_Error_Code_DEADLINE_EXCEEDED);
SAME(ErrorCode::failed_precondition, XLA_FFI_Error_Code_FAILED_PRECONDITION);
SAME(ErrorCode::aborted, XLA_FFI_Error_Code_ABORTED); SAME(ErrorCode::internal, XLA_FFI_Error_Code_INTERNAL);
SAME(ErrorCode::unimplemented, XLA_FFI_Error_Code_UNIMPLEMENTED);
SAME(ErrorCode::unavailable, XLA_FFI_Error_Code_UNAVAILABLE);
int main() {{}}
"""


@pytest.mark.smoke
def test_the_interface_is_declared_as_in_xlas_own_header(tmp_path: Path) -> None:
    import jax

    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "abi.cc"
    source.write_text(ABI.format(api=API))
    flags = ["-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", f"-I{jax.ffi.include_dir()}"]
    done = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""The compiled library: where it is, whether it was made from the sources beside it, and its C interface by ctypes.

Mirrors csrc/capi.h and csrc/model/step.h. Pointers to tensors go as plain integers (`Tensor.data_ptr()`); the caller
keeps the tensors alive, contiguous and of the right dtype. ctypes lets other Python threads run during a call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from pagewire.ipc.errors import MachineError

_LIBRARY = Path(__file__).with_name("_native.so")
_SOURCES = "csrc"  # beside the library, but not in a wheel


class PackedMatrix(Structure):
    """A matrix in panels; see csrc/weights/packed_matrix.h. `layout` is one of its WeightLayout's numbers."""

    _fields_ = (
        ("layout", c_int32),
        ("has_minimum", c_int32),
        ("out_features", c_int64),
        ("in_features", c_int64),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class LinearView(Structure):
    """A weight: matrices whose rows lie below each other, columns in the order of `permutation`, if there is one."""

    _fields_ = (("parts", POINTER(PackedMatrix)), ("num_parts", c_int64), ("permutation", c_void_p))


class ExpertView(Structure):
    """One expert of a mixture."""

    _fields_ = (("gate_up", LinearView), ("down", LinearView))


class MixtureView(Structure):
    """A mixture of experts; see csrc/model/step.h."""

    _fields_ = (
        ("router", LinearView),
        ("experts", POINTER(ExpertView)),
        ("num_experts", c_int64),
        ("first_expert", c_int64),
        ("num_chosen", c_int64),
        ("is_renormalized", c_int32),
        ("padding", c_int32),
    )


class LayerView(Structure):
    """One decoder layer; see csrc/model/step.h."""

    _fields_ = (
        ("qkv", LinearView),
        ("output", LinearView),
        ("gate_up", LinearView),
        ("down", LinearView),
        ("mixture", POINTER(MixtureView)),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("attention_post_norm", c_void_p),
        ("mlp_post_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("rotary_cos", c_void_p),
        ("rotary_sin", c_void_p),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("rotary_dim", c_int64),
        ("sliding_window", c_int64),
        ("attention_norm_eps", c_float),
        ("mlp_norm_eps", c_float),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("attention_output_scale", c_float),
        ("mlp_output_scale", c_float),
        ("activation", c_int32),
        ("padding", c_int32),
    )


class DecoderView(Structure):
    """What lies between a token's id and the row that the output layer reads; of several stages, one stage's part."""

    _fields_ = (
        ("embedding", LinearView),
        ("layers", POINTER(LayerView)),
        ("num_layers", c_int64),
        ("norm", c_void_p),
        ("norm_eps", c_float),
        ("embedding_scale", c_float),
        ("first_token_id", c_int64),
    )


class CacheView(Structure):
    """The paged memory of one layer; `type` is one of csrc's ElementType numbers."""

    _fields_ = (
        ("key", c_void_p),
        ("value", c_void_p),
        ("type", c_int32),
        ("key_scale", c_float),
        ("value_scale", c_float),
        ("padding", c_int32),
        ("block_size", c_int64),
    )


class LowRankView(Structure):
    """What an adapter adds to a product; no parts: nothing."""

    _fields_ = (("a", LinearView), ("b", LinearView))


class AdapterView(Structure):
    """An adapter and the tokens that it is for; see csrc/model/step.h."""

    _fields_ = (("changes", POINTER(LowRankView)), ("tokens", c_void_p), ("num_tokens", c_int64))


class StepView(Structure):
    """The scheduled tokens of a step."""

    _fields_ = (
        ("num_tokens", c_int64),
        ("num_reqs", c_int64),
        ("max_blocks", c_int64),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("block_tables", c_void_p),
        ("query_start", c_void_p),
        ("seq_lens", c_void_p),
        ("adapters", POINTER(AdapterView)),
        ("num_adapters", c_int64),
    )


# In the order of pagewire_struct_bytes.
_STRUCTS: tuple[type[Structure], ...] = (
    PackedMatrix,
    LinearView,
    LayerView,
    CacheView,
    StepView,
    DecoderView,
    ExpertView,
    MixtureView,
    LowRankView,
    AdapterView,
)

# function -> its result and its arguments, as in csrc/capi.h. An engine, a group of ranks, a decoder and a tensor's
# memory are each a c_void_p.
_PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "pagewire_source_digest": (c_char_p, ()),
    "pagewire_struct_bytes": (c_int64, (c_int32,)),
    "pagewire_built_kernels": (c_char_p, (c_int32, POINTER(c_int32))),
    "pagewire_create": (c_void_p, (c_char_p, c_int32)),
    "pagewire_destroy": (None, (c_void_p,)),
    "pagewire_kernels": (c_char_p, (c_void_p,)),
    "pagewire_num_threads": (c_int32, (c_void_p,)),
    "pagewire_run_empty_phases": (c_int64, (c_void_p, c_int64, c_int64)),
    "pagewire_read_memory": (c_int64, (c_void_p, c_void_p, c_int64, c_int64)),
    "pagewire_multiply_floats": (c_int64, (c_void_p, c_int64)),
    "pagewire_multiply_integers": (c_int64, (c_void_p, c_int64)),
    "pagewire_packed_bytes": (c_int64, (c_int32, c_int32, c_int64, c_int64)),
    "pagewire_pack": (c_int32, (c_void_p, c_int32, c_int32, c_int64, c_int64, *(c_void_p,) * 4)),
    "pagewire_linear": (c_int32, (c_void_p, LinearView, c_void_p, c_int64, c_void_p)),
    "pagewire_embedding": (c_int32, (c_void_p, LinearView, c_void_p, c_int64, c_void_p)),
    "pagewire_rms_norm": (c_int32, (*(c_void_p,) * 4, c_int64, c_int64, c_float, c_void_p, c_void_p)),
    "pagewire_rotary": (c_int32, (*(c_void_p,) * 3, *(c_int64,) * 4, c_void_p, c_void_p)),
    "pagewire_store_kv": (c_int32, (*(c_void_p,) * 4, *(c_int64,) * 3, POINTER(CacheView))),
    "pagewire_paged_attention": (
        c_int32,
        (c_void_p, POINTER(StepView), POINTER(CacheView), *(c_int64,) * 4, c_float, c_float, c_void_p, c_void_p),
    ),
    "pagewire_silu_and_mul": (c_int32, (c_void_p, c_void_p, c_int64, c_int64, c_void_p)),
    "pagewire_gelu_tanh_and_mul": (c_int32, (c_void_p, c_void_p, c_int64, c_int64, c_void_p)),
    "pagewire_choose_experts": (c_int32, (c_void_p, c_void_p, *(c_int64,) * 3, c_int32, c_void_p, c_void_p)),
    "pagewire_ranks_bytes": (c_int64, (c_int32, c_int64)),
    "pagewire_ranks_join": (c_void_p, (c_void_p, c_int32, c_int32, c_int64)),
    "pagewire_ranks_leave": (None, (c_void_p,)),
    "pagewire_ranks_sum": (None, (c_void_p, c_void_p, c_int64, c_void_p)),
    "pagewire_ranks_gather": (None, (c_void_p, c_void_p, c_int64, c_void_p)),
    "pagewire_decoder_create": (c_void_p, (c_void_p, POINTER(DecoderView), c_void_p)),
    "pagewire_decoder_destroy": (None, (c_void_p,)),
    "pagewire_decoder_run": (c_int32, (c_void_p, POINTER(StepView), POINTER(CacheView), *(c_void_p,) * 3)),
    "pagewire_decoder_work_bytes": (c_int64, (c_void_p,)),
    "pagewire_phase_name": (c_char_p, (c_int32,)),
    "pagewire_profile_start": (None, (c_void_p,)),
    "pagewire_profile_read": (None, (c_void_p, POINTER(c_int64), POINTER(c_int64))),
    "pagewire_profile_stop": (None, (c_void_p,)),
}


class LibraryMissing(Exception):
    """There is no compiled library, or the system can't load it. The message says why, and what to do."""


@functools.cache
def load_library(path: Path = _LIBRARY) -> ctypes.CDLL:
    """Load the library; every function of csrc/capi.h has its prototype.

    Args:
        path: the library.

    Raises:
        LibraryMissing: it was not built, or can't be loaded.
        MachineError: it was made from other sources than those beside it.
    """
    if not path.exists():
        raise LibraryMissing(
            "the compiled CPU kernels are missing, since no C++ compiler was there at the installation; "
            "install g++ or clang++ and reinstall pagewire"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as exc:
        raise LibraryMissing(
            f"the compiled CPU kernels can't be loaded ({exc}); reinstall pagewire on this machine"
        ) from exc
    _check_sources(library, path)
    for name, (result, arguments) in _PROTOTYPES.items():
        declare(library, name, result, *arguments)
    for index, struct in enumerate(_STRUCTS):
        assert library.pagewire_struct_bytes(index) == ctypes.sizeof(struct), f"{struct.__name__} differs from csrc's"
    return library


def declare(library: ctypes.CDLL, name: str, result: type | None, *arguments: type) -> None:
    """Give a function its prototype."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


def _check_sources(library: ctypes.CDLL, path: Path) -> None:
    """Compare the digest that the build left in the library with the sources beside it: an editable install has them.

    A library from other sources may have other structs and functions, and would fail where nobody looks for the cause.
    """
    sources = path.with_name(_SOURCES)
    if not sources.exists():
        return
    declare(library, "pagewire_source_digest", c_char_p)
    if library.pagewire_source_digest().decode() != source_digest(sources):
        raise MachineError(
            f"{path.name} was compiled from other sources than those in {sources}: "
            "compile it again with `make kernels` (or `python setup.py build_ext --inplace`)."
        )


def source_digest(folder: Path) -> str:
    """Return the digest of all sources, as setup.py computes it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".cpp", ".h", ".inl")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]

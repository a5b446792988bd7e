"""The C++ of an extension module that holds many kernels, each callable from Python.

Text in, text out: nothing is compiled or loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Part of what kernels are known by: changes with the text below and with how they are declared.
VERSION = 3
#: What a kernel's functions are called, before its key: once, and many times over.
CALL, REPEAT = "call_", "repeat_"

_HEAD = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace fusewise {
// Where a tensor's memory is; torch gives it to Inductor's own kernels in the same way.
static void* (*data_ptr)(PyObject*);

template <typename T> inline T argument(PyObject* value) {
    if constexpr (std::is_pointer_v<T>) {
        return static_cast<T>(data_ptr(value));
    } else if constexpr (std::is_floating_point_v<T>) {
        auto result = PyFloat_AsDouble(value);
        if (result == -1.0 && PyErr_Occurred()) [[unlikely]]
            throw std::runtime_error("expected float arg");
        return static_cast<T>(result);
    } else if constexpr (std::is_same_v<T, std::uintptr_t>) {
        auto result = PyLong_AsVoidPtr(value);
        if (result == nullptr && PyErr_Occurred()) [[unlikely]]
            throw std::runtime_error("expected int arg");
        return reinterpret_cast<std::uintptr_t>(result);
    } else {
        auto result = PyLong_AsSsize_t(value);
        if (result == -1 && PyErr_Occurred()) [[unlikely]]
            throw std::runtime_error("expected int arg");
        return static_cast<T>(result);
    }
}

template <typename Body> inline PyObject* guarded(Py_ssize_t given, Py_ssize_t wanted, Body body) {
    try {
        if (given != wanted) [[unlikely]]
            throw std::runtime_error("wrong number of args");
        return body();
    } catch (std::exception const& e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
        return nullptr;
    } catch (...) {
        PyErr_SetString(PyExc_RuntimeError, "unhandled error");
        return nullptr;
    }
}
}  // namespace fusewise

// call_*: the kernel, once. repeat_*: n, then the kernel's arguments; seconds that n calls took.
#define FUSEWISE_KERNEL(key, number, decode, pass)                                                 \
    static PyObject* call_##key(PyObject*, PyObject* const* args, Py_ssize_t given) {              \
        return fusewise::guarded(given, number, [&]() -> PyObject* {                               \
            decode;                                                                                \
            k_##key::kernel pass;                                                                  \
            Py_RETURN_NONE;                                                                        \
        });                                                                                        \
    }                                                                                              \
    static PyObject* repeat_##key(PyObject*, PyObject* const* args, Py_ssize_t given) {            \
        return fusewise::guarded(given, number + 1, [&]() -> PyObject* {                           \
            auto repeats = fusewise::argument<std::int64_t>(*args++);                              \
            decode;                                                                                \
            auto start = std::chrono::steady_clock::now();                                         \
            for (std::int64_t i = 0; i < repeats; ++i) k_##key::kernel pass;                       \
            std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;         \
            return PyFloat_FromDouble(took.count());                                               \
        });                                                                                        \
    }
"""

_TAIL = r"""
static PyObject* bind_data_ptr(PyObject*, PyObject* address) {
    auto value = PyLong_AsVoidPtr(address);
    if (value == nullptr) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no address");
        return nullptr;
    }
    fusewise::data_ptr = reinterpret_cast<decltype(fusewise::data_ptr)>(value);
    Py_RETURN_NONE;
}

#define FUSEWISE_METHOD(name)                                                                      \
    {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(name)), METH_FASTCALL, ""}

static PyMethodDef methods[] = {
    {"bind_data_ptr", bind_data_ptr, METH_O, ""},
%(methods)s
    {nullptr, nullptr, 0, nullptr}};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "kernels", nullptr, -1, methods};

PyMODINIT_FUNC PyInit_kernels(void) {
    PyObject* module = PyModule_Create(&module_definition);
#ifdef Py_GIL_DISABLED
    if (module != nullptr) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
"""


def source_name(key: str) -> str:
    """The file that a compiler names when it complains of a kernel."""
    return f"kernel_{key}.cpp"


def library_source(
    kernels: Mapping[str, tuple[Sequence[str], str]], includes: Sequence[str]
) -> str:
    """Source of the extension module ``kernels``.

    Args:
        kernels: by key, which is part of identifiers: the types of the arguments, and the source
            of a function ``kernel`` that takes them.
        includes: what the kernels' sources include.
    """
    parts = [*(f"#include {name}" for name in includes), _HEAD]
    methods = []
    for key, (argtypes, body) in kernels.items():
        decode = "; ".join(
            f"auto a{i} = fusewise::argument<{kind.replace('const ', '')}>(args[{i}])"
            for i, kind in enumerate(argtypes)
        )
        passed = ", ".join(f"a{i}" for i in range(len(argtypes)))
        parts += [
            f"namespace k_{key} {{",
            f'#line 1 "{source_name(key)}"',
            body,
            '#line 1 "glue"',
            "}",
            # An argument of a macro may hold commas only within parentheses, and types hold them.
            f"#define FUSEWISE_DECODE {decode}",
            f"FUSEWISE_KERNEL({key}, {len(argtypes)}, FUSEWISE_DECODE, ({passed}))",
            "#undef FUSEWISE_DECODE",
        ]
        methods += [f"    FUSEWISE_METHOD({prefix}{key})," for prefix in (CALL, REPEAT)]
    return "\n".join([*parts, _TAIL % {"methods": "\n".join(methods)}])

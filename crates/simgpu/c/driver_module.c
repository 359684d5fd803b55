// SPDX-License-Identifier: Apache-2.0
// Driver API: modules, libraries, and the functions in them. An image has no
// contents here: every name is found in every one, with the duration that the
// program gave to that name, or the one that unknown kernels have.
#include <unistd.h>

#include "driver_internal.h"

#define MAX_MODULES 1024

// Modules and libraries are alike, in one pool: a handle is checked by its address.
typedef struct SimModule {
    bool in_use, is_library;
} SimModule;

static SimModule modules[MAX_MODULES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static SimModule *module_create(bool is_library)
{
    SimModule *found = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MAX_MODULES && !found; i++)
        if (!modules[i].in_use)
            found = &modules[i];
    if (found)
        *found = (SimModule){true, is_library};
    pthread_mutex_unlock(&lock);
    return found;
}

static SimModule *module_resolve(const void *handle, bool is_library)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)modules;
    if (offset >= sizeof modules || offset % sizeof *modules != 0)
        return NULL;
    SimModule *found = &modules[offset / sizeof *modules];
    return found->in_use && found->is_library == is_library ? found : NULL;
}

static CUresult load(SimCall *call, SimDetail *detail, bool is_library, void **out)
{
    if (!out || !call->pointer)
        return CUDA_ERROR_INVALID_VALUE;
    if (call->text && access(call->text, R_OK) != 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    SimModule *made = module_create(is_library);
    *out = made;
    detail->values[0] = (uintptr_t)made;
    return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unload(const void *handle, bool is_library)
{
    SimModule *found = module_resolve(handle, is_library);
    if (found)
        found->in_use = false;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Opens the log entry of a function that loads an image.
#define BEGIN_LOAD(name, image, path)                                              \
    SimDetail detail = {.kind = DETAIL_MODULE, .values = {0, (uintptr_t)(image)}}; \
    BEGIN(name, .pointer = (uintptr_t)(image), .detail = &detail, .text = (path))

API(CUresult, cuModuleLoad, (CUmodule *module, const char *path))
{
    BEGIN_LOAD(cuModuleLoad, path, path);
    END(load(&call, &detail, false, (void **)module));
}

API(CUresult, cuModuleLoadData, (CUmodule *module, const void *image))
{
    BEGIN_LOAD(cuModuleLoadData, image, NULL);
    END(load(&call, &detail, false, (void **)module));
}

API(CUresult, cuModuleLoadDataEx,
    (CUmodule *module, const void *image, unsigned int count, void *options, void **values))
{
    (void)count, (void)options, (void)values;
    BEGIN_LOAD(cuModuleLoadDataEx, image, NULL);
    END(load(&call, &detail, false, (void **)module));
}

API(CUresult, cuModuleLoadFatBinary, (CUmodule *module, const void *image))
{
    BEGIN_LOAD(cuModuleLoadFatBinary, image, NULL);
    END(load(&call, &detail, false, (void **)module));
}

API(CUresult, cuModuleUnload, (CUmodule module))
{
    BEGIN(cuModuleUnload, .pointer = (uintptr_t)module);
    END(unload(module, false));
}

API(CUresult, cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name))
{
    SimDetail detail = {.kind = DETAIL_FUNCTION, .values = {0, (uintptr_t)module}};
    BEGIN(cuModuleGetFunction, .detail = &detail, .text = name);
    if (!module_resolve(module, false))
        END(CUDA_ERROR_INVALID_HANDLE);
    struct SimKernel *kernel = kernel_by_name(name);
    if (!kernel)
        END(CUDA_ERROR_OUT_OF_MEMORY);
    *function = kernel_function(kernel);
    detail.values[0] = call.pointer = (uintptr_t)*function;
    END(CUDA_SUCCESS);
}

API(CUresult, cuLibraryLoadData,
    (CUlibrary *library, const void *code, void *jit_options, void **jit_values,
     unsigned int jit_count, void *lib_options, void **lib_values, unsigned int lib_count))
{
    (void)jit_options, (void)jit_values, (void)jit_count;
    (void)lib_options, (void)lib_values, (void)lib_count;
    BEGIN_LOAD(cuLibraryLoadData, code, NULL);
    END(load(&call, &detail, true, (void **)library));
}

API(CUresult, cuLibraryLoadFromFile,
    (CUlibrary *library, const char *path, void *jit_options, void **jit_values,
     unsigned int jit_count, void *lib_options, void **lib_values, unsigned int lib_count))
{
    (void)jit_options, (void)jit_values, (void)jit_count;
    (void)lib_options, (void)lib_values, (void)lib_count;
    BEGIN_LOAD(cuLibraryLoadFromFile, path, path);
    END(load(&call, &detail, true, (void **)library));
}

API(CUresult, cuLibraryUnload, (CUlibrary library))
{
    BEGIN(cuLibraryUnload, .pointer = (uintptr_t)library);
    END(unload(library, true));
}

API(CUresult, cuLibraryGetKernel, (CUkernel *kernel, CUlibrary library, const char *name))
{
    SimDetail detail = {.kind = DETAIL_FUNCTION, .values = {0, (uintptr_t)library}};
    BEGIN(cuLibraryGetKernel, .detail = &detail, .text = name);
    if (!module_resolve(library, true))
        END(CUDA_ERROR_INVALID_HANDLE);
    struct SimKernel *found = kernel_by_name(name);
    if (!found)
        END(CUDA_ERROR_OUT_OF_MEMORY);
    *kernel = kernel_handle(found);
    detail.values[0] = call.pointer = (uintptr_t)*kernel;
    END(CUDA_SUCCESS);
}

API(CUresult, cuKernelGetFunction, (CUfunction *function, CUkernel kernel))
{
    SimDetail detail = {.kind = DETAIL_FUNCTION, .values = {0, (uintptr_t)kernel}};
    BEGIN(cuKernelGetFunction, .detail = &detail, .text = simgpu_kernel_name(kernel));
    struct SimKernel *found = kernel_of(kernel);
    if (!found)
        END(CUDA_ERROR_INVALID_HANDLE);
    *function = kernel_function(found);
    detail.values[0] = call.pointer = (uintptr_t)*function;
    END(CUDA_SUCCESS);
}

/* A driver library without a device, for tests: calls succeed and are written to $STUB_LOG, a line
   a call. Device memory is host memory; graphs do nothing. `test_stub_library.py` builds it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *format, ...) {
    FILE *log = fopen(getenv("STUB_LOG"), "a");
    va_list arguments;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fclose(log);
}

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    const int *attributes; /* 72 bytes each: id, padding, value */
    unsigned count;
} Config;

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Stub", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1ull << 36; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x11; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { say("release"); return 0; }
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)0x11; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)0x22; return 0; }
int cuStreamDestroy_v2(void *stream) { say("destroy_stream %p", stream); return 0; }
int cuStreamSynchronize(void *stream) { say("synchronize %p", stream); return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *free_bytes = *total = 1ull << 36;
    return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    void *memory = NULL;
    if (posix_memalign(&memory, 512, size)) return 2;
    *address = (uint64_t)memory;
    say("allocate %zu", size);
    return 0;
}
int cuMemFree_v2(uint64_t address) { say("free"); free((void *)address); return 0; }
int cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    say("pin");
    *memory = malloc(size);
    return 0;
}
int cuMemFreeHost(void *memory) { say("unpin"); free(memory); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    say("to_device %zu %p", size, stream);
    memcpy((void *)to, from, size);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    say("to_host %zu %p", size, stream);
    memcpy(to, (void *)from, size);
    return 0;
}
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void *stream) {
    say("fill %d %zu", value, size);
    memset((void *)address, value, size);
    return 0;
}
int cuModuleLoadData(void **module, const void *image) {
    say("module %.15s", (const char *)image);
    *module = (void *)0x33;
    return 0;
}
int cuModuleUnload(void *module) { say("unload"); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    say("function %s", name);
    *function = (void *)0x44;
    return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    say("set %p %d %d", function, attribute, value);
    return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = 1; return 0; }
int cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
    char attributes[200] = "";
    for (unsigned i = 0; i < config->count; i++) {
        const int *one = config->attributes + 18 * i;
        snprintf(attributes + strlen(attributes), 50, " %d=%d", one[0], one[2]);
    }
    say("launch grid %u %u %u block %u shared %u stream %p function %p last %d attributes%s",
        config->grid[0], config->grid[1], config->grid[2], config->block[0], config->shared,
        config->stream, function, *(int *)parameters[3], attributes);
    return extra == NULL ? 0 : 1;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    say("begin_capture %p %d", stream, mode);
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph) { *graph = (void *)0x55; return 0; }
int cuGraphInstantiateWithFlags(void **exec, void *graph, uint64_t flags) {
    say("instantiate %p", graph);
    *exec = (void *)0x66;
    return 0;
}
int cuGraphDestroy(void *graph) { return 0; }
int cuGraphExecDestroy(void *exec) { say("destroy_graph %p", exec); return 0; }
int cuGraphUpload(void *exec, void *stream) { say("upload %p %p", exec, stream); return 0; }
int cuGraphLaunch(void *exec, void *stream) { say("replay %p %p", exec, stream); return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = (void *)0x77; return 0; }
int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventSynchronize(void *event) { return 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuEventElapsedTime(float *milliseconds, void *start, void *stop) {
    *milliseconds = 0.5f;
    return 0;
}
int cuEventElapsedTime_v2(float *milliseconds, void *start, void *stop) {
    *milliseconds = 0.5f;
    return 0;
}
int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps,
                           int interleave, int swizzle, int promotion, int fill) {
    say("tensor_map aligned %d type %d rank %u dims %d %d stride %d box %u %u steps %u %u "
        "options %d %d %d %d",
        (uint64_t)map % 64 == 0, type, rank, (int)dims[0], (int)dims[1], (int)strides[0], box[0],
        box[1], steps[0], steps[1], interleave, swizzle, promotion, fill);
    memset(map, 0xab, 128);
    return (uint64_t)map % 64 == 0 ? 0 : 1;
}
int cuGetErrorName(int code, const char **text) { *text = "CUDA_ERROR"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "an error"; return 0; }

/* How the bindings find the functions above. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status) {
    static const char *endings[] = {"_v2", "WithFlags", ""};
    void *library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    char symbol[200];
    *function = NULL;
    for (int i = 0; i < 3 && *function == NULL; i++) {
        snprintf(symbol, sizeof symbol, "%s%s", name, endings[i]);
        *function = dlsym(library, symbol);
    }
    if (status) *status = *function == NULL;
    return *function == NULL ? 500 : 0;
}

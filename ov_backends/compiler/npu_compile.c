/* Compiles a model for an Intel NPU with the compiler that ships in OpenVINO's Windows wheel; no NPU is needed.

   npu_compile LIMIT_S MODEL BLOB|- [INPUT=[1,2,3] | KEY=VALUE]...

   INPUT=[...] gives the input of that number a shape, the others are properties of the NPU plugin. The plugin logs to
   stdout; what this program says itself begins with "ovnpu ". After LIMIT_S seconds it ends itself: whoever started it
   may be gone by then. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <windows.h>

typedef struct ov_core ov_core_t;
typedef struct ov_model ov_model_t;
typedef struct ov_compiled_model ov_compiled_model_t;
typedef struct { int64_t min, max; } ov_dimension_t;
typedef struct { ov_dimension_t rank, *dims; } ov_partial_shape_t;

int ov_core_create(ov_core_t **core);
int ov_core_read_model_unicode(const ov_core_t *core, const wchar_t *model, const wchar_t *weights, ov_model_t **out);
int ov_core_compile_model(const ov_core_t *core, const ov_model_t *model, const char *device, size_t values,
                          ov_compiled_model_t **compiled, ...);
int ov_partial_shape_create_static(int64_t rank, const int64_t *dims, ov_partial_shape_t *shape);
int ov_model_reshape_by_port_indexes(const ov_model_t *model, const size_t *inputs, const ov_partial_shape_t *shapes,
                                     size_t count);
int ov_compiled_model_export_model(const ov_compiled_model_t *compiled, const char *path);
const char *ov_get_last_err_msg(void);

enum { MOST = 16, MOST_DIMENSIONS = 16, TIMED_OUT = 124 };

static const char *properties[2 * MOST];
static size_t inputs[MOST];
static ov_partial_shape_t shapes[MOST];
static int property_count, shape_count;

/* Tearing the plugin down is not needed, and can hang without a driver. */
static void leave(int code) {
    fflush(stdout);
    TerminateProcess(GetCurrentProcess(), code);
}

static void require(int status, const char *step) {
    if (!status) return;
    printf("ovnpu failed: %s: %s\n", step, ov_get_last_err_msg());
    leave(1);
}

static DWORD WINAPI end_after(void *seconds) {
    Sleep(1000 * (DWORD)(size_t)seconds);
    printf("ovnpu timed out\n");
    leave(TIMED_OUT);
    return 0;
}

static char *utf8(const wchar_t *text) {
    int size = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *out = malloc(size);
    WideCharToMultiByte(CP_UTF8, 0, text, -1, out, size, NULL, NULL);
    return out;
}

static int take_shape(const char *input, char *list) {
    int64_t dims[MOST_DIMENSIONS];
    int rank = 0;
    for (char *part = strtok(list, "[,]"); part && rank < MOST_DIMENSIONS; part = strtok(NULL, "[,]"))
        dims[rank++] = strtoll(part, NULL, 10);
    inputs[shape_count] = (size_t)atoi(input);
    return ov_partial_shape_create_static(rank, dims, &shapes[shape_count++]);
}

static void take(char *argument) {
    char *value = strchr(argument, '=');
    if (!value || property_count == MOST || shape_count == MOST) {
        printf("ovnpu failed: use: %s\n", argument);
        leave(2);
    }
    *value++ = 0;
    if (*value == '[') {
        require(take_shape(argument, value), "shape");
    } else {
        properties[2 * property_count] = argument;
        properties[2 * property_count++ + 1] = value;
    }
}

int wmain(int argc, wchar_t **argv) {
    ov_core_t *core = NULL;
    ov_model_t *model = NULL;
    ov_compiled_model_t *compiled = NULL;
    if (argc < 4) return 2;
    CreateThread(NULL, 0, end_after, (void *)(size_t)_wtoi(argv[1]), 0, NULL);
    for (int i = 4; i < argc; i++) take(utf8(argv[i]));
    const char **p = properties;
    require(ov_core_create(&core), "start");
    require(ov_core_read_model_unicode(core, argv[2], NULL, &model), "read");
    if (shape_count) require(ov_model_reshape_by_port_indexes(model, inputs, shapes, shape_count), "reshape");
    printf("ovnpu compiling\n");
    fflush(stdout);
    require(ov_core_compile_model(core, model, "NPU", 2 * property_count, &compiled, p[0], p[1], p[2], p[3], p[4], p[5],
                                  p[6], p[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[15], p[16], p[17], p[18],
                                  p[19], p[20], p[21], p[22], p[23], p[24], p[25], p[26], p[27], p[28], p[29], p[30],
                                  p[31]),
            "compile");
    printf("ovnpu compiled\n");
    fflush(stdout);
    if (wcscmp(argv[3], L"-")) require(ov_compiled_model_export_model(compiled, utf8(argv[3])), "export");
    printf("ovnpu done\n");
    leave(0);
    return 0;
}

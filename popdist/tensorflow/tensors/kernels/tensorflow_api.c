#include "tensorflow_api.h"

#include <dlfcn.h>
#include <string.h>

#define DEFINE(type, name, parameters) type(*name) parameters;
TF_FUNCTIONS(DEFINE)
#undef DEFINE

/* A function's name, and where its address goes. */
static const struct {
    const char *name;
    void *to;
} functions[] = {
#define ENTRY(type, name, parameters) {#name, &name},
    TF_FUNCTIONS(ENTRY)
#undef ENTRY
};

const char *find_tensorflow(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return path;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].name);
        if (!address)
            return functions[i].name;
        /* C knows no conversion of an object's address to a function's. */
        memcpy(functions[i].to, &address, sizeof address);
    }
    return NULL;
}

/* The part of TensorFlow's C interface that popdist's operations need. find_tensorflow()
 * looks the functions up in the libraries of the running TensorFlow, so building needs
 * none of its files. A test compiles the declarations against the headers in its wheel. */
#ifndef POPDIST_TENSORFLOW_API_H
#define POPDIST_TENSORFLOW_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;

/* TensorFlow's enumerations, for which gcc takes this type. */
typedef unsigned int TF_Code;
typedef unsigned int TF_DataType;
enum { TF_COMPLEX64 = 8, TF_INT64 = 9, TF_COMPLEX128 = 18 };
enum { TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8, TF_INTERNAL = 13 };

typedef void *(*TF_create)(TF_OpKernelConstruction *);
typedef void (*TF_compute)(void *, TF_OpKernelContext *);
typedef void (*TF_delete)(void *);
typedef void (*TF_infer)(TF_ShapeInferenceContext *, TF_Status *);
typedef void (*TF_deallocate)(void *data, size_t bytes, void *argument);

/* F(type of the result, name, parameters) */
#define TF_FUNCTIONS(F)                                                                     \
    F(TF_Status *, TF_NewStatus, (void))                                                    \
    F(void, TF_DeleteStatus, (TF_Status *))                                                 \
    F(void, TF_SetStatus, (TF_Status *, TF_Code code, const char *text))                    \
    F(TF_Code, TF_GetCode, (const TF_Status *))                                             \
    F(const char *, TF_Message, (const TF_Status *))                                        \
    F(TF_Tensor *, TF_NewTensor,                                                            \
      (TF_DataType type, const int64_t *lengths, int axes, void *data, size_t bytes,        \
       TF_deallocate, void *argument))                                                      \
    F(void, TF_DeleteTensor, (TF_Tensor *))                                                 \
    F(TF_DataType, TF_TensorType, (const TF_Tensor *))                                      \
    F(int, TF_NumDims, (const TF_Tensor *))                                                 \
    F(int64_t, TF_Dim, (const TF_Tensor *, int axis))                                       \
    F(size_t, TF_TensorByteSize, (const TF_Tensor *))                                       \
    F(void *, TF_TensorData, (const TF_Tensor *))                                           \
    F(TF_KernelBuilder *, TF_NewKernelBuilder,                                              \
      (const char *operation, const char *device, TF_create, TF_compute, TF_delete))        \
    F(void, TF_RegisterKernelBuilder, (const char *name, TF_KernelBuilder *, TF_Status *))  \
    F(void, TF_OpKernelConstruction_GetAttrSize,                                            \
      (TF_OpKernelConstruction *, const char *name, int32_t *length, int32_t *total,        \
       TF_Status *))                                                                        \
    F(void, TF_OpKernelConstruction_GetAttrInt64,                                           \
      (TF_OpKernelConstruction *, const char *name, int64_t *value, TF_Status *))           \
    F(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction *, TF_Status *))      \
    F(void, TF_OpKernelContext_Failure, (TF_OpKernelContext *, TF_Status *))                \
    F(void, TF_GetInput, (TF_OpKernelContext *, int, TF_Tensor **, TF_Status *))            \
    F(void, TF_SetOutput, (TF_OpKernelContext *, int, const TF_Tensor *, TF_Status *))      \
    F(TF_Tensor *, TF_ForwardInputOrAllocateOutput,                                         \
      (TF_OpKernelContext *, const int *inputs, int count_of_inputs, int output,            \
       const int64_t *lengths, int axes, int *forwarded, TF_Status *))                      \
    F(TF_OpDefinitionBuilder *, TF_NewOpDefinitionBuilder, (const char *name))              \
    F(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder *, const char *))        \
    F(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder *, const char *))       \
    F(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder *, const char *))      \
    F(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder *, bool))          \
    F(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                \
      (TF_OpDefinitionBuilder *, TF_infer))                                                 \
    F(void, TF_ShapeInferenceContextSetUnknownShape,                                        \
      (TF_ShapeInferenceContext *, TF_Status *))                                            \
    F(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder *, TF_Status *))

/* Each is a pointer to the function of that name. */
#define TF_DECLARE(type, name, parameters) extern type(*name) parameters;
TF_FUNCTIONS(TF_DECLARE)
#undef TF_DECLARE

/* Find all of them in the loaded library of this path, and in the libraries that it needs.
 * Returns the name of a missing function, or NULL. */
const char *find_tensorflow(const char *path);

#endif

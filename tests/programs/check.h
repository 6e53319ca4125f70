/* CHECK: every program of this directory verifies its results with it. */
#ifndef CHECK_H
#define CHECK_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiroba.h>

/* Ends this node with status 1 and a message, formatted like printf's, unless the condition holds. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            check_failed(__FILE__, __LINE__, __VA_ARGS__);                                         \
    } while (0)

static inline void check_failed(const char *file, int line, const char *format, ...)
{
    const char *slash = strrchr(file, '/');
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: node %d of %d: ", slash ? slash + 1 : file, line, hiroba_node(),
            hiroba_nodes());
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* Joins the job. Ends the program with a message if that fails. */
static inline void join(int *argc, char ***argv)
{
    int result = hiroba_init(argc, argv);
    if (result != 0) {
        fprintf(stderr, "hiroba_init: %s (%d)\n", hiroba_error_string(), result);
        exit(1);
    }
}

/* Makes a collective allocation that must succeed. */
static inline void *shared(size_t bytes)
{
    void *region = hiroba_alloc(bytes);
    CHECK(region != NULL, "hiroba_alloc(%lu) failed", (unsigned long)bytes);
    return region;
}

#endif

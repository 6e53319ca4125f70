/* Calls the runtime as the destructors of its thread-local variables are called at a thread's end: by the
 * program's code, on the program's stack. The runtime's allocator needs more memory there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG = 8 << 20 };

static void *nothing(void *argument) {
    return argument;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 1;
    int (*look_up)(const char *, uint64_t *, int64_t);
    *(void **)&look_up = dlsym(RTLD_DEFAULT, "hiroba_port_look_up");
    char *name = malloc(LONG + 1);
    uint64_t port;
    if (look_up == NULL || name == NULL)
        return 1;
    memset(name, 'a', LONG);
    name[LONG] = '\0';
    puts(look_up(name, &port, 0) < 0 ? "refused" : "found");
    return 0;
}

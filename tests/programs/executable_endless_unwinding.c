/*
 * Proves: a crash is reported although looking for its callers never ends. The unwinder asks for the loaded
 * objects, and gets no answer from this program, once it has crashed in the C library.
 *
 *     cc -O2 -pthread -rdynamic -o endless executable_endless_unwinding.c
 *     hiroba run --pthread -n 2 ./endless
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

typedef int callback(struct dl_phdr_info *, size_t, void *);

static volatile int crashes;
static char *volatile nothing = (char *)8;

static void await_for_ever(void)
{
    while (crashes)
        usleep(1000);
}

/* What the unwinder calls in newer C libraries. */
int _dl_find_object(void *address, struct dl_find_object *result)
{
    await_for_ever();
    int (*real)(void *, struct dl_find_object *) = dlsym(RTLD_NEXT, "_dl_find_object");
    return real(address, result);
}

int dl_iterate_phdr(callback *each, void *argument)
{
    await_for_ever();
    int (*real)(callback *, void *) = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return real(each, argument);
}

static void *crash(void *argument)
{
    crashes = 1;
    memset(nothing, 0, (size_t)argument);
    return argument;
}

int main(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, crash, (void *)4096);
    return pthread_join(thread, NULL);
}

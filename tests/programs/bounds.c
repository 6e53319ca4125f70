/*
 * Proves: an access to shared memory that is not allocated ends the program as any bad pointer would, after a
 * message that names the address and the nearest allocation. The first argument chooses the access, which the
 * last node makes; that node prints the address.
 */
#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { BYTES = 5000, PAGE = 4096, PAGES_BYTES = 2 * PAGE };

static volatile unsigned char *touched;

static int is(const char *how, const char *word)
{
    return strcmp(how, word) == 0;
}

static void touch(volatile unsigned char *at)
{
    printf("%#lx\n", (unsigned long)(uintptr_t)at);
    fflush(stdout);
    touched = at;
}

static void *load(void *argument)
{
    (void)argument;
    return (void *)(uintptr_t)(*touched + 1);
}

static void in_run(void *argument)
{
    (void)argument;
    if (hiroba_thread() == hiroba_threads() - 1)
        load(NULL);
    hiroba_barrier();
}

int main(int argc, char **argv)
{
    join(&argc, &argv);
    const char *how = argc > 1 ? argv[1] : "";
    hiroba_options large = {.page_bytes = 65536};
    unsigned char *region = shared(BYTES), *other = hiroba_alloc_with(1, &large), *block = hiroba_malloc(100);
    CHECK(other != NULL && block != NULL, "%s", hiroba_error_string());
    int mine = hiroba_node() == hiroba_nodes() - 1;
    region[0] = other[0] = block[0] = 1;
    hiroba_barrier();
    if (is(how, "after-finalize") || is(how, "block-after-finalize")) {
        hiroba_finalize();
        if (mine) {
            touch(is(how, "after-finalize") ? region : block);
            load(NULL);
        }
        return 0;
    }
    if (mine && is(how, "load"))
        touch(region + PAGES_BYTES);
    else if (mine && is(how, "store"))
        touch(region + PAGES_BYTES + 10);
    else if (mine && is(how, "walk"))
        touch(region);
    else if (mine && is(how, "large"))
        touch(other + 65536);
    else if (mine && is(how, "wild"))
        touch(region + ((size_t)1 << 40));
    else if (mine && (is(how, "thread") || is(how, "run")))
        touch(region + PAGES_BYTES + 20);
    else if (mine && is(how, "private"))
        touch((volatile unsigned char *)16);
    if (is(how, "run"))
        hiroba_run(in_run, NULL);
    if (mine) {
        pthread_t thread;
        if (is(how, "store"))
            *touched = 1;
        else if (is(how, "walk"))
            for (size_t i = 0;; i++)
                touched[i] = (unsigned char)i;
        else if (is(how, "thread"))
            CHECK(pthread_create(&thread, NULL, load, NULL) == 0 && pthread_join(thread, NULL) == 0, "no thread");
        else
            load(NULL);
    }
    hiroba_barrier(); /* nodes that wait here are ended too */
    CHECK(0, "expected load, store, walk, large, wild, thread, run, private, after-finalize or block-after-finalize");
    return 0;
}

/*
 * Proves: addresses of the thread-local variables of a program's library can be given to other threads, which
 * read and write through them. -DLIBRARY makes the library; -DOWN gives the executable such variables, too.
 *
 *     cc -O2 -fPIC -shared -DLIBRARY -o libvariables.so executable_tls_library.c
 *     cc -O2 -pthread -o tls executable_tls_library.c ./libvariables.so && hiroba run --pthread -n 2 ./tls
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LIBRARY

__thread int library_number = 7;
__thread char library_text[5000] = "library"; /* more than a page */
static __thread _Alignas(64) long calls;

char *text_of_library(void)
{
    return library_text;
}

long *count_call(void)
{
    calls++;
    return (unsigned long)&calls % 64 ? NULL : &calls;
}

#else

enum { THREADS = 5, ALL };

extern __thread int library_number;
char *text_of_library(void);
long *count_call(void);

#ifdef OWN
static __thread volatile int own[3] = {1, 2, 3};
#endif
static int *numbers[ALL];
static char *texts[ALL];
static long *counts[ALL];
static pthread_barrier_t all;

static void expect(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

static void *work(void *argument)
{
    const long me = (long)argument;
    expect(library_number == 7 && strcmp(text_of_library(), "library") == 0, "what a thread begins with");
    numbers[me] = &library_number;
    texts[me] = text_of_library();
    counts[me] = count_call();
    expect(counts[me] && *counts[me] == 1, "alignment and zeros");
    library_number += (int)me;
    snprintf(texts[me], 100, "thread %ld", me);
    pthread_barrier_wait(&all);
    for (int other = 0; other < ALL; other++) {
        char text[32];
        snprintf(text, sizeof text, "thread %d", other);
        expect(*numbers[other] == 7 + other && *counts[other] == 1, "the numbers of another thread");
        expect(strcmp(texts[other], text) == 0, "the text of another thread");
    }
    pthread_barrier_wait(&all);
    *numbers[(me + 1) % ALL] += 100;
    pthread_barrier_wait(&all);
    expect(library_number == 107 + me, "what another thread has written");
#ifdef OWN
    expect(own[0] + own[1] + own[2] == 6, "the executable's own variables");
#endif
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&all, NULL, ALL);
    for (long i = 0; i < THREADS; i++)
        expect(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0, "pthread_create");
    work((void *)(long)0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    puts("thread-local variables of a library are shared");
    /* A process that is started has no part in the job. */
    fflush(stdout);
    return system("test -z \"$LD_PRELOAD\"");
}

#endif
